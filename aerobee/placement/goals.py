"""Goals of a placement, and their violations. Core.

Hard goals first, in the order of Cruise Control, for queues that cannot be copied; then soft ones:

    hard   CAPACITY     no broker above its share of bytes in, bytes out, disk
           ZONE         no topic in one zone alone, where there are several
           NOT_ALONE    no topic at one broker alone, where there are several
    soft   DIVISIBLE    each consumer group can share a topic's queues evenly
           HOT_QUEUE no queue carries a large part of a broker's load
           NEW_BROKER   no broker with capacity stays nearly empty
           BALANCE      no broker above IMBALANCE_MAX times the mean

A plan never violates a hard goal that was met, and never worsens a violation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from aerobee.placement.model import RESOURCES, Allocation, Load, Model, Topic, broker_loads

IMBALANCE_MAX = 1.1
FILLED_MIN = 0.5  # share of the mean number of queues below which a broker counts as new
HOT_SHARE = 0.1  # share of the mean load of a broker above which a queue is hot
CAPACITY_SHARE = Load(0.8, 0.8, 0.8)  # share of a broker's capacity


class Goal(Enum):
    """Goals in the order of their priority."""

    CAPACITY = "capacity"
    ZONE = "zone"
    NOT_ALONE = "not alone"
    DIVISIBLE = "divisible"
    HOT_QUEUE = "hot queue"
    NEW_BROKER = "new broker"
    BALANCE = "balance"

    @property
    def is_hard(self) -> bool:
        """True for goals that no plan may violate."""
        return self in (Goal.CAPACITY, Goal.ZONE, Goal.NOT_ALONE)


@dataclass(frozen=True, slots=True)
class Violation:
    """A goal that `subject`, a topic or a broker, violates; `amount` is the size of the violation, for comparisons."""

    goal: Goal
    subject: str
    amount: float
    reason: str


def imbalances(model: Model, allocation: Allocation) -> dict[str, float]:
    """Per resource, and for "queues": the fullest broker's utilization divided by the mean utilization. 1 is even.

    A resource without any load is 1.
    """
    return imbalances_of(model, broker_loads(model, allocation), queue_counts(model, allocation))


def imbalances_of(
    model: Model, loads: Mapping[str, Load], counts: Mapping[str, int] | None = None
) -> dict[str, float]:
    """As imbalances(), for measured loads; "queues" only with `counts`."""
    capacities = model.capacities
    found = {}
    for index, name in enumerate(RESOURCES):
        total = sum(load[index] for load in loads.values())
        mean = total / sum(capacity[index] for capacity in capacities.values()) if capacities else 0.0
        found[name] = (
            max(load[index] / capacities[broker][index] for broker, load in loads.items()) / mean
            if mean > 0
            else 1.0
        )
    if counts is not None:
        queue_count = sum(counts.values())
        found["queues"] = max(counts.values()) * len(counts) / queue_count if queue_count else 1.0
    return found


def imbalance(model: Model, allocation: Allocation) -> float:
    """The worst of bytes in, bytes out and disk; the number of queues counts only where nothing has any load."""
    found = imbalances(model, allocation)
    queues = found.pop("queues")
    loads = broker_loads(model, allocation)
    return max(found.values()) if any(any(load) for load in loads.values()) else queues


def queue_counts(model: Model, allocation: Allocation) -> dict[str, int]:
    """Queues of all topics at each broker."""
    counts = {broker.name: 0 for broker in model.brokers}
    for by_broker in allocation.values():
        for name, count in by_broker.items():
            counts[name] += count
    return counts


def zones_of(model: Model) -> dict[str, str]:
    """The zone of each broker, by name."""
    return {broker.name: broker.zone for broker in model.brokers}


def violations(model: Model, allocation: Allocation) -> list[Violation]:
    """All violated goals of a placement, hard ones first."""
    loads = broker_loads(model, allocation)
    found = [*_capacity(model, loads), *_spread(model, allocation)]
    mean = _mean_load(model, loads)
    for topic in model.topics:
        found += _of_topic(topic, allocation[topic.name], mean)
    found += _of_brokers(model, allocation)
    order = list(Goal)
    return sorted(found, key=lambda each: (order.index(each.goal), each.subject))


def hard_amounts(model: Model, allocation: Allocation) -> dict[tuple[Goal, str], float]:
    """Size of each violation of a hard goal, by goal and subject."""
    found = [*_capacity(model, broker_loads(model, allocation)), *_spread(model, allocation)]
    return {(each.goal, each.subject): each.amount for each in found}


def shared_evenly(queue_count: int, group_sizes: tuple[int, ...]) -> bool:
    """True when each group's members get equally many queues."""
    return all(size < 1 or queue_count % size == 0 for size in group_sizes)


