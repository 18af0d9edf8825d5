"""Every kind of message concurrently, for cluster_faults.py --mixed: what each kind promises is judged at the end.

    ordered       one sender a key, which sends the next number after the answer only; an orderly consumer
    delayed       by level and by time; none is received before its time
    transactions  committed, rolled back, or left to the checker, which knows what the local work did
    dedup         a key a message; what is not confirmed is sent again with its key: stored once
    batch-queue   batches into a BatchCQ topic
    pop           a group that receives and acknowledges
    coming        a topic that is created, used by one group, deleted, and created again, as BatchCQ every second time

A kind's `missing` says what is not there yet, "" when everything is; `judge()` raises AssertionError for a broken promise.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from aerobee.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from aerobee.client.producer.transaction import TransactionState
from aerobee.client.producer.transaction_producer import TransactionProducer
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue
from tests.survival.cluster_machines import GROUPS

PAUSE_S = 0.1  # of a sender between two messages
AGAIN_S = 0.3  # after a failure
EARLY_MS = 1_100  # a timer's slot is a second; clocks of one machine agree
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST, rebalance_s=5.0)
LEVELS_S = {1: 1, 2: 5, 3: 10}  # delay levels and their seconds
SETTINGS = {  # of the brokers
    "dedupWindowMillis": "1800000",
    "transactionCheckInterval": "5000",
}


class Kind:
    """One kind of message: a sender and a consumer, as tasks."""

    name = ""
    topic = ""
    attributes: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, nameservers: str) -> None:
        self.nameservers = nameservers
        self.is_sending = True
        self.acknowledged: set[bytes] = set()
        self.received: set[bytes] = set()
        self.failed = 0
        self.repeated = 0

    async def create(self, admin: Admin) -> None:
        await admin.create_topic(self.topic, queue_count=2, attributes=self.attributes or None)

    async def send(self) -> None:
        """Send until `is_sending` is False."""
        raise NotImplementedError

    async def consume(self) -> None:
        """Receive until cancelled."""
        async with PushConsumer(
            self.nameservers,
            f"G-{self.topic}",
            subscriptions={self.topic: "*"},
            handler=self.on_message,
            config=FIRST,
        ):
            await asyncio.Event().wait()

    async def on_message(self, message: ReceivedMessage) -> None:
        self.repeated += message.body in self.received
        self.received.add(message.body)

    @property
    def missing(self) -> str:
        wanted = self.acknowledged - self.received
        return f"{len(wanted)} of {len(self.acknowledged)}, such as {sorted(wanted)[:3]}" if wanted else ""

    async def judge(self) -> None:
        """Raise AssertionError when a promise of this kind is broken."""

    async def attempt(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Whether the work was done: a send that failed may be stored or not."""
        try:
            await work()
        except AerobeeError:
            self.failed += 1
            await asyncio.sleep(AGAIN_S)
            return False
        await asyncio.sleep(PAUSE_S)
        return True


class Ordered(Kind):
    name, topic = "ordered", "mixed-ordered"
    KEYS = 6

    def __init__(self, nameservers: str) -> None:
        super().__init__(nameservers)
        self.wrong: list[str] = []
        self._last: dict[str, int] = defaultdict(int)

    async def send(self) -> None:
        async with Producer(self.nameservers, "P-ordered") as producer:

            async def one(key: int) -> None:
                number = 1
                while self.is_sending:
                    message = Message(self.topic, b"%d:%d" % (key, number))
                    # Order is a queue's: a key stays in its queue, also while that queue has no master.
                    queue = MessageQueue(self.topic, GROUPS[key % 2], key // 2 % 2)
                    if await self.attempt(
                        lambda message=message, queue=queue: producer.send(message, queue=queue)
                    ):
                        self.acknowledged.add(message.body)
                        number += 1
                    await asyncio.sleep(PAUSE_S * self.KEYS)

            await asyncio.gather(*(one(key) for key in range(self.KEYS)))

    async def consume(self) -> None:
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=True, rebalance_s=5.0)
        async with PushConsumer(
            self.nameservers,
            "G-ordered",
            subscriptions={self.topic: "*"},
            handler=self.on_message,
            config=config,
        ):
            await asyncio.Event().wait()

    async def on_message(self, message: ReceivedMessage) -> None:
        key, _, text = message.body.decode().partition(":")
        number = int(text)
        # What was handled before may come again after a failover, a number that was never handled comes in its turn.
        if message.body not in self.received and number != self._last[key] + 1:
            self.wrong.append(f"{number} of key {key} after {self._last[key]}")
        self._last[key] = max(self._last[key], number)
        await super().on_message(message)

    async def judge(self) -> None:
        assert not self.wrong, f"ordered: {len(self.wrong)} out of order: {self.wrong[:5]}"


