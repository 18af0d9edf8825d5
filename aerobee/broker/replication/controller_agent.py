"""Controller mode at a broker: communication with the controllers, and role changes (ReplicasManager of RocketMQ).

    id        read from brokerIdentity, or requested: next id -> temporary file -> apply -> file
    register  1003, then 1002 when no broker leads the group
    run       heartbeats to every controller; reads the group's state every few seconds and after each hint of a change
              (a notice 1008, a heartbeat's reply, a refusal); the master requests changes of the sync state set

A notice is only a hint: the reply of the leading controller counts. Invariants:

- An epoch that does not exceed the newest known one changes no role.
- A restarted broker does not resume the mastership of its previous run: slaves would truncate the part of the log that this broker lost. It reports that it cannot lead until the controllers have elected again, by the longest log.
- A broker whose disk refuses writes reports this and resigns its mastership.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from aerobee.broker.replication.auto_switch_mode import NO_LEASE, AutoSwitchMode
from aerobee.broker.replication.controller_client import ControllerClient, GroupState, HeartbeatAnswer
from aerobee.broker.replication.controller_files import Epochs, IdentityFiles
from aerobee.broker.replication.replica_hosts import ReplicaHosts
from aerobee.broker.replication.replication import Replication
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.clock import Clock
from aerobee.errors import AerobeeError, ConnectFailed, RemoteError, TransportError, UsageError
from aerobee.ha.stream.broker_identity import HeldId
from aerobee.host_port import PORT_MAX, join_address, split_address
from aerobee.remoting.codes import ResponseCode
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
RETRY_S = 1.0
HINT_PAUSE_S = 0.02  # several hints within this time cause one query
LEASES_PER_LEASE = 4  # heartbeats of a master in the time of one lease
HEARTBEAT_TIMEOUT_S = 2.0
SET_RETRY_S = 0.5


class ControllerAgent:
    """Keeps the broker's role consistent with the controllers. Belongs to the event loop."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        identity: BrokerIdentity,
        store: MessageStore,
        clock: Clock,
        client: ControllerClient,
        files: IdentityFiles,
        epochs: Epochs,
        on_role: Callable[[int], None],
        hosts: ReplicaHosts | None = None,
    ) -> None:
        """`hosts` lives as long as the agent. `on_role` is called with the master's epoch whenever a role began or another master was found."""
        self.broker_id = 0  # 0 until the controllers gave one
        self.replication: Replication
        self.mode: AutoSwitchMode
        self._live = live
        self._identity = identity
        self._store = store
        self._clock = clock
        self._client = client
        self._files = files
        self._epochs = epochs
        self._on_role = on_role
        self._hosts = hosts
        self._group = GroupState()
        self._master_of_epoch = -1  # epoch of this run's mastership
        self._resigns_epoch = -1  # epoch of a previous run's mastership
        self._ha_of: tuple[str, str] = ("", "")  # a master's address, and its HA port from a NameServer
        self._lease_ms: int | None = 0  # lease of the last reply; None: the controllers do not support leases
        self._knows_leases = False  # a controller has granted a lease before
        self._has_answer = asyncio.Event()  # a heartbeat was answered
        self._is_known = asyncio.Event()  # the role was applied once
        self._hint = asyncio.Event()
        self._set_hint = asyncio.Event()
        self._beat_now: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._trouble = ""
        self._refused_by: dict[
            str, str
        ] = {}  # controllers that know another broker by this id -> their reason

    @property
    def addresses(self) -> tuple[str, ...]:
        """Configured addresses of the controllers."""
        return tuple(part.strip() for part in self._live.value.controller_addr.split(";") if part.strip())

    async def start(self, wait_s: float) -> None:
        """Begin; return when the role is known or that time has passed. Raises StoreError for files that cannot be used."""
        held = self._files.read(self._identity.cluster, self._identity.name)
        self.broker_id = held.broker_id if held is not None else 0
        self.mode.on_set_wanted = self._set_hint.set
        if self._hosts is not None:
            self._hosts.start()
        self._spawn(self._run(), "controller-agent")
        try:
            async with asyncio.timeout(wait_s):
                await self._is_known.wait()
        except TimeoutError:
            log.warning("the controllers have not reported a master yet: %s", self._trouble or "no answer")

    async def stop(self) -> None:
        """End the tasks; the controllers notice that the connections end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._hosts is not None:
            await self._hosts.stop()

    def hint(self) -> None:
        """The group may have changed: query the controllers."""
        self._hint.set()

    def out_of_sync(self) -> str:
        """Reason why this broker is not in its group's sync state set, by the controllers' last reply, or is master but
        refuses messages; empty when healthy. Used by rolling restarts."""
        name, group = self._identity.name, self._group
        if not self.broker_id:
            return f"the controllers have given no id yet: {self._trouble or 'no answer'}"
        if not group.master_id:
            return f"{name} has no master"
        if group.master_id == self.broker_id:
            if not self._is_master:
                return f"the controllers name this broker master of {name} by a mastership that it gave up"
            if self._clock.monotonic() >= self.mode.lease_until_s:
                return f"this broker is master of {name} without a lease"
            return ""
        if self.broker_id not in group.members and not self._store.config.async_learner:
            return f"broker {self.broker_id} is not in the sync state set of {name}: {sorted(group.members)}"
        return ""

    async def hand_over(self, reason: str) -> bool:
        """Hand this broker's mastership to another member that has the whole log, because of `reason`; returns whether
        another one leads now.

        The controllers refuse a member that is not alive or not in sync any more: then this broker stays master.
        """
        if not self._is_master:
            return False
        epoch = self._master_of_epoch
        able = [
            each for each in self.mode.replicas() if each.is_in_sync and each.broker_id in self.mode.members
        ]
        for replica in sorted(able, key=lambda each: -each.acknowledged):
            log.error(
                "asking the controllers to make broker %d master of %s: %s",
                replica.broker_id, self._identity.name, reason,
            )  # fmt: skip
            try:
                state = await self._client.elect(
                    self.addresses, replica.broker_id, self._clock.now_ms(), is_designated=True
                )
            except AerobeeError as error:
                log.warning("broker %d was not made master: %s", replica.broker_id, error)
                continue
            self._hint.set()
            if state.master_epoch > epoch and state.master_id != self.broker_id:
                return True
        return False

    def nameserver_says(self, master_address: str, ha_address: str) -> None:
        """A NameServer's answer to a slave's registration."""
        if ha_address and (master_address, ha_address) != self._ha_of:
            followed = self._ha_address(master_address)
            self._ha_of = master_address, ha_address
            is_followed = self._group.master_address == master_address and self._master_of_epoch < 0
            if is_followed and ha_address != followed:
                self._follow(self._group)

    # --- id and state

    async def _run(self) -> None:
        while not (await self._tried(self._obtain_id) and self.broker_id):
            await self._clock.sleep(RETRY_S)
        for address in self.addresses:
            event = asyncio.Event()
            self._beat_now.append(event)
            self._spawn(self._send_heartbeats(address, event), f"controller-heartbeat-{address}")
        self._spawn(self._keep_set(), "controller-set")
        while not await self._tried(self._register):
            await self._clock.sleep(RETRY_S)
        while True:
            is_known = await self._tried(self._ask)
            await self._pause(is_known)

    async def _pause(self, is_known: bool) -> None:
        period_s = self._live.value.sync_controller_metadata_period / 1000
        if not is_known or not self._group.master_id or self.out_of_sync():
            period_s = min(period_s, RETRY_S)
        timer = self._clock.call_later(period_s, self._hint.set)
        try:
            await self._hint.wait()
        finally:
            timer.cancel()
        await self._clock.sleep(HINT_PAUSE_S)
        self._hint.clear()

    async def _tried(self, step: Callable[[], Coroutine[object, object, None]]) -> bool:
        try:
            await step()
        except (AerobeeError, TimeoutError) as error:
            self._say(str(error) or "no answer to a heartbeat")
            return False
        except Exception as error:
            # Boundary of the task: a broker that silently stopped querying would keep an ended role.
            log.exception("querying the controllers failed; trying again")
            self._say(repr(error))
            return False
        if self._trouble:
            log.info("the controllers answer again")
            self._trouble = ""
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("the controllers: %s; trying again", trouble)

    async def _obtain_id(self) -> None:
        if self.broker_id:
            return
        cluster, name = self._identity.cluster, self._identity.name
        asked = self._files.read_temporary(cluster, name)
        if asked is None:
            broker_id = await self._client.next_broker_id(self.addresses)
            check_code = f"{self._identity.address};{self._clock.now_ms()}"
            asked = HeldId(cluster=cluster, name=name, broker_id=broker_id, check_code=check_code)
            self._files.write_temporary(asked)
        try:
            await self._client.apply_broker_id(self.addresses, asked.broker_id, asked.check_code)
        except RemoteError as error:
            if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                raise
            self._files.forget_temporary()
            log.info("another broker of %s took id %d first; asking for the next", name, asked.broker_id)
            return
        self._files.write(HeldId(cluster=cluster, name=name, broker_id=asked.broker_id))
        self.broker_id = asked.broker_id
        log.info("this broker is broker %d of %s at the controllers", self.broker_id, name)

    async def _register(self) -> None:
        state = await self._client.register(
            self.addresses, self.broker_id, self._identity.address, self._clock.now_ms()
        )
        # The first reply to a heartbeat shows whether the controllers support leases, and so resignations.
        async with asyncio.timeout(2 * HEARTBEAT_TIMEOUT_S):
            await self._has_answer.wait()
        if state.master_id:
            self._apply(state)

    async def _ask(self) -> None:
        state = await self._client.group(self.addresses)
        if not state.master_id:
            self._apply(state)
            if self._is_sound and not self._store.config.async_learner:
                await self._client.elect(self.addresses, self.broker_id, self._clock.now_ms())
                state = await self._client.group(self.addresses)
        self._apply(state)

    # --- roles

    def _apply(self, state: GroupState) -> None:
        """Apply the role from the controllers."""
        known = self._group
        if state.master_epoch < known.master_epoch:
            return  # an outdated reply
        is_new = (state.master_epoch, state.master_id) != (known.master_epoch, known.master_id)
        if not is_new and state.set_epoch < known.set_epoch:
            return
        self._group = state
        if state.master_id == self.broker_id:
            self._lead(state)
        elif is_new or not self._is_known.is_set():
            self._follow(state)
        if state.master_id:
            self._is_known.set()

    def _lead(self, state: GroupState) -> None:
        if state.master_epoch == self._master_of_epoch:
            self.mode.learned(state.members, state.set_epoch)
            return
        if self._taken_reason:
            return  # the controllers made the other one master
        if self._store.pending_cut is not None:
            return  # the next heartbeat tries again
        if state.master_epoch <= self._epochs.last_epoch and self._lease_ms is not None:
            if self._resigns_epoch != state.master_epoch:
                log.warning(
                    "an earlier run of this broker was master in epoch %d: asking the controllers to elect again",
                    state.master_epoch,
                )
                self._resigns_epoch = state.master_epoch
                self._beat()
            return
        self.mode.prepare(state.members, state.set_epoch)
        self.replication.become_master(
            state.master_epoch, reason=f"the controllers made it master in epoch {state.master_epoch}"
        )
        self._master_of_epoch = state.master_epoch  # its start is on disk: a lease may be requested
        self._beat()
        self._on_role(state.master_epoch)

    def _follow(self, state: GroupState) -> None:
        self._master_of_epoch = -1
        self.mode.lease_until_s = float("-inf")
        ha = self._ha_address(state.master_address) if state.master_id else ""
        reason = (
            f"broker {state.master_id} is master in epoch {state.master_epoch}"
            if state.master_id
            else f"no broker is master in epoch {state.master_epoch}"
        )
        self.replication.become_slave(
            ha, state.master_epoch, master_address=state.master_address, reason=reason
        )
        self._beat()
        self._on_role(state.master_epoch)

    def _ha_address(self, master_address: str) -> str:
        """The HA port from a NameServer, else the port after the master's, the default of RocketMQ and Aerobee."""
        if self._ha_of[0] == master_address:
            return self._ha_of[1]
        return ha_address_behind(master_address)

    @property
    def _is_master(self) -> bool:
        return self._master_of_epoch >= 0

    @property
    def _is_sound(self) -> bool:
        """Whether its disk accepts writes, and no mastership of a previous run is recorded."""
        if self._group.master_id == self.broker_id and self._resigns_epoch == self._group.master_epoch:
            return False
        return self._store.writability.is_sound and self._store.pending_cut is None

    # --- heartbeats

    def _beat(self) -> None:
        for event in self._beat_now:
            event.set()

    async def _send_heartbeats(self, address: str, now: asyncio.Event) -> None:
        while True:
            now.clear()
            try:
                await self._heartbeat(address)
            except TransportError:
                pass  # the query for the group reports the error once
            except AerobeeError as error:
                self._say(str(error))
            except Exception:
                log.exception("a heartbeat to the controller at %s failed", address)
            timer = self._clock.call_later(self._heartbeat_interval_s, now.set)
            try:
                await now.wait()
            finally:
                timer.cancel()

    @property
    def _heartbeat_interval_s(self) -> float:
        interval_s = self._live.value.broker_heartbeat_interval / 1000
        if self._is_master and self._lease_ms:
            return min(interval_s, self._lease_ms / 1000 / LEASES_PER_LEASE)
        if self._is_master and self._lease_ms == 0:
            return min(interval_s, 0.1)  # the broker has no lease and waits for one
        return interval_s

    async def _heartbeat(self, address: str) -> None:
        config = self._live.value
        epoch = self._group.master_epoch if self._is_master else self._epochs.last_epoch
        is_sound = self._is_sound
        if not is_sound and self._lease_ms is None:
            return  # controllers without support for resignations treat missing heartbeats as a resignation
        sent_s = self._clock.monotonic()
        ext = {
            "clusterName": self._identity.cluster,
            "brokerName": self._identity.name,
            "brokerAddr": self._identity.address,
            "haAddress": self._identity.ha_address,
            "brokerId": str(self.broker_id),
            "epoch": str(epoch),
            "maxOffset": str(self._store.log.end),
            "confirmOffset": str(self.mode.confirm_offset),
            "heartbeatTimeoutMills": str(config.controller_heart_beat_timeout_mills),
            "electionPriority": str(config.broker_election_priority),
            "diskSound": "true" if is_sound else "false",
            "asyncLearner": "true" if self._store.config.async_learner else "false",
        }
        try:
            answer = await self._client.heartbeat(address, ext, HEARTBEAT_TIMEOUT_S)
        except RemoteError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                self._refused_by[address] = str(error)
                self._give_way()
            raise
        self._refused_by.pop(address, None)
        self._take_answer(answer, sent_s, epoch)
        self._has_answer.set()

    @property
    def _taken_reason(self) -> str:
        """Reason why this broker must not use its id, by a majority of controllers; "" when it may."""
        is_taken = 2 * len(self._refused_by) > len(self.addresses)
        return next(iter(self._refused_by.values())) if is_taken else ""

    def _give_way(self) -> None:
        """Another live broker uses this id and is registered at the controllers: this broker is no longer master."""
        reason = self._taken_reason
        if reason and self._is_master:
            self._master_of_epoch = -1
            self.mode.lease_until_s = float("-inf")
            self.replication.become_slave("", self._group.master_epoch, reason=reason)
            self._on_role(self._group.master_epoch)

    def _take_answer(self, answer: HeartbeatAnswer, sent_s: float, epoch: int) -> None:
        if answer.lease_ms is None:
            if self._knows_leases:
                return  # a NameServer at one of the addresses accepts heartbeats, too, but decides nothing
            self._lease_ms = None
            self.mode.renew_lease(NO_LEASE)
            return
        self._knows_leases = True
        if self._lease_ms is None:
            self._lease_ms = 0
            self.mode.lease_until_s = float("-inf")
        if answer.lease_ms and self._is_master and epoch == self._master_of_epoch:
            self._lease_ms = answer.lease_ms
            # Counted from the request: the controller counts from its reply.
            self.mode.renew_lease(sent_s + answer.lease_ms / 1000)
        seen = answer.group
        if seen is not None and (seen.master_epoch, seen.master_id) > (
            self._group.master_epoch,
            self._group.master_id,
        ):
            self._hint.set()

    # --- the sync state set

    async def _keep_set(self) -> None:
        while True:
            timer = self._clock.call_later(
                self._live.value.check_sync_state_set_period / 1000, self._set_hint.set
            )
            try:
                await self._set_hint.wait()
            finally:
                timer.cancel()
            self._set_hint.clear()
            try:
                await self._change_set()
            except Exception:
                log.exception("keeping the sync state set failed; trying again")
                await self._clock.sleep(SET_RETRY_S)

    async def _change_set(self) -> None:
        found, wanted, group = self.mode.sync_state_set, self.mode.wanted(), self._group
        if found is None or wanted is None or not self._is_master:
            return
        found.ask(wanted)
        state = GroupState(
            master_id=group.master_id,
            master_address=group.master_address,
            master_epoch=group.master_epoch,
            set_epoch=found.set_epoch,
        )
        try:
            changed = await self._client.alter_set(self.addresses, state, wanted, self._clock.now_ms())
        except RemoteError as error:
            if self._is_definite(error.code):
                found.refused()
                log.info("the sync state set %s was refused: %s", sorted(wanted), error)
            else:
                found.unanswered()
            self._hint.set()
            await self._clock.sleep(SET_RETRY_S)
            self._set_hint.set()
            return
        except AerobeeError as error:
            if isinstance(error, ConnectFailed):
                found.refused()  # the request reached no controller: none will grant it
            else:
                found.unanswered()
            self._say(str(error))
            self._hint.set()
            await self._clock.sleep(SET_RETRY_S)
            self._set_hint.set()
            return
        log.info("in sync are %s, set %d", sorted(changed.members), changed.set_epoch)
        self._apply(changed)
        self._set_hint.set()

    def _is_definite(self, code: int) -> bool:
        """Whether this reply to a request for a set means that the request will never be granted.

        RocketMQ's controllers also reply CONTROLLER_NOT_LEADER when they lost the leadership with the change in their
        log, which the next leader may commit. Aerobee's reply it for a change that was not proposed or was replaced.
        """
        if code == ResponseCode.CONTROLLER_NOT_LEADER:
            return self._knows_leases
        return (
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH <= code <= ResponseCode.CONTROLLER_BROKER_ID_INVALID
        )

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))


def ha_address_behind(master_address: str) -> str:
    """The port behind that of a master's requests; "" for an address that has none."""
    try:
        host, port = split_address(master_address)
    except UsageError:
        return ""
    return join_address(host, port + 1) if port < PORT_MAX else ""