def _capacity(model: Model, loads: Mapping[str, Load]) -> list[Violation]:
    found = []
    for broker in model.brokers:
        worst, reasons = 0.0, []
        for name, load, bears, share in zip(
            RESOURCES, loads[broker.name], broker.capacity, CAPACITY_SHARE, strict=True
        ):
            if bears > 0 and load > share * bears * (1 + 1e-9):
                worst = max(worst, load / (share * bears) - 1)
                reasons.append(f"{name} {load:.4g} of {bears:.4g}, of which {share:.0%} may be used")
        if reasons:
            found.append(Violation(Goal.CAPACITY, broker.name, worst, "; ".join(reasons)))
    return found


def _spread(model: Model, allocation: Allocation) -> list[Violation]:
    zones = zones_of(model)
    zone_count = len({zone for zone in zones.values() if zone})
    found = []
    for topic in model.topics:
        counts = {name: count for name, count in allocation[topic.name].items() if count}
        if not counts:
            continue
        own = {zones[name] for name in counts}
        if zone_count > 1 and len(own) < 2:
            found.append(
                Violation(Goal.ZONE, topic.name, 1.0, f"all queues are in zone {min(own) or 'unknown'}")
            )
        if len(model.brokers) > 1 and len(counts) < 2:
            found.append(Violation(Goal.NOT_ALONE, topic.name, 1.0, f"all queues are at {min(counts)}"))
    return found


def _mean_load(model: Model, loads: Mapping[str, Load]) -> Load:
    total = Load(*(sum(load[index] for load in loads.values()) for index in range(len(RESOURCES))))
    return total.times(1 / len(model.brokers)) if model.brokers else total


def _of_topic(topic: Topic, counts: Mapping[str, int], mean: Load) -> list[Violation]:
    found = []
    queue_count = sum(counts.values())
    if queue_count and not shared_evenly(queue_count, topic.group_sizes):
        sizes = ", ".join(str(size) for size in topic.group_sizes if size and queue_count % size)
        found.append(
            Violation(
                Goal.DIVISIBLE, topic.name, 1.0, f"{queue_count} queues cannot be shared evenly by {sizes}"
            )
        )
    if counts == topic.counts:
        hottest = [max(each, default=0.0) for each in zip(*_all_loads(topic), strict=True)]
    else:
        hottest = list(topic.total.times(1 / queue_count)) if queue_count else []
    for name, load, average in zip(RESOURCES, hottest, mean, strict=False):
        if average > 0 and load > HOT_SHARE * average * (1 + 1e-9):
            share = load / average
            found.append(
                Violation(
                    Goal.HOT_QUEUE, topic.name, share, f"one queue has {share:.0%} of a broker's mean {name}"
                )
            )
            break
    return found


def _all_loads(topic: Topic) -> list[Load]:
    return [load for loads in topic.queues.values() for load in loads]


def _of_brokers(model: Model, allocation: Allocation) -> list[Violation]:
    found = []
    counts = queue_counts(model, allocation)
    mean = sum(counts.values()) / len(counts) if counts else 0.0
    for name, count in counts.items():
        if len(counts) > 1 and count < FILLED_MIN * mean:
            found.append(
                Violation(Goal.NEW_BROKER, name, mean - count, f"{count} queues, the mean is {mean:.1f}")
            )
    for name, value in imbalances(model, allocation).items():
        if value > IMBALANCE_MAX:
            found.append(
                Violation(Goal.BALANCE, name, value - 1, f"the fullest broker has {value:.2f} x the mean")
            )
    return found
