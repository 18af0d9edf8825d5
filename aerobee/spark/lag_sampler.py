"""Reads one sample of each queue of each group from a cluster, for the history of the lag job.

The sampler uses admin calls, for a few groups at a time, and never commits. It omits broadcasting groups,
whose offsets are not at brokers. For a broker without a reply it adds samples with the error, one for each
queue that earlier samples know.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable

from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import ClientConfig
from aerobee.client.base.results import QueueProgress
from aerobee.client.sync import LoopThread
from aerobee.clock import MS_PER_HOUR
from aerobee.errors import AerobeeError, ConsumerNotOnline, RemoteError, TopicNotExist
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.protocol import BROADCASTING, MASTER_ID
from aerobee.spark.lag_rows import LagSample
from aerobee.system_names import is_hidden_group

GROUPS_AT_ONCE = 8
LAGS_AT_ONCE = 16  # queues whose first unread message is looked up at a time

Wanted = dict[str, tuple[str, tuple[str, ...] | str]]  # topic -> (kind of expression, its tags or its text)
Known = Iterable[tuple[str, MessageQueue]]  # (group, queue) pairs of earlier samples


def sample_cluster(
    nameservers: str,
    *,
    known: Known = (),
    groups: Collection[str] = (),
    client: ClientConfig | None = None,
) -> list[LagSample]:
    """Sample all groups, or `groups`. Blocks. `known` queues without a reply get a sample with the error.

    Raises TransportError when no nameserver answers.
    """
    thread = LoopThread("aerobee-lag")
    try:
        return thread.call(_sample(nameservers, tuple(known), groups, client))
    finally:
        thread.stop()


async def _sample(
    nameservers: str,
    known: tuple[tuple[str, MessageQueue], ...],
    groups: Collection[str],
    client: ClientConfig | None,
) -> list[LagSample]:
    async with ClusterSampler(nameservers, client=client) as sampler:
        return await sampler.sample(known, groups)


def wanted_of(subscriptions: Iterable[SubscriptionData]) -> Wanted:
    """A member's normalized subscriptions by topic, without the retry topic, which clients add in different forms."""
    return {
        item.topic: (item.expression_type, tuple(sorted(item.tags_set)) or item.sub_string.strip())
        for item in subscriptions
        if not item.topic.startswith(RETRY_PREFIX)
    }


