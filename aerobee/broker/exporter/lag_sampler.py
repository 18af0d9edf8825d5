"""How far each group is behind on each topic, measured now and again, so that whoever asks gets it at once.

What is known is said exactly, what is not is left out:

    messages    from the committed offset, or the first message that is still there, to the end of the queue
    time        now minus the store time of the first such message: read from its record, never guessed between two others
    retention   how long until that message is as old as fileReservedTime: what is unread then is lost

A queue that the group never committed an offset of is not counted: whether it will begin at the start or at the end is the
consumers' affair. Groups without a connected consumer are measured too: theirs is the lag that nobody works off.

Reading store times of 100,000 queues takes seconds. So it is done in slices, between which the event loop serves others, with
pauses that keep it to a small part of a core; a store time is read once for each offset.

Source: ConsumerLagCalculator (RocketMQ), which measures connected groups only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable, is_system_group
from aerobee.broker.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.message import RETRY_PREFIX
from aerobee.monitoring.exposition import label_text
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

SLICE_S = 0.001
PAUSE_SLICES = 19  # a slice, then a pause of so many: 5 % of a core
BROADCASTING = "BROADCASTING"  # offsets lie with the consumers, the broker knows nothing

_StoreTimes = dict[tuple[str, int, int], int]  # topic, queue, offset -> ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """One group on one topic, all queues of this broker together. Messages and ms."""

    group: str
    topic: str
    labels: str  # both as text of a sample
    messages: int  # not consumed: handed out or not
    in_flight: int  # handed out, not committed
    ready: int  # not handed out yet
    latency_ms: int  # age of the first that is not consumed; 0 when there is none
    queueing_ms: int  # age of the first that was not handed out; 0 when there is none
    retention_ms: int | None  # until the first one is as old as the retention; None when there is none
    unknown_queues: (
        int  # with messages, of which the group never committed an offset; not in the numbers above
    )


@dataclass(frozen=True, slots=True)
class LagSample:
    """All pairs as of one pass. `measured_at` is when it ended, monotonic seconds; None before the first."""

    lags: tuple[Lag, ...] = ()
    measured_at: float | None = None
    work_s: float = 0.0  # what the pass took of the event loop


class LagSampler:
    """measure() makes one pass; start() lets it be done every `interval_s`. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        clock: Clock,
        interval_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._clock = clock
        self._interval_s = interval_s
        self._store_times: _StoreTimes = {}
        self._task: asyncio.Task[None] | None = None
        self.sample = LagSample()

    def start(self) -> None:
        """Measure now and then every interval, until stop()."""
        self._task = asyncio.create_task(self._run(), name="lag-sampler")

    def stop(self) -> None:
        """Measure no more. Does nothing without start()."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.measure()
            except Exception:
                log.exception("the lag of the groups could not be measured; the last measurement stands")
            await asyncio.sleep(self._interval_s())

    async def measure(self) -> LagSample:
        """One pass over every group and topic; `sample` is the new one then."""
        turn = perf_counter()
        worked_s = 0.0
        lags: list[Lag] = []
        times: _StoreTimes = {}
        for group, topic in self._pairs():
            lag = await self._measure_pair(group, topic, times)
            if lag is not None:
                lags.append(lag)
            elapsed_s = perf_counter() - turn
            if elapsed_s >= SLICE_S:
                worked_s += elapsed_s
                await asyncio.sleep(elapsed_s * PAUSE_SLICES)
                turn = perf_counter()
        self._store_times = times  # of offsets where nobody stands any more nothing is kept
        worked_s += perf_counter() - turn
        self.sample = LagSample(tuple(lags), self._clock.monotonic(), worked_s)
        return self.sample

    def _pairs(self) -> Iterator[tuple[str, str]]:
        connected = {group.name: group for group in self._consumers.groups()}
        for name in sorted({*self._groups.groups, *connected}):
            group = connected.get(name)
            if is_system_group(name) or (group is not None and group.message_model == BROADCASTING):
                continue
            topics = set(self._offsets.topics_of(name))
            if group is not None and group.subscriptions:
                # What a connected group left behind on topics that it subscribes to no more is no lag of it.
                topics &= set(group.subscriptions)
            for topic in sorted(topics):
                yield name, topic

    async def _measure_pair(self, group: str, topic: str, times: _StoreTimes) -> Lag | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        store, offsets, now_ms = self._store, self._offsets, self._clock.now_ms()
        messages = in_flight = ready = unknown = latency = queueing = 0
        is_known = False
        for queue_id in range(config.read_queue_nums):
            end = store.max_offset(topic, queue_id)
            committed = offsets.query(group, topic, queue_id)
            if committed is None or committed < 0:
                unknown += 1 if end > 0 else 0
                continue
            is_known = True
            first = max(committed, store.min_offset(topic, queue_id))
            if first >= end:
                continue
            pulled = min(max(first, offsets.query_pulled(group, topic, queue_id) or 0), end)
            messages += end - first
            in_flight += pulled - first
            ready += end - pulled
            latency = max(latency, await self._age_ms(topic, queue_id, first, now_ms, times))
            if pulled < end:
                queueing = max(queueing, await self._age_ms(topic, queue_id, pulled, now_ms, times))
        if not is_known:
            return None
        kept_ms = store.config.file_reserved_time * 3_600_000
        return Lag(
            group=group,
            topic=topic,
            labels=label_text(
                {
                    "consumer_group": group,
                    "topic": topic,
                    "is_retry": "true" if topic.startswith(RETRY_PREFIX) else "false",
                    "is_system": "false",
                }
            ),
            messages=messages,
            in_flight=in_flight,
            ready=ready,
            latency_ms=latency,
            queueing_ms=queueing,
            retention_ms=max(0, kept_ms - latency) if messages else None,
            unknown_queues=unknown,
        )

    async def _age_ms(self, topic: str, queue_id: int, offset: int, now_ms: int, times: _StoreTimes) -> int:
        """How long ago the message at that offset was stored; 0 when its record cannot be read."""
        key = (topic, queue_id, offset)
        stored_ms = times.get(key) or self._store_times.get(key)
        if stored_ms is None:
            if self._store.is_cold(topic, queue_id, offset):
                await self._store.get_messages_cold(topic, queue_id, offset, count_max=1)
            stored_ms = self._store.store_time(topic, queue_id, offset)
        if stored_ms < 0:
            return 0
        times[key] = stored_ms
        return max(0, now_ms - stored_ms)
