"""Push consumption with POP: pops in the background, bounded concurrent handler calls, acknowledgement or redelivery of
each message.

Follows DefaultMQPushConsumerImpl.popMessage and ConsumeMessagePopConcurrentlyService (RocketMQ). When the handler
returns, the message is acknowledged. When it raises, the message's invisible time is changed to the time of its
redelivery. After the group's last try, or with Reject, the message is dead-lettered. A handler that runs when the
invisible time expires continues, but another member may receive its message: configure a sufficient invisible time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from aerobee.client.base.handler_errors import is_of_handler
from aerobee.client.base.received import verdict_on, was_given_back
from aerobee.client.base.tasks import Tasks
from aerobee.client.base.verdict import GiveBack, Reject, RetryLater
from aerobee.client.consumer.broker_calls import send_back
from aerobee.client.consumer.give_back import log_dead_letter
from aerobee.client.consumer.group_retries import GroupRetries
from aerobee.client.consumer.pop_calls import ack, ack_all, change_invisible, is_too_late, pop
from aerobee.client.consumer.popped import PoppedMessage
from aerobee.client.consumer.subscription import Subscription
from aerobee.client.consumer.worker_pool import WorkerPool, one_by_one
from aerobee.client.session.session import Session
from aerobee.errors import AerobeeError, RemoteError
from aerobee.message import MessageQueue
from aerobee.words import plural

log = logging.getLogger(__name__)

# Delay of a redelivery after the n-th failure, in s (popDelayLevel of RocketMQ's client).
DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
CACHED_MAX = 96  # pending messages of one source; above it no pop is sent (popThresholdForQueue)
PAUSE_AFTER_ERROR_S = 1.0
BUSY_PAUSE_S = 0.05

Handler = Callable[[Any], Any]


class _Source:
    """One source of pops: topic, broker, and a queue or any queue."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.cached = 0
        self.task: asyncio.Task[None] | None = None


