"""Statistics of a broker: messages in and out by topic and group, and the rates of the last 10, 60 and 600 seconds.

Source: BrokerStatsManager, StatsItem, BrokerStats and StoreStatsService (RocketMQ). Each item has a value and its
number of additions. Snapshots of both make three windows:

    minute   a snapshot every 10 s, 7 kept
    hour     a snapshot each 10 min, 7 kept
    day      a snapshot every hour, 25 kept

of which VIEW_BROKER_STATS_DATA (315) gives sum, sum a second, and sum by addition (avgpt) between the oldest and
the newest. Totals of the broker are snapshot every second for the rates in GET_BROKER_RUNTIME_INFO (28).

Hot callers add to an object found in a dictionary; the clock is read only when sampling. One timer a second, owned by
start() and stop(). The fast path keeps separate totals: they are counted at a read, at the latest with the next
sample (count_from).
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypedDict

from aerobee.broker.metrics.item_blocks import Block, ItemBlocks
from aerobee.broker.metrics.metrics import (
    SIZE_ENDS,
    Blocks,
    Read,
    Registry,
    SampleBlock,
    Sizes,
    Value,
    larger_of,
)
from aerobee.clock import Clock, Timer, in_step

MINUTE_STEP_S, MINUTE_KEPT = 10, 7
HOUR_STEP_S, HOUR_KEPT = 600, 7
DAY_STEP_S, DAY_KEPT = 3_600, 25
RATE_STEP_S, RATE_KEPT = 1, 601
RATE_WINDOWS_S = (10, 60, 600)
_SLACK_S = 0.05  # tolerance for timers that are slightly early or late
SLICE_ITEMS = (
    1_000  # of which a snapshot is taken without a pause: of 100,000 it blocked the event loop for 80 ms
)
# Further keys are not counted, because peers choose the names and must not fill the memory.
ITEMS_MAX = 200_000

# Upper ends, in ms, of the buckets of putMessageDistributeTime, and what StoreStatsService calls them.
_BUCKET_ENDS_MS = (0, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_BUCKET_NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip

_NONE_LARGER = (0,) * len(SIZE_ENDS)

TOPIC_PUT_NUMS, TOPIC_PUT_SIZE = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"
GROUP_GET_NUMS, GROUP_GET_SIZE = "GROUP_GET_NUMS", "GROUP_GET_SIZE"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"


@dataclass(slots=True)
class Counter:
    """Totals since the broker started: messages, their bytes, and the number of additions."""

    count: int = 0
    size: int = 0
    times: int = 0
    larger: list[int] | None = None  # counts of records larger than the first of SIZE_ENDS; None: none

    def note_larger(self, larger: Sequence[int]) -> None:
        """Add what larger_of() says."""
        known = self.larger
        self.larger = list(larger) if known is None else [a + b for a, b in zip(known, larger, strict=True)]

    def sizes(self) -> Sizes:
        """The records as a histogram."""
        return Sizes(self.count, self.size, _NONE_LARGER if self.larger is None else tuple(self.larger))


@dataclass(frozen=True, slots=True)
class WindowStats:
    """One window of an item: `sum` of the window, `tps` the sum per second, `average` the sum per addition."""

    sum: int = 0
    tps: float = 0.0
    average: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As RocketMQ's StatsSnapshot: sum, tps, avgpt."""
        return {"avgpt": self.average, "sum": self.sum, "tps": self.tps}


class Reader(Protocol):
    """Receiver of messages: group and topic."""

    @property
    def group(self) -> str: ...

    @property
    def topic(self) -> str: ...


Stored = tuple[str, int, int, int, Sequence[int]]  # topic, messages, bytes, requests, as larger_of() says
# Receiver, messages, bytes, pulls. Totals stored and delivered since the last call.
HandedOut = tuple[Reader, int, int, int]
TakeTotals = Callable[[], tuple[Sequence[Stored], Sequence[HandedOut]]]
_Snapshot = tuple[float, int, int, int]  # monotonic seconds, count, size, times


@dataclass(slots=True, eq=False)
class _Item:
    labels: tuple[str, ...] = ()  # topic, or topic and group, of items counted by them
    counter: Counter = field(default_factory=Counter)
    minute: deque[_Snapshot] = field(default_factory=lambda: deque(maxlen=MINUTE_KEPT))
    hour: deque[_Snapshot] = field(default_factory=lambda: deque(maxlen=HOUR_KEPT))
    day: deque[_Snapshot] = field(default_factory=lambda: deque(maxlen=DAY_KEPT))
    block: Block[_Item] = field(default_factory=Block)  # of topics and readers, which are many


