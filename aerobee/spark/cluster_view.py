"""A driver's requests to a cluster: topics, queues, their offset ranges, offsets by time; and its progress reports.

Calls block; they run in a background thread with a separate event loop, so the driver may run one too. A view
can be created anywhere, connects at its first call, and cannot be pickled.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Self, TypeVar

from aerobee.client.admin.admin import Admin
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.client.consumer.broker_calls import begin_offset, commit_offset, end_offset, offset_for_time
from aerobee.client.sync import LoopThread
from aerobee.errors import (
    AerobeeError,
    RouteError,
    SubscriptionGroupNotExist,
    TopicNotExist,
    TransportError,
    UsageError,
)
from aerobee.message import MessageQueue
from aerobee.spark.boundaries import Bounds
from aerobee.spark.data_loss import NO_QUEUE
from aerobee.spark.offsets import Offsets
from aerobee.spark.options import SourceOptions

log = logging.getLogger(__name__)
T = TypeVar("T")

CALLS_AT_ONCE = 64  # concurrent calls of one view; a cluster of 10,000 queues takes 160 rounds


class QueueAdmin(Admin):
    """An admin client with calls for single queues."""

    async def bounds(self, queue: MessageQueue) -> Bounds:
        """The offset range of a queue now."""
        routes = self._session.routes
        begin = await begin_offset(self._session, queue)
        end = max(begin, await end_offset(self._session, queue))
        return Bounds(begin, end, is_masters=routes.address_of(routes.leader_of(queue)) is not None)

    async def refresh_route(self, topic: str) -> None:
        """Refresh the routes; drop unknown topics and their queues."""
        try:
            await self._session.routes.refresh(topic)
        except AerobeeError as error:
            log.info("route of topic %s: %s", topic, error)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after a time; the queue's end without such a message."""
        return await offset_for_time(self._session, queue, timestamp_ms)

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's offset."""
        await commit_offset(self._session, group, queue, offset)