class PopPush:
    """Pops the owned queues and runs one handler for all of them."""

    def __init__(
        self,
        session: Session,
        group: str,
        handler: Handler,
        *,
        subscription: Callable[[str], Subscription],
        concurrency: int,
        batch_size: int,
        invisible_s: float,
        wait_s: float,
        count_max: int,
        retries: GroupRetries,
        from_begin: bool,
    ) -> None:
        self._session = session
        self._group = group
        self._handler = handler
        self._subscription = subscription
        self._batch_size = batch_size
        self._invisible_ms = round(invisible_s * 1000)
        self._wait_ms = round(wait_s * 1000)
        self._count_max = min(32, count_max)
        self._retries = retries
        self._from_begin = from_begin
        self._sources: dict[MessageQueue, _Source] = {}
        # Separate tasks: close() stops popping first, and running handlers may still acknowledge.
        self._tasks = Tasks()
        self._pool: WorkerPool[tuple[_Source, list[PoppedMessage]]] = WorkerPool(
            self._tasks, one_by_one(self._run), concurrency=concurrency
        )
        self._paused = False
        self.consumed_count = 0
        self.failed_count = 0

    @property
    def owned(self) -> frozenset[MessageQueue]:
        """The popped queues; queue id -1 stands for any queue of the broker."""
        return frozenset(self._sources)

    @property
    def busy(self) -> int:
        """Number of handler calls that are running."""
        return self._pool.busy

    def buffered(self) -> dict[str, int]:
        """Received messages that wait for a handler call, by topic."""
        found: dict[str, int] = {}
        for source in tuple(self._sources.values()):
            found[source.queue.topic] = found.get(source.queue.topic, 0) + source.cached
        return found

    def own(self, topic: str, queues: frozenset[MessageQueue]) -> None:
        """Set the queues of a topic to pop."""
        for queue in [queue for queue in self._sources if queue.topic == topic and queue not in queues]:
            task = self._sources.pop(queue).task
            if task is not None:
                task.cancel()
        for queue in sorted(queues):
            if queue not in self._sources:
                source = self._sources[queue] = _Source(queue)
                source.task = self._tasks.spawn(self._keep_popping(source), f"pop-{queue.broker_name}")

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    async def stop(self, drain_s: float) -> None:
        """Stop popping and let running handlers end; waiting messages are redelivered when their invisible time
        expires."""
        for source in self._sources.values():
            if source.task is not None:
                source.task.cancel()
        self._sources.clear()
        if not await self._pool.stop(drain_s):
            log.warning(
                "%d handler calls of group %s still run after %.1f s: their messages come again",
                self._pool.busy,
                self._group,
                drain_s,
            )
        await self._tasks.close()

    async def _keep_popping(self, source: _Source) -> None:
        clock = self._session.clock
        while True:
            if self._paused or source.cached >= CACHED_MAX:
                await clock.sleep(BUSY_PAUSE_S)
                continue
            subscription = self._subscription(source.queue.topic)
            try:
                taken = await pop(
                    self._session,
                    self._group,
                    source.queue,
                    subscription,
                    count_max=self._count_max,
                    invisible_ms=self._invisible_ms,
                    wait_ms=self._wait_ms,
                    from_begin=self._from_begin,
                )
            except AerobeeError as error:
                self._session.peers.trouble(
                    log, error, "group %s pops %s: %s", self._group, source.queue, error
                )
                await clock.sleep(PAUSE_AFTER_ERROR_S)
                continue
            collisions = [message for message in taken if not subscription.wants(message.tag)]
            if collisions:
                self._tasks.spawn(ack_all(self._session, self._group, collisions), "pop-ack-collisions")
                taken = [message for message in taken if subscription.wants(message.tag)]
            source.cached += len(taken)
            if self._session.meter is not None:
                self._session.meter.received(source.queue.topic, len(taken))
            size = self._batch_size
            self._pool.submit([(source, taken[at : at + size]) for at in range(0, len(taken), size)])

    # --- one handler call

    async def _run(self, work: tuple[_Source, list[PoppedMessage]]) -> None:
        source, messages = work
        source.cached -= len(messages)
        if messages[0].left_s(self._session.clock.monotonic()) <= 0:
            log.info("%s waited for a handler longer than its invisible time: it is redelivered", messages[0])
            return
        failure: BaseException | None = None
        after_s: float | None = None
        meter, monotonic = self._session.meter, self._session.clock.monotonic
        began = monotonic()
        try:
            returned = self._handler(messages[0] if self._batch_size == 1 else messages)
            if returned is not None and inspect.isawaitable(returned):
                await returned
        except (RetryLater, Reject) as error:
            log.info("group %s does not consume %s: %r", self._group, messages[0], error)
            failure = error
            after_s = error.after if isinstance(error, RetryLater) else None
        except BaseException as error:
            # Boundary to user code: any exception means "not consumed".
            if not is_of_handler(error):
                raise
            log.exception("handler of group %s failed for %s", self._group, messages)
            failure = error
        if meter is not None:
            meter.handled(messages[0].topic, monotonic() - began, len(messages), failure)
        try:
            if failure is None:
                await ack_all(self._session, self._group, messages)
                self.consumed_count += len(messages)
            else:
                self.failed_count += len(messages)
                for message in messages:
                    await self._failed(message, verdict_on(message, failure), after_s)
        except AerobeeError as error:
            too_late = isinstance(error, RemoteError) and is_too_late(error)
            log.warning(
                "%s %s: %s", messages[0], "was redelivered" if too_late else "will be redelivered", error
            )

    async def _failed(self, message: PoppedMessage, verdict: GiveBack, after_s: float | None) -> None:
        if was_given_back(message):  # by with_values(), as unreadable
            await ack(self._session, self._group, message)
            return
        tries = message.reconsume_times + 1
        source = message.pop_queue
        if verdict.is_dead or tries > await self._retries.bound(source.broker_name, source.topic):
            reason = verdict.reason or f"failed in {plural(tries, 'try', 'tries')}"
            dead = GiveBack(-1, reason, verdict.error, tries)
            await send_back(self._session, self._group, message, dead)
            await ack(self._session, self._group, message)
            log_dead_letter(self._group, message, dead)
            if self._session.meter is not None:
                self._session.meter.dead_lettered(message.topic)
            return
        if after_s is None:
            level = verdict.delay_level if verdict.delay_level > 0 else message.reconsume_times
            after_s = DELAYS_S[min(level, len(DELAYS_S) - 1)]
        await change_invisible(self._session, self._group, message, round(after_s * 1000))
        if self._session.meter is not None:
            self._session.meter.retried(message.topic)
