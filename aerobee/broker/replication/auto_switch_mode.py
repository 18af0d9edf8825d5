"""Replication in controller mode: epochs in the log, a sync state set that the controllers keep, and a lease.

    members      who may become master next; acknowledgements wait for all of them (needs_all) or for none
    lease        time until which no other broker can be master; checked before a burst is stored, and again before a
                 message that only this broker has is acknowledged: a process that was paused in between acknowledges
                 nothing

RocketMQ waits for any `inSyncReplicas` copies, and may then elect a member without the message. Here a master that
waits at all (inSyncReplicas above 1, or allAckInSyncStateSet) waits for every member, and for at least inSyncReplicas
copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from aerobee.broker.admission.ack import LEASE_IS_OVER, Shortage, too_few
from aerobee.broker.replication.allowed_hosts import host_refusal
from aerobee.broker.replication.auto_switch_follower import AutoSwitchFollower
from aerobee.broker.replication.auto_switch_slave_connection import AutoSwitchSlaveConnection
from aerobee.broker.replication.controller_files import Epochs
from aerobee.broker.replication.ended_slaves import EndedSlaves
from aerobee.broker.replication.ha_mode import FollowState, MasterAddress, ReplicaState
from aerobee.broker.replication.replica_acks import ReplicaAcks, confirmed_by
from aerobee.broker.replication.replica_claims import ReplicaClaims
from aerobee.broker.replication.replica_hosts import ReplicaHosts
from aerobee.clock import Clock
from aerobee.ha.stream.sync_state_set import SyncStateSet
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
NO_LEASE = float("inf")  # the controllers grant no leases (RocketMQ's)


class AutoSwitchMode:
    """The HaMode of controller mode. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        clock: Clock,
        acks: ReplicaAcks,
        copies: ReplicaAcks,
        follower: AutoSwitchFollower,
        epochs: Epochs,
        broker_id: Callable[[], int],
        hosts: ReplicaHosts | None,
    ) -> None:
        """`copies`: offset up to which every counted replica has the log, at least two. `broker_id`: the id that the
        controllers assigned to this broker.

        `hosts`: the hosts of the group's brokers; None when connections to the HA port authenticate in another way.
        """
        self.lease_until_s = float("-inf")  # by the clock's monotonic time
        self.on_set_wanted: Callable[[], None] | None = (
            None  # a replica should enter or leave the sync state set
        )
        self._store = store
        self._clock = clock
        self._ended = EndedSlaves(clock)
        self._acks = acks
        self._copies = copies
        self._follower = follower
        self._epochs = epochs
        self._broker_id = broker_id
        self._next: tuple[frozenset[int], int] = (frozenset(), 0)
        self._set: SyncStateSet | None = None  # while this broker is master
        self._claims = ReplicaClaims(
            clock=clock,
            own_id=broker_id,
            heartbeat_s=lambda: store.config.ha_send_heartbeat_interval / 1000,
            hosts=hosts,
            on_left=self._left,
        )
        self._slaves = self._claims.standing

    # --- state from the controllers

    def prepare(self, members: Iterable[int], set_epoch: int) -> None:
        """The set with which the next mastership begins."""
        self._next = frozenset(members), set_epoch

    def learned(self, members: Iterable[int], set_epoch: int) -> None:
        """The controllers' newest set."""
        if self._set is not None:
            self._set.learned(members, set_epoch)
            self._confirm()

    @property
    def sync_state_set(self) -> SyncStateSet | None:
        """That of this mastership; None at a slave."""
        return self._set

    @property
    def confirm_offset(self) -> int:
        """Offset up to which every broker that may become master has the log, as known here."""
        return self._set.confirm_offset if self._set is not None else self._follower.confirm_offset

    # --- HaMode

    def become_master(self, epoch: int) -> None:
        self._follower.stop_now()
        log_end, epochs = self._store.log.end, self._epochs
        epochs.follow_log(self._store.log.min_offset, log_end)
        if not epochs.entries and log_end > self._store.log.min_offset:
            # A log from before controller mode: its bytes belong to the time before the first epoch.
            epochs.begin(0, self._store.log.min_offset)
        epochs.begin(epoch, log_end)
        members, set_epoch = self._next
        self._set = SyncStateSet(
            self._broker_id(),
            members=members,
            set_epoch=set_epoch,
            epoch_start_offset=epochs.entries[-1].start_offset,
            # After the log's end it would confirm later records before any replica has them.
            confirm_offset=min(self._follower.confirm_offset, log_end),
            needs_all=self._needs_all,
            catch_up_ms_max=self._store.config.ha_max_time_slave_not_catchup,
        )
        self._claims.end_all("another epoch begins")
        self._acks.restart(0)
        self._copies.restart(0)
        if self._set.members == {self._broker_id()}:
            # The next master is a member of the set, and no replica enters the set without the whole log. The
            # services of a master start now and must find the whole log: no broker would check an open
            # transaction that was not read yet.
            self._store.durability.confirm(log_end)
        self._confirm()

    def become_slave(self) -> None:
        self._set = None
        self._claims.end_all("this broker is no master any more")
        self._acks.restart(0)
        self._copies.restart(0)

    def slave_connection(self) -> asyncio.Protocol:
        return AutoSwitchSlaveConnection(
            store=self._store,
            clock=self._clock,
            epochs=self._epochs,
            confirm_offset=lambda: self.confirm_offset,
            is_member=self._is_member,
            on_connected=self._connected,
            claim=self._claims.claim,
            on_ack=self._acknowledged,
            on_lost=self._claims.lost,
            is_urgent=self._is_urgent,
            ended=self._ended,
        )

    def _is_urgent(self) -> bool:
        return self._needs_all or self._copies.waiting_count > 0

    def on_appended(self) -> None:
        for slave in self._slaves:
            slave.wake()
        self._confirm()

    def settings_changed(self) -> None:
        if self._set is not None:
            self._set.set_needs_all(self._needs_all)
            self._confirm()

    async def follow(self, master: MasterAddress) -> None:
        await self._follower.run(master)

    def replicas(self) -> list[ReplicaState]:
        return [slave.state() for slave in self._slaves]

    @property
    def has_replicas(self) -> bool:
        return bool(self._slaves)

    @property
    def members(self) -> frozenset[int]:
        return self._set.members if self._set is not None else frozenset()

    def following(self) -> FollowState | None:
        return None if self._set is not None else self._follower.state()

    @property
    def waits(self) -> bool:
        # Also in a group that waits for no replica: its replies are sent under the lease.
        return True

    @property
    def _needs_all(self) -> bool:
        config = self._store.config
        return config.all_ack_in_sync_state_set or config.in_sync_replicas > 1

    @property
    def may_answer(self) -> Callable[[], bool]:
        mastership = self._set
        return lambda: self._set is mastership and self._has_lease

    @property
    def guards(self) -> bool:
        """`shortage` must be checked whether or not appends wait."""
        return True

    @property
    def shortage(self) -> Shortage | None:
        if not self._has_lease:
            return LEASE_IS_OVER
        needed = self._store.config.min_in_sync_replicas
        if needed > 1 and self._set is not None and len(self._set.members) < needed:
            return too_few(f"{len(self._set.members)} of {needed} replicas are in sync (minInSyncReplicas)")
        return None

    def close(self) -> None:
        self._claims.end_all("this broker stops")

    # --- the master's half

    @property
    def _has_lease(self) -> bool:
        return self._clock.monotonic() < self.lease_until_s

    def renew_lease(self, until_s: float) -> None:
        """The controllers granted a lease; waiting appends are answered. A lease never becomes shorter."""
        if until_s > self.lease_until_s:
            self.lease_until_s = until_s
            self._confirm()

    def wanted(self) -> frozenset[int] | None:
        """The sync state set to request from the controllers; None when the present one is right."""
        found = self._set
        if found is None:
            return None
        return found.wanted(self._clock.monotonic() * 1000, may_renew=self.lease_until_s != NO_LEASE)

    def _is_member(self, broker_id: int) -> bool:
        return self._set is not None and broker_id in self._set.members

    def _connected(self, slave: AutoSwitchSlaveConnection) -> str:
        if self._set is None:
            return "this broker is a slave itself"
        refusal = host_refusal(self._store.config, slave.host)
        if not refusal:
            self._claims.connected(slave)
        return refusal

    def _left(self, slave: AutoSwitchSlaveConnection) -> None:
        """A connection no longer represents its id, and no other one does yet."""
        log.info("the connection of broker %d at %s is closed", slave.broker_id, slave.address)
        if self._set is not None:
            self._set.left(slave.broker_id)
            self._look()

    def _acknowledged(self, slave: AutoSwitchSlaveConnection) -> None:
        found = self._set
        if found is None or slave not in self._slaves:
            return
        found.report(
            slave.broker_id,
            slave.acknowledged,
            own_end=self._store.log.end,
            now_ms=self._clock.monotonic() * 1000,
            is_learner=slave.is_learner,
            may_confirm=self._is_at_all(found) or self._has_lease,
        )
        self._confirm()
        if slave.broker_id not in found.members and not slave.is_learner:
            self._look()

    def _look(self) -> None:
        if self.on_set_wanted is not None and self.wanted() is not None:
            self.on_set_wanted()

    def _is_at_all(self, found: SyncStateSet) -> bool:
        """Whether every broker that may become master has the confirmed bytes."""
        return self._needs_all and len(found.counted) > 1

    def _confirm(self) -> None:
        """Release appends that every member has, in the required number of copies."""
        found = self._set
        if found is None:
            return
        is_at_all = self._is_at_all(found)
        if not is_at_all and not self._has_lease:
            return  # only this broker has it, and another one may be master
        end = self._store.log.end
        confirmed = found.advance(end)
        copies = self._store.config.in_sync_replicas
        # An elected broker is a member, or a replica whose admission is in progress: a message is safe when
        # all of them have it.
        self._copies.advance(found.copied(end, max(2, copies)))
        if copies > 1:
            members = [each.acknowledged for each in self._slaves if each.broker_id in found.members]
            confirmed = min(confirmed, confirmed_by([end, *members], copies))
        assert confirmed <= end, "what is confirmed is in this log"
        self._store.durability.confirm(confirmed)
        self._acks.advance(confirmed, is_at_all=is_at_all)