class _Shown(TypedDict):
    read: Read
    blocks: Blocks


_COUNT, _SIZE = attrgetter("counter.count"), attrgetter("counter.size")  # reading them runs no Python code


@dataclass(frozen=True, slots=True)
class _Totals:
    """A snapshot of the broker's totals."""

    at: float
    put: int
    found: int
    miss: int
    transferred: int


class BrokerStats:
    """All counters of one broker."""

    def __init__(self, *, clock: Clock, cluster: str) -> None:
        self._clock = clock
        self._cluster = cluster
        self._put_items: dict[str, _Item] = {}  # topic
        self._get_items: dict[str, _Item] = {}  # topic@group
        self._put_blocks: ItemBlocks[_Item] = ItemBlocks()
        self._get_blocks: ItemBlocks[_Item] = ItemBlocks()
        self._others: dict[str, dict[str, _Item]] = {}  # name -> key -> item
        self._all_put, self._all_get = _Item(), _Item()
        self._lost = _Item()  # counts keys beyond ITEMS_MAX, which are dropped
        self._all_found = self._miss = 0
        self._sources: list[TakeTotals] = []
        self._put_failed = 0
        self.registry = Registry()
        self.put_latency = self.registry.latency(
            "put_latency", "Duration from reading a send to its reply, or to its wait for the disk"
        )
        self.get_latency = self.registry.latency(
            "get_latency", "Duration from reading a pull to the reply with messages"
        )
        self._register()
        self._slow_puts = [0] * len(_BUCKET_NAMES)  # from 1 ms on
        self._rates: deque[_Totals] = deque(maxlen=RATE_KEPT)
        self._timer: Timer | None = None
        self._slices: Iterator[bool] = iter(())  # the remaining due snapshots
        self._slice_timer: Timer | None = None
        now = clock.monotonic()
        self._minute_due = now + MINUTE_STEP_S
        self._hour_due, self._day_due = now + HOUR_STEP_S, now + DAY_STEP_S
        self._today = self._date()
        self.boot_ms = clock.now_ms()
        self.put_total_yesterday_morning = self.put_total_today_morning = 0
        self.get_total_yesterday_morning = self.get_total_today_morning = 0
        self._rates.append(self._totals(now))

    # --- counting: hot

    def topic_put(
        self, topic: str, count: int, size: int, times: int = 0, larger: Sequence[int] | None = None
    ) -> None:
        """Record that `times` requests (0: one per message) stored `count` messages of `size` bytes in total. `larger`:
        the result of larger_of(), empty for none, None for one message of `size` bytes.
        """
        item = self._put_items.get(topic)
        if item is None:
            item = self._new_item(self._put_items, topic, blocks=self._put_blocks)
        item.block.version += 1
        times = times or count
        counter = item.counter
        counter.count += count
        counter.size += size
        counter.times += times
        total = self._all_put.counter
        total.count += count
        total.size += size
        total.times += times
        if larger or (larger is None and size > SIZE_ENDS[0]):
            counter.note_larger(larger_of((size,)) if larger is None else larger)

    def group_get(self, group: str, topic: str, count: int, size: int, pulls: int = 1) -> None:
        """Count `count` messages of `size` bytes in total, delivered to pulls of the group."""
        key = f"{topic}@{group}"
        item = self._get_items.get(key)
        if item is None:
            item = self._new_item(self._get_items, key, (topic, group), blocks=self._get_blocks)
        item.block.version += 1
        counter = item.counter
        counter.count += count
        counter.size += size
        counter.times += pulls
        total = self._all_get.counter
        total.count += count
        total.size += size
        total.times += pulls
        self._all_found += pulls

    def count_from(self, take_totals: TakeTotals) -> None:
        """Include the totals of this function. It is called in the event loop's thread before each read."""
        self._sources.append(take_totals)

    def count_noted(self) -> None:
        """Add the totals stored and delivered elsewhere since the last call."""
        for take_totals in self._sources:
            self.count_totals(*take_totals())

    def count_totals(self, stored: Sequence[Stored], handed_out: Sequence[HandedOut]) -> None:
        """Add totals of stored and delivered messages."""
        for topic, count, size, requests, larger in stored:
            self.topic_put(topic, count, size, requests, larger)
        for whom, count, size, pulls in handed_out:
            self.group_get(whom.group, whom.topic, count, size, pulls)

    def get_miss(self, count: int = 1) -> None:
        """Pulls that found nothing."""
        self._miss += count

    def put_took(self, elapsed_s: float, requests: int = 1) -> None:
        """`requests` sends were served together in that time; the whole time counts for each."""
        self.put_latency.add(elapsed_s, requests)
        if elapsed_s >= 0.001:
            self._slow_puts[bisect.bisect_left(_BUCKET_ENDS_MS, int(elapsed_s * 1000))] += requests

    def get_took(self, elapsed_s: float, requests: int = 1) -> None:
        """The same for pulls that found something."""
        self.get_latency.add(elapsed_s, requests)

    # --- counting: not hot

    def put_failed(self, count: int = 1) -> None:
        """Sends that were not stored."""
        self._put_failed += count

    def send_back(self, group: str, topic: str) -> None:
        """A consumer gave a message back for a later try."""
        self.add(SNDBCK_PUT_NUMS, f"{topic}@{group}")

    def add(self, name: str, key: str, value: int = 1, times: int = 1) -> None:
        """Add to any other item, such as QUEUE_PUT_NUMS or GROUP_GET_LATENCY."""
        items = self._others.setdefault(name, {})
        item = items.get(key) or self._new_item(items, key)
        item.counter.count += value
        item.counter.times += times

    # --- reading

    def windows(self, name: str, key: str) -> dict[str, WindowStats] | None:
        """Return minute, hour and day of an item, or None when nothing was ever counted under that key."""
        item, use_size = self._find(name, key)
        if item is None:
            return None
        return {
            "statsDay": _window(item.day, use_size),
            "statsHour": _window(item.hour, use_size),
            "statsMinute": _window(item.minute, use_size),
        }

    def minute_tps(self, name: str, key: str) -> float:
        """Rate of the last minute; 0.0 for an item that does not exist."""
        item, use_size = self._find(name, key)
        return 0.0 if item is None else _window(item.minute, use_size).tps

    def counters(self, name: str) -> Iterator[tuple[str, Counter]]:
        """Key and totals of each item: TOPIC_PUT_NUMS (sizes in them too), GROUP_GET_NUMS, or another name."""
        tables = {TOPIC_PUT_NUMS: self._puts, GROUP_GET_NUMS: self._gets}
        for key, item in list(tables.get(name, self._others.get(name, {})).items()):
            yield key, item.counter

    @property
    def reader_count(self) -> int:
        """How many groups have read, each counted for each of its topics."""
        return len(self._get_items)

    @property
    def put_total(self) -> int:
        """Messages stored since the start."""
        return self._broker_put.counter.count

    @property
    def get_total(self) -> int:
        """Messages read by consumers since the start."""
        return self._broker_get.counter.count

    def runtime_info(self) -> dict[str, str]:
        """The store-statistics keys of GET_BROKER_RUNTIME_INFO (28)."""
        put = self._broker_put.counter
        return {
            "bootTimestamp": str(self.boot_ms),
            "runtime": _duration_text(self._clock.now_ms() - self.boot_ms),
            "putMessageEntireTimeMax": str(round(self.put_latency.max_s * 1000)),
            "putMessageTimesTotal": str(put.count),
            "putMessageFailedTimes": str(self._put_failed),
            "putMessageSizeTotal": str(put.size),
            "putMessageDistributeTime": "".join(
                f"{name}:{count} " for name, count in zip(_BUCKET_NAMES, self._put_times(), strict=True)
            ),
            "putMessageAverageSize": repr(put.size / put.count if put.count else 0.0),
            "putLatency99": f"{self.put_latency.percentile_ms(0.99):.2f}",
            "putLatency999": f"{self.put_latency.percentile_ms(0.999):.2f}",
            "getMessageEntireTimeMax": str(round(self.get_latency.max_s * 1000)),
            "putTps": self._rate_text("put"),
            "getFoundTps": self._rate_text("found"),
            "getMissTps": self._rate_text("miss"),
            "getTotalTps": self._rate_text("found", "miss"),
            "getTransferredTps": self._rate_text("transferred"),
            "msgPutTotalYesterdayMorning": str(self.put_total_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_total_today_morning),
            "msgPutTotalTodayNow": str(self.put_total),
            "msgGetTotalYesterdayMorning": str(self.get_total_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_total_today_morning),
            "msgGetTotalTodayNow": str(self.get_total),
        }

    def own_info(self) -> dict[str, str]:
        """Keys of 28 that RocketMQ does not have."""
        return {
            "putLatency50": f"{self.put_latency.percentile_ms(0.5):.2f}",
            "getLatency50": f"{self.get_latency.percentile_ms(0.5):.2f}",
            "getLatency99": f"{self.get_latency.percentile_ms(0.99):.2f}",
            "getLatency999": f"{self.get_latency.percentile_ms(0.999):.2f}",
        }

    # --- forgetting

    def remove_topic(self, topic: str) -> None:
        """Drop the items of a deleted topic."""
        item = self._puts.pop(topic, None)
        if item is not None:
            self._put_blocks.remove(item, item.block)
        self._drop(lambda parts: topic in parts)

    def remove_group(self, group: str) -> None:
        """Drop the items of a deleted group."""
        self._drop(lambda parts: parts[-1] == group and len(parts) > 1)

    # --- sampling

    def start(self) -> None:
        """Sample every second until stop()."""
        self._timer = self._clock.call_later(in_step(self._clock, RATE_STEP_S), self._tick)

    def stop(self) -> None:
        """Take no more samples."""
        for timer in (self._timer, self._slice_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._slice_timer = None

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._sample_totals(now)
        if self._slice_timer is None:  # otherwise the last snapshots are not finished
            self._slices = self._snapshots(now)
            self._take_slice()
        self._timer = self._clock.call_later(in_step(self._clock, RATE_STEP_S), self._tick)

    def _take_slice(self) -> None:
        is_left = next(self._slices, False)
        self._slice_timer = self._clock.call_later(0.0, self._take_slice) if is_left else None

    def _sample_totals(self, now: float) -> None:
        self._rates.append(self._totals(now))
        self.put_latency.turn(now)
        self.get_latency.turn(now)
        today = self._date()
        if today != self._today:
            self._today = today
            self.put_total_yesterday_morning, self.put_total_today_morning = (
                self.put_total_today_morning,
                self.put_total,
            )
            self.get_total_yesterday_morning, self.get_total_today_morning = (
                self.get_total_today_morning,
                self.get_total,
            )

    def _snapshots(self, now: float) -> Iterator[bool]:
        """Take the snapshots of all items that are due now; yields True between slices."""
        minute, hour, day = (now >= due for due in (self._minute_due, self._hour_due, self._day_due))
        if minute:
            self._minute_due = now + MINUTE_STEP_S
        if hour:
            self._hour_due = now + HOUR_STEP_S
        if day:
            self._day_due = now + DAY_STEP_S
        items = list(self._items()) if minute or hour or day else []
        for begin in range(0, len(items), SLICE_ITEMS):
            if begin:
                yield True
            at = self._clock.monotonic()
            for item in items[begin : begin + SLICE_ITEMS]:
                if minute:
                    _snapshot(item.minute, item.counter, at, MINUTE_STEP_S)
                if hour:
                    _snapshot(item.hour, item.counter, at, HOUR_STEP_S)
                if day:
                    _snapshot(item.day, item.counter, at, DAY_STEP_S)

    # --- reading, with all recorded totals

    @property
    def _puts(self) -> dict[str, _Item]:
        self.count_noted()
        return self._put_items

    @property
    def _gets(self) -> dict[str, _Item]:
        self.count_noted()
        return self._get_items

    @property
    def _broker_put(self) -> _Item:
        self.count_noted()
        return self._all_put

    @property
    def _broker_get(self) -> _Item:
        self.count_noted()
        return self._all_get

    @property
    def _found(self) -> int:
        self.count_noted()
        return self._all_found

    # --- helpers

    def _items(self) -> Iterator[_Item]:
        yield self._broker_put
        yield self._broker_get
        for table in (self._puts, self._gets, *self._others.values()):
            yield from table.values()

    def _find(self, name: str, key: str) -> tuple[_Item | None, bool]:
        """Return the item and whether its value is the size."""
        use_size = name in (TOPIC_PUT_SIZE, GROUP_GET_SIZE)
        if name in (TOPIC_PUT_NUMS, TOPIC_PUT_SIZE):
            return self._puts.get(key), use_size
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            return self._gets.get(key), use_size
        if name in (BROKER_PUT_NUMS, BROKER_GET_NUMS) and key == self._cluster:
            return (self._broker_put if name == BROKER_PUT_NUMS else self._broker_get), use_size
        return self._others.get(name, {}).get(key), use_size

    def _new_item(
        self,
        table: dict[str, _Item],
        key: str,
        labels: tuple[str, ...] = (),
        blocks: ItemBlocks[_Item] | None = None,
    ) -> _Item:
        if len(table) >= ITEMS_MAX:
            return self._lost
        item = table[key] = _Item(labels or (key,))
        if blocks is not None:
            item.block = blocks.add(item)
        return item

    def _drop(self, matches: Any) -> None:
        for table in (self._gets, *self._others.values()):
            for key in [key for key in table if matches(key.split("@"))]:
                item = table.pop(key)
                if table is self._get_items:
                    self._get_blocks.remove(item, item.block)

    def _totals(self, now: float) -> _Totals:
        return _Totals(now, self.put_total, self._found, self._miss, self.get_total)

    def _rate_text(self, *names: str) -> str:
        """Rates of the last 10, 60 and 600 s, blank where the broker has not run that long yet."""
        newest = self._rates[-1]
        texts = []
        for window_s in RATE_WINDOWS_S:
            at = (
                bisect.bisect_right(self._rates, newest.at - window_s + _SLACK_S, key=lambda each: each.at)
                - 1
            )
            if at < 0:
                texts.append("0.0" if len(names) > 1 else "")
                continue
            oldest = self._rates[at]
            change = sum(getattr(newest, name) - getattr(oldest, name) for name in names)
            elapsed = newest.at - oldest.at
            texts.append(repr(change / elapsed if elapsed > 0 else 0.0))
        return " ".join(texts)

    def _put_times(self) -> list[int]:
        slow = self._slow_puts
        return [self.put_latency.count - sum(slow), *slow[1:]]

    def _register(self) -> None:
        counter = self.registry.counter
        topic, pair = ("topic",), ("topic", "group")
        sizes = self._shown(self._put_blocks, lambda item: item.counter.sizes())
        self.registry.sizes("message_size", "Bytes of the records stored", **sizes, labels=topic)
        puts, put_bytes = self._shown(self._put_blocks, _COUNT), self._shown(self._put_blocks, _SIZE)
        counter("messages_in", "Messages stored", **puts, labels=topic)
        counter("bytes_in", "Bytes of the messages stored", **put_bytes, labels=topic, unit="bytes")
        gets, get_bytes = self._shown(self._get_blocks, _COUNT), self._shown(self._get_blocks, _SIZE)
        counter("messages_out", "Messages delivered", **gets, labels=pair)
        counter("bytes_out", "Bytes of the messages delivered", **get_bytes, labels=pair, unit="bytes")
        counter("pulls_found", "Pulls that found messages", lambda: [((), self._found)], unit="requests")
        counter("pulls_missed", "Pulls that found nothing", lambda: [((), self._miss)], unit="requests")
        counter("puts_failed", "Sends that were refused", lambda: [((), self._put_failed)], unit="requests")

    def _shown(self, kept: ItemBlocks[_Item], read: Callable[[_Item], Value]) -> _Shown:
        def blocks() -> Iterator[SampleBlock]:
            self.count_noted()
            for block in kept:
                yield SampleBlock(
                    block,
                    (block, block.version),
                    block.items_version,
                    partial(_labels, block),
                    partial(_values, block, read),
                )

        def samples() -> Iterator[tuple[tuple[str, ...], Value]]:
            for block in blocks():
                yield from zip(block.labels(), block.values(), strict=True)

        return {"read": samples, "blocks": blocks}

    def _date(self) -> date:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).date()


