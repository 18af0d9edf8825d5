"""Calls the handler with messages, and commits or redelivers them according to the result.

Follows ConsumeMessageConcurrentlyService. A message is finished when the handler returned, or when a broker has taken
it back for another delivery. Until then the committed offset does not pass it, so no message is lost when this process
dies; handled messages without a commit are then redelivered.

A handler that takes longer than the consume time-out is cancelled and its message given back, so that one stuck call
does not block the offset of its queue for ever. RocketMQ's client gives the message back too, but does not stop the call,
so that a message can be handled twice concurrently. The same applies to a plain function, whose thread cannot be stopped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any

from aerobee.client.base.handler_errors import is_of_handler
from aerobee.client.base.metering import TopicFigures
from aerobee.client.base.received import ReceivedMessage, verdict_on
from aerobee.client.base.verdict import GiveBack, Reject, RetryLater
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.consumer.process_queue import ProcessQueue
from aerobee.client.consumer.queue_pull import QueuePull
from aerobee.client.consumer.worker_pool import WorkerPool
from aerobee.client.session.session import Session

log = logging.getLogger(__name__)

Handler = Callable[[Any], Any]
# One handler call: the queue, its ProcessQueue at that time, the messages.
Work = tuple[QueuePull, ProcessQueue, list[ReceivedMessage]]

OVERDUE_LEVEL = 3  # delay level of a message whose handler timed out: 10 s, as RocketMQ
_NOTHING = TopicFigures()  # of a worker that has called no handler yet
LOOKS_PER_TIMEOUT = 8  # an overdue call is found late by at most an eighth of the time-out


class Consumption:
    """Calls one handler for all queues of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        handler: Handler,
        *,
        concurrency: int,
        batch_size: int,
        broadcasting: bool,
        gives_back: GivesBack,
        local_retry_s: float,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._group = group
        self._gives_back = gives_back
        self._timeout_s = timeout_s
        self._overdue: set[asyncio.Task[Any]] = set()  # workers whose call was cancelled by the time-out
        self._settling: set[asyncio.Task[Any]] = set()  # workers that give messages back
        self._handler = handler
        self._batch_size = batch_size
        self._broadcasting = broadcasting
        self._local_retry_s = local_retry_s
        self._pool: WorkerPool[Work] = WorkerPool(session.tasks, self._run, concurrency=concurrency)
        self.consumed_count = 0
        self.failed_count = 0

    def deliver(self, pull: QueuePull, messages: list[ReceivedMessage]) -> None:
        """Enqueue messages for the workers."""
        process, size = pull.process, self._batch_size
        if size == 1:
            self._pool.submit([(pull, process, [message]) for message in messages])
        else:
            self._pool.submit(
                [(pull, process, messages[at : at + size]) for at in range(0, len(messages), size)]
            )

    @property
    def busy(self) -> int:
        """Number of handler calls that are running."""
        return self._pool.busy

    async def stop(self, timeout_s: float) -> None:
        """Start no more handler calls and wait for the running ones."""
        if not await self._pool.stop(timeout_s):
            log.warning(
                "%d handler calls of group %s still run after %.1f s: their messages are delivered again",
                self._pool.busy,
                self._group,
                timeout_s,
            )

    async def _run(self, take: Callable[[], Work | None]) -> None:
        handler, is_single, now_ms = self._handler, self._batch_size == 1, self._session.clock.now_ms
        meter, monotonic = self._session.meter, self._session.clock.monotonic
        # With a meter: when the call began, which is when the previous one ended, and the figures of the newest topic.
        began, topic, figures = 0.0 if meter is None else monotonic(), "", _NOTHING
        record = figures.handled.record
        while (work := take()) is not None:
            pull, process, messages = work
            if process.dropped:
                continue
            try:
                returned = handler(messages[0] if is_single else messages)
                if type(returned) is CoroutineType or (
                    returned is not None and inspect.isawaitable(returned)
                ):
                    await returned
            except BaseException as error:
                # Boundary to user code: any exception means "not consumed".
                if meter is not None:
                    meter.handled(messages[0].topic, monotonic() - began, len(messages), error)
                if isinstance(error, asyncio.CancelledError) and self._was_overdue():
                    await self._failed(work, self._overdue_verdict(messages))
                elif is_of_handler(error):
                    await self._raised(work, error)
                else:
                    raise
                began = monotonic()
                continue
            if self._overdue:
                self._was_overdue()  # it ended by itself in the meantime
            if meter is not None:
                if messages[0].topic != topic:
                    topic = messages[0].topic
                    figures = meter.of(topic)
                    record = figures.handled.record
                record((now := monotonic()) - began)
                figures.consumed += len(messages)
                began = now
            self.consumed_count += len(messages)
            for message in messages:
                process.finish(message.queue_offset)
            pull.last_consume_ms = now_ms()
            if pull.space is not None:
                pull.space_freed()

    async def _raised(self, work: Work, error: BaseException) -> None:
        messages = work[2]
        if isinstance(error, (RetryLater, Reject)):
            log.info("group %s does not consume %s: %r", self._group, messages[0], error)
        else:
            log.error("handler of group %s failed for %s", self._group, messages, exc_info=error)
            self._was_overdue()  # its exception may result from the cancellation
        await self._failed(work, lambda message: verdict_on(message, error))

    async def watch(self) -> None:
        """Periodically cancel handler calls that exceed the time-out, until cancelled."""
        interval_s = self._timeout_s / LOOKS_PER_TIMEOUT
        seen: dict[
            asyncio.Task[Any], tuple[Work, int]
        ] = {}  # a worker's call, and the number of checks during which it has been running
        while True:
            await self._session.clock.sleep(interval_s)
            now: dict[asyncio.Task[Any], tuple[Work, int]] = {}
            for worker, work in self._pool.running.items():
                before, looks = seen.get(worker, (None, 0))
                looks = looks + 1 if before is work else 0
                now[worker] = (work, looks)
                if looks == LOOKS_PER_TIMEOUT and worker not in self._settling:
                    self._overdue.add(worker)
                    worker.cancel()
            seen = now

    def _was_overdue(self) -> bool:
        """True when the running worker's call was cancelled by the time-out only."""
        worker = asyncio.current_task()
        if worker is None or worker not in self._overdue:
            return False
        self._overdue.discard(worker)
        return worker.uncancel() == 0

    def _overdue_verdict(self, messages: list[ReceivedMessage]) -> Callable[[ReceivedMessage], GiveBack]:
        text = f"the handler took longer than {self._timeout_s:g} s and was cancelled"
        log.error("group %s: %s: %s", self._group, messages, text)
        return lambda message: GiveBack(OVERDUE_LEVEL, error=text)

    async def _failed(self, work: Work, verdict_of: Callable[[ReceivedMessage], GiveBack]) -> None:
        pull, process, messages = work
        self.failed_count += len(messages)
        if process.dropped:
            return  # the queue's next owner receives the messages again
        worker = asyncio.current_task()
        assert worker is not None
        self._settling.add(worker)
        try:
            remaining = await self._give_back(process, messages, verdict_of)
        finally:
            self._settling.discard(worker)
        pull.space_freed()
        if remaining:
            self._session.clock.call_later(
                self._local_retry_s, self._pool.submit, [(pull, process, remaining)]
            )

    async def _give_back(
        self,
        process: ProcessQueue,
        messages: list[ReceivedMessage],
        verdict_of: Callable[[ReceivedMessage], GiveBack],
    ) -> list[ReceivedMessage]:
        """Return the messages that no broker accepted."""
        remaining = []
        for message in messages:
            if self._broadcasting:
                log.warning(
                    "broadcast message %s is dropped: broadcast messages are not redelivered", message
                )
            elif not await self._gives_back.give_back(message, verdict_of(message)):
                remaining.append(message)
                continue
            process.finish(message.queue_offset)
        return remaining

    async def consume_directly(self, message: ReceivedMessage) -> None:
        """Run the handler for one message that belongs to no owned queue. Raises what the handler raises."""
        returned: Awaitable[None] | None = self._handler(message if self._batch_size == 1 else [message])
        if returned is not None and inspect.isawaitable(returned):
            await returned
