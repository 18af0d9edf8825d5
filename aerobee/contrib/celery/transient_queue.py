"""A transient queue: what its owner reads, from its declaration on, of topics that all transient queues share.

Reply queues, mailboxes of workers and queues of events live as long as their channel. A topic for each would outlive
them, so each of their messages is stored once, with a tag by which the broker filters, and every reader has its own
position. The positions are taken when the queue is declared and bound; reading begins with its first consumer. A
transient queue gets each message at most once, needs no acknowledgement, and loses what is unread when it is closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable

from aerobee.client.base.config import PullConsumerConfig
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.consumer.pull_consumer import PullConsumer
from aerobee.contrib.celery.cluster_link import ClusterLink
from aerobee.contrib.celery.envelope import Envelope, decode, is_expired
from aerobee.contrib.celery.names import READER_GROUP, transient_topic
from aerobee.contrib.celery.settings import Settings
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue

log = logging.getLogger(__name__)

# A shared topic has one queue per broker: messages of one publisher stay in order, and a reader has one long poll.
SHARED_QUEUE_COUNT = 1
# Messages that wait for their consumer; then reading pauses until it has taken some.
WAITING_MAX = 10_000
ROUTES_S = 30.0  # how often a reader looks for new queues of its topic


class TopicReader:
    """Reads one shared topic for one transient queue."""

    def __init__(self, link: ClusterLink, topic: str) -> None:
        self.topic = topic
        self._tags: dict[str, None] = {}
        self._patterns: list[re.Pattern[str] | None] = []
        self._positions: dict[MessageQueue, int] = {}
        self._consumer = PullConsumer(
            link.nameservers,
            READER_GROUP,
            config=PullConsumerConfig(auto_commit=False, cached_count_max=WAITING_MAX),
            client=link.client,
        )
        self._is_assigned = False

    async def start(self) -> None:
        """Take the positions: messages stored from now on will be read."""
        await self._consumer.start()
        try:
            for queue in await self._consumer.queues(self.topic):
                self._positions[queue] = await self._consumer.end_offset(queue)
        except BaseException:
            await self._consumer.close()
            raise

    async def close(self) -> None:
        await self._consumer.close()

    async def select(self, tag: str, pattern: re.Pattern[str] | None) -> None:
        """Read messages with this tag too (`*`: any), of which the routing key matches; None: any routing key."""
        self._tags[tag] = None
        self._patterns.append(pattern)
        if self._is_assigned:
            await self._consumer.assign(self._positions, self._expression())

    async def assign(self) -> None:
        """Begin to read at the positions."""
        if not self._is_assigned:
            self._is_assigned = True
            await self._consumer.assign(self._positions, self._expression())
            for queue, position in self._positions.items():
                await self._consumer.seek(queue, position)

    async def read(self) -> list[ReceivedMessage]:
        """The next messages with one of the tags; empty after some seconds without one."""
        return [
            message
            for message in await self._consumer.poll(ROUTES_S)
            if "*" in self._tags or message.tag in self._tags
        ]

    async def find_queues(self) -> None:
        """Read queues that the topic has got since, from their beginning."""
        new = [queue for queue in await self._consumer.queues(self.topic) if queue not in self._positions]
        if not new:
            return
        self._positions |= dict.fromkeys(new, 0)
        await self._consumer.assign(self._positions, self._expression())
        for queue in new:
            await self._consumer.seek_to_begin(queue)

    def wants(self, routing_key: str) -> bool:
        """Whether a binding matches the routing key."""
        return any(pattern is None or pattern.match(routing_key) for pattern in self._patterns)

    def _expression(self) -> str:
        return "*" if "*" in self._tags else " || ".join(self._tags)


class TransientQueue:
    """Messages of shared topics for one queue name. In the link's loop, except take() and ready_count."""

    def __init__(
        self,
        link: ClusterLink,
        settings: Settings,
        name: str,
        *,
        ttl_ms: int | None,
        notify: Callable[[], None],
    ) -> None:
        """`ttl_ms`: older messages are dropped. `notify`: called when take() has a message."""
        self.name = name
        self._link = link
        self._settings = settings
        self._ttl_ms = ttl_ms
        self._notify = notify
        self._readers: dict[str, TopicReader] = {}
        self._ready: deque[Envelope] = deque()
        self._taken = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_receiving = False

    @property
    def ready_count(self) -> int:
        """Messages that take() can return now."""
        return len(self._ready)

    async def bind(self, topic: str, tag: str, pattern: re.Pattern[str] | None) -> None:
        """Receive messages of a shared topic that are stored from now on; the topic is created when it does not exist."""
        self._link.consumers.add(self)
        reader = self._readers.get(topic)
        if reader is None:
            await self._link.ensure(topic, self._settings, queue_count=SHARED_QUEUE_COUNT)
            reader = TopicReader(self._link, topic)
            await reader.start()
            self._readers[topic] = reader
        await reader.select(tag, pattern)
        if self._is_receiving:
            self._read(reader)

    async def receive(self) -> None:
        """Begin to read."""
        self._is_receiving = True
        for reader in self._readers.values():
            self._read(reader)

    async def pause(self) -> None:
        """Nothing: the queue exists until it is closed, with or without a consumer."""

    async def close(self) -> None:
        """Stop reading; unread messages are dropped."""
        self._link.consumers.discard(self)
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            await reader.close()
        self._ready.clear()

    def space_freed(self) -> None:
        """take() was called."""
        self._taken.set()

    def take(self) -> Envelope | None:
        """The next message, None when none is here. From any thread."""
        try:
            return self._ready.popleft()
        except IndexError:
            return None

    def clear(self) -> int:
        """Drop the messages that wait; returns how many."""
        count = 0
        while self.take() is not None:
            count += 1
        return count

    def _read(self, reader: TopicReader) -> None:
        if reader.topic not in self._tasks:
            self._tasks[reader.topic] = asyncio.create_task(
                self._read_on(reader), name=f"celery-read-{reader.topic}"
            )

    async def _read_on(self, reader: TopicReader) -> None:
        looked_s = time.monotonic()
        while True:
            try:
                await reader.assign()
                for message in await reader.read():
                    self._arrived(reader, message)
                if time.monotonic() - looked_s >= ROUTES_S:
                    looked_s = time.monotonic()
                    await reader.find_queues()
            except AerobeeError as error:
                log.warning("queue %s: topic %s is not read now: %s", self.name, reader.topic, error)
                await asyncio.sleep(1.0)
            while len(self._ready) >= WAITING_MAX:
                self._taken.clear()
                await self._taken.wait()

    def _arrived(self, reader: TopicReader, message: ReceivedMessage) -> None:
        try:
            envelope = decode(message.body)
        except AerobeeError as error:
            log.warning(
                "queue %s: %s is skipped, its envelope is not readable: %s", self.name, message, error
            )
            return
        now_ms = round(time.time() * 1000)
        if is_expired(envelope, message.store_timestamp, now_ms):
            return
        if self._ttl_ms is not None and now_ms - message.store_timestamp > self._ttl_ms:
            return
        key = str(envelope["properties"]["delivery_info"].get("routing_key") or "")
        if reader.topic != transient_topic(self._settings.prefix) and not reader.wants(key):
            return
        self._ready.append(envelope)
        self._notify()