class Delayed(Kind):
    name, topic = "delayed", "mixed-delayed"

    def __init__(self, nameservers: str) -> None:
        super().__init__(nameservers)
        self.early: list[str] = []
        self.late_s: list[float] = []

    async def send(self) -> None:
        count = 0
        async with Producer(self.nameservers, "P-delayed") as producer:
            while self.is_sending:
                count += 1
                now = time.time()
                if count % 2:
                    level = 1 + count // 2 % len(LEVELS_S)
                    due_ms = int((now + LEVELS_S[level]) * 1000)
                    message = Message(self.topic, b"%d:%d" % (count, due_ms), delay_level=level)
                else:
                    due = now + 1 + count % 12
                    message = Message(self.topic, b"%d:%d" % (count, int(due * 1000)), deliver_at=due)
                if await self.attempt(lambda message=message: producer.send(message)):
                    self.acknowledged.add(message.body)

    async def on_message(self, message: ReceivedMessage) -> None:
        ahead_ms = int(message.body.partition(b":")[2]) - time.time() * 1000
        if ahead_ms > EARLY_MS:
            self.early.append(f"{message.body.decode()} {ahead_ms:.0f} ms before its time")
        self.late_s.append(max(0.0, -ahead_ms / 1000))
        await super().on_message(message)

    async def judge(self) -> None:
        assert not self.early, f"delayed: {len(self.early)} came early: {self.early[:5]}"


class Transactions(Kind):
    name, topic = "transactions", "mixed-transactions"

    def __init__(self, nameservers: str) -> None:
        super().__init__(nameservers)
        self._decided: dict[bytes, TransactionState] = {}
        self.checked = 0

    async def send(self) -> None:
        count = 0

        def check(message: ReceivedMessage) -> TransactionState:
            self.checked += 1
            return self._decided.get(message.body, TransactionState.ROLLBACK)

        async with TransactionProducer(self.nameservers, "P-transactions", checker=check) as producer:

            def work(message: Message, argument: object) -> TransactionState:
                self._decided[message.body] = (
                    TransactionState.ROLLBACK if argument == 1 else TransactionState.COMMIT
                )
                if argument != 1:
                    self.acknowledged.add(message.body)
                return TransactionState.UNKNOWN if argument == 2 else self._decided[message.body]

            while self.is_sending:
                count += 1
                message = Message(self.topic, b"%d:%d" % (count, count % 4))
                await self.attempt(
                    lambda message=message, count=count: producer.send_in_transaction(
                        message, count % 4, executor=work
                    )
                )
            # Brokers ask until each open transaction is decided.
            await _until(lambda: not self.missing)

    async def judge(self) -> None:
        wrong = [body for body in self.received if self._decided.get(body) is not TransactionState.COMMIT]
        assert not wrong, f"transactions: {len(wrong)} received that were not committed: {wrong[:5]}"


