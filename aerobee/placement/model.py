"""The planner's model of a cluster: brokers with their capacity, topics with the load of each queue. Core.

A queue cannot be copied: it stays at its broker until it is read to its end. A plan changes the number of a
topic's queues at each broker. Producers that write round robin spread the load of a topic evenly over its
queues, so one queue more at a broker and one less at another moves one queue's share. If keys choose the
queue, each queue has its own load, and keys move to other queues when the number of queues changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from aerobee.errors import UsageError

SKEW_MAX = 1.5  # factor above the topic's mean at which producers do not write round robin


class Load(NamedTuple):
    """Load of a queue or broker: bytes per second in and out, bytes on disk."""

    bytes_in: float = 0.0
    bytes_out: float = 0.0
    disk: float = 0.0

    def plus(self, other: Load) -> Load:
        """The sum of two loads."""
        return Load(*(mine + its for mine, its in zip(self, other, strict=True)))

    def times(self, factor: float) -> Load:
        """The load multiplied by a factor."""
        return Load(*(each * factor for each in self))


RESOURCES = Load._fields
NOTHING = Load()


def sum_of(loads: Iterable[Load]) -> Load:
    """The sum of all loads."""
    total = [0.0] * len(NOTHING)
    for load in loads:
        for part, value in enumerate(load):
            total[part] += value
    return Load(*total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One broker group. A capacity of 0 is unknown: it counts as equal to the others', and is never reached.

    `base`: the load that no plan moves (retry topics, system topics, static topics).
    """

    name: str
    zone: str = ""
    capacity: Load = NOTHING
    base: Load = NOTHING

    def __post_init__(self) -> None:
        if min(self.capacity) < 0 or min(self.base) < 0:
            raise UsageError(f"broker {self.name}: a load or a capacity below 0")


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic. `queues`: broker -> load of each queue, by queue id.

    `is_ordered`: consumers rely on the order within a queue (FIFO topics, ordered topics, orderly consumers).
    `is_sharded`: a key chooses the queue. `group_sizes`: number of members of each group that reads it.
    `pinned`: reason why no plan may change it, or "".
    """

    name: str
    queues: Mapping[str, tuple[Load, ...]]
    is_ordered: bool = False
    is_sharded: bool = False
    group_sizes: tuple[int, ...] = ()
    pinned: str = ""

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of queues by broker, without brokers that have none."""
        return {name: len(loads) for name, loads in self.queues.items() if loads}

    @cached_property
    def queue_count(self) -> int:
        """All queues."""
        return sum(map(len, self.queues.values()))

    @cached_property
    def at_brokers(self) -> dict[str, Load]:
        """The load of the topic at each broker."""
        return {name: sum_of(loads) for name, loads in self.queues.items()}

    @cached_property
    def total(self) -> Load:
        """The load of all queues."""
        return sum_of(self.at_brokers.values())

    @property
    def keeps_keys(self) -> bool:
        """True when another number of queues would move keys to other queues."""
        return self.is_ordered or self.is_sharded or self.is_skewed

    @cached_property
    def is_skewed(self) -> bool:
        """True when the loads of its queues differ more than round-robin writes explain."""
        each = [load.bytes_in for loads in self.queues.values() for load in loads]
        return len(each) > 1 and max(each) > SKEW_MAX * sum(each) / len(each) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A cluster as the planner sees it. Every broker that a topic names is among `brokers`."""

    brokers: tuple[Broker, ...]
    topics: tuple[Topic, ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        names = [broker.name for broker in self.brokers]
        if len(set(names)) != len(names):
            raise UsageError("a broker is in the model twice")
        if len({topic.name for topic in self.topics}) != len(self.topics):
            raise UsageError("a topic is in the model twice")
        known = set(names)
        for topic in self.topics:
            unknown = set(topic.queues) - known
            if unknown:
                raise UsageError(
                    f"topic {topic.name} has queues at {min(unknown)}, which is no broker of the model"
                )

    @property
    def capacities(self) -> dict[str, Load]:
        """Capacity of each broker, in one unit: if one is unknown, all count as equal."""
        equal = [any(broker.capacity[index] <= 0 for broker in self.brokers) for index in range(len(NOTHING))]
        return {
            broker.name: Load(
                *(1.0 if same else own for same, own in zip(equal, broker.capacity, strict=True))
            )
            for broker in self.brokers
        }


Allocation = Mapping[str, Mapping[str, int]]  # topic -> broker -> queues, brokers without queues left out


def allocation_of(model: Model) -> dict[str, dict[str, int]]:
    """Present placement of the queues."""
    return {topic.name: topic.counts for topic in model.topics}


def broker_loads(model: Model, allocation: Allocation) -> dict[str, Load]:
    """Resulting load of each broker."""
    loads = {broker.name: list(broker.base) for broker in model.brokers}
    for topic in model.topics:
        counts = allocation[topic.name]
        is_same = counts == topic.counts
        queue_count = sum(counts.values())
        for name, count in counts.items():
            load = loads[name]
            measured = topic.at_brokers.get(name, NOTHING)
            for part in range(len(NOTHING)):
                load[part] += measured[part] if is_same else topic.total[part] * count / queue_count
    return {name: Load(*load) for name, load in loads.items()}


def grown(model: Model, factor_of: Mapping[str, float]) -> Model:
    """The model with each topic's load multiplied by its factor; topics without a factor are unchanged."""
    return replace(
        model,
        topics=tuple(
            replace(
                topic,
                queues={
                    name: tuple(load.times(factor_of.get(topic.name, 1.0)) for load in loads)
                    for name, loads in topic.queues.items()
                },
            )
            for topic in model.topics
        ),
    )
