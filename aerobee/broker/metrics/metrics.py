"""Metrics of the broker and their registry: counters, gauges, latencies. Core.

The counting code owns its values and adds them to the registry with a kind, a unit and a description. Requests 28 and
315 read them through their owner (stats.py); a metrics endpoint reads all of them from `Registry.samples()`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import frexp

WINDOW_S = 60.0
_PARTS = 8  # buckets per power of two: the error of a percentile is at most an eighth
_EXPONENT_MIN, _EXPONENT_MAX = -24, 12  # from 30 ns to 34 min
_BUCKET_COUNT = (_EXPONENT_MAX - _EXPONENT_MIN) * _PARTS
_SHORTEST_S, _LONGEST_S = 2.0 ** (_EXPONENT_MIN - 1), 2.0 ** (_EXPONENT_MAX - 1)
_FIRST = -_EXPONENT_MIN * _PARTS - _PARTS
# Durations of 0.5 to 244 us are counted in steps of 60 ns, of which each lies in one bucket.
_STEPS, STEPS_A_S = 4096, 2.0**24
EXACT_S, STEPPED_S = 2.0**-21, _STEPS / STEPS_A_S
_NO_STEPS = array("q", bytes(8 * _STEPS))


# Sizes of records, bytes: those of RocketMQ's rocketmq_message_size. Sizes up to the first bound have no
# counter: most records are that small, and their number is the remainder.
SIZE_ENDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)


def size_class(size: int) -> int:
    """The index of the last of SIZE_ENDS that `size` exceeds; -1: it exceeds none."""
    return bisect_left(SIZE_ENDS, size) - 1


def larger_of(sizes: Iterable[int]) -> list[int]:
    """How many of the sizes are larger than each of SIZE_ENDS and no larger than the next."""
    larger = [0] * len(SIZE_ENDS)
    for size in sizes:
        if size > SIZE_ENDS[0]:
            larger[size_class(size)] += 1
    return larger


class Kind(Enum):
    """Kind of a metric: a counter only grows, a gauge goes up and down, a latency is a histogram of durations, sizes of
    record sizes, a spread of other values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    LATENCY = "latency"
    SIZES = "sizes"
    SPREAD = "spread"


class Latency:
    """Durations in buckets: cumulative since the start, and percentiles of the last one to two minutes.

    add() is cheap enough for every burst of the fast path: a short duration only increments one of many equal steps,
    which are sorted into the buckets at a read.
    """

    __slots__ = ("_before", "_counts", "_last", "_max_s", "_sum_s", "_turned_at", "steps")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKET_COUNT
        # Short durations that are not in the numbers yet. The fast path counts here directly (FastPath._took), and so does native code:
        # it is never replaced.
        self.steps = array("q", _NO_STEPS)
        self._sum_s = 0.0
        self._max_s = 0.0
        self._last = self._before = tuple(
            self._counts
        )  # counts at the start of the present and the previous window
        self._turned_at = 0.0

    def add(self, elapsed_s: float, times: int = 1) -> None:
        """Count `times` events with this duration."""
        if EXACT_S <= elapsed_s < STEPPED_S:
            self.steps[int(elapsed_s * STEPS_A_S)] += times
        else:
            self._sort(elapsed_s, times)

    @property
    def counts(self) -> list[int]:
        """Counts of the buckets."""
        self._sort_steps()
        return self._counts

    @property
    def count(self) -> int:
        """Number of durations since the start."""
        return sum(self.counts)

    @property
    def sum_s(self) -> float:
        """Sum of the durations; the error of a short one is at most 1/30 microsecond."""
        self._sort_steps()
        return self._sum_s

    @property
    def max_s(self) -> float:
        """The longest duration; the error of a short one is at most 1/15 microsecond."""
        self._sort_steps()
        return self._max_s

    def _sort(self, elapsed_s: float, times: int) -> None:
        if _SHORTEST_S < elapsed_s < _LONGEST_S:
            mantissa, exponent = frexp(elapsed_s)
            self._counts[exponent * _PARTS + int(mantissa * (2 * _PARTS)) + _FIRST] += times
        else:
            self._counts[0 if elapsed_s < _LONGEST_S else -1] += times
        self._sum_s += elapsed_s * times
        if elapsed_s > self._max_s:
            self._max_s = elapsed_s

    def _sort_steps(self) -> None:
        if any(self.steps):
            steps, self.steps[:] = self.steps[:], _NO_STEPS
            for step, times in enumerate(steps):
                if times:
                    self._sort((step + 0.5) / STEPS_A_S, times)

    def turn(self, monotonic_s: float) -> None:
        """Start a new window when the present one has ended. Called periodically."""
        if monotonic_s - self._turned_at >= WINDOW_S:
            self._before, self._last = self._last, tuple(self.counts)
            self._turned_at = monotonic_s

    def percentile_ms(self, share: float) -> float:
        """The upper end of the bucket in which this share (0 to 1) of the window ends; 0.0 without any."""
        counts = [now - before for now, before in zip(self.counts, self._before, strict=True)]
        wanted, seen = share * sum(counts), 0
        if not wanted:
            return 0.0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                return min(upper_end_s(bucket), self.max_s) * 1000
        return self.max_s * 1000

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper end in seconds and cumulative count of each bucket that has any."""
        seen = 0
        for bucket, count in enumerate(self.counts):
            if count:
                seen += count
                yield upper_end_s(bucket), seen


def upper_end_s(bucket: int) -> float:
    """The longest duration that Latency counts in a bucket."""
    doubling, part = divmod(bucket, _PARTS)
    return (_PARTS + part + 1) / (2 * _PARTS) * 2.0 ** (doubling + _EXPONENT_MIN)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Record sizes: number of records, total bytes, and a histogram whose bucket bounds are SIZE_ENDS."""

    count: int
    sum: int
    larger: tuple[int, ...]

    def within(self) -> tuple[int, ...]:
        """How many are no larger than each of SIZE_ENDS."""
        within, larger = [], sum(self.larger)
        for count in self.larger:
            within.append(self.count - larger)
            larger -= count
        return tuple(within)

    def __add__(self, other: Sizes) -> Sizes:
        both = zip(self.larger, other.larger, strict=True)
        return Sizes(self.count + other.count, self.sum + other.sum, tuple(a + b for a, b in both))


