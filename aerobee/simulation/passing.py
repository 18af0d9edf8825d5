"""A transient topic: created, written, read, deleted and recreated, alternately with plain and batch queues.

During faults only one invariant is checked: no consumer receives an unsent message. A change of master may undo a
deletion or a creation that its slaves had not copied. After the faults the topic is deleted everywhere and created once
more: then it must be empty, its queues must begin at 0 (its LMQ, too), and its group, whose offsets were deleted with
the topic, must receive exactly the newly sent messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from aerobee.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.errors import AerobeeError
from aerobee.message import Message
from aerobee.remoting.body.topic_config import BATCH, QUEUE_TYPE
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.names import NAMESERVER_ADDRESSES
from aerobee.simulation.party import Party
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.simulated_network import SimulatedNetwork

PASSING, PASSING_GROUP, FEATURE = "passing", "passing-readers", "recreated topic"
PASSING_LMQ = "%LMQ%passing"  # deleted with the topic
LMQ_SHARE = 0.5  # share of the messages outside batches
QUEUES = 2
RETRY_S = 0.5
SEND_TIMEOUT_S = 3.0
SENDS_MAX = 4
BATCH_MAX = 4
READ_S_MAX = 0.8
LAST_SENDS = 6


class Passing(Party):
    """The transient topic of one cluster. `broken` is the first violated invariant."""

    def __init__(
        self,
        rng: random.Random,
        clock: SimulatedClock,
        network: SimulatedNetwork,
        on_use: Callable[[str], None],
    ) -> None:
        super().__init__("passing", rng, clock, network)
        self.generation = 0
        self.received: set[bytes] = set()  # since the topic was made
        self.in_lmq: set[bytes] = set()  # also sent to the LMQ, since the topic was created
        # queue -> lowest acknowledged offset since the topic was created
        self.first_offsets: dict[int, int] = {}
        self.broken: Broken | None = None
        self._on_use = on_use
        self._sent: set[bytes] = set()
        self._acknowledged: set[bytes] = set()  # since the topic was made
        self._is_checked = False  # the faults have ended
        self._numbers_of_its_own = self._own_numbers()
        self._is_batch = False
        self._task: asyncio.Task[None] | None = None
        self._admin = Admin(NAMESERVER_ADDRESSES, **self._settings("operator-passing"))
        config = ProducerConfig(send_timeout_s=SEND_TIMEOUT_S, retry_count_max=0)
        self._producer = Producer(NAMESERVER_ADDRESSES, "passers", config=config, **self._settings("passer"))

    def begin(self) -> None:
        """Start to create and delete the topic."""
        self._task = asyncio.create_task(self._run())

    def look(self) -> None:
        """Raise the violation that was detected."""
        if self.broken is not None:
            raise self.broken
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._producer.close()
        await self._admin.close()

    async def end_rounds(self) -> None:
        """Finish the round in progress; afterwards the topic may or may not exist."""
        self._send_no_more()
        if self._task is not None:
            await self._task

    @property
    def acknowledged(self) -> frozenset[bytes]:
        """Messages acknowledged since the creation of the topic."""
        return frozenset(self._acknowledged)

    @property
    def missing(self) -> set[bytes]:
        """Messages acknowledged since the creation of the topic and not received yet."""
        return self._acknowledged - self.received

    # --- rounds

    async def _run(self) -> None:
        await self._admin.start()
        await self._producer.start()
        while self._is_sending:
            await self._make()
            rng = self._numbers_of_its_own
            for _ in range(rng.randint(1, SENDS_MAX)):
                await self._send()
                await self._pause(rng.uniform(0.0, 0.2))
            async with self._reader():
                await self._pause(rng.uniform(0.1, READ_S_MAX))
            await self._delete()
            await self._pause(rng.uniform(0.0, 1.0))

    async def make_last(self) -> None:
        """Create the topic once more, without faults, and send until this number of sends is acknowledged."""
        self._is_checked = True
        self._is_sending = True
        await self._make()
        while len(self._acknowledged) < LAST_SENDS:
            await self._send()
            await self._clock.sleep(0.05)

    async def delete_last(self) -> None:
        """Delete the topic, without faults."""
        self._is_sending = True
        await self._delete()
        self._is_sending = False

    def _reader(self) -> PushConsumer:
        return PushConsumer(
            NAMESERVER_ADDRESSES,
            PASSING_GROUP,
            subscriptions={PASSING: "*"},
            handler=self._handle,
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
            **self._settings("reader-passing"),
        )

    async def read_last(self, is_over: Callable[[], bool]) -> None:
        """Consume until `is_over` returns True."""
        async with self._reader():
            while not is_over():
                await self._clock.sleep(0.1)

    async def _make(self) -> None:
        self.generation += 1
        self._is_batch = not self._is_batch or self._numbers_of_its_own.random() < 0.25
        self.received.clear()
        self.in_lmq.clear()
        self._acknowledged.clear()
        self.first_offsets.clear()
        attributes = {QUEUE_TYPE: BATCH} if self._is_batch else {}
        while self._is_sending:
            self._on_use(FEATURE)
            try:
                if await self._admin.create_topic(PASSING, queue_count=QUEUES, attributes=attributes):
                    return
            except AerobeeError:
                pass
            await self._pause(RETRY_S)

    async def _delete(self) -> None:
        while self._is_sending:
            self._on_use(FEATURE)
            try:
                if await self._admin.delete_topic(PASSING) and await self._admin.delete_topic(PASSING_LMQ):
                    return
            except AerobeeError:
                pass
            await self._pause(RETRY_S)

    async def _send(self) -> None:
        rng = self._numbers_of_its_own
        count = rng.randint(1, BATCH_MAX) if self._is_batch else 1
        bodies = [b"%d-%d" % (self.generation, len(self._sent) + n) for n in range(count)]
        self._sent.update(bodies)
        self._on_use(FEATURE)
        try:
            results = (
                await self._producer.send_batch([Message(PASSING, body) for body in bodies])
                if self._is_batch
                else [await self._producer.send(self._message(bodies[0]))]
            )
        except AerobeeError:
            return
        for body, result in zip(bodies, results, strict=True):
            if result.status.value == "SEND_OK":
                self._acknowledged.add(body)
                queue_id = result.queue.queue_id
                self.first_offsets[queue_id] = min(
                    result.queue_offset, self.first_offsets.get(queue_id, result.queue_offset)
                )

    def _message(self, body: bytes) -> Message:
        if self._numbers_of_its_own.random() >= LMQ_SHARE:
            return Message(PASSING, body)
        self.in_lmq.add(body)
        return Message(PASSING, body, properties={"INNER_MULTI_DISPATCH": PASSING_LMQ})

    async def _handle(self, message: ReceivedMessage) -> None:
        self._on_use(FEATURE)
        if message.body not in self._sent:
            self._break(f"{message.body!r} was received, but never sent")
        if self._is_checked and not message.body.startswith(b"%d-" % self.generation):
            self._break(
                f"{message.body!r} was received after the topic was deleted and made as {self.generation}"
            )
        self.received.add(message.body)

    def _break(self, text: str) -> None:
        self.broken = self.broken or Broken(Checker.NOTHING_UNSENT, f"{PASSING}: {text}")