class Dedup(Kind):
    name, topic = "dedup", "mixed-dedup"

    async def send(self) -> None:
        count = 0
        async with Producer(self.nameservers, "P-dedup") as producer:
            while self.is_sending:
                count += 1
                body = b"%d" % count
                # The group of a queue remembers its keys: what is sent again goes to the same group.
                queue = MessageQueue(self.topic, GROUPS[count % 2], count // 2 % 2)
                message = Message(self.topic, body, properties={"DEDUP_KEY": f"k{count}"})
                while not await self.attempt(
                    lambda message=message, queue=queue: producer.send(message, queue=queue)
                ):
                    pass
                self.acknowledged.add(body)

    async def judge(self) -> None:
        stored = await bodies_of(self.nameservers, self.topic)
        twice = [body for body, positions in stored.items() if len(positions) > 1]
        assert not twice, f"dedup: {len(twice)} stored twice: {[(body, stored[body]) for body in twice[:5]]}"


class BatchQueue(Kind):
    name, topic = "batch-queue", "mixed-batches"
    attributes = {"queue.type": "BatchCQ"}  # noqa: RUF012

    async def send(self) -> None:
        count = 0
        async with Producer(self.nameservers, "P-batches") as producer:
            while self.is_sending:
                count += 1
                batch = [Message(self.topic, b"%d:%d" % (count, number)) for number in range(4)]
                if await self.attempt(lambda batch=batch: producer.send_batch(batch)):
                    self.acknowledged |= {message.body for message in batch}


class Pop(Kind):
    name, topic = "pop", "mixed-pop"

    def __init__(self, nameservers: str) -> None:
        super().__init__(nameservers)
        self._done: set[bytes] = set()  # their acknowledgement was confirmed

    async def send(self) -> None:
        count = 0
        async with Producer(self.nameservers, "P-pop") as producer:
            while self.is_sending:
                count += 1
                message = Message(self.topic, b"%d" % count)
                if await self.attempt(lambda message=message: producer.send(message)):
                    self.acknowledged.add(message.body)

    async def consume(self) -> None:
        config = SimpleConsumerConfig(invisible_s=15.0, wait_s=3.0)
        async with SimpleConsumer(
            self.nameservers, "G-pop", subscriptions={self.topic: "*"}, config=config
        ) as consumer:
            while True:
                try:
                    messages = await consumer.receive()
                    for message in messages:
                        self.repeated += message.body in self._done
                        self.received.add(message.body)  # an acknowledgement without an answer may be taken
                        await consumer.ack(message)
                        self._done.add(message.body)
                except AerobeeError:
                    self.failed += 1
                    await asyncio.sleep(AGAIN_S)


class Coming(Kind):
    """The topic's messages of one life have the life's number; the group has to get each acknowledged one of the last life."""

    name, topic = "coming", "mixed-coming"
    LIFE_S = 25.0

    def __init__(self, nameservers: str) -> None:
        super().__init__(nameservers)
        self.lives = 0
        self.unreceived: list[str] = []

    async def create(self, admin: Admin) -> None:
        attributes = {"queue.type": "BatchCQ"} if self.lives % 2 else None
        await admin.create_topic(self.topic, queue_count=2, attributes=attributes)
        self.lives += 1

    async def send(self) -> None:
        count = 0
        async with Producer(self.nameservers, "P-coming") as producer, Admin(self.nameservers) as admin:
            while self.is_sending:
                end = time.monotonic() + self.LIFE_S
                while self.is_sending and time.monotonic() < end:
                    count += 1
                    message = Message(self.topic, b"%d:%d" % (self.lives, count))
                    if await self.attempt(lambda message=message: producer.send(message)):
                        self.acknowledged.add(message.body)
                try:
                    await _until(lambda: not self.missing, 60.0)
                except TimeoutError:
                    self.unreceived.append(f"life {self.lives}: {self.missing}")
                    self.acknowledged &= self.received
                while self.is_sending:
                    # Created at one master only, it is deleted again: an attribute is added to a topic once.
                    if not await self.attempt(lambda: admin.delete_topic(self.topic)):
                        continue
                    await asyncio.sleep(2.0)  # consumers and replicas have heard of it
                    if await self.attempt(lambda: self.create(admin)):
                        break

    async def judge(self) -> None:
        assert not self.unreceived, f"coming: not received: {self.unreceived[:5]}"


KINDS = (Ordered, Delayed, Transactions, Dedup, BatchQueue, Pop, Coming)


class MixedLoad:
    """All kinds. `begin()`, `end_producers()`, `judge()`, `end()` in this order."""

    def __init__(self, nameservers: str) -> None:
        self._nameservers = nameservers
        self.kinds: list[Kind] = [kind(nameservers) for kind in KINDS]
        self._senders: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        async with Admin(self._nameservers) as admin:
            for kind in self.kinds:
                await kind.create(admin)
        await asyncio.sleep(1.5)  # replicas know of new topics within a second
        self._senders = [asyncio.create_task(kind.send(), name=kind.name) for kind in self.kinds]
        self._consumers = [asyncio.create_task(kind.consume(), name=kind.name) for kind in self.kinds]

    async def end_producers(self) -> None:
        for kind in self.kinds:
            kind.is_sending = False
        await asyncio.gather(*self._senders)

    async def judge(self, seconds: float) -> None:
        """Wait until everything acknowledged is received, then look at each kind's promises. Raises AssertionError."""
        for task in self._consumers:
            assert not task.done(), f"the consumer of {task.get_name()} ended: {task}"
        try:
            await _until(lambda: not any(kind.missing for kind in self.kinds), seconds)
        except TimeoutError:
            missing = {kind.name: kind.missing for kind in self.kinds if kind.missing}
            raise AssertionError(f"acknowledged and not received after {seconds:.0f} s: {missing}") from None
        for kind in self.kinds:
            await kind.judge()

    async def end(self) -> None:
        for task in self._consumers:
            task.cancel()
        await asyncio.gather(*self._consumers, return_exceptions=True)

    def report(self) -> dict[str, dict[str, int]]:
        return {
            kind.name: {
                "acknowledged": len(kind.acknowledged),
                "received": len(kind.received),
                "repeated": kind.repeated,
                "failed": kind.failed,
            }
            for kind in self.kinds
        }


async def bodies_of(nameservers: str, topic: str) -> dict[bytes, list[tuple[str, int, int]]]:
    """Body to the positions where it is stored: broker, queue, offset."""
    found: dict[bytes, list[tuple[str, int, int]]] = defaultdict(list)
    async with PullConsumer(nameservers, f"judge-{topic}") as reader:
        queues = await reader.queues(topic)
        ends = {queue: await reader.end_offset(queue) for queue in queues}
        await reader.assign(queues)
        for queue in queues:
            await reader.seek_to_begin(queue)
        while any((reader.position(queue) or 0) < ends[queue] for queue in queues):
            for message in await reader.poll(2.0):
                position = (message.queue.broker_name, message.queue.queue_id, message.queue_offset)
                found[message.body].append(position)
    return found


async def _until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
