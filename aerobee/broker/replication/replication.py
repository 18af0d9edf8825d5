"""The replication of one broker: its role, its HA port, the copy of a master's log, and the acknowledgements that
appends wait for.

    master   slaves connect at the HA port; each burst of appends wakes what sends to them; their reports move `acks`
    slave    a task follows the master, whose address comes from haMasterAddress, a NameServer's answer or the controller

The way that bytes travel is a HaMode: classic_mode.py, or controller mode's. A change of role comes through become_master()
and become_slave() alone, which change RoleState last: its listeners find replication as the role requires it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aerobee.broker.admission.ack import AckPolicy
from aerobee.broker.replication.after_cut import AfterCut
from aerobee.broker.replication.ha_listener import HaListener
from aerobee.broker.replication.ha_mode import FollowState, HaMode, MasterAddress, ReplicaState
from aerobee.broker.replication.metadata_sync import MetadataSync
from aerobee.broker.replication.replica_acks import ReplicaAcks
from aerobee.broker.state.role import Role, RoleState
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

# Address of the master's requests, whether this log is copied from it now -> copies until cancelled what features have besides the log.
CopyFeatures = Callable[[str, Callable[[], bool]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationState:
    """The state of replication now."""

    role: Role
    epoch: int
    log_end: int
    confirmed: int  # enough replicas have the log up to here; 0 where no replica is waited for
    replicas: tuple[ReplicaState, ...]
    members: frozenset[int]  # the sync state set of a master in controller mode; else empty
    reason: str  # why it has this role
    following: FollowState | None


class Replication:
    """start() when the store is open, stop() before it closes. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        role: RoleState,
        ack: AckPolicy,
        acks: ReplicaAcks,
        copies: ReplicaAcks,
        mode: HaMode,
        listener: HaListener,
        metadata: MetadataSync,
        after_cut: AfterCut,
        copy_features: CopyFeatures,
    ) -> None:
        self._copy_features = copy_features
        self.acks = acks
        self._copies = copies
        self._store = store
        self._role = role
        self._ack = ack
        self._mode = mode
        self._listener = listener
        self.metadata = metadata
        self.after_cut = after_cut
        self._tasks: list[asyncio.Task[None]] = []
        self._master: MasterAddress | None = None
        self._is_slave = not role.takes_writes
        store.on_reconfigured(self._settings_changed)

    @property
    def mode(self) -> HaMode:
        """How the log travels: classic, or controller mode's."""
        return self._mode

    @property
    def master(self) -> MasterAddress | None:
        """Whom this slave follows, if it knows."""
        return self._master

    def start(self) -> None:
        """Begin as what the role says; a slave waits for become_slave() to learn whom it follows."""
        self.after_cut.begin()
        self._listener.serve(self._mode.slave_connection)
        if self._role.takes_writes:
            self._serve(self._role.epoch)
        else:
            self._store.refuse_messages("this broker is a slave: send to its master")
            self._mode.become_slave()

    def become_master(self, epoch: int = 0, *, reason: str = "it was made one") -> None:
        """Stop following and take messages, in an epoch that is not below the one before (RoleState.change)."""
        self._stop_following()
        self._serve(epoch)
        self._role.change(Role.MASTER, reason, epoch=max(epoch, self._role.epoch))

    def become_slave(
        self,
        master_ha_address: str,
        epoch: int = 0,
        *,
        master_address: str = "",
        reason: str = "it has a master",
    ) -> None:
        """Refuse messages and follow the broker whose HA port is at `master_ha_address`; "" waits until it is known.

        `master_address` is where the master answers requests. Called with the same addresses it changes nothing.
        """
        master = MasterAddress(ha=master_ha_address, broker=master_address) if master_ha_address else None
        if not self._is_slave:
            self._store.refuse_messages("this broker is a slave: send to its master")
            self._store.on_burst(None)
            self._ack.set_replication(None)
            self._ack.set_copies(None)
            self._mode.become_slave()
            self._is_slave = True
        if master != self._master:
            self._stop_following()
            self._master = master
            if master is not None:
                log.info(
                    "this broker follows the master at %s (requests: %s)",
                    master.ha,
                    master.broker or "unknown",
                )
                self._tasks = [asyncio.create_task(self._mode.follow(master), name="ha-follow")]
                if master.broker:
                    self._tasks += (
                        asyncio.create_task(self.metadata.run(master.broker), name="ha-metadata"),
                        asyncio.create_task(
                            self._copy_features(master.broker, self._is_copying), name="ha-features"
                        ),
                    )
        self._role.change(
            Role.SLAVE, reason, epoch=max(epoch, self._role.epoch), is_provisional=master is None
        )

    def state(self) -> ReplicationState:
        """For admin requests and `aerobee doctor`."""
        return ReplicationState(
            role=self._role.role,
            epoch=self._role.epoch,
            log_end=self._store.log.end,
            confirmed=self.acks.value,
            replicas=tuple(self._mode.replicas()),
            members=self._mode.members,
            reason=self._role.reason,
            following=self._mode.following(),
        )

    async def stop(self) -> None:
        """Take no connections, close the open ones, follow no broker."""
        await self._listener.close()
        self._store.on_burst(None)
        self._ack.set_replication(None)
        self._mode.close()
        tasks = self._tasks
        self._stop_following()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.after_cut.stop()

    # ---

    def _is_copying(self) -> bool:
        following = self._mode.following()
        return following is not None and following.is_connected

    def _serve(self, epoch: int) -> None:
        self._is_slave = False
        self._mode.become_master(epoch)
        # A master that waits for replicas and has none confirms by itself, immediately.
        mode = self._mode
        # When replies wait for replicas, each burst is reported immediately; else many bursts are reported
        # together, a moment later.
        self._store.on_burst(mode.on_appended, lambda: mode.waits, lambda: mode.has_replicas)
        self._store.refuse_messages("")
        self._ask_mode()

    def _settings_changed(self) -> None:
        """Apply changed settings to the number of replicas that appends wait for."""
        self._ask_mode()
        self._mode.settings_changed()

    def _ask_mode(self) -> None:
        is_master = not self._is_slave
        self._ack.set_copies(self._copies if is_master else None)
        if is_master and self._mode.waits:
            self._ack.set_replication(self.acks, self._mode.may_answer)
        else:
            self._ack.set_replication(None)
        self._ack.refuse_on((lambda: self._mode.shortage) if is_master and self._mode.guards else None)

    def _stop_following(self) -> None:
        tasks, self._tasks, self._master = self._tasks, [], None
        for task in tasks:
            task.cancel()
