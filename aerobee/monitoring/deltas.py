"""Increase of counters and histograms since the receiver's last export (`metricsInDelta`). Core."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from aerobee.monitoring.exposition import GAUGE, Histogram, Value, joined


class Point(NamedTuple):
    """One value of a family. `begin_ns`: start of its counting period."""

    name: str
    kind: str
    labels: str
    value: Value
    begin_ns: int


_Key = tuple[str, str]
_LABEL = 'aggregation="delta"'  # RocketMQ adds this label to every value in delta mode


class Deltas:
    """Call since() for each point, taken() with the points that arrived, and round_over() after all families.

    The next difference includes a point that did not arrive: nothing is lost, nothing counts twice.
    """

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._before: dict[_Key, tuple[Value, int]] = {}  # values of the last complete round
        self._now: dict[_Key, tuple[Value, int]] = {}

    def since(self, point: Point) -> Point | None:
        """The point with its increase as value; None without an increase."""
        shown = point._replace(labels=joined(point.labels, _LABEL))
        if point.kind == GAUGE:
            return shown
        key = (point.name, point.labels)
        last = self._now.get(key) or self._before.get(key)
        if last is None:
            value, begin_ns = point.value, self._begin_ns
        else:
            value, begin_ns = _difference(point.value, last[0]), last[1]
        if not (value.count if isinstance(value, Histogram) else value):
            if last is not None:
                self._now[key] = last
            return None
        return shown._replace(value=value, begin_ns=begin_ns)

    def taken(self, points: Iterable[Point], at_ns: int) -> None:
        """Note that these points, as passed to since(), have arrived."""
        for point in points:
            if point.kind != GAUGE:
                self._now[point.name, point.labels] = (point.value, at_ns)

    def round_over(self) -> None:
        """End the round: drop series that no longer exist."""
        self._before, self._now = self._now, {}


def _difference(value: Value, last: Value) -> Value:
    """A recreated series restarts: then the difference is the value itself."""
    if isinstance(value, Histogram) and isinstance(last, Histogram):
        if [end for end, _ in value.buckets] != [end for end, _ in last.buckets]:
            return value
        counts = tuple(
            (end, count - before)
            for (end, count), (_, before) in zip(value.buckets, last.buckets, strict=True)
        )
        # Buckets are cumulative; the count beyond the last one must not decrease either.
        gains = [count for _, count in counts] + [value.count - last.count]
        if value.sum < last.sum or any(after < before for before, after in pairwise([0, *gains])):
            return value  # recreated, perhaps with a larger count
        return Histogram(counts, value.count - last.count, value.sum - last.sum)
    if isinstance(value, Histogram) or isinstance(last, Histogram) or value < last:
        return value
    return value - last
