"""dramatiq's broker: queues are topics, which the worker processes of a group pop."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from dramatiq import Broker, Message, Middleware
from dramatiq.errors import ConnectionClosed, ConnectionFailed, QueueJoinTimeout, QueueNotFound

from aerobee.client.base.config import ClientConfig
from aerobee.contrib.dramatiq.actor_queue import ETA, ActorQueue, stored_message
from aerobee.contrib.dramatiq.consumer import AerobeeConsumer
from aerobee.contrib.dramatiq.link import Link
from aerobee.contrib.new_topic import ensure_topic
from aerobee.errors import AerobeeError, UsageError
from aerobee.message import check_topic_name

JOIN_PAUSE_S = 0.02


class AerobeeBroker(Broker):
    """`AerobeeBroker("127.0.0.1:9876", namespace="shop")`, at least once; see docs/dramatiq.md for what failures do.

    Connects when it is first used, and again in each forked process.
    """

    def __init__(
        self,
        nameservers: str | Sequence[str] = "127.0.0.1:9876",
        *,
        namespace: str = "dramatiq",
        client: ClientConfig | None = None,
        invisible_s: float = 60.0,
        wait_s: float = 15.0,
        create_topics: bool = True,
        queue_count: int = 8,
        max_redeliveries: int = 16,
        timer_max_s: float = 259_200.0,
        middleware: list[Middleware] | None = None,
    ) -> None:
        """`namespace`: what the topics begin with: the queue `default` has the topic and group `dramatiq-default`.

        `invisible_s`: seconds after which messages of a dead worker are redelivered; living workers renew them.
        `create_topics`: create topics that do not exist, with `queue_count` queues per broker, and their groups, whose
        messages become dead letters after `max_redeliveries`. `timer_max_s`: maximum delay of the brokers, their
        timerMaxDelaySec; longer delays take several steps. `middleware`: as of every broker of dramatiq.
        """
        super().__init__(middleware)
        check_topic_name(namespace or "x")
        if invisible_s <= 0 or timer_max_s <= 0:
            raise UsageError("invisible_s and timer_max_s are numbers of seconds above 0")
        self.queues: set[str] = set()
        self.namespace = namespace
        self._nameservers = nameservers
        self._client = client
        self._invisible_s = invisible_s
        self._wait_s = wait_s
        self._create_topics = create_topics
        self._queue_count = queue_count
        self._max_redeliveries = max_redeliveries
        self._timer_max_s = timer_max_s
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._known: set[str] = set()
        self._consumers: dict[str, AerobeeConsumer] = {}
        self._sent_counts: dict[str, int] = {}
        self._abandoned: list[object] = []  # of the parent: collecting them would touch its selectors

    def topic_of(self, queue_name: str) -> str:
        """Topic and consumer group of a queue. Raises UsageError for a name that no topic can have."""
        name = queue_name.replace(".", "%2E")  # the one character of dramatiq's names that topics lack
        topic = f"{self.namespace}-{name}" if self.namespace else name
        check_topic_name(topic)
        return topic

    def declare_queue(self, queue_name: str) -> None:
        """Make the queue known to this broker; its topic is created when it is used."""
        if queue_name in self.queues:
            return
        self.topic_of(queue_name)
        self.emit_before("declare_queue", queue_name)
        self.queues.add(queue_name)
        self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        return self.queues.copy()

    def enqueue(self, message: Message, *, delay: int | None = None) -> Message:
        """Store the message; a broker has it on return. `delay`: milliseconds that the brokers keep it.

        Raises QueueNotFound for a queue that was not declared, ConnectionClosed when no broker takes it.
        """
        queue_name = message.queue_name
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        now_ms = round(time.time() * 1000)
        if delay is not None:
            message = message.copy(options={ETA: now_ms + delay})
        self.emit_before("enqueue", message, delay)
        topic = self.topic_of(queue_name)
        try:
            link = self._open_link(topic)
            link.call(link.producer.send(stored_message(topic, message, now_ms, self._timer_max_s)))
        except UsageError:
            raise
        except AerobeeError as error:
            raise ConnectionClosed(error) from error
        with self._lock:
            self._sent_counts[queue_name] = self._sent_counts.get(queue_name, 0) + 1
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> AerobeeConsumer:
        """The messages of a queue, at most `prefetch` unacknowledged; each __next__() waits `timeout` milliseconds.

        Raises QueueNotFound for a queue that was not declared, ConnectionFailed without a cluster.
        """
        try:
            found = self._consumer(queue_name)
            found.open(prefetch, timeout)
        except UsageError:
            raise
        except AerobeeError as error:
            raise ConnectionFailed(error) from error
        return found

    def _consumer(self, queue_name: str) -> AerobeeConsumer:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        topic = self.topic_of(queue_name)
        link = self._open_link(topic)
        with self._lock:
            found = self._consumers.get(queue_name)
            if found is None:

                def make(wanted: Any, notify: Any) -> ActorQueue:
                    return ActorQueue(
                        link.producer,
                        self._nameservers,
                        queue_name,
                        topic,
                        client=self._client,
                        wanted=wanted,
                        notify=notify,
                        invisible_s=self._invisible_s,
                        wait_s=self._wait_s,
                        timer_max_s=self._timer_max_s,
                    )

                found = self._consumers[queue_name] = AerobeeConsumer(link, make)
        return found

    def _open_link(self, topic: str) -> Link:
        with self._lock:
            link = self._link
            if link is None or not link.is_open:
                if link is not None:
                    self._abandoned += [link, *self._consumers.values()]
                self._known.clear()
                self._consumers.clear()
                link = self._link = Link(self._nameservers, self._client)
            if topic not in self._known:
                if self._create_topics:
                    link.call(
                        ensure_topic(
                            link.admin,
                            topic,
                            queue_count=self._queue_count,
                            group=topic,
                            max_redeliveries=self._max_redeliveries,
                        )
                    )
                self._known.add(topic)
            return link

    def close(self) -> None:
        """Return what is not acknowledged, and close the connections; a later use opens them again."""
        with self._lock:
            link, self._link = self._link, None
            consumers = list(self._consumers.values())
            self._consumers.clear()
            if link is None or not link.is_open:
                return
            try:
                for consumer in consumers:
                    consumer.end()
            finally:
                link.close()

    def flush(self, queue_name: str) -> None:
        """Acknowledge every message of a queue that is ready; messages with a later ETA stay."""
        self._consumer(queue_name).purge()
        with self._lock:
            self._sent_counts[queue_name] = self._finished_count(queue_name)

    def flush_all(self) -> None:
        """flush() of every declared queue."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until workers of this process have finished the messages that this broker has enqueued. For tests.

        `timeout`: milliseconds. Raises QueueJoinTimeout.
        """
        end = None if timeout is None else time.monotonic() + timeout / 1000
        while self._finished_count(queue_name) < self._sent_counts.get(queue_name, 0):
            if end is not None and time.monotonic() >= end:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_PAUSE_S)

    def _finished_count(self, queue_name: str) -> int:
        consumer = self._consumers.get(queue_name)
        return 0 if consumer is None else consumer.finished_count
