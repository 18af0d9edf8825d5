"""Lag of each group on each topic, measured in the background, so that requests are answered immediately.

Known values are exact, unknown ones are left out:

    messages    from the committed offset, or the first message that is still there, to the end of the queue, and what POP has
                handed out and no client acknowledged
    filtered    how many of these the group's filter takes, where it has one: counted, or estimated when they are many
    time        now minus the store time of the first such message: read from its record, never guessed between two others
    retention   how long until that message is as old as fileReservedTime: what is unread then is lost
    state       what two minutes of such measurements say (monitoring/lag_state.py)

A queue without a committed offset of the group is not counted: the consumers decide whether they start at its beginning
or end. Groups without a connected consumer are measured too, because no consumer reduces their lag.

Reading store times of 100,000 queues takes seconds. So it works in slices, between which the event loop serves
requests, with pauses that limit it to a small part of a core; a store time is read once per offset, and an unchanged
pair keeps its values.

Source: ConsumerLagCalculator (RocketMQ), which measures connected groups only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerGroup, ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.consumer.lock_table import LockTable
from aerobee.broker.consumer.queue_lag import QueuePosition, queue_position
from aerobee.broker.consumer.wanted_messages import Takes, WantedMessages, wanted_count
from aerobee.broker.pop.in_flight import InFlight, State
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.collector import hide_grown
from aerobee.message import RETRY_PREFIX
from aerobee.monitoring.exposition import label_text
from aerobee.monitoring.lag_state import LagState, Sample, Window, drain_s, extended, judge
from aerobee.monitoring.slices import SLICE_S
from aerobee.remoting.protocol import BROADCASTING
from aerobee.store.message_store import MessageStore
from aerobee.system_names import is_system_group

log = logging.getLogger(__name__)

PAUSE_SLICES = 19  # duration of a slice; the pause is this multiple of it: 5 % of a core

# POP deliveries of one topic to a group, by queue: number of messages, and offset of the first.
HandedOut = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """One group on one topic, over all queues of this broker. Messages and ms; None: unknown."""

    group: str
    topic: str
    labels: str  # both encoded for a sample
    messages: int  # not consumed, delivered or not
    wanted: int | None  # messages that match the group's filter; None without a filter
    in_flight: int  # delivered, not committed
    ready: int  # not delivered yet
    latency_ms: int | None  # age of the first unconsumed message; 0 without one
    queueing_ms: int | None  # age of the first undelivered message; 0 without one
    retention_ms: int | None  # time until retention removes the first one; None without one
    unknown_queues: int  # queues with messages but without a committed offset; not included above
    drain_s: float | None  # time to drain at the present rates
    states: tuple[LagState, ...]  # of each queue


@dataclass(frozen=True, slots=True)
class LagSample:
    """All pairs of one pass. `measured_at` is the end of the pass, monotonic seconds; None before the first."""

    lags: tuple[Lag, ...] = ()
    measured_at: float | None = None
    work_s: float = 0.0  # event loop time of the pass


@dataclass(slots=True)
class _Pair:
    """State of a group on a topic between passes."""

    lag: Lag | None = None
    positions: tuple[QueuePosition, ...] = ()
    windows: tuple[Window, ...] = ()
    store_times: dict[tuple[int, int], int] = field(default_factory=dict)  # queue id, offset -> ms


@dataclass(frozen=True, slots=True)
class _Group:
    """Data of a group for all its topics in one pass."""

    name: str
    is_attended: bool
    conflicts: frozenset[str]  # topics with different subscriptions of members
    locks: dict[tuple[str, int], int]  # (topic, queue id) -> time for which the same member has locked it, ms


class LagSampler:
    """Measures the lag of all groups: once by measure(), every `interval_s` after start(). Belongs to the event
    loop.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerRegistry,
        locks: LockTable,
        wanted: WantedMessages,
        popped: Callable[[], list[InFlight]],
        decides: Callable[[], bool],
        clock: Clock,
        interval_s: Callable[[], float],
        on_pass: Callable[[], None] = lambda: None,
    ) -> None:
        """`popped`: POP deliveries (InFlightTable.entries). `decides`: whether this broker is authoritative for
        offsets; a slave has a copy, and its values would be counted twice. `on_pass` is called after each pass.
        """
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._locks = locks
        self._wanted = wanted
        self._popped = popped
        self._decides = decides
        self._handed_out: dict[tuple[str, str], HandedOut] = {}
        self._clock = clock
        self._interval_s = interval_s
        self._on_pass = on_pass
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._task: asyncio.Task[None] | None = None
        self.sample = LagSample()

    def start(self) -> None:
        """Measure now and then once per interval, until stop()."""
        self._task = asyncio.create_task(self._run(), name="lag-sampler")

    def stop(self) -> None:
        """Stop measuring. Does nothing without start()."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                if self._decides():
                    await self.measure()
                else:
                    self._pairs, self.sample = {}, LagSample()
                self._on_pass()
            except Exception:
                log.exception("the lag of the groups could not be measured; the last measurement stands")
            await asyncio.sleep(self._interval_s())

    async def measure(self) -> LagSample:
        """Make one pass over all groups and topics, and replace `sample` with its result."""
        self._handed_out = await self._look_at_pops()
        turn = perf_counter()
        worked_s = 0.0
        lags: list[Lag] = []
        pairs: dict[tuple[str, str], _Pair] = {}
        for group, topic in self._all_pairs():
            # Entries of deleted pairs are dropped with the old table.
            pair = pairs[group.name, topic] = self._pairs.get((group.name, topic)) or _Pair()
            await self._measure_pair(group, topic, pair)
            if pair.lag is not None:
                lags.append(pair.lag)
            elapsed_s = perf_counter() - turn
            if elapsed_s >= SLICE_S:
                hide_grown("lag", len(pairs))
                worked_s += elapsed_s
                await asyncio.sleep(elapsed_s * PAUSE_SLICES)
                turn = perf_counter()
        self._pairs = pairs
        worked_s += perf_counter() - turn
        self.sample = LagSample(tuple(lags), self._clock.monotonic(), worked_s)
        return self.sample

    async def _look_at_pops(self) -> dict[tuple[str, str], HandedOut]:
        """The invisible messages: check points of unordered pops. Ordered pops do not advance the committed offset."""
        found: dict[tuple[str, str], HandedOut] = {}
        turn = perf_counter()
        for entry in self._popped():
            point = entry.point
            if entry.state is not State.OUT:
                continue
            left = [offset for bit, offset in enumerate(point.offsets) if not point.bit_map >> bit & 1]
            if left:
                queues = found.setdefault((point.group, point.topic), {})
                count, first = queues.get(point.queue_id, (0, left[0]))
                queues[point.queue_id] = (count + len(left), min(first, left[0]))
            if perf_counter() - turn >= SLICE_S:
                await asyncio.sleep(SLICE_S * PAUSE_SLICES)
                turn = perf_counter()
        return found

    def _all_pairs(self) -> Iterator[tuple[_Group, str]]:
        connected = {group.name: group for group in self._consumers.groups()}
        for name in sorted({*self._groups.groups, *connected}):
            group = connected.get(name)
            if is_system_group(name) or (group is not None and group.message_model == BROADCASTING):
                continue
            topics = set(self._offsets.topics_of(name))
            if group is not None and group.subscriptions:
                # Messages of topics to which a connected group no longer subscribes are not lag.
                topics &= set(group.subscriptions)
            facts = self._group_facts(name, group)
            for topic in sorted(topics):
                yield facts, topic

    def _group_facts(self, name: str, group: ConsumerGroup | None) -> _Group:
        now_ms = self._clock.now_ms()
        return _Group(
            name,
            self._consumers.size_of(name) > 0,
            frozenset(conflict.topic for conflict in group.conflicts) if group is not None else frozenset(),
            {
                (lock.queue.topic, lock.queue.queue_id): max(0, now_ms - lock.since_ms)
                for lock in self._locks.infos(name)
                if lock.age_ms <= lock.lease_ms
            },
        )

    async def _measure_pair(self, group: _Group, topic: str, pair: _Pair) -> None:
        """Measure all queues; `pair.lag` is None when the topic is deleted or no value is known."""
        config = self._topics.get(topic)
        if config is None:
            pair.lag = None
            return
        positions = tuple(
            queue_position(self._store, self._offsets, group.name, topic, queue_id)
            for queue_id in range(config.read_queue_nums)
        )
        handed_out = self._handed_out.get((group.name, topic), {})
        if (
            positions == pair.positions
            and pair.lag is not None
            and not pair.lag.messages
            and not handed_out
            and topic not in group.conflicts
            and LagState.MISMATCH not in pair.lag.states
        ):
            return  # nothing has changed and there is no lag that could become older
        verdicts = self._judge(group, topic, pair, positions)
        if all(position.committed is None for position in positions):
            pair.positions, pair.lag = positions, None
            return
        pair.lag = await self._lag(group, topic, pair, positions, verdicts, handed_out)
        pair.positions = positions

    def _judge(
        self, group: _Group, topic: str, pair: _Pair, positions: tuple[QueuePosition, ...]
    ) -> tuple[LagState, ...]:
        """The state of each queue; adds a measurement to the pair's windows."""
        now_ms = round(self._clock.monotonic() * 1000)
        windows, states = [], []
        before = pair.windows if len(pair.windows) == len(positions) else ((),) * len(positions)
        for queue_id, (position, window) in enumerate(zip(positions, before, strict=True)):
            sample = Sample(
                now_ms, position.committed, position.max_offset, position.min_offset, group.is_attended
            )
            # For a queue without lag the past measurements are irrelevant.
            window = extended(window, sample) if sample.lag or len(window) > 1 else (sample,)
            windows.append(window)
            verdict = judge(
                window,
                lock_held_ms=group.locks.get((topic, queue_id)),
                subscriptions_differ=topic in group.conflicts,
            )
            states.append(verdict.state)
        pair.windows = tuple(windows)
        return tuple(states)

    async def _lag(
        self,
        group: _Group,
        topic: str,
        pair: _Pair,
        positions: tuple[QueuePosition, ...],
        states: tuple[LagState, ...],
        handed_out: HandedOut,
    ) -> Lag:
        now_ms = self._clock.now_ms()
        messages = in_flight = ready = wanted = unknown = 0
        ages: list[int | None] = [0]  # of the first unconsumed message of each queue
        queueing: list[int | None] = [0]  # of the first undelivered message
        times: dict[tuple[int, int], int] = {}
        takes = self._wanted.filter_of(group.name, topic)
        for queue_id, position in enumerate(positions):
            first, unsent = position.first_unread, position.first_unsent
            if first is None or unsent is None:
                unknown += 1 if position.max_offset > 0 else 0
                continue
            popped, first_popped = handed_out.get(queue_id, (0, first))
            messages += popped + position.max_offset - first
            in_flight += popped + unsent - first
            ready += position.max_offset - unsent
            first = min(first, first_popped)
            if first < position.max_offset:
                ages.append(await self._age_ms(topic, queue_id, first, now_ms, pair, times))
                wanted += popped + await self._wanted_of(position, queue_id, takes)
            if unsent < position.max_offset:
                queueing.append(await self._age_ms(topic, queue_id, unsent, now_ms, pair, times))
        latency_ms, queueing_ms = _longest(ages), _longest(queueing)
        pair.store_times = times  # drop cached times of offsets that are no longer used
        kept_ms = self._store.config.file_reserved_time * 3_600_000
        return Lag(
            group=group.name,
            topic=topic,
            labels=pair.lag.labels if pair.lag is not None else _labels(group.name, topic),
            messages=messages,
            wanted=wanted if takes is not None else None,
            in_flight=in_flight,
            ready=ready,
            latency_ms=latency_ms,
            queueing_ms=queueing_ms,
            retention_ms=max(0, kept_ms - latency_ms) if messages and latency_ms is not None else None,
            unknown_queues=unknown,
            drain_s=drain_s(pair.windows),
            states=states,
        )

    async def _wanted_of(self, position: QueuePosition, queue_id: int, takes: Takes | None) -> int:
        if takes is None:
            return 0
        await asyncio.sleep(0)  # estimating one queue takes some milliseconds
        return wanted_count(position, queue_id, takes)

    async def _age_ms(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        now_ms: int,
        pair: _Pair,
        times: dict[tuple[int, int], int],
    ) -> int | None:
        """Age of the message at that offset; None when its record cannot be read."""
        key = (queue_id, offset)
        stored_ms = times.get(key) or pair.store_times.get(key)
        if stored_ms is None:
            if self._store.is_cold(topic, queue_id, offset):
                await self._store.get_messages_cold(topic, queue_id, offset, count_max=1)
            stored_ms = self._store.store_time(topic, queue_id, offset)
        if stored_ms < 0:
            return None
        times[key] = stored_ms
        return max(0, now_ms - stored_ms)


def _longest(ages: list[int | None]) -> int | None:
    """None when one of them is unknown, because it may be the longest."""
    known = [age for age in ages if age is not None]
    return max(known) if len(known) == len(ages) else None


def _labels(group: str, topic: str) -> str:
    is_retry = "true" if topic.startswith(RETRY_PREFIX) else "false"
    return label_text({"consumer_group": group, "topic": topic, "is_retry": is_retry, "is_system": "false"})
