"""taskiq's broker: tasks are messages of a topic, which the workers of a group pop.

taskiq tells a broker nothing but that a task is acknowledged. A delivery whose task ended without an acknowledgement,
because a middleware failed or because the task was to acknowledge itself and did not, is recognized by the end of the
asyncio task that processed it, and is redelivered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.client.producer.producer import Producer
from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.contrib.index_key import index_keys
from aerobee.contrib.new_topic import ensure_topic
from aerobee.contrib.pop_queue import PopQueue
from aerobee.errors import UsageError
from aerobee.message import Message, check_topic_name

PRODUCER_GROUP = "taskiq"
TASK_PROPERTY = "taskiq_task"
# Labels of a task that this broker reads.
DELAY_LABEL = "delay"
TOPIC_LABEL = "topic"


class AerobeeBroker(AsyncBroker):
    """`AerobeeBroker("127.0.0.1:9876", topic="shop-tasks")`, at least once; see docs/taskiq.md for what failures do.

    Label `delay`: seconds that the brokers keep a task, by a timer message. Label `topic`: sends the task to the
    workers of another topic.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        topic: str = "taskiq",
        *,
        group: str = "",
        client: ClientConfig | None = None,
        invisible_s: float = 60.0,
        wait_s: float = 15.0,
        prefetch_count: int = 1,
        create_topics: bool = True,
        queue_count: int = 8,
        max_redeliveries: int = 16,
    ) -> None:
        """`group`: consumer group of the workers, named like the topic by default.

        `invisible_s`: seconds after which a task of a dead worker is redelivered; living workers renew them.
        `prefetch_count`: messages that a worker process has besides those that taskiq has taken. `create_topics`: create
        a topic that does not exist, with `queue_count` queues per broker, and the group, whose tasks become dead letters
        after `max_redeliveries`. Opens nothing before startup(). Raises UsageError for a wrong value.
        """
        super().__init__()
        check_topic_name(topic)
        if prefetch_count < 1:
            raise UsageError(f"prefetch_count is {prefetch_count}: at least 1 message is needed")
        self.topic = topic
        self.group = group or topic
        self._nameservers = nameservers
        self._client = client
        self._invisible_s = invisible_s
        self._wait_s = wait_s
        self._prefetch_count = prefetch_count
        self._create_topics = create_topics
        self._queue_count = queue_count
        self._max_redeliveries = max_redeliveries
        self._producer: Producer | None = None
        self._known: set[str] = set()
        self._queue: PopQueue | None = None
        self._ready = asyncio.Event()
        self._stops = False

    async def startup(self) -> None:
        """Connect, and create the topic. Raises ConnectFailed when no NameServer answers."""
        await super().startup()
        if self._producer is not None:
            return
        producer = Producer(self._nameservers, PRODUCER_GROUP, client=self._client)
        await producer.start()
        self._producer = producer
        await self._ensure(self.topic, self.group)

    async def shutdown(self) -> None:
        """Close the connections; a worker returns first what it has not acknowledged, and the brokers know it."""
        await super().shutdown()
        queue, self._queue = self._queue, None
        producer, self._producer = self._producer, None
        self._known.clear()
        try:
            if queue is not None:
                await queue.close()
        finally:
            if producer is not None:
                await producer.close()

    async def _ensure(self, topic: str, group: str) -> None:
        if topic in self._known:
            return
        if self._create_topics:
            async with Admin(self._nameservers, client=self._client) as admin:
                await ensure_topic(
                    admin,
                    topic,
                    queue_count=self._queue_count,
                    group=group,
                    max_redeliveries=self._max_redeliveries,
                )
        self._known.add(topic)

    async def kick(self, message: BrokerMessage) -> None:
        """Store the task; a broker has it on return.

        Raises SendFailed when no broker took it in time, UsageError before startup() and for a wrong label.
        """
        if self._producer is None:
            raise UsageError("this broker is not connected: call `await broker.startup()` first")
        topic = str(message.labels.get(TOPIC_LABEL) or self.topic)
        await self._ensure(topic, self.group if topic == self.topic else topic)
        await self._producer.send(
            Message(
                topic,
                message.message,
                keys=index_keys(message.task_id),
                properties={TASK_PROPERTY: name} if (name := message.task_name).isprintable() else {},
                deliver_at=_deliver_at_s(message.labels.get(DELAY_LABEL)),
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Tasks as they arrive, each redelivered unless it is acknowledged."""
        self._stops = False
        if self._queue is None:
            queue = PopQueue(
                self._nameservers,
                self.topic,
                group=self.group,
                client=self._client,
                wanted=self._wanted,
                notify=self._ready.set,
                invisible_s=self._invisible_s,
                wait_s=self._wait_s,
            )
            await queue.start()
            self._queue = queue
        queue = self._queue
        await queue.receive()
        try:
            while True:
                while (delivery := queue.take()) is None:
                    self._ready.clear()
                    await self._ready.wait()
                queue.space_freed()
                yield Delivered(data=bytes(delivery.message.body), ack=Acknowledgement(self, delivery))
        finally:
            self._stops = True
            await queue.pause()

    def _wanted(self) -> int:
        return self._prefetch_count - (self._queue.ready_count if self._queue is not None else 0)

    def acknowledge(self, delivery: Delivery) -> None:
        """Send the acknowledgement in the background, again until a broker accepts it. In the loop."""
        if self._queue is not None:
            self._queue.settle(delivery, Verdict.ACK)

    def ended(self, delivery: Delivery) -> None:
        """The task is done. Without a verdict it is redelivered, which counts as a try unless the worker stops."""
        if self._queue is not None:
            self._queue.settle(delivery, Verdict.RETURN if self._stops else Verdict.REQUEUE)


class Acknowledgement:
    """Acknowledges one delivery when it is called."""

    def __init__(self, broker: AerobeeBroker, delivery: Delivery) -> None:
        self._broker = broker
        self._delivery = delivery
        self._is_watched = False

    async def __call__(self) -> None:
        self._broker.acknowledge(self._delivery)

    def watch(self) -> None:
        """Called in the asyncio task that processes the delivery: its end is the end of the delivery."""
        processing = asyncio.current_task()
        if processing is not None and not self._is_watched:
            self._is_watched = True
            processing.add_done_callback(lambda _: self._broker.ended(self._delivery))


class Delivered(AckableMessage):
    """A message that notices who processes it: taskiq's receiver reads `data` in a separate asyncio task for each."""

    def __getattribute__(self, name: str) -> Any:
        if name == "data":
            super().__getattribute__("ack").watch()
        return super().__getattribute__(name)


def _deliver_at_s(delay: object) -> float | None:
    """Time of delivery in seconds since the epoch, of a label in seconds. Raises UsageError for anything else."""
    if delay is None:
        return None
    try:
        delay_s = float(delay)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        delay_s = math.nan
    if not math.isfinite(delay_s):
        raise UsageError(f"label {DELAY_LABEL} is {delay!r}: it must be a number of seconds")
    return time.time() + delay_s if delay_s > 0 else None