def _labels(block: Block[_Item]) -> list[tuple[str, ...]]:
    return [item.labels for item in block.items]


def _values(block: Block[_Item], read: Callable[[_Item], Value]) -> list[Value]:
    return list(map(read, block.items))


def windows_json(windows: Mapping[str, WindowStats]) -> dict[str, Any]:
    """The body of VIEW_BROKER_STATS_DATA."""
    return {name: window.to_dict() for name, window in windows.items()}


def _snapshot(window: deque[_Snapshot], counter: Counter, now: float, step_s: int) -> None:
    if not window:
        window.append((now - step_s, 0, 0, 0))  # counts before the first sample are included
    window.append((now, counter.count, counter.size, counter.times))


def _window(snapshots: deque[_Snapshot], use_size: bool) -> WindowStats:
    if len(snapshots) < 2:
        return WindowStats()
    first, last = snapshots[0], snapshots[-1]
    change = last[2] - first[2] if use_size else last[1] - first[1]
    elapsed, times = last[0] - first[0], last[3] - first[3]
    tps = change / elapsed if elapsed > 0 else 0.0
    return WindowStats(change, tps, change / times if times > 0 else 0.0)


def _duration_text(elapsed_ms: int) -> str:
    seconds = max(0, elapsed_ms) // 1000
    minutes, hours, days = seconds // 60 % 60, seconds // 3600 % 24, seconds // 86_400
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