class ClusterSampler(Admin):
    """The calls of one sample."""

    async def sample(
        self, known: tuple[tuple[str, MessageQueue], ...], groups: Collection[str]
    ) -> list[LagSample]:
        """Samples of all queues; see sample_cluster()."""
        self._at_ms = self._session.clock.now_ms()
        self._gate = asyncio.Semaphore(LAGS_AT_ONCE)
        info = await self.cluster_info()
        self._cluster_of = {
            name: cluster for cluster, names in info.cluster_addr_table.items() for name in names
        }
        self._errors: dict[str, str] = {}
        self._wanted: dict[str, dict[str, Wanted]] = {}
        self._retention_ms: dict[str, int] = {}
        self._bounds_of: dict[str, dict[MessageQueue, tuple[int, int]]] = {}
        # topic -> lock: the bounds of a topic are requested once
        self._asked = defaultdict[str, asyncio.Lock](asyncio.Lock)
        found = set(groups)
        for name, data in info.broker_addr_table.items():
            address = data.broker_addrs.get(MASTER_ID)
            try:
                if address is None:
                    self._errors[name] = f"broker {name} has no master now"
                    continue
                config = await self.broker_config(address)
                self._retention_ms[name] = int(config.get("fileReservedTime", "72")) * MS_PER_HOUR
                if not groups:
                    found.update(await self.group_table(address))
            except (AerobeeError, ValueError) as error:
                self._errors[name] = str(error)
        turn = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def look(group: str) -> list[LagSample]:
            async with turn:
                return await self._look(group)

        wanted = sorted(group for group in found if not is_hidden_group(group))
        samples = [sample for each in await asyncio.gather(*map(look, wanted)) for sample in each]
        return samples + self._unseen(known, samples)

    def _unseen(
        self, known: tuple[tuple[str, MessageQueue], ...], samples: list[LagSample]
    ) -> list[LagSample]:
        """Samples with the error, for known queues whose broker did not reply."""
        seen = {(each.group, each.topic, each.broker, each.queue_id) for each in samples}
        unseen = []
        for group, queue in known:
            if (group, queue.topic, queue.broker_name, queue.queue_id) in seen:
                continue
            why = self._errors.get(queue.broker_name)
            if queue.broker_name not in self._cluster_of:
                why = f"broker {queue.broker_name} is not registered at any nameserver now"
            if why:
                unseen.append(self._base(group, queue, error=why))
        return unseen

    def _base(self, group: str, queue: MessageQueue, *, error: str = "") -> LagSample:
        return LagSample(
            at_ms=self._at_ms,
            cluster=self._cluster_of.get(queue.broker_name, ""),
            group=group,
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            error=error,
        )

    async def _look(self, group: str) -> list[LagSample]:
        attended, differ = False, False
        try:
            members = await self.consumer_connections(group)
            if members.message_model == BROADCASTING:
                return []
            attended, differ = bool(members.connections), bool(members.conflicts)
        except ConsumerNotOnline:
            attended = False
        except RemoteError:
            attended = False
        except AerobeeError as error:
            self._errors.setdefault("", str(error))
        try:
            progress = (await self.consumer_progress(group)).queues
        except RemoteError:
            progress = ()  # the group has consumed nothing yet
        except AerobeeError:
            return []  # its brokers are in the errors: _unseen() adds samples for its queues
        # RocketMQ's brokers store the subscription of one member only; each member reports its own with its running info.
        subscribed = list(self._wanted.pop(group, {}).values())
        differ = differ or any(each != subscribed[0] for each in subscribed)
        bounds = await self._bounds({each.queue.topic for each in progress})
        held_ms = await self._held_ms(group) if attended else {}
        looks = (self._one(group, each, bounds, held_ms, attended, differ) for each in progress)
        return [*await asyncio.gather(*looks), *await self._dead(group)]

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """As Admin.running_info; also records the member's subscriptions."""
        info = await super().running_info(group, client_id)
        self._wanted.setdefault(group, {})[client_id] = wanted_of(info.subscription_set)
        return info

    async def _bounds(self, topics: Collection[str]) -> dict[MessageQueue, tuple[int, int]]:
        """Offset ranges of all queues of these topics. The ranges of a topic are requested once per sample,
        for its first group.
        """
        found = {}
        for topic in topics:
            async with self._asked[topic]:
                if topic not in self._bounds_of:
                    self._bounds_of[topic] = await self._bounds_now(topic)
            found.update(self._bounds_of[topic])
        return found

    async def _bounds_now(self, topic: str) -> dict[MessageQueue, tuple[int, int]]:
        try:
            stats = await self.topic_stats(topic)
        except AerobeeError as error:
            self._errors.setdefault("", str(error))
            return {}
        return {each.queue: (max(0, each.min_offset), max(0, each.max_offset)) for each in stats}

    async def _held_ms(self, group: str) -> dict[MessageQueue, int]:
        """Queue -> duration for which the same member has locked it; {} for brokers that do not report it."""
        try:
            locks = await self.queue_locks(group)
        except AerobeeError as error:
            self._errors.setdefault("", str(error))
            return {}
        # An expired lock belongs to no member, although no member has requested it since.
        return {
            lock.queue: max(0, self._at_ms - lock.since_ms)
            for lock in locks or ()
            if lock.age_ms <= lock.lease_ms
        }

    async def _one(
        self,
        group: str,
        progress: QueueProgress,
        bounds: dict[MessageQueue, tuple[int, int]],
        held_ms: dict[MessageQueue, int],
        attended: bool,
        differ: bool,
    ) -> LagSample:
        queue = progress.queue
        if queue not in bounds:
            return self._base(
                group, queue, error=self._errors.get(queue.broker_name, "its broker gave no bounds")
            )
        low, high = bounds[queue]
        high = max(high, progress.broker_offset)
        committed = progress.consumer_offset if progress.consumer_offset >= 0 else None
        oldest_ms = None
        if committed is not None and max(committed, low) < high:
            async with self._gate:
                oldest_ms = await self._store_time(queue, max(committed, low))
        return LagSample(
            at_ms=self._at_ms,
            cluster=self._cluster_of.get(queue.broker_name, ""),
            group=group,
            topic=queue.topic,
            broker=queue.broker_name,
            queue_id=queue.queue_id,
            committed=committed,
            min_offset=low,
            max_offset=high,
            filtered_lag=progress.wanted,
            oldest_ms=oldest_ms,
            retention_ms=self._retention_ms.get(queue.broker_name),
            is_attended=attended,
            subscriptions_differ=differ,
            lock_held_ms=held_ms.get(queue),
        )

    async def _store_time(self, queue: MessageQueue, offset: int) -> int | None:
        try:
            messages, _ = await self.messages_from(queue, offset)
        except AerobeeError:
            return None
        return messages[0].store_timestamp if messages else None

    async def _dead(self, group: str) -> list[LagSample]:
        try:
            stats = await self.topic_stats(DLQ_PREFIX + group)
        except TopicNotExist:
            return []
        except AerobeeError as error:
            self._errors.setdefault("", str(error))
            return []
        return [
            LagSample(
                at_ms=self._at_ms,
                cluster=self._cluster_of.get(each.queue.broker_name, ""),
                group=group,
                topic=each.queue.topic,
                broker=each.queue.broker_name,
                queue_id=each.queue.queue_id,
                min_offset=max(0, each.min_offset),
                max_offset=max(0, each.max_offset),
                retention_ms=self._retention_ms.get(each.queue.broker_name),
            )
            for each in stats
        ]