class Spread:
    """Histogram of rare values with the buckets of a RocketMQ histogram."""

    __slots__ = ("counts", "ends", "sum")

    def __init__(self, ends: tuple[float, ...]) -> None:
        self.ends = ends
        self.counts = [0] * (len(ends) + 1)  # counts per bucket; the last one is unbounded
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.ends, value)] += 1
        self.sum += value


Labels = tuple[str, ...]
Value = int | float | Latency | Sizes | Spread


Read = Callable[[], Iterable[tuple[Labels, Value]]]


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Some samples of a metric: `labels` and `values` contain one entry per sample. `key` identifies the block.

    The samples do not change while `token` stays equal; their labels do not change while `labels_token` stays equal.
    """

    key: Hashable
    token: Hashable
    labels_token: Hashable
    labels: Callable[[], Sequence[Labels]]
    values: Callable[[], Sequence[Value]]


Blocks = Callable[[], Iterable[SampleBlock]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, or one per value of its labels, such as a topic. `read` returns the present values.

    `blocks`, for many samples: the samples in blocks, of which a reader rereads only changed ones.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...]
    read: Read
    blocks: Blocks | None = None


class Registry:
    """All metrics of one broker, by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(
        self,
        name: str,
        meaning: str,
        read: Read,
        *,
        labels: tuple[str, ...] = (),
        unit: str = "messages",
        blocks: Blocks | None = None,
    ) -> None:
        """Add a counter. Names are unique: a second one raises ValueError."""
        self._add(Metric(name, Kind.COUNTER, unit, meaning, labels, read, blocks))

    def gauge(self, name: str, meaning: str, read: Callable[[], float], *, unit: str = "") -> None:
        """Add a gauge, which is read on demand."""
        self._add(Metric(name, Kind.GAUGE, unit, meaning, (), lambda: [((), read())]))

    def gauges(
        self,
        name: str,
        meaning: str,
        read: Read,
        *,
        labels: tuple[str, ...],
        unit: str = "messages",
        blocks: Blocks | None = None,
    ) -> None:
        """The same with one value per label value."""
        self._add(Metric(name, Kind.GAUGE, unit, meaning, labels, read, blocks))

    def sizes(
        self,
        name: str,
        meaning: str,
        read: Read,
        *,
        labels: tuple[str, ...],
        blocks: Blocks | None = None,
    ) -> None:
        """Sizes of records."""
        self._add(Metric(name, Kind.SIZES, "bytes", meaning, labels, read, blocks))

    def spread(
        self,
        name: str,
        meaning: str,
        read: Read,
        *,
        labels: tuple[str, ...] = (),
        unit: str,
    ) -> None:
        """Add a histogram: `read` returns a Spread per label value."""
        self._add(Metric(name, Kind.SPREAD, unit, meaning, labels, read))

    def latency(self, name: str, meaning: str) -> Latency:
        """Add a latency; the measuring code adds durations to the returned object."""
        latency = Latency()
        self._add(Metric(name, Kind.LATENCY, "seconds", meaning, (), lambda: [((), latency)]))
        return latency

    def metrics(self) -> Iterator[Metric]:
        """All of them, in the order in which they were added."""
        return iter(self._metrics.values())

    def samples(self) -> Iterator[tuple[Metric, Labels, Value]]:
        """The present values of all metrics."""
        for metric in self._metrics.values():
            for labels, value in metric.read():
                yield metric, labels, value

    def _add(self, metric: Metric) -> None:
        if metric.name in self._metrics:
            raise ValueError(f"there is a metric {metric.name} already")
        self._metrics[metric.name] = metric
