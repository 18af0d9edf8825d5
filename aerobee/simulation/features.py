"""Delays, transactions and POP at a simulated cluster: a producer of each kind, two members of a POP group, and the replies that they received.

All messages go to a separate topic. Each message is sent once and never retried, so it is stored once at its
final offset.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.client import (
    Producer,
    ProducerConfig,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from aerobee.errors import AerobeeError
from aerobee.message import Message
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.names import NAMESERVER_ADDRESSES
from aerobee.simulation.party import Party
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.simulated_network import SimulatedNetwork
from aerobee.simulation.task import INVISIBLE_S, POP_GROUP, TASKS, Task
from aerobee.simulation.traffic import Way

TASK_QUEUES = 2
MEMBERS = 2  # of the POP group
LEVELS_S = (1.0, 5.0)  # of delay levels 1 and 2
DELAY_S_MAX = 6.0
PAUSE_S_MAX = 0.8
SEND_TIMEOUT_S = 5.0
FORGOTTEN_SHARE = 0.15  # share of the received messages that is not acknowledged
TIMER_EARLY_S = 1.0  # a timer's slot is a second (timerPrecisionMs)


class Features(Party):
    """The clients of one cluster. `trouble` is the first detected violation."""

    def __init__(
        self,
        rng: random.Random,
        clock: SimulatedClock,
        network: SimulatedNetwork,
        on_use: Callable[[str], None] = lambda name: None,
        *,
        has_grpc: bool = False,
    ) -> None:
        """`on_use` is called with the name of a feature at each use of it. `has_grpc`: clients of gRPC take part."""
        super().__init__("features", rng, clock, network)
        self.tasks: dict[bytes, Task] = {}
        self.trouble: Broken | None = None
        self.is_clock_set = False  # a fault set a clock: early deliveries cannot be detected
        self._on_use = on_use
        self._has_grpc = has_grpc
        self.under_way = 0  # sends without a reply
        self._is_over = asyncio.Event()
        self._senders: list[asyncio.Task[None]] = []
        self._members: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Start the senders and the members. The topic must exist."""
        works: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (self._delay, self._transact)
        self._senders = [asyncio.create_task(work()) for work in works]
        self._members = [asyncio.create_task(self._pop(number)) for number in range(MEMBERS)]
        if self._has_grpc:
            self._begin_grpc()

    def _begin_grpc(self) -> None:
        from aerobee.simulation import grpc_tasks  # needs the extra `simulation`

        def is_sending() -> bool:
            return self._is_sending

        sender, receiver = (
            grpc_tasks.GrpcTask(name, self._network.endpoint(name), self._own_numbers())
            for name in ("grpc-sender", "grpc-receiver")
        )
        numbers = self._own_numbers()
        sends = grpc_tasks.send_tasks(self, sender, numbers, self._pause, is_sending)
        self._senders.append(asyncio.create_task(sends))
        numbers = self._own_numbers()
        receives = grpc_tasks.receive_tasks(self, receiver, numbers, self._clock, is_sending)
        self._members.append(asyncio.create_task(receives))

    def send_no_more(self) -> None:
        """Stop sending. Checks of sent transactions are still answered, and every received message is
        acknowledged from now on.
        """
        self._send_no_more()

    async def end(self) -> None:
        """Leave the groups."""
        self._send_no_more()
        self._is_over.set()
        for member in self._members:
            member.cancel()
        await asyncio.gather(*self._members, return_exceptions=True)
        await asyncio.gather(*self._senders)

    def look(self) -> None:
        """Raise the violation that was detected."""
        if self.trouble is not None:
            raise self.trouble
        for each in (*self._senders, *self._members):
            if each.done():
                each.result()

    @property
    def has_begun(self) -> bool:
        """Whether messages were sent, stored and popped."""
        return any(task.is_stored for task in self.tasks.values()) and any(
            task.received for task in self.tasks.values()
        )

    @property
    def missing(self) -> list[Task]:
        """Messages that must reach the group and have not reached it."""
        return [task for task in self.tasks.values() if task.is_due and not task.received]

    @property
    def unfinished(self) -> list[Task]:
        """Messages that the group received and no member tried to acknowledge: they must be redelivered."""
        return [
            task
            for task in self.tasks.values()
            if task.received and task.done_at_s == float("inf") and not task.is_maybe_done
        ]

    def new_task(self, kind: str) -> Task:
        """A message that is about to be sent."""
        self._on_use(kind)
        task = Task(f"{kind}-{len(self.tasks)}".encode())
        self.tasks[task.body] = task
        return task

    def _break(self, checker: Checker, text: str) -> None:
        self.trouble = self.trouble or Broken(checker, text)

    # --- senders

    async def _delay(self) -> None:
        rng = self._own_numbers()
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, retry_count_max=0)
        async with Producer(NAMESERVER_ADDRESSES, "D", config=config, **self._settings("delays")) as producer:
            while self._is_sending:
                await self._pause(rng.uniform(0.05, PAUSE_S_MAX))
                level = rng.choice((0, 0, 1, 2))
                task, now = self.new_task("delay by level" if level else "timer"), self._clock.monotonic()
                seconds = LEVELS_S[level - 1] if level else rng.uniform(1.0, DELAY_S_MAX)
                message = (
                    Message(TASKS, task.body, delay_level=level)
                    if level
                    else Message(TASKS, task.body, deliver_after=seconds)
                )
                task.due_s = now + seconds - (0 if level else TIMER_EARLY_S)
                self.under_way += 1
                try:
                    result = await producer.send(message)
                except AerobeeError:
                    continue
                finally:
                    self.under_way -= 1
                task.is_stored = result.status.value == "SEND_OK"

    async def _transact(self) -> None:
        rng = self._own_numbers()

        async def checker(message: ReceivedMessage) -> TransactionState:
            task = self.tasks[message.body]
            # from now on the broker may know the outcome
            task.due_s = min(task.due_s, self._clock.monotonic())
            task.is_asked = True
            return task.wanted or TransactionState.ROLLBACK

        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, retry_count_max=0)
        async with TransactionProducer(
            NAMESERVER_ADDRESSES, "T", checker=checker, config=config, **self._settings("transactions")
        ) as producer:
            while self._is_sending:
                await self._pause(rng.uniform(0.05, PAUSE_S_MAX))
                task = self.new_task("transaction")
                task.wanted = rng.choice((TransactionState.COMMIT, TransactionState.ROLLBACK))
                is_said = rng.random() < 0.7
                said = task.wanted if is_said else TransactionState.UNKNOWN
                task.due_s = float("inf")

                def decide(_: Message, argument: object, task: Task = task) -> TransactionState:
                    task.due_s = min(
                        task.due_s, self._clock.monotonic()
                    )  # no member may receive it before this moment
                    assert isinstance(argument, TransactionState)
                    return argument

                self.under_way += 1
                try:
                    result = await producer.send_in_transaction(
                        Message(TASKS, task.body), said, executor=decide, immunity_s=1
                    )
                except AerobeeError:
                    # The half message may be stored: a broker may check it.
                    task.due_s = min(task.due_s, self._clock.monotonic())
                    continue
                finally:
                    self.under_way -= 1
                if result.send.status.value == "SEND_OK":
                    task.is_stored = True
                elif not task.is_asked:
                    task.wanted = TransactionState.ROLLBACK  # the producer has sent the broker a rollback
            await self._is_over.wait()  # brokers send checks to any connected producer of the group

    # --- the group

    async def _pop(self, number: int) -> None:
        rng = self._own_numbers()
        async with SimpleConsumer(
            NAMESERVER_ADDRESSES, POP_GROUP, {TASKS: "*"}, **self._settings(f"popper-{number}")
        ) as consumer:
            while True:
                try:
                    messages = await consumer.receive(8, invisible_s=INVISIBLE_S, wait_s=2.0)
                except AerobeeError:
                    await self._clock.sleep(0.5)
                    continue
                now = self._clock.monotonic()
                for message in messages:
                    task = self.received(message.body, now)
                    if task is None:
                        continue
                    if self._is_sending and rng.random() < FORGOTTEN_SHARE:
                        continue
                    try:
                        await consumer.ack(message)
                    except AerobeeError:
                        task.is_maybe_done = True
                        continue
                    task.done_at_s = min(task.done_at_s, self._clock.monotonic())

    def received(self, body: bytes, now: float, way: str = Way.SIMPLE.value) -> Task | None:
        """A member of the group has received a message by this kind of consumption. Returns None for one that was never sent."""
        self._on_use(way)
        task = self.tasks.get(body)
        if task is None:
            self._break(Checker.NOTHING_UNSENT, f"{body!r} was popped, but never sent")
            return None
        if now < task.due_s and not self.is_clock_set:
            self._break(
                Checker.NOT_EARLY,
                f"{body!r} was popped at {now:.3f} s, which was to happen at {task.due_s:.3f} s at the earliest",
            )
        if task.wanted is TransactionState.ROLLBACK:
            self._break(Checker.TRANSACTIONS, f"{body!r} was rolled back, and popped at {now:.3f} s")
        if now > task.done_at_s + task.held_s:
            self._break(
                Checker.POPPED,
                f"{body!r} was acknowledged at {task.done_at_s:.3f} s, and popped again at {now:.3f} s",
            )
        task.received.append(now)
        return task
