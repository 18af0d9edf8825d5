"""Classic replication: the configuration names the master and its slaves; there are no epochs.

A SYNC_MASTER waits until `inSyncReplicas` copies, its own included, have a message. Every connected slave counts, as
with RocketMQ. With enableSlaveActingMaster fewer than that many in sync refuse a message before it is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.admission.ack import Shortage, too_few
from aerobee.broker.replication.allowed_hosts import host_refusal
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.ha_mode import FollowState, MasterAddress, ReplicaState
from aerobee.broker.replication.replica_acks import ReplicaAcks, confirmed_by
from aerobee.broker.replication.unproven_connections import SLAVES_MAX, one_too_many
from aerobee.clock import Clock
from aerobee.ordered_set import OrderedSet
from aerobee.store.files.config import BrokerRole
from aerobee.store.message_store import MessageStore

if TYPE_CHECKING:  # loaded only for a broker with slaves or a master
    from aerobee.broker.replication.classic_follower import ClassicFollower
    from aerobee.broker.replication.classic_slave_connection import ClassicSlaveConnection

log = logging.getLogger(__name__)


class ClassicMode:
    """The HaMode of classic replication. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        acks: ReplicaAcks,
        copies: ReplicaAcks,
        make_follower: Callable[[], ClassicFollower],
        is_guarded: Callable[[], bool],
    ) -> None:
        """`make_follower` is called once, when this broker follows a master. `copies`: offset up to which at least two
        copies have the log.

        `is_guarded`: too few replicas refuse messages (enableSlaveActingMaster on a SYNC_MASTER).
        """
        self._store = store
        self._clock = clock
        self._ended = EndedSlaves(clock)
        self._acks = acks
        self._two_copies = copies
        self._make_follower = make_follower
        self._follower: ClassicFollower | None = None
        self._is_guarded = is_guarded
        self._is_master = False
        self._slaves: OrderedSet[ClassicSlaveConnection] = OrderedSet()

    def become_master(self, epoch: int) -> None:
        self._is_master = True
        self._acks.restart(0)
        self._two_copies.restart(0)
        self._confirm()

    def become_slave(self) -> None:
        self._is_master = False
        self._end_slaves("this broker is no master any more")
        self._acks.restart(0)
        self._two_copies.restart(0)

    def slave_connection(self) -> asyncio.Protocol:
        from aerobee.broker.replication.classic_slave_connection import ClassicSlaveConnection

        return ClassicSlaveConnection(
            store=self._store,
            clock=self._clock,
            admit=self._admit,
            on_ack=self._acknowledged,
            on_lost=self._lost,
            is_urgent=self._is_urgent,
            ended=self._ended,
        )

    def _is_urgent(self) -> bool:
        return self.waits or self._two_copies.waiting_count > 0

    def on_appended(self) -> None:
        for slave in self._slaves:
            slave.wake()

    def settings_changed(self) -> None:
        if self._is_master:
            self._confirm()

    async def follow(self, master: MasterAddress) -> None:
        await self._made_follower().run(master)

    def replicas(self) -> list[ReplicaState]:
        return [slave.state() for slave in self._slaves]

    @property
    def has_replicas(self) -> bool:
        return bool(self._slaves)

    @property
    def members(self) -> frozenset[int]:
        return frozenset()

    def following(self) -> FollowState | None:
        return None if self._is_master else self._made_follower().state()

    def _made_follower(self) -> ClassicFollower:
        if self._follower is None:
            self._follower = self._make_follower()
        return self._follower

    @property
    def waits(self) -> bool:
        config = self._store.config
        return config.broker_role is BrokerRole.SYNC_MASTER and config.in_sync_replicas > 1

    @property
    def may_answer(self) -> None:
        return None

    @property
    def guards(self) -> bool:
        return self.waits

    @property
    def shortage(self) -> Shortage | None:
        if not self._is_guarded():
            return None
        present, needed = self._present(), self._copies()
        return None if present >= needed else too_few(f"{present} of {needed} replicas are in sync")

    def close(self) -> None:
        self._end_slaves("this broker stops")

    # --- the master's half

    def _admit(self, slave: ClassicSlaveConnection) -> str:
        if not self._is_master:
            return "this broker is a slave itself"
        refusal = host_refusal(self._store.config, slave.host)
        if refusal:
            return refusal
        for other in self._slaves:
            # Perhaps the same slave, whose machine lost power and restarted: two connections would confirm as
            # two copies.
            other.is_in_doubt = other.is_in_doubt or other.host == slave.host
        if len(self._slaves) >= SLAVES_MAX:
            waiting = [other for other in self._slaves if not other.has_begun]
            if not waiting:
                return f"{SLAVES_MAX} slaves are connected at the HA port"
            victim = one_too_many(waiting, lambda each: each.host)
            self._slaves.discard(victim)
            victim.end(
                f"{SLAVES_MAX} connections are open at the HA port, and it has not reported its start offset"
            )
        self._slaves.add(slave)
        return ""

    def _lost(self, slave: ClassicSlaveConnection) -> None:
        if slave in self._slaves:
            self._slaves.discard(slave)
            log.info("the connection of the slave at %s is closed", slave.address)

    def _acknowledged(self, slave: ClassicSlaveConnection) -> None:
        self._confirm()

    def _confirm(self) -> None:
        """Release appends that enough copies have. The master's own copy counts completely: its disk is checked
        separately."""
        offsets = [
            self._store.log.end,
            *(
                slave.acknowledged
                for slave in self._slaves
                if slave.acknowledged > 0 and not slave.is_in_doubt
            ),
        ]
        assert max(offsets) == self._store.log.end, "no slave has more than this log"
        self._acks.advance(confirmed_by(offsets, self._copies()))
        self._two_copies.advance(confirmed_by(offsets, max(2, self._copies())))

    def _present(self) -> int:
        """Number of copies in sync, including the master's."""
        return 1 + sum(slave.state().is_in_sync and not slave.is_in_doubt for slave in self._slaves)

    def _copies(self) -> int:
        """Number of copies that an acknowledgement waits for."""
        config = self._store.config
        if not (self._is_guarded() and config.enable_auto_in_sync_replicas):
            return config.in_sync_replicas
        return max(config.min_in_sync_replicas, min(config.in_sync_replicas, self._present()))

    def _end_slaves(self, reason: str) -> None:
        for slave in list(self._slaves):
            slave.end(reason)
        self._slaves.clear()
