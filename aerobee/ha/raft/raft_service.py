"""A Raft replica in the running event loop: its inputs one after the other in a dedicated thread, its timers by a clock.

    deliver / propose / read  ->  inbox  ->  one step in the thread: inputs, tick, syncs  ->  messages, answers, status

The event loop never waits for the disk. The loop sends messages and answers callers when the step has ended,
so no message states what is not durable yet. A failing storage ends the service: it calls `on_failed`, fails
every pending call with the storage's error, and sends nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from aerobee.clock import Clock
from aerobee.errors import AerobeeError, NotLeader, QuorumBusy, StoreError, WireError
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Membership
from aerobee.ha.raft.inbox import Inbox
from aerobee.ha.raft.messages import Message
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.replica import Outcome, Replica, StateMachine
from aerobee.ha.raft.storage import RaftFiles
from aerobee.log_throttle import LogThrottle
from aerobee.ordered_set import OrderedSet
from aerobee.store.files.disk import Disk

STEP_INPUTS_MAX = 256
# A step takes no further input after this time: messages and heartbeats leave only when the step has ended,
# and a message may cost a sync of the disk. The sync of the step's proposals comes in addition.
STEP_MAX_S = 0.05
log = logging.getLogger("aerobee.controller")
T = TypeVar("T")


class Runner(Protocol):
    """Runs blocking functions off the event loop, one at a time."""

    def __call__(self, work: Callable[[], _Step], /) -> Awaitable[_Step]: ...


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """This member's view of the group after its last step.

    `is_serving`: it leads and has applied every command that earlier leaders acknowledged. `lease_until_s`:
    no other node can be elected before this time (monotonic seconds of the clock).
    """

    is_leader: bool = False
    is_serving: bool = False
    leader: str = ""  # "" when none is known
    term: int = 0
    lease_until_s: float = float("-inf")
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    is_unrecognized: bool = False  # the quorum knows another data directory for this id


@dataclass(slots=True)
class _Step:
    """Output of one step, and the number of its inputs."""

    taken: int = 0
    messages: list[Message] = field(default_factory=list)
    answers: list[Callable[[], None]] = field(default_factory=list)
    status: RaftStatus = RaftStatus()
    deadline_s: float = 0.0
    failure: StoreError | None = None


Input = Callable[[Replica, float], None]


class RaftService:
    """One member. `await start()`, `await stop()`; `status` is the state after the last step."""

    def __init__(
        self,
        *,
        node_id: str,
        members: tuple[str, ...],
        config: RaftConfig,
        directory: str,
        disk: Disk,
        machine: StateMachine,
        clock: Clock,
        random: Callable[[], float],
        send: Callable[[Message], None],
        on_status: Callable[[RaftStatus], None],
        on_failed: Callable[[Exception], None],
        runner: Runner | None = None,
    ) -> None:
        """`members` are the initial voters, the same at each of them; empty for a node that joins an existing group.

        `send` may lose a message. `on_status` is called after a step that changed the status.
        """
        self.status = RaftStatus()
        self._node_id = node_id
        self._members = members
        self._config = config
        self._machine = machine
        self._clock = clock
        self._random = random
        self._send = send
        self._on_status = on_status
        self._on_failed = on_failed
        self._files = RaftFiles(
            directory,
            disk=disk,
            entry_bytes_max=config.entry_bytes_max,
            snapshot_bytes_max=config.snapshot_bytes_max,
            new_identity=lambda: f"{int(random() * (1 << 32)):08x}{int(random() * (1 << 32)):08x}",
        )
        self._thread = ThreadPoolExecutor(1, "aerobee-raft") if runner is None else None
        self._run = runner or self._in_thread
        self._replica: Replica | None = None
        self._step = _Step()
        self._inbox: Inbox[Input] = Inbox()
        self._waiting: OrderedSet[_Asked] = OrderedSet()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._bad = LogThrottle(log, clock.monotonic)

    async def start(self) -> None:
        """Recover from the directory and take part. Raises StoreLocked, StoreError when it is damaged."""
        self._step = await self._run(self._open)
        self.status = self._step.status
        self._task = asyncio.create_task(self._work(), name="controller-raft")

    async def stop(self) -> None:
        """Stop this member; pending calls end with an unknown outcome."""
        self._is_over = True
        if self._task is not None:
            self._wake.set()
            await self._task
        self._files.close()
        if self._thread is not None:
            self._thread.shutdown()

    def deliver(self, message: Message) -> None:
        """Queue a message of another member. Dropped when too many messages are pending."""
        if self._is_over or not self._inbox.has_room_for_message:
            return

        def take(replica: Replica, now_ms: float) -> None:
            try:
                replica.receive(message, now_ms)
            except WireError as error:
                self._bad.warn(message.source, "a message of %s is refused: %s", message.source, error)

        self._inbox.add_message(take)
        self._wake.set()

    async def propose(self, data: bytes) -> object:
        """Propose a command and return its result once it is applied.

        Raises NotLeader when the command had no effect; QuorumBusy with "unknown" in its text when it may
        still take effect.
        """
        return await self._ask(lambda step: self._proposing(step, data))

    async def confirm(self) -> None:
        """Return when the state machine has applied every command that any member acknowledged before this call.

        Raises NotLeader when this member does not lead or cannot confirm that it still leads; QuorumBusy.
        """
        if not self.status.is_leader:
            raise NotLeader(f"{self._node_id} does not lead", leader=self.status.leader)
        if not self.is_leading_surely:
            await self._ask(self._reading)

    async def run(self, act: Callable[[RaftNode, float], object]) -> None:
        """Change members or transfer the leadership: call a method of the node. Raises what the method raises."""

        def asking(done: _Asked) -> Input:
            def call(replica: Replica, now_ms: float) -> None:
                replica.run(lambda node: act(node, now_ms), now_ms)
                done.answer(None)

            return call

        await self._ask(asking)

    @property
    def is_leading_surely(self) -> bool:
        """Whether this member leads, no other node can have been elected, and it has applied every
        acknowledged command.
        """
        return self.status.is_serving and self._clock.monotonic() < self.status.lease_until_s

    # -- the thread

    async def _in_thread(self, work: Callable[[], _Step]) -> _Step:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _open(self) -> _Step:
        recovered = self._files.open()
        if recovered.is_new and self._members:
            recovered = self._files.initialize(Membership(self._members))
        now_ms = self._clock.monotonic() * 1000
        node = RaftNode(self._node_id, self._config, recovered, now_ms=now_ms, random=self._random)
        self._replica = Replica(
            node, self._files, self._machine, send=lambda message: self._step.messages.append(message)
        )
        return self._seen(_Step(), now_ms)

    def _take_step(self, inputs: list[Input]) -> _Step:
        replica = self._replica
        assert replica is not None
        step = self._step = _Step()
        now_ms = self._clock.monotonic() * 1000
        try:
            began_ms = now_ms
            for each in inputs:
                now_ms = self._clock.monotonic() * 1000
                if now_ms - began_ms > STEP_MAX_S * 1000:
                    break
                step.taken += 1
                each(replica, now_ms)
            now_ms = self._clock.monotonic() * 1000
            replica.tick(now_ms)
        except StoreError as error:
            step.messages.clear()
            step.failure = error
        return self._seen(step, now_ms)

    def _seen(self, step: _Step, now_ms: float) -> _Step:
        assert self._replica is not None
        node = self._replica.node
        step.deadline_s = node.deadline_ms / 1000
        step.status = RaftStatus(
            is_leader=node.is_leader and step.failure is None,
            is_serving=node.is_established and step.failure is None,
            leader=node.leader,
            term=node.term,
            lease_until_s=node.lease_until_ms(now_ms) / 1000,
            voters=node.log.membership.voters,
            learners=node.log.membership.learners,
            is_unrecognized=node.is_unrecognized,
        )
        return step

    # -- the loop

    async def _ask(self, asking: Callable[[_Asked], Input]) -> object:
        if self._is_over or not self._inbox.has_room_for_call:
            raise QuorumBusy(f"{len(self._inbox)} inputs of {self._node_id} wait, the maximum")
        asked = _Asked(lambda answer: self._step.answers.append(answer))
        act = asking(asked)

        def call(replica: Replica, now_ms: float) -> None:
            try:
                act(replica, now_ms)
            except AerobeeError as error:
                asked.fail(error)
                if isinstance(error, StoreError):
                    raise

        self._inbox.add_call(call)
        self._wake.set()
        self._waiting.add(asked)
        try:
            return await asked.future
        finally:
            self._waiting.discard(asked)

    def _proposing(self, asked: _Asked, data: bytes) -> Input:
        def on_done(outcome: Outcome, result: object) -> None:
            if outcome is Outcome.APPLIED:
                asked.answer(result)
            elif outcome is Outcome.REPLACED:
                asked.fail(NotLeader(f"{self._node_id} lost the leadership: nothing was changed"))
            else:
                asked.fail(QuorumBusy("the result of the change is unknown: check the state and retry"))

        # The tick that ends a step makes all its proposals durable together.
        return lambda replica, now_ms: replica.propose_deferred(data, on_done)

    def _reading(self, asked: _Asked) -> Input:
        def on_ready(is_confirmed: bool) -> None:
            if is_confirmed:
                asked.answer(None)
            else:
                asked.fail(NotLeader(f"{self._node_id} could not find out whether it still leads"))

        return lambda replica, now_ms: replica.read(on_ready, now_ms)

    async def _work(self) -> None:
        failure: Exception | None = None
        try:
            while not self._is_over and failure is None:
                await self._wait()
                step = await self._run(partial(self._take_step, self._inbox.batch(STEP_INPUTS_MAX)))
                self._inbox.remove(step.taken)
                self._give_out(step)
                failure = step.failure
        except Exception as error:  # the task's outermost boundary
            log.exception("a fault in this controller's Raft member")
            failure = error
        self._end(failure)

    async def _wait(self) -> None:
        pause_s = self._step.deadline_s - self._clock.monotonic()
        if self._inbox or pause_s <= 0:
            return
        self._wake.clear()
        timer = self._clock.call_later(pause_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _give_out(self, step: _Step) -> None:
        # The status first: another member may act on a message while this member still shows an older lease.
        is_news = step.status != self.status
        self.status = step.status
        for message in step.messages:
            self._send(message)
        answers, step.answers = step.answers, []
        for answer in answers:
            answer()
        if is_news:
            self._on_status(step.status)

    def _end(self, failure: Exception | None) -> None:
        """Fail every pending call: whether its change takes effect is unknown."""
        self._is_over = True
        self.status = RaftStatus()
        self._inbox.clear()
        for asked in list(self._waiting):
            asked.fail_now(
                failure or QuorumBusy("this controller stops; what became of the change is unknown")
            )
        self._on_status(self.status)
        if failure is not None:
            self._on_failed(failure)


class _Asked:
    """A caller that waits. answer() and fail() are called in the thread; the caller wakes up on the loop."""

    def __init__(self, answer_deferred: Callable[[Callable[[], None]], None]) -> None:
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._answer_deferred = answer_deferred

    def answer(self, result: object) -> None:
        self._answer_deferred(lambda: None if self.future.done() else self.future.set_result(result))

    def fail(self, error: Exception) -> None:
        self._answer_deferred(lambda: self.fail_now(error))

    def fail_now(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
