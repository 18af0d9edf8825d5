"""Calls the handler with the messages of each queue in order. I/O layer of OrderedQueue.

Follows ConsumeMessageOrderlyService (RocketMQ). Up to `concurrency` queues are processed concurrently; within a queue
the next message waits until the previous one was handled, or was given up and dead-lettered.

The handler of a queue that this member loses (its lock ran out, see queue_locking.py) is cancelled, because another
member may already process the same message; an `async def` handler ends, the thread of a plain one continues. An
orderly release has three steps: the running handler ends, the offset is committed, the lock is released.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from aerobee.client.base.handler_errors import is_of_handler
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.base.verdict import GiveBack, RetryLater, give_back_after
from aerobee.client.consumer.give_back import GivesBack
from aerobee.client.consumer.group_retries import GroupRetries
from aerobee.client.consumer.ordered_queue import OrderedQueue, OrderPolicy
from aerobee.client.consumer.queue_pull import QueuePull
from aerobee.client.consumer.worker_pool import WorkerPool, one_by_one
from aerobee.client.session.session import Session
from aerobee.clock import Timer
from aerobee.message import MessageQueue
from aerobee.words import plural

log = logging.getLogger(__name__)

MESSAGES_PER_TURN = 64  # maximum number of batches of one queue before a worker serves other waiting queues
CANCELLED_WAIT_S = 1.0  # wait at a stop for cancelled handlers


class _Line:
    """One queue: its messages and the task of its worker."""

    __slots__ = ("closing", "listed", "ordered", "pull", "quiet", "revoked", "timer", "worker")

    def __init__(self, pull: QueuePull, policy: OrderPolicy) -> None:
        self.pull = pull
        self.ordered = OrderedQueue(policy)
        self.listed = False  # queued for a worker or being processed
        self.closing = False  # no new handler call starts
        self.revoked = False  # the result of a running handler call is ignored
        self.worker: asyncio.Task[Any] | None = None
        self.timer: Timer | None = None
        self.quiet: asyncio.Future[None] | None = None


class OrderedConsumption:
    """Calls one handler for all queues of one consumer, in order within each queue."""

    def __init__(
        self,
        session: Session,
        handler: Callable[[Any], Any],
        *,
        gives_back: GivesBack,
        retries: GroupRetries,
        policy: OrderPolicy,
        concurrency: int,
        may_act: Callable[[MessageQueue], bool],
        broadcasting: bool,
        local_retry_s: float,
    ) -> None:
        """`may_act` is called before each handler call: False while the lock of the queue may have expired."""
        self._session = session
        self._handler = handler
        self._gives_back = gives_back
        self._retries = retries
        self._policy = policy
        self._may_act = may_act
        self._broadcasting = broadcasting
        self._local_retry_s = local_retry_s
        self._lines: dict[MessageQueue, _Line] = {}
        self._pool: WorkerPool[_Line] = WorkerPool(
            session.tasks, one_by_one(self._work), concurrency=concurrency
        )
        self._stopping = False
        self.consumed_count = 0
        self.failed_count = 0

    # queues are acquired and released

    def open(self, pull: QueuePull) -> None:
        """Start the consumption of a queue that this member now owns."""
        self._lines[pull.queue] = _Line(pull, self._policy)

    def deliver(self, pull: QueuePull, messages: list[ReceivedMessage]) -> None:
        """Enqueue messages of a queue for the handler."""
        line = self._lines.get(pull.queue)
        if line is not None and line.pull is pull:
            line.ordered.put(pull.process, messages)
            self._list(line)

    async def finish(self, queue: MessageQueue) -> None:
        """Start no more handler calls of a queue; return when none is running."""
        line = self._lines.get(queue)
        if line is None:
            return
        line.closing = True
        self._stop_timer(line)
        if line.listed:
            line.quiet = asyncio.get_running_loop().create_future()
            await line.quiet
        if self._lines.get(queue) is line:
            del self._lines[queue]

    def revoke(self, queue: MessageQueue) -> None:
        """A queue was lost: cancel its running handler call and ignore its result."""
        line = self._lines.pop(queue, None)
        if line is None:
            return
        self._revoke(line)

    def _revoke(self, line: _Line) -> None:
        line.closing = line.revoked = True
        self._stop_timer(line)
        if line.worker is not None:
            line.worker.cancel()

    async def stop(self, timeout_s: float) -> None:
        """Start no more handler calls; wait for the running ones, and cancel those that exceed the time-out."""
        self._stopping = True
        for line in self._lines.values():
            line.closing = True
            self._stop_timer(line)
        if await self._pool.stop(timeout_s):
            return
        log.warning("%d handler calls still run after %.1f s: they are cancelled", self._pool.busy, timeout_s)
        for line in self._lines.values():
            if line.worker is not None:
                self._revoke(line)
        await self._pool.stop(CANCELLED_WAIT_S)

    @property
    def busy(self) -> int:
        """Number of queues with a running handler call."""
        return len(self.working)

    @property
    def working(self) -> set[MessageQueue]:
        """Queues whose handler is running."""
        return {queue for queue, line in tuple(self._lines.items()) if line.worker is not None}

    # work

    def _list(self, line: _Line) -> None:
        """Schedule a queue for a worker, unless it is scheduled already."""
        if not line.listed and not line.closing and not self._stopping:
            line.listed = True
            self._pool.submit((line,))

    def _schedule_listing(self, line: _Line, seconds: float) -> None:
        self._stop_timer(line)
        line.timer = self._session.clock.call_later(seconds, self._list, line)

    @staticmethod
    def _stop_timer(line: _Line) -> None:
        if line.timer is not None:
            line.timer.cancel()
            line.timer = None

    async def _work(self, line: _Line) -> None:
        """Handle messages of one queue until it is empty or its share of batches is used."""
        task = line.worker = asyncio.current_task()
        again = False
        try:
            again = await self._handle_some(line)
        except asyncio.CancelledError:
            if not line.revoked or task is None or task.cancelling() > 1:
                raise
            log.warning("the handler of %s was cancelled: the queue was lost", line.pull.queue)
        except Exception:
            # Boundary of this queue's work: an error here must not end a worker that other queues need.
            log.exception("work on %s failed", line.pull.queue)
            again = True
        finally:
            if line.revoked and task is not None:
                task.uncancel()
            line.worker = None
            line.listed = False
            if line.quiet is not None and not line.quiet.done():
                line.quiet.set_result(None)
        if again:
            self._list(line)

    async def _handle_some(self, line: _Line) -> bool:
        """True when more messages may be available immediately."""
        ordered, pull, clock = line.ordered, line.pull, self._session.clock
        for _ in range(MESSAGES_PER_TURN):
            now = clock.monotonic()
            if line.closing or self._stopping or not self._may_act(pull.queue):
                return False
            messages = ordered.take(now)
            if not messages:
                wait_s = ordered.wait_s(now)
                if wait_s is not None:
                    self._schedule_listing(line, wait_s)
                return False
            meter = self._session.meter
            try:
                single = self._policy.batch_size == 1
                returned = self._handler(messages[0] if single else messages)
                if returned is not None and inspect.isawaitable(returned):
                    await returned
            except BaseException as error:
                # Boundary to user code: any exception means "not consumed".
                if meter is not None:
                    meter.handled(messages[0].topic, clock.monotonic() - now, len(messages), error)
                if not is_of_handler(error):
                    raise
                if not line.revoked:
                    await self._failed(line, messages, error)
                continue
            if meter is not None:
                meter.handled(messages[0].topic, clock.monotonic() - now, len(messages))
            if line.revoked:
                return False
            ordered.succeeded()
            self.consumed_count += len(messages)
            pull.last_consume_ms = clock.now_ms()
            pull.space_freed()
        return True

    async def _failed(self, line: _Line, messages: list[ReceivedMessage], error: BaseException) -> None:
        self.failed_count += len(messages)
        ordered, clock = line.ordered, self._session.clock
        verdict = give_back_after(error)
        after_s = error.after if isinstance(error, RetryLater) else None
        if isinstance(error, RetryLater):
            log.info("%s is redelivered later: %s", messages[0], error)
        elif not verdict.is_dead:
            log.error("handler failed for %s", messages, exc_info=error)
        broker_name = self._session.routes.leader_of(line.pull.queue)
        bound = await self._retries.bound(broker_name, line.pull.queue.topic)
        if line.revoked:
            return
        if not ordered.failed(
            clock.monotonic(), retry_count_max=bound, after_s=after_s, dead=verdict.is_dead
        ):
            if self._session.meter is not None:
                self._session.meter.retried(messages[0].topic, len(messages))
            return
        if self._broadcasting:
            log.warning(
                "broadcast message %s is dropped: broadcast messages are not redelivered", messages[0]
            )
        elif not await self._to_dead_letters(line, messages[0], verdict):
            ordered.suspend(clock.monotonic(), self._local_retry_s)
            return
        ordered.succeeded()
        line.pull.space_freed()

    async def _to_dead_letters(self, line: _Line, message: ReceivedMessage, verdict: GiveBack) -> bool:
        reason = verdict.reason or self._hopeless(line)
        tries = message.reconsume_times + 1
        return await self._gives_back.give_back(message, GiveBack(-1, reason, verdict.error, tries))

    def _hopeless(self, line: _Line) -> str:
        tries = line.ordered.tries
        since = line.ordered.blocked_since
        blocked_s = 0.0 if since is None else self._session.clock.monotonic() - since
        return f"blocked its ordered queue for {blocked_s:.0f} s, {plural(tries, 'try', 'tries')} failed"

    async def consume_directly(self, message: ReceivedMessage) -> None:
        """Run the handler for one message that belongs to no owned queue. Raises what the handler raises."""
        returned = self._handler(message if self._policy.batch_size == 1 else [message])
        if returned is not None and inspect.isawaitable(returned):
            await returned