class ClusterView:
    """One reader's view of its topics."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin: QueueAdmin | None = None
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster. A later call connects again."""
        thread, admin = self._thread, self._admin
        self._thread = self._admin = None
        if thread is not None and admin is not None:
            try:
                thread.call(admin.close())
            finally:
                thread.stop()

    def queues(self, known: Collection[str] | None = ()) -> tuple[MessageQueue, ...]:
        """The queues that the options select in the present routes, sorted.

        Queues of unregistered brokers are missing. Raises UsageError for an unknown subscribed topic, and for
        an unknown assigned queue of a topic with brokers. Topics in `known` existed before and may have no
        broker now; None: all topics may.
        """

        async def ask(admin: QueueAdmin) -> tuple[MessageQueue, ...]:
            return await self._queues(admin, known)

        return self._run(ask)

    def bounds(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """The offset range of each queue now. Raises TransportError when a broker does not reply after all retries."""
        return self._each(queues, lambda admin, queue: admin.bounds(queue))

    def queue_bounds(self, known: Collection[str] | None = ()) -> dict[MessageQueue, Bounds]:
        """The bounds() of queues(), without brokers that unregister between the two calls."""

        async def ask(admin: QueueAdmin) -> dict[MessageQueue, Bounds]:
            return await _each_of(
                admin, await self._queues(admin, known), lambda admin, queue: admin.bounds(queue)
            )

        return self._run(ask)

    def offsets_at(self, times_ms: Mapping[MessageQueue, int]) -> Offsets:
        """The first offset of each queue stored at or after a time; its end when there is none."""
        return self._each(times_ms, lambda admin, queue: admin.offset_at(queue, times_ms[queue]))

    def missing_cause(self, queue: MessageQueue) -> str:
        """Reason why a queue of an earlier read is missing in queues(): NO_QUEUE, or "" while its broker is
        unregistered.
        """

        async def ask(admin: QueueAdmin) -> str:
            info = await admin.cluster_info()
            return NO_QUEUE if queue.broker_name in info.broker_addr_table else ""

        return self._run(ask)

    def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Report the group's progress. A failure is only logged: operators use the committed offsets, Spark
        reads those of its checkpoint.
        """
        group = self._options.group

        async def report(admin: QueueAdmin, queue: MessageQueue) -> None:
            try:
                try:
                    await admin.commit(group, queue, offsets[queue])
                except SubscriptionGroupNotExist:  # a broker from which the group has read nothing yet
                    await admin.create_group(group, broker=queue.broker_name)
                    await admin.commit(group, queue, offsets[queue])
            except AerobeeError as error:
                log.warning("progress of group %s in %s is not reported: %s", group, queue, error)

        self._each(offsets, report)

    # -- calls of the background thread

    def _run(self, work: Callable[[QueueAdmin], Awaitable[T]], topics: Collection[str] = ()) -> T:
        """Run this in the background thread; retry it after a connection failure, as often as the options allow.

        `topics`: their routes are refreshed before a retry.
        """
        if self._thread is None or self._admin is None:
            thread = LoopThread("aerobee-spark-view")
            admin = QueueAdmin(self._options.nameservers, client=self._options.client)
            try:
                thread.call(admin.start())
            except BaseException:
                thread.stop()
                raise
            self._thread, self._admin = thread, admin
        return self._thread.call(self._with_retries(self._admin, work, topics))

    async def _with_retries(
        self, admin: QueueAdmin, work: Callable[[QueueAdmin], Awaitable[T]], topics: Collection[str]
    ) -> T:
        for _ in range(self._options.retry_count):
            try:
                return await work(admin)
            except (TransportError, RouteError) as error:
                log.info("asked again after %s", error)
                await asyncio.sleep(self._options.retry_interval_ms / 1000)
                for topic in topics:
                    await admin.refresh_route(topic)
        return await work(admin)

    def _each(
        self, queues: Iterable[MessageQueue], ask: Callable[[QueueAdmin, MessageQueue], Awaitable[T]]
    ) -> dict[MessageQueue, T]:
        wanted = list(queues)
        return self._run(lambda admin: _each_of(admin, wanted, ask), {queue.topic for queue in wanted})

    async def _queues(self, admin: QueueAdmin, known: Collection[str] | None) -> tuple[MessageQueue, ...]:
        options = self._options
        topics: Iterable[str] = options.topics
        if options.queues:
            topics = dict.fromkeys(queue.topic for queue in options.queues)
        elif options.pattern:
            wanted = re.compile(options.pattern)
            hidden = set(await admin.system_topics())
            topics = [
                topic for topic in await admin.topics() if wanted.fullmatch(topic) and topic not in hidden
            ]
        found: list[MessageQueue] = []
        for topic in topics:
            try:
                found.extend(subscribe_queues(await admin.topic_route(topic)))
            except TopicNotExist as error:
                if not options.pattern and known is not None and topic not in known:
                    raise UsageError(
                        f"topic {topic} does not exist at {options.nameservers}: create it, or correct the option "
                        f"{'assign' if options.queues else 'subscribe'}"
                    ) from error
        if options.queues:
            there = set(found)
            gone = [queue for queue in options.queues if queue not in there]
            brokers = {queue.broker_name for queue in there}
            wrong = [queue for queue in gone if queue.broker_name in brokers]
            if wrong:
                raise UsageError(
                    f"assign: topic {wrong[0].topic} has no queue {wrong[0].broker_name}:{wrong[0].queue_id}"
                )
            found = [queue for queue in options.queues if queue in there]
        return tuple(sorted(found))


async def _each_of(
    admin: QueueAdmin,
    queues: Collection[MessageQueue],
    ask: Callable[[QueueAdmin, MessageQueue], Awaitable[T]],
) -> dict[MessageQueue, T]:
    """The reply for each queue, with CALLS_AT_ONCE concurrent calls."""
    gate = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(queue: MessageQueue) -> T:
        async with gate:
            return await ask(admin, queue)

    return dict(zip(queues, await asyncio.gather(*map(one, queues)), strict=True))
