"""From a load model to a better placement: hard goals first, then soft ones. Core.

    1  topics at one broker or in one zone alone are spread
    2  queues are added where consumers cannot share them evenly, and where one queue carries most of what a broker does
    3  queues move until brokers are even
    4  where that is not enough, the topics with the largest queues at the fullest broker get more queues, and step 3 repeats

Topics whose keys choose the queue take part only with `move_ordered`, and only where the others were not enough. The
result is never worse than the current placement: no met hard goal becomes violated, no violation of one grows, and the
imbalance grows only where a hard goal required it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from aerobee.placement.goals import HOT_SHARE, IMBALANCE_MAX, hard_amounts, imbalance, shared_evenly
from aerobee.placement.model import Allocation, Model, Topic, allocation_of, broker_loads
from aerobee.placement.search import Search

SPLITS_MAX = 12  # rounds of step 4
QUEUES_PER_BROKER_MAX = 64  # of one topic that is split
DIVISIBLE_FACTOR_MAX = 2  # maximum factor by which a topic gets more queues for its consumers
# share of a broker's mean load in one queue above which the topic is split, even if the brokers are even
HOT_ALWAYS = 0.5


@dataclass(frozen=True, slots=True)
class Planned:
    """A placement, and the topics that were left out because keys would move to other queues."""

    allocation: dict[str, dict[str, int]]
    left_out: tuple[str, ...]


def planned(model: Model, *, move_ordered: bool = False) -> Planned:
    """The best placement that was found. The same model gives the same placement."""
    keeping = [topic for topic in model.topics if topic.keeps_keys and not topic.pinned]
    free = [topic.name for topic in model.topics if not topic.keeps_keys and not topic.pinned]
    if len(model.brokers) < 2 or not model.topics:
        return Planned(allocation_of(model), ())
    best = _searched(model, allocation_of(model), free)
    if move_ordered and keeping and _needs_more(model, best):
        best = _better(model, best, _searched(model, best, [*free, *(topic.name for topic in keeping)]))
        return Planned(best, ())
    return Planned(best, tuple(topic.name for topic in keeping))


def _needs_more(model: Model, allocation: Allocation) -> bool:
    return imbalance(model, allocation) > IMBALANCE_MAX or bool(hard_amounts(model, allocation))


def _searched(
    model: Model, start: dict[str, dict[str, int]], movable: Iterable[str]
) -> dict[str, dict[str, int]]:
    names = list(movable)
    if not names:
        return start
    best = start
    search = Search(model, start, names)
    search.spread()
    best = _better(model, best, {**start, **search.allocation()})
    search.balance()
    best = _better(model, best, {**start, **search.allocation()})
    topics = {topic.name: topic for topic in model.topics}
    wanted = _wanted_counts(model, best, [topics[name] for name in names])
    if wanted:
        grown = Search(model, best, names)
        for name, count in wanted.items():
            grown.add_queues(name, count)
        grown.spread()
        grown.balance()
        # Preferred even if a placement with fewer queues is slightly more even, but never if it is uneven.
        candidate = {**start, **grown.allocation()}
        if _is_fine(model, best, candidate, slack=max(IMBALANCE_MAX, imbalance(model, best))):
            search, best = grown, candidate
    for _ in range(SPLITS_MAX):
        if not _needs_more(model, best):
            break
        hottest = search.hottest_topic()
        if hottest is None:
            break
        count = sum(search.allocation()[hottest].values())
        more = (
            min(_shared_count(count * 2, topics[hottest]), QUEUES_PER_BROKER_MAX * len(model.brokers)) - count
        )
        if more <= 0:
            break
        search.add_queues(hottest, more)
        search.spread()
        search.balance()
        best = _better(model, best, {**start, **search.allocation()})
    return best


def _wanted_counts(model: Model, allocation: Allocation, topics: list[Topic]) -> dict[str, int]:
    """Number of queues to add to a topic, for its consumers or because a queue is too large."""
    loads = broker_loads(model, allocation)
    mean = [sum(each) / len(model.brokers) for each in zip(*loads.values(), strict=True)]
    wanted = {}
    for topic in topics:
        count = now = sum(allocation[topic.name].values())
        if not now:
            continue
        for part, average in zip(topic.total, mean, strict=True):
            if average > 0 and part / now > HOT_ALWAYS * average:
                count = max(count, math.ceil(part / (HOT_ALWAYS * average)))
        count = min(count, QUEUES_PER_BROKER_MAX * len(model.brokers))
        count = _shared_count(count, topic)
        if count > now:
            wanted[topic.name] = count - now
    return wanted


def _shared_count(count: int, topic: Topic) -> int:
    """The next number of queues that all groups can share evenly, if it is not far."""
    sizes = [size for size in topic.group_sizes if size > 1]
    if not sizes or shared_evenly(count, tuple(sizes)):
        return count
    step = math.lcm(*sizes)
    even = -(-count // step) * step
    return even if even <= DIVISIBLE_FACTOR_MAX * count else count


def _is_fine(model: Model, before: Allocation, after: Allocation, *, slack: float) -> bool:
    """True when no hard goal is worse, and the imbalance at most `slack` or no hard goal required more."""
    old, new = hard_amounts(model, before), hard_amounts(model, after)
    if any(amount > old.get(key, 0.0) + 1e-9 for key, amount in new.items()):
        return False
    return sum(new.values()) < sum(old.values()) - 1e-9 or imbalance(model, after) <= slack + 1e-9


def _better(
    model: Model, one: dict[str, dict[str, int]], other: dict[str, dict[str, int]]
) -> dict[str, dict[str, int]]:
    """The second placement if it worsens no hard goal, and is more even or violates fewer hard goals; else
    the first.
    """
    if not _is_fine(model, one, other, slack=imbalance(model, one)):
        return one
    broken, still = sum(hard_amounts(model, one).values()), sum(hard_amounts(model, other).values())
    is_better = still < broken - 1e-9 or imbalance(model, other) < imbalance(model, one) - 1e-9
    return other if is_better or _fills(model, one, other) else one


def _fills(model: Model, one: Allocation, other: Allocation) -> bool:
    """True when the second placement fills the emptiest broker and does not fill the fullest one further."""
    return _emptiest(model, other) > _emptiest(model, one) + 1e-9


def _emptiest(model: Model, allocation: Allocation) -> int:
    counts = {broker.name: 0 for broker in model.brokers}
    for by_broker in allocation.values():
        for name, count in by_broker.items():
            counts[name] += count
    return min(counts.values())


__all__ = ["HOT_SHARE", "Planned", "planned"]
