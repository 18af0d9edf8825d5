"""Searches for a better placement: it moves one queue at a time to another broker while the load gets more even. Core.

Each broker has a fill: for bytes in, bytes out, disk and number of queues, its utilization divided by the mean of all,
so that 1 is balanced. A step takes the broker that is farthest from 1 and the move that lowers the sum of squares most;
where no move helps, an exchange of two queues is tried. No step leaves a topic at one broker or in one zone alone,
fills a broker above its capacity, or makes a broker the fullest of all. Deterministic: no randomness, no time; bounded
by STEPS_PER_QUEUE.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import NamedTuple

from aerobee.placement.goals import CAPACITY_SHARE, zones_of
from aerobee.placement.model import RESOURCES, Allocation, Load, Model, Topic, broker_loads

EVEN = 0.04  # tolerated distance of a broker from the mean
QUEUES_WEIGHT = 0.3  # weight of the number of queues compared with bytes, if there is load
COUNT = len(RESOURCES)  # index of the number of queues, after the parts of a load
TARGETS = 4  # brokers that are tried for one queue: the emptiest, by the worst resource and by all
CHOSEN = 24  # topics of a full broker that are tried with every target
EXCHANGES = 12  # queues of each side that are tried for an exchange
COUNT_SLACK = 0.05  # additional tolerance for the number of queues, compared with the load
STEPS_PER_QUEUE = 4
GAIN_MIN = 1e-9


class _Step(NamedTuple):
    gain: float
    topic: int
    source: int
    target: int
    back: int  # the topic that comes back in an exchange, -1 in a move


class Search:
    """One search over the topics of `movable`; everything else stays where `allocation` has it."""

    def __init__(self, model: Model, allocation: Allocation, movable: Collection[str]) -> None:
        self._names = [broker.name for broker in model.brokers]
        self._zones = [zones_of(model)[name] for name in self._names]
        self._has_zones = len({zone for zone in self._zones if zone}) > 1
        index = {name: number for number, name in enumerate(self._names)}
        wanted = set(movable)
        self._topics: list[Topic] = [topic for topic in model.topics if topic.name in wanted]
        self._counts: list[dict[int, int]] = [
            {index[name]: count for name, count in allocation[topic.name].items() if count}
            for topic in self._topics
        ]
        fixed = broker_loads(
            _without(model, wanted), {name: each for name, each in allocation.items() if name not in wanted}
        )
        queue_count = [0] * len(self._names)
        for by_broker in allocation.values():
            for name, count in by_broker.items():
                queue_count[index[name]] += count
        self._share_of = [self._share(number) for number in range(len(self._topics))]
        loads = [[*fixed[name], 0.0] for name in self._names]
        for number, counts in enumerate(self._counts):
            for broker, count in counts.items():
                for part in range(COUNT):
                    loads[broker][part] += count * self._share_of[number][part]
        for broker, count in enumerate(queue_count):
            loads[broker][COUNT] = float(count)
        self._loads = loads
        capacities = model.capacities
        self._bears = [[*capacities[name], 1.0] for name in self._names]
        self._limit = [
            [bears * share if bears > 0 else float("inf") for bears, share in zip(broker.capacity, CAPACITY_SHARE, strict=True)]
            for broker in model.brokers
        ]  # fmt: skip
        self._at: list[set[int]] = [set() for _ in self._names]
        for number, counts in enumerate(self._counts):
            for broker in counts:
                self._at[broker].add(number)
        self._measure()

    def allocation(self) -> dict[str, dict[str, int]]:
        """Present placement of the movable topics."""
        return {
            topic.name: {self._names[broker]: count for broker, count in sorted(counts.items())}
            for topic, counts in zip(self._topics, self._counts, strict=True)
        }

    def spread(self) -> None:
        """Move a queue of each topic that has one broker or one zone to another broker or zone, if that is allowed."""
        for number, counts in enumerate(self._counts):
            if not counts or self._is_spread(counts):
                continue
            if sum(counts.values()) < 2:
                self.add_queues(self._topics[number].name, 1)
                continue
            source = max(counts, key=lambda broker: (counts[broker], -broker))
            if counts[source] < 2:  # several brokers of one zone: one of them gives a queue
                source = max(counts, key=lambda broker: (self._distance(broker), -broker))
            targets = [
                target for target in range(len(self._names))
                if target != source and self._is_spread({**_taken(counts, source), target: 1}) and self._has_room(number, target)
            ]  # fmt: skip
            if targets:
                target = max(targets, key=lambda each: (self._gain(number, source, each), -each))
                self._move(number, source, target)

    def add_queues(self, topic: str, count: int) -> None:
        """Add queues to a topic, each at the broker with the lowest cost. Its load is redistributed."""
        number = next(index for index, each in enumerate(self._topics) if each.name == topic)
        counts = self._counts[number]
        self._shift(number, -1)
        for _ in range(count):
            lonely = bool(counts) and not self._is_spread(counts)
            choices = [
                broker for broker in range(len(self._names))
                if not lonely or self._is_spread({**counts, broker: 1})
            ] or list(range(len(self._names)))  # fmt: skip
            share = [part / max(1, sum(counts.values()) + count) for part in self._topics[number].total]
            broker = min(choices, key=lambda each: (self._fill_with(each, share, counts.get(each, 0)), each))
            counts[broker] = counts.get(broker, 0) + 1
            self._at[broker].add(number)
            self._loads[broker][COUNT] += 1
        self._share_of[number] = self._share(number)
        self._shift(number, +1)
        self._measure()

    def balance(self) -> None:
        """Balance until every broker is near the mean, or no move helps."""
        stuck: set[int] = set()
        total = sum(sum(counts.values()) for counts in self._counts)
        for _ in range(STEPS_PER_QUEUE * total + 16):
            worst, distance = -1, EVEN
            for broker in range(len(self._names)):
                if broker not in stuck and (mine := self._distance(broker)) > distance:
                    worst, distance = broker, mine
            if worst < 0:
                return
            step = self._best(worst)
            if step is None:
                stuck.add(worst)
                continue
            self._move(step.topic, step.source, step.target)
            if step.back >= 0:
                self._move(step.back, step.target, step.source)
            stuck -= {step.source, step.target}

    def hottest_topic(self) -> str | None:
        """The topic with the largest single queue at the fullest broker: the one to split. None without any load."""
        parts = [part for part in self._parts if part < COUNT]
        if not parts:
            return None
        fullest = max(range(len(self._names)), key=lambda b: (max(self._fill[b][part] for part in parts), -b))
        part = max(parts, key=lambda each: self._fill[fullest][each])
        found = max(self._at[fullest], key=lambda t: (self._share_of[t][part], -t), default=None)
        if found is None or self._share_of[found][part] <= 0:
            return None
        return self._topics[found].name

    # state

    def _share(self, number: int) -> list[float]:
        """Load of one queue of a topic."""
        queue_count = sum(self._counts[number].values())
        return [*(part / queue_count if queue_count else 0.0 for part in self._topics[number].total), 1.0]

    def _shift(self, number: int, sign: int) -> None:
        for broker, count in self._counts[number].items():
            for part in range(COUNT):
                self._loads[broker][part] += sign * count * self._share_of[number][part]

    def _measure(self) -> None:
        count = len(self._names)
        sums = [sum(self._loads[broker][part] for broker in range(count)) for part in range(COUNT + 1)]
        bears = [sum(self._bears[broker][part] for broker in range(count)) for part in range(COUNT + 1)]
        self._parts = [part for part in range(COUNT + 1) if sums[part] > 0 and bears[part] > 0]
        mean = [sums[part] / bears[part] if bears[part] > 0 else 0.0 for part in range(COUNT + 1)]
        only_queues = self._parts == [COUNT]
        self._weight = [1.0 if part < COUNT or only_queues else QUEUES_WEIGHT for part in range(COUNT + 1)]
        self._judged = [part for part in self._parts if part < COUNT or only_queues]
        # Increase of a broker's fill per unit of load.
        self._unit = [
            [
                1 / (self._bears[broker][part] * mean[part]) if part in self._parts else 0.0
                for part in range(COUNT + 1)
            ]
            for broker in range(count)
        ]
        self._fill = [
            [self._loads[broker][part] * self._unit[broker][part] for part in range(COUNT + 1)]
            for broker in range(count)
        ]

    def _distance(self, broker: int) -> float:
        """Distance of a broker from the mean; brokers above their capacity come first."""
        fill = self._fill[broker]
        far = max((abs(fill[part] - 1) for part in self._judged), default=0.0)
        if COUNT in self._parts:
            far = max(far, abs(fill[COUNT] - 1) - COUNT_SLACK)
        over = max(
            load / limit - 1 for load, limit in zip(self._loads[broker], self._limit[broker], strict=False)
        )
        return far + (1000 if over > 1e-9 else 0)

    def _is_spread(self, counts: Mapping[int, int]) -> bool:
        names = [broker for broker, count in counts.items() if count]
        if len(self._names) > 1 and len(names) < 2:
            return False
        return not self._has_zones or len({self._zones[broker] for broker in names}) > 1

    def _has_room(self, number: int, target: int) -> bool:
        return all(
            load + more <= limit
            for load, more, limit in zip(
                self._loads[target], self._share_of[number], self._limit[target], strict=False
            )
        )

    def _fill_with(self, broker: int, share: list[float], times: int) -> float:
        fill = max((self._fill[broker][part] for part in self._parts), default=0.0)
        return fill + (times + 1) * max(
            (share[part] * self._unit[broker][part] for part in self._parts if part < COUNT), default=1.0
        )

    # steps

    def _best(self, worst: int) -> _Step | None:
        fill = self._fill[worst]
        part = max(
            self._parts, key=lambda each: abs(fill[each] - 1) - (COUNT_SLACK if each == COUNT else 0.0)
        )
        is_full = self._distance(worst) >= 1000 or fill[part] > 1
        others = [broker for broker in range(len(self._names)) if broker != worst]
        first = heapq.nsmallest if is_full else heapq.nlargest
        by_part = first(TARGETS, others, key=lambda broker: self._fill[broker][part])
        by_all = first(TARGETS, others, key=lambda broker: max(self._fill[broker]))
        partners = list(dict.fromkeys([*by_part, *by_all]))
        ceiling = max(
            1 + EVEN, *(self._fill[each][which] for each in range(len(self._names)) for which in self._judged)
        )
        best: _Step | None = None
        chosen: list[int] = []  # the best queues to give, as found with the first partner
        for number, partner in enumerate(partners):
            source, target = (worst, partner) if is_full else (partner, worst)
            topics: Collection[int] = self._at[source]
            if is_full and len(topics) > CHOSEN:
                if not number:
                    chosen = sorted(topics, key=lambda each: (-self._gain(each, source, target), each))[
                        :CHOSEN
                    ]
                topics = chosen
            for topic in topics:
                gain = self._gain(topic, source, target)
                if (
                    (best is None or gain > best.gain)
                    and gain > GAIN_MIN
                    and self._is_allowed(topic, source, target, ceiling)
                ):
                    best = _Step(gain, topic, source, target, -1)
        return best or self._best_exchange(worst, partners[:TARGETS], part, is_full, ceiling)

    def _best_exchange(
        self, worst: int, partners: list[int], part: int, is_full: bool, ceiling: float
    ) -> _Step | None:
        best: _Step | None = None
        for partner in partners:
            source, target = (worst, partner) if is_full else (partner, worst)
            out = sorted(self._at[source], key=lambda t: -self._share_of[t][part])[:EXCHANGES]
            back = sorted(self._at[target], key=lambda t: self._share_of[t][part])[:EXCHANGES]
            for one in out:
                for other in back:
                    if one == other or self._share_of[one][part] <= self._share_of[other][part]:
                        continue
                    gain = self._exchange_gain(one, other, source, target)
                    if (
                        gain > GAIN_MIN
                        and (best is None or gain > best.gain)
                        and self._may_exchange(one, other, source, target, ceiling)
                    ):
                        best = _Step(gain, one, source, target, other)
        return best

    def _gain(self, topic: int, source: int, target: int) -> float:
        share, here, there = self._share_of[topic], self._fill[source], self._fill[target]
        unit_here, unit_there, weight = self._unit[source], self._unit[target], self._weight
        gain = 0.0
        for part in self._parts:
            cost = share[part]
            less, more = cost * unit_here[part], cost * unit_there[part]
            # (x-1)^2 before minus after, at both brokers.
            gain += weight[part] * (
                less * (2 * (here[part] - 1) - less) - more * (2 * (there[part] - 1) + more)
            )
        return gain

    def _exchange_gain(self, one: int, other: int, source: int, target: int) -> float:
        here, there = self._fill[source], self._fill[target]
        gain = 0.0
        for part in self._parts:
            net = self._share_of[one][part] - self._share_of[other][part]
            less, more = net * self._unit[source][part], net * self._unit[target][part]
            gain += self._weight[part] * (
                less * (2 * (here[part] - 1) - less) - more * (2 * (there[part] - 1) + more)
            )
        return gain

    def _is_allowed(self, topic: int, source: int, target: int, ceiling: float) -> bool:
        counts, share = self._counts[topic], self._share_of[topic]
        if (
            counts[source] == 1
            and self._is_spread(counts)
            and not self._is_spread({**_taken(counts, source), target: 1})
        ):
            return False
        fill, unit = self._fill[target], self._unit[target]
        if any(fill[part] + share[part] * unit[part] > ceiling for part in self._judged):
            return False
        return self._has_room(topic, target)

    def _may_exchange(self, one: int, other: int, source: int, target: int, ceiling: float) -> bool:
        for topic, here, there in ((one, source, target), (other, target, source)):
            counts = self._counts[topic]
            if (
                counts[here] == 1
                and self._is_spread(counts)
                and not self._is_spread({**_taken(counts, here), there: 1})
            ):
                return False
        for number, sign in ((target, 1), (source, -1)):
            fill, unit, load, limit = (
                self._fill[number],
                self._unit[number],
                self._loads[number],
                self._limit[number],
            )
            for part in self._judged:
                net = sign * (self._share_of[one][part] - self._share_of[other][part])
                if net > 0 and fill[part] + net * unit[part] > ceiling:
                    return False
                if part < COUNT and net > 0 and load[part] + net > limit[part]:
                    return False
        return True

    def _move(self, topic: int, source: int, target: int) -> None:
        counts, share = self._counts[topic], self._share_of[topic]
        counts[source] -= 1
        if not counts[source]:
            del counts[source]
            self._at[source].discard(topic)
        counts[target] = counts.get(target, 0) + 1
        self._at[target].add(topic)
        for broker, sign in ((source, -1), (target, 1)):
            for part in range(COUNT + 1):
                self._loads[broker][part] += sign * share[part]
                self._fill[broker][part] = self._loads[broker][part] * self._unit[broker][part]


def _taken(counts: Mapping[int, int], source: int) -> dict[int, int]:
    left = dict(counts)
    left[source] -= 1
    return left


def _without(model: Model, names: Collection[str]) -> Model:
    return Model(
        brokers=model.brokers, topics=tuple(topic for topic in model.topics if topic.name not in names)
    )


__all__ = ["Load", "Search"]
