"""A subscriber that pops: any member of the group may receive any message, and no member owns a queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from faststream._internal.endpoint.utils import process_msg

from aerobee.contrib.delivery import Delivery, Verdict
from aerobee.contrib.faststream.incoming import Incoming
from aerobee.contrib.faststream.settings import INVISIBLE_S, WAIT_S
from aerobee.contrib.faststream.subscriber import AerobeeSubscriber
from aerobee.contrib.faststream.tag_filter import TagFilter
from aerobee.contrib.pop_queue import PopQueue
from aerobee.errors import MessageDamaged


class PopSettler:
    """Verdicts on one popped message."""

    __slots__ = ("_delivery", "_queue")

    def __init__(self, queue: IncomingQueue, delivery: Delivery) -> None:
        self._queue = queue
        self._delivery = delivery

    def ack(self) -> None:
        self._queue.settle(self._delivery, Verdict.ACK)

    def nack(self, after_s: float | None) -> None:
        if after_s is None:
            after_s = self._queue.retry_delay_s(self._delivery.message.reconsume_times)
        self._queue.settle(self._delivery, Verdict.REQUEUE, after_s=max(0.0, after_s))

    def reject(self, reason: str) -> None:
        self._queue.settle(self._delivery, Verdict.DEAD_LETTER, reason)


class IncomingQueue(PopQueue):
    """A PopQueue whose deliveries have an Incoming as envelope, without those that a tag template does not match."""

    def __init__(self, *arguments: Any, tag: TagFilter, retry_delay_s: Any, **options: Any) -> None:
        super().__init__(*arguments, expression=tag.expression, **options)
        self.retry_delay_s = retry_delay_s
        self._tag = tag

    async def _accept(self, delivery: Delivery) -> bool:
        if self._tag.path(delivery.message.tag) is None:
            self.settle(delivery, Verdict.ACK)
            return False
        try:
            delivery.envelope = Incoming.of(delivery.message, PopSettler(self, delivery))
        except MessageDamaged as error:
            self.settle(delivery, Verdict.DEAD_LETTER, str(error))
            return False
        return True


class PopSubscriber(AerobeeSubscriber):
    """`max_workers` asyncio tasks take messages, and each calls the handler for one message after the other.

    A message whose handler ended without a verdict (AckPolicy.MANUAL) is redelivered when its invisible time expires. A
    message of get_one() or `async for` has its invisible time to be acknowledged; it is not renewed.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._queue: IncomingQueue | None = None
        self._ready = asyncio.Event()
        self._reader_count = 0

    async def _open(self) -> None:
        delivery, config = self.delivery, self._outer_config
        retries = delivery.max_redeliveries
        queue = IncomingQueue(
            config.nameservers,
            self.topic,
            client=config.client,
            wanted=self._wanted,
            notify=self._ready.set,
            group=self.group,
            invisible_s=INVISIBLE_S if delivery.invisible_s is None else delivery.invisible_s,
            wait_s=WAIT_S if delivery.wait_s is None else delivery.wait_s,
            from_begin=delivery.from_begin,
            max_redeliveries=-1 if retries is None else retries,
            tag=self.tag,
            retry_delay_s=delivery.retry_delay_s,
        )
        await queue.start()
        self._queue = queue

    async def _receive(self) -> None:
        assert self._queue is not None
        await self._queue.receive()
        work = self._work_in_batches if self.delivery.batch else self._work
        for number in range(self.delivery.max_workers):
            name = f"{self.specification.call_name}-{number}"
            self._workers.add(asyncio.create_task(work(self._queue), name=name))

    async def _halt(self) -> None:
        if self._queue is not None:
            await self._queue.pause()

    async def _close(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            await queue.close()

    def _wanted(self) -> int:
        queue = self._queue
        if queue is None:
            return 0
        wanted = self.delivery.prefetch_count if self.calls else self._reader_count
        if self.delivery.batch and self.calls:
            wanted = max(wanted, self.delivery.max_records)
        return wanted - queue.ready_count

    # handlers

    async def _work(self, queue: IncomingQueue) -> None:
        while self._queue is queue:
            delivery = await self._next(queue)
            await self.consume(delivery.envelope)
            if delivery.verdict is None and self.running:
                queue.renew_no_more(delivery)

    async def _work_in_batches(self, queue: IncomingQueue) -> None:
        while self._queue is queue:
            batch = [await self._next(queue)]
            end_s = time.monotonic() + self.delivery.batch_timeout_s
            while len(batch) < self.delivery.max_records:
                try:
                    async with asyncio.timeout(max(0.0, end_s - time.monotonic())):
                        batch.append(await self._next(queue))
                except TimeoutError:
                    break
            await self.consume(tuple(delivery.envelope for delivery in batch))
            for delivery in batch:
                if delivery.verdict is None and self.running:
                    queue.renew_no_more(delivery)

    async def _next(self, queue: IncomingQueue) -> Delivery:
        while (delivery := queue.take()) is None:
            self._ready.clear()
            await self._ready.wait()
        queue.space_freed()
        return delivery

    # without a handler

    async def get_one(self, *, timeout: float = 5.0) -> Any:
        """The next message, None when none came in `timeout` seconds. The caller acknowledges it."""
        self._refuse_with_handlers("get_one")
        queue = await self._reading_queue()
        incoming: Incoming | None = None
        self._reader_count += 1
        try:
            queue.space_freed()
            async with asyncio.timeout(timeout):
                incoming = await self._read(queue)
        except TimeoutError:
            return None
        finally:
            self._reader_count -= 1
        return await self._processed(incoming)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Messages as they arrive. The caller acknowledges them."""
        self._refuse_with_handlers("async for")
        queue = await self._reading_queue()
        self._reader_count += 1
        try:
            while True:
                queue.space_freed()
                yield await self._processed(await self._read(queue))
        finally:
            self._reader_count -= 1

    def _refuse_with_handlers(self, what: str) -> None:
        assert not self.calls, f"You can't use `{what}` if subscriber has registered handlers."

    async def _reading_queue(self) -> IncomingQueue:
        if self._queue is None:
            await self.start()
        assert self._queue is not None
        await self._queue.receive()
        return self._queue

    async def _read(self, queue: IncomingQueue) -> Incoming:
        delivery = await self._next(queue)
        queue.renew_no_more(delivery)
        incoming: Incoming = delivery.envelope
        return incoming

    async def _processed(self, incoming: Incoming | None) -> Any:
        parser, decoder = self._get_parser_and_decoder()
        raw = (incoming,) if self.delivery.batch and incoming is not None else incoming
        context = self._outer_config.fd_config.context
        return await process_msg(
            msg=raw,
            middlewares=(middleware(raw, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
