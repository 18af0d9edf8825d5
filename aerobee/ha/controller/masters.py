"""The leading controller's supervision of masters: heartbeats, leases, elections, notices to brokers.

Follows ControllerManager (RocketMQ): a broker is dead when its connection ends, or when it was silent for longer than
the timeout in its heartbeat; if it was a master, the controller elects another one. Beyond RocketMQ: a master that
requested a lease is replaced only when its lease has expired, and a live master is replaced when it reports that its
disk refuses writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from itertools import islice

from aerobee.clock import Clock
from aerobee.errors import AerobeeError, MalformedFrame, NotLeader, QuorumBusy
from aerobee.ha.controller.bodies import master_fields, sync_state_set_body
from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import (
    Candidate,
    CleanBrokerMetadata,
    Command,
    ElectMaster,
    decode_command,
    encode_command,
)
from aerobee.ha.controller.config import LiveControllerConfig
from aerobee.ha.controller.leases import MasterLeases
from aerobee.ha.controller.liveness import BrokerLiveness, Heartbeat
from aerobee.ha.controller.state import ControllerState, Group, Outcome
from aerobee.ha.raft.raft_service import RaftService, RaftStatus
from aerobee.log_throttle import LogThrottle
from aerobee.ordered_set import OrderedSet
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer

NOTICE_TIMEOUT_S = 3.0
RETRY_S = 0.3  # between attempts of one election
GROUP_TASKS_MAX = (
    1_024  # elections and notices under way; elections that do not fit begin when one of them ends
)
# Broker ids whose heartbeats one connection may bring: a broker has one, a process of many brokers some dozens. Its end costs that much.
KEYS_OF_PEER_MAX = 256
GROUPS_A_TURN = 256  # groups checked before other tasks of the event loop run
NAMED_MAX = 8  # brokers that one log line names
log = logging.getLogger("aerobee.controller")

Key = tuple[str, int]  # broker name and id


def _named(keys: list[Key]) -> str:
    """Brokers in one line of the log, however many they are."""
    named = ", ".join(f"broker {broker_id} of {name}" for name, broker_id in keys[:NAMED_MAX])
    return named + (f" and {len(keys) - NAMED_MAX} more" if len(keys) > NAMED_MAX else "")


class Masters:
    """Live brokers and the masters of groups. `start()` in the running loop, `await stop()`."""

    def __init__(
        self,
        *,
        config: LiveControllerConfig,
        state: ControllerState,
        raft: RaftService,
        client: RemotingClient,
        clock: Clock,
    ) -> None:
        self.liveness = BrokerLiveness(clock.monotonic() * 1000)
        self.leases = MasterLeases(config.value.master_lease_millis)
        self._config = config
        self._state = state
        self._raft = raft
        self._client = client
        self._clock = clock
        self._was_serving = False
        # The connection of a broker's last heartbeat The first connection with heartbeats of this id, while
        # it is open: a later one with the same id does not belong to that broker.
        self._via: dict[Key, Peer] = {}
        self._first: dict[Key, Peer] = {}
        self._by_peer: dict[Peer, set[Key]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._wanted: set[str] = set()  # groups whose master is being looked for
        self._changed_ms: dict[str, float] = {}  # time of each group's last change of master, as seen here
        self._deferred: OrderedSet[str] = OrderedSet()  # groups whose election had no space
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._is_stopped = False
        self._throttle = LogThrottle(log, clock.monotonic)

    def start(self) -> None:
        self._spawn(self._look_for_silent(), "controller-scan-brokers")
        self._spawn(self._look_for_masterless(), "controller-scan-masters")

    async def stop(self) -> None:
        self._is_stopped = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def now_ms(self) -> float:
        return self._clock.monotonic() * 1000

    def on_status(self, status: RaftStatus) -> None:
        """This controller begins or ceases to lead."""
        if status.is_serving and not self._was_serving:
            log.info("this controller leads the quorum in term %d", status.term)
            self.leases.begin(self.now_ms)
            self.liveness.begin_leading(self.now_ms)
            self._spawn(self._look_after_beginning(), "controller-scan-first")
        elif self._was_serving and not status.is_serving:
            log.info(
                "this controller does not lead any more, %s does", status.leader or "no known controller"
            )
        self._was_serving = status.is_serving

    # -- heartbeats

    def on_heartbeat(self, peer: Peer, heartbeat: Heartbeat, wants_lease: bool) -> float:
        """Take a heartbeat. Return the milliseconds of lease that are granted, 0 for none.

        Heartbeats of an id that was not given out are ignored: invented names displace no broker.
        """
        now_ms = self.now_ms
        name, broker_id = key = heartbeat.broker_name, heartbeat.broker_id
        if not self._may_follow(peer, key):
            return 0.0
        was_alive = self.liveness.is_alive(name, broker_id, now_ms)
        pushed_out = self.liveness.beat(heartbeat, now_ms)
        if pushed_out is not None:
            self._drop(pushed_out)
            self._throttle.warn(
                "full", "more brokers than a controller keeps: dropped %s", _named([pushed_out])
            )
        if self._via.get(key) is not peer:
            self._follow(peer, key)
        if not self._raft.status.is_leader:
            return 0.0
        is_alive = self.liveness.is_alive(name, broker_id, now_ms)
        if is_alive is not was_alive or not heartbeat.is_disk_sound:
            self.consider(name)
        group = self._state.groups.get(name)
        is_master = (
            group is not None
            and is_alive
            and group.master_id == broker_id
            and group.master_epoch == heartbeat.epoch
        )
        if not (wants_lease and is_master and self._raft.is_leading_surely):
            return 0.0
        return self.leases.grant(name, now_ms)

    def refusal(self, broker_name: str, broker_id: int, address: str, ha_address: str | None = None) -> str:
        """Reason why a broker at `address` must not use this id, because another broker uses it. "" when it may.

        `ha_address` None: it is not said here, which is no other one.

        Two brokers with one id (a directory that was copied) would be one master in one epoch, and both acknowledge.
        """
        holder = self.liveness.holder(broker_name, broker_id, self.now_ms)
        if not (holder and address):
            return ""
        # Its HA port may change with a restart; slaves are known by the host.
        known = self.ha_address(broker_name, broker_id).rpartition(":")[0]
        if holder == address and (ha_address is None or ha_address.rpartition(":")[0] == known):
            return ""
        return (
            f"broker id {broker_id} of {broker_name} is that of the broker at {holder}, which lives: a copied directory must "
            "not keep its brokerIdentity"
        )

    def host_of_master(self, broker_name: str) -> str | None:
        """The host from which the heartbeats of a group's master come; None when there are none.

        Heartbeats are not signed. If several connections send heartbeats with one id, the first one counts while it is
        open: a heartbeat from another host does not make its sender the master's host.
        """
        group = self._state.groups.get(broker_name)
        if group is None:
            return None
        key = (broker_name, group.master_id)
        peer = self._first.get(key) or self._via.get(key)
        return peer.host_port[0] if peer is not None else None

    def _may_follow(self, peer: Peer, key: Key) -> bool:
        group = self._state.groups.get(key[0])
        if group is None or key[1] not in group.replicas:
            return False
        keys = self._by_peer.get(peer)
        if keys is None or key in keys or len(keys) < KEYS_OF_PEER_MAX:
            return True
        self._throttle.warn(
            "connection",
            "%s sends heartbeats of more than %d brokers over one connection: those of %s are not counted",
            peer.address,
            KEYS_OF_PEER_MAX,
            _named([key]),
        )
        return False

    def _follow(self, peer: Peer, key: Key) -> None:
        first, old = self._first.get(key), self._via.get(key)
        if first is None or not first.is_open:
            first = self._first[key] = peer
        if old is not None and old is not first and old in self._by_peer:
            self._by_peer[old].discard(key)
        self._via[key] = peer
        if peer not in self._by_peer:
            self._by_peer[peer] = set()
            peer.on_close(self._peer_closed)
        if peer in self._by_peer:  # on_close calls back immediately when it is closed already
            self._by_peer[peer].add(key)

    def _peer_closed(self, peer: Peer) -> None:
        gone = []
        for key in self._by_peer.pop(peer, set()):
            if self._first.get(key) is peer:
                del self._first[key]
            if self._via.get(key) is peer:
                del self._via[key]
                gone.append(key)
                self.liveness.closed(*key, self.now_ms)
                self.consider(key[0])
        if gone:
            log.info("gone, the connection closed: %s", _named(gone))

    def _drop(self, key: Key) -> None:
        """Its connections are not followed for it any more."""
        for held in (self._via, self._first):
            peer = held.pop(key, None)
            if peer in self._by_peer:
                self._by_peer[peer].discard(key)

    # -- elections

    def consider(self, broker_name: str) -> None:
        """Have a master elected when this group needs one."""
        if (
            not self._raft.status.is_serving
            or broker_name in self._wanted
            or not self._needs_master(broker_name)
        ):
            return
        if len(self._tasks) < GROUP_TASKS_MAX:
            self._wanted.add(broker_name)
            self._spawn(self._find_master(broker_name), f"controller-elect-{broker_name}")
        else:
            self._deferred.add(broker_name)

    def _consider_deferred(self) -> None:
        """Begin elections that had no space. The remaining groups are considered when another task ends, and in the
        next check."""
        for broker_name in list(islice(self._deferred, GROUPS_A_TURN)):
            if len(self._tasks) >= GROUP_TASKS_MAX:
                return
            self._deferred.discard(broker_name)
            self.consider(broker_name)

    def _needs_master(self, broker_name: str) -> bool:
        group = self._state.groups.get(broker_name)
        if group is None or not group.replicas:
            return False
        now_ms = self.now_ms
        if group.master_id:
            return self.liveness.is_surely_gone(
                broker_name, group.master_id, now_ms
            ) or not self._disk_is_sound(group)
        allowed = group.replicas if self._config.value.enable_elect_unclean_master else group.in_sync
        return any(self.liveness.is_alive(broker_name, each, now_ms) for each in allowed)

    def _disk_is_sound(self, group: Group) -> bool:
        beat = self.liveness.last(group.broker_name, group.master_id)
        return beat is None or beat.is_disk_sound

    async def _find_master(self, broker_name: str) -> None:
        try:
            for _ in range(self._config.value.elect_master_max_retry_count):
                try:
                    outcome = await self.elect(broker_name)
                except NotLeader:
                    return
                except QuorumBusy as error:
                    log.warning("no master of %s could be elected: %s", broker_name, error)
                    await self._clock.sleep(RETRY_S)
                    continue
                if outcome.code is ControllerCode.MASTER_NOT_AVAILABLE:
                    log.warning("%s has no master: %s", broker_name, outcome.remark)
                return
        finally:
            self._wanted.discard(broker_name)

    def wait_apart_ms(self, broker_name: str, apart_ms: float) -> float:
        """Wait of a hand-over of this group until no other group's master changed within `apart_ms`.

        0 is a turn that is taken: the next group waits from now on. Clients learn of a new master from their next route; one that
        looks for another group meanwhile must find one that it knows.
        """
        now_ms = self.now_ms
        others = [changed for name, changed in self._changed_ms.items() if name != broker_name]
        wait_ms = max([0.0, *(changed + apart_ms - now_ms for changed in others)])
        if not wait_ms:
            self._changed_ms[broker_name] = now_ms
        return wait_ms

    async def elect(self, broker_name: str, *, requester_id: int = 0, preferred_id: int = 0) -> Outcome:
        """Elect a master, when the one before cannot believe in a lease any more. Raises NotLeader, QuorumBusy."""
        async with self._lock(broker_name):
            if self._is_master_fine(broker_name, preferred_id):
                # No master is replaced, so there is no lease to wait for; the state machine says so.
                return await self._propose_election(broker_name, requester_id, preferred_id)
            self.leases.withhold(broker_name)
            try:
                await self._lease_end(broker_name)
                outcome = await self._propose_election(broker_name, requester_id, preferred_id)
            finally:
                self.leases.release(broker_name)
        if outcome.is_role_changed and outcome.group is not None:
            group = outcome.group
            self._changed_ms[broker_name] = self.now_ms
            log.info(
                "%s: master is %s, epoch %d, in sync %s",
                broker_name,
                f"broker {group.master_id} at {group.master_address}" if group.master_id else "no broker",
                group.master_epoch,
                sorted(group.in_sync),
            )
            if self._config.value.notify_broker_role_changed:
                self._notify(group)
        return outcome

    async def clean(self, command: CleanBrokerMetadata) -> Outcome:
        """Forget brokers; a master among them has lost its lease by then. Raises NotLeader, QuorumBusy."""
        name = command.broker_name
        async with self._lock(name):
            self.leases.withhold(name)
            try:
                group = self._state.groups.get(name)
                gone = set(command.broker_ids)
                if group is not None and group.master_id and (not gone or group.master_id in gone):
                    await self._lease_end(name)
                return await self.propose(command)
            finally:
                self.leases.release(name)

    async def propose(self, command: Command) -> Outcome:
        """Have a command agreed on and return its outcome. Raises NotLeader, QuorumBusy.

        INVALID_REQUEST for one that cannot be read back (a name is too long): in the log it would end each controller.
        """
        data = encode_command(command)
        try:
            decode_command(data)
        except MalformedFrame as error:
            return Outcome(ControllerCode.INVALID_REQUEST, str(error))
        outcome = await self._raft.propose(data)
        assert isinstance(outcome, Outcome)
        return outcome

    def alive(self, broker_name: str) -> tuple[int, ...]:
        """Ids of the living brokers of a group."""
        return tuple(each.broker_id for each in self._candidates(broker_name))

    def _candidates(self, broker_name: str) -> tuple[Candidate, ...]:
        """The living brokers that have an id: heartbeats of others would make a command too large to be one."""
        group = self._state.groups.get(broker_name)
        known = group.replicas if group is not None else {}
        found = self.liveness.candidates(broker_name, self.now_ms)
        return tuple(each for each in found if each.broker_id in known)

    def ha_address(self, broker_name: str, broker_id: int) -> str:
        """HA port of a live broker, from its heartbeat; "" when it does not."""
        beat = self.liveness.last(broker_name, broker_id)
        return beat.ha_address if beat is not None else ""

    def is_alive(self, broker_name: str, broker_id: int) -> bool:
        return self.liveness.is_alive(broker_name, broker_id, self.now_ms)

    def _is_master_fine(self, broker_name: str, preferred_id: int) -> bool:
        group = self._state.groups.get(broker_name)
        if group is None or not group.master_id:
            # No master is replaced. The lease of a deposed one was waited for already.
            return True
        return preferred_id in (0, group.master_id) and self.is_alive(broker_name, group.master_id)

    async def _propose_election(self, broker_name: str, requester_id: int, preferred_id: int) -> Outcome:
        return await self.propose(
            ElectMaster(
                broker_name=broker_name,
                requester_id=requester_id,
                preferred_id=preferred_id,
                is_unclean_allowed=self._config.value.enable_elect_unclean_master,
                candidates=self._candidates(broker_name),
            )
        )

    async def _lease_end(self, broker_name: str) -> None:
        while (left_ms := self.leases.free_at_ms(broker_name) - self.now_ms) > 0:
            await self._clock.sleep(left_ms / 1000)
        if not self._raft.status.is_serving:
            raise NotLeader("this controller does not lead any more", leader=self._raft.status.leader)

    def _lock(self, broker_name: str) -> asyncio.Lock:
        lock = self._locks.get(broker_name)
        if lock is None:
            if len(self._locks) >= GROUP_TASKS_MAX:
                self._locks = {name: each for name, each in self._locks.items() if each.locked()}
            lock = self._locks[broker_name] = asyncio.Lock()
        return lock

    # -- notices

    def _notify(self, group: Group) -> None:
        for broker_id, replica in group.replicas.items():
            if self.is_alive(group.broker_name, broker_id) and len(self._tasks) < GROUP_TASKS_MAX:
                self._spawn(self._tell(replica.address, group), "controller-notice")

    async def _tell(self, address: str, group: Group) -> None:
        request = RemotingCommand(
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            master_fields(group),
            sync_state_set_body(group.in_sync, group.set_epoch),
        )
        try:
            await self._client.invoke_oneway(address, request, timeout_s=NOTICE_TIMEOUT_S)
        except AerobeeError as error:
            log.warning("notifying %s of the master of %s failed: %s", address, group.broker_name, error)

    # -- looks

    async def _look_for_silent(self) -> None:
        while True:
            await self._clock.sleep(self._config.value.scan_not_active_broker_interval / 1000)
            silent = self.liveness.forget_silent(self.now_ms)
            if silent:
                log.warning("silent for too long: %s", _named(silent))
            for at, key in enumerate(silent):
                if at and not at % GROUPS_A_TURN:
                    await asyncio.sleep(0)
                if self.liveness.last(*key) is None:  # it may have come back meanwhile
                    self._drop(key)
                self.consider(key[0])
            self.leases.forget_past(self.now_ms)

    async def _look_for_masterless(self) -> None:
        while True:
            await self._clock.sleep(self._config.value.scan_inactive_master_interval / 1000)
            await self._consider_all()

    async def _look_after_beginning(self) -> None:
        """Brokers that went while no controller led: known when they had time to come back to this controller."""
        for pause_s in (1.6, 8.5):  # CLOSED_GRACE_MS and TIMEOUT_MS of the liveness, and a little
            await self._clock.sleep(pause_s)
            await self._consider_all()

    async def _consider_all(self) -> None:
        for at, name in enumerate(list(self._state.groups)):
            if at and not at % GROUPS_A_TURN:
                await asyncio.sleep(0)
            if not self._raft.status.is_serving:
                return
            self.consider(name)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a fault in %s", task.get_name(), exc_info=error)
        if self._deferred and not self._is_stopped:
            self._consider_deferred()
