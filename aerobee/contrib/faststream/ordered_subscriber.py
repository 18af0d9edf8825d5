"""A subscriber that owns queues under locks of the broker, and handles the messages of each in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from faststream.exceptions import FeatureNotSupportedException

from aerobee.client.base.config import ConsumeFrom, ConsumerConfig
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.verdict import Reject, RetryLater
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.contrib.faststream.incoming import Incoming
from aerobee.contrib.faststream.subscriber import AerobeeSubscriber

UNSETTLED = "its handler ended without ack(), nack() or reject()"
UNSETTLED_AFTER_S = 1.0  # until a message without a verdict is delivered again


class Decision:
    """The first verdict on a message of an ordered queue, for the consumer that waits for the handler."""

    __slots__ = ("_delay_s", "_error", "_is_made")

    def __init__(self, delay_s: float) -> None:
        """`delay_s`: of a redelivery that names none."""
        self._delay_s = delay_s
        self._error: Exception | None = None
        self._is_made = False

    def ack(self) -> None:
        self._make(None)

    def nack(self, after_s: float | None) -> None:
        self._make(RetryLater("nack", after=max(0.0, self._delay_s if after_s is None else after_s)))

    def reject(self, reason: str) -> None:
        self._make(Reject(reason))

    def _make(self, error: Exception | None) -> None:
        if not self._is_made:
            self._is_made, self._error = True, error

    def raise_unless_acked(self) -> None:
        """Raise what PushConsumer understands as this verdict."""
        if not self._is_made:
            raise RetryLater(UNSETTLED, after=UNSETTLED_AFTER_S)
        if self._error is not None:
            raise self._error


class OrderedSubscriber(AerobeeSubscriber):
    """Up to `max_workers` queues are handled at the same time. A message that is redelivered blocks its queue until then.

    The verdict has to be made before the handler ends. A process that joins or leaves the group moves queues: a queue is
    handled by its new owner when the old one has finished its message.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._consumer: PushConsumer | None = None
        self._handling: set[asyncio.Task[Any] | None] = set()
        # (broker name, queue id) -> (offset of its last redelivered message, its tries)
        self._tries: dict[tuple[str, int], tuple[int, int]] = {}
        self._closing: asyncio.Task[None] | None = None

    async def _open(self) -> None:
        delivery, config = self.delivery, self._outer_config
        retries = delivery.max_redeliveries
        self._consumer = PushConsumer(
            config.nameservers,
            self.group,
            {self.topic: self.tag.expression},
            self._handle,
            config=ConsumerConfig(
                orderly=True,
                consume_from=ConsumeFrom.FIRST if delivery.from_begin else ConsumeFrom.LAST,
                concurrency=delivery.max_workers,
                cached_count_max=delivery.prefetch_count,
                pull_batch_count=min(delivery.prefetch_count, 1024),
                retry_count_max=-1 if retries is None else retries,
                drain_s=config.graceful_timeout or ConsumerConfig().drain_s,
            ),
            client=config.client,
        )

    async def _receive(self) -> None:
        assert self._consumer is not None
        await self._consumer.start()

    async def _halt(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            # Begun here: from now on the consumer calls no handler. What it has pulled would else fail without one, as a try
            # of the group, while running handlers are waited for.
            self._closing = asyncio.create_task(consumer.close(), name="ordered-close")
            await asyncio.sleep(0)

    async def _close(self) -> None:
        # StopConsume stops the subscriber inside its handler, and close() waits for handlers.
        if self._closing is not None and asyncio.current_task() not in self._handling:
            await self._closing

    async def _handle(self, message: ReceivedMessage) -> None:
        if self.tag.path(message.tag) is None:
            return
        queue = (message.queue.broker_name, message.queue.queue_id)
        offset, tries = self._tries.get(queue, (-1, 0))
        if offset != message.queue_offset:
            tries = 0
        decision = Decision(self.delivery.retry_delay_s(tries))
        task = asyncio.current_task()
        self._handling.add(task)
        try:
            await self.consume(Incoming.of(message, decision))
            decision.raise_unless_acked()
        except RetryLater:
            self._tries[queue] = (message.queue_offset, tries + 1)
            raise
        finally:
            self._handling.discard(task)

    async def get_one(self, *, timeout: float = 5.0) -> Any:
        """Not supported: an ordered queue needs a handler."""
        assert not self.calls, "You can't use `get_one` method if subscriber has registered handlers."
        raise FeatureNotSupportedException("ordered=True needs a handler")

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Not supported: an ordered queue needs a handler."""
        raise FeatureNotSupportedException("ordered=True needs a handler")
        yield
