"""The last hour of rates, lag and latency for the charts, in rings of fixed size. Core: times and values in, lists out.

A ring has SLOTS slots of STEP_S seconds; a slot holds the last value recorded in it, or none. Rings exist for the cluster, for up to
BROKERS_MAX brokers, and for up to KEPT_MAX topics and KEPT_MAX groups: those that a page shows, and the busiest. At the bound the
item that was wanted longest ago loses its history. A ring has 7.2 kB, so that all of them together stay below 15 MB however many
topics the cluster has.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from math import isfinite, isnan, nan

STEP_S = 4
SLOTS = 900
KEPT_MAX = 100
BROKERS_MAX = 128
CLUSTER = ""  # name of the only item of its kind
_EMPTY = array("d", [nan]) * SLOTS


class Kind(Enum):
    """What a history belongs to."""

    CLUSTER = "cluster"
    BROKER = "broker"
    TOPIC = "topic"
    GROUP = "group"


ITEMS_MAX: Mapping[Kind, int] = {
    Kind.CLUSTER: 1,
    Kind.BROKER: BROKERS_MAX,
    Kind.TOPIC: KEPT_MAX,
    Kind.GROUP: KEPT_MAX,
}


class Ring:
    """One number over the last SLOTS * STEP_S seconds. Times are seconds since the epoch."""

    __slots__ = ("_newest", "_values")

    def __init__(self) -> None:
        self._values = array("d", _EMPTY)
        self._newest = -SLOTS  # number of the newest slot since the epoch

    def put(self, at_s: float, value: float, since_s: float | None = None) -> None:
        """Record a value. `since_s`: the value is the mean from then on, and fills the slots after that time.

        A value older than the ring is dropped, and so is one that is not finite.
        """
        slot = int(at_s // STEP_S)
        if not isfinite(value) or slot <= self._newest - SLOTS:
            return
        first = slot if since_s is None else min(slot, int(since_s // STEP_S) + 1)
        for cleared in range(max(self._newest + 1, slot - SLOTS + 1), slot + 1):
            self._values[cleared % SLOTS] = nan
        self._newest = max(self._newest, slot)
        for each in range(max(first, self._newest - SLOTS + 1), slot + 1):
            self._values[each % SLOTS] = value

    def values(self, first: int, count: int) -> list[float]:
        """The values of `count` slots from slot `first` on; NaN where there is none."""
        oldest, newest = self._newest - SLOTS + 1, self._newest
        return [
            self._values[slot % SLOTS] if oldest <= slot <= newest else nan
            for slot in range(first, first + count)
        ]


class History:
    """The rings of all items, by the name of a metric."""

    def __init__(self) -> None:
        # The item that was wanted longest ago is the first of its kind.
        self._items: dict[Kind, dict[str, dict[str, Ring]]] = {kind: {} for kind in Kind}

    def keep(self, kind: Kind, name: str) -> None:
        """Keep the history of an item from now on. At the bound, the item that was wanted longest ago is removed."""
        items = self._items[kind]
        items[name] = items.pop(name, {})
        if len(items) > ITEMS_MAX[kind]:
            del items[next(iter(items))]

    def is_kept(self, kind: Kind, name: str) -> bool:
        return name in self._items[kind]

    def kept(self, kind: Kind) -> tuple[str, ...]:
        """Names of the items with a history, the one wanted longest ago first."""
        return tuple(self._items[kind])

    def record(
        self,
        kind: Kind,
        name: str,
        at_s: float,
        values: Mapping[str, float | None],
        since_s: float | None = None,
    ) -> None:
        """Record the values that are known of an item, if its history is kept. `since_s` as in Ring.put()."""
        rings = self._items[kind].get(name)
        if rings is None:
            return
        for metric, value in values.items():
            if value is not None:
                rings.setdefault(metric, Ring()).put(at_s, value, since_s)

    def read(
        self,
        kind: Kind,
        name: str,
        metric: str,
        end_s: float,
        *,
        slots_per_point: int,
        points: int,
        of: Callable[[Iterable[float]], float],
    ) -> list[float | None]:
        """`points` values that end with the slot of `end_s`, the oldest first; `of` reduces the slots of a point to one value."""
        ring = self._items[kind].get(name, {}).get(metric)
        if ring is None:
            return [None] * points
        last = (
            int(end_s // STEP_S) // slots_per_point
        )  # points begin at multiples, so that they do not change as time passes
        first = (last - points + 1) * slots_per_point
        values = ring.values(first, points * slots_per_point)
        return [
            of(known) if (known := [each for each in part if not isnan(each)]) else None
            for part in (values[at : at + slots_per_point] for at in range(0, len(values), slots_per_point))
        ]


def mean(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    found = list(values)
    return sum(found) / len(found)
