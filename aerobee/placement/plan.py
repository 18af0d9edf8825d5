"""A plan as a document: its changes, their reasons, the forecast and the warnings. Core.

A plan is JSON, so that people can read and keep it; parse_plan() validates every value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from aerobee.errors import UsageError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, check_topic_name
from aerobee.placement.goals import Goal, imbalances, violations
from aerobee.placement.model import Allocation, Model, Topic, allocation_of, broker_loads
from aerobee.placement.planner import planned
from aerobee.placement.steps import State, Step, steps_for

VERSION = 1
QUEUES_MAX = 65_536  # maximum number of queues of one topic at one broker


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """Queues of one topic at each broker, before and after. `moved_keys`: share of keys that move to another
    queue, 0 to 1.
    """

    topic: str
    before: Mapping[str, int]
    after: Mapping[str, int]
    keeps_keys: bool = False
    moved_keys: float = 0.0

    @property
    def steps(self) -> list[Step]:
        """All steps, from the beginning."""
        state = {name: State(count, count) for name, count in self.before.items()}
        return steps_for(self.topic, state, self.after, keeps_keys=self.keeps_keys)

    def reversed(self) -> TopicChange:
        """The way back."""
        return TopicChange(
            topic=self.topic,
            before=self.after,
            after=self.before,
            keeps_keys=self.keeps_keys,
            moved_keys=self.moved_keys,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Imbalances by resource (1 is even), and the number of violated goals of each kind."""

    imbalance: Mapping[str, float]
    broken_goals: Mapping[str, int]
    loads: Mapping[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan, which apply executes. `made_at_ms` is when the model was made, ms since the epoch."""

    made_at_ms: int
    changes: tuple[TopicChange, ...]
    before: Forecast
    after: Forecast
    warnings: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """As JSON."""
        document = {"version": VERSION, **asdict(self)}
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)


def make_plan(model: Model, now_ms: int, *, move_ordered: bool = False) -> Plan:
    """Plan for a model."""
    result = planned(model, move_ordered=move_ordered)
    old = allocation_of(model)
    changes, warnings = [], list(model.notes)
    topics = {topic.name: topic for topic in model.topics}
    for name, after in result.allocation.items():
        if after == old[name]:
            continue
        topic = topics[name]
        share = moved_share(old[name], after)
        changes.append(
            TopicChange(
                topic=name, before=old[name], after=after, keeps_keys=topic.keeps_keys, moved_keys=share
            )
        )
        if topic.keeps_keys:
            warnings.append(
                f"topic {name}: {_why(topic)}: {share:.0%} of its keys get another queue. Producers find no queue to write to while it is read to its end"
            )
    for name in result.left_out:
        topic = topics[name]
        one_more = {**old[name]}
        if one_more:
            one_more[min(one_more)] += 1
        warnings.append(
            f"topic {name}: {_why(topic)}, it is left alone; one queue more would move {moved_share(old[name], one_more):.0%} of its keys "
            f"(--move-ordered lets it take part)"
        )
    warnings += [
        f"topic {topic.name} is left alone: {topic.pinned}" for topic in model.topics if topic.pinned
    ]
    return Plan(
        made_at_ms=now_ms,
        changes=tuple(changes),
        before=_forecast(model, old),
        after=_forecast(model, result.allocation),
        warnings=tuple(warnings),
    )


def _why(topic: Topic) -> str:
    if topic.is_ordered:
        return "order is promised in it"
    if topic.is_sharded:
        return "keys choose its queues"
    return "its queues have very different loads: keys seem to choose them"


def _forecast(model: Model, allocation: Allocation) -> Forecast:
    broken = {goal.value: 0 for goal in Goal}
    for each in violations(model, allocation):
        broken[each.goal.value] += 1
    return Forecast(
        imbalance=imbalances(model, allocation),
        broken_goals=broken,
        loads={name: list(load) for name, load in broker_loads(model, allocation).items()},
    )


def parse_plan(text: bytes) -> Plan:
    """Read a plan. Raises UsageError with the reason."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"the plan is not JSON: {error}") from error
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, bool) or version != VERSION:
        raise UsageError(f"this is no plan of version {VERSION}: `aerobee spark placement` makes one")
    try:
        plan = Plan(
            made_at_ms=_whole(document["made_at_ms"]),
            changes=tuple(_change(each) for each in _rows(document["changes"])),
            before=_forecast_of(document["before"]),
            after=_forecast_of(document["after"]),
            warnings=tuple(_text(each) for each in _rows(document["warnings"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the plan is damaged: {type(error).__name__}: {error}") from error
    if len({change.topic for change in plan.changes}) != len(plan.changes):
        raise UsageError("the plan has a topic twice")
    return plan


def _change(fields: dict[str, Any]) -> TopicChange:
    topic = _text(fields["topic"])
    check_topic_name(topic)
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise UsageError(f"topic {topic} has a group's retries or dead letters: no plan moves it")
    before, after = _counts(fields["before"], topic), _counts(fields["after"], topic)
    if not before or not after:
        raise UsageError(f"the plan leaves topic {topic} without any queue, before or after")
    return TopicChange(
        topic=topic,
        before=before,
        after=after,
        keeps_keys=_truth(fields["keeps_keys"]),
        moved_keys=_share(fields["moved_keys"]),
    )


def _counts(fields: dict[str, Any], topic: str) -> dict[str, int]:
    found = {str(name): _whole(count) for name, count in fields.items()}
    for name, count in found.items():
        if not name.isprintable() or not name or set(name) & set(" :;"):
            raise UsageError(f"the plan names a broker {name!r}: no broker can have this name")
        if not 1 <= count <= QUEUES_MAX:
            raise UsageError(
                f"the plan gives topic {topic} {count} queues at {name}: 1 to {QUEUES_MAX} are possible"
            )
    return found


def _rows(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no whole number")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _share(value: object) -> float:
    share = _number(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{value!r} is no share: 0 to 1")
    return share


def _forecast_of(fields: dict[str, Any]) -> Forecast:
    return Forecast(
        imbalance={str(name): _number(value) for name, value in fields["imbalance"].items()},
        broken_goals={str(name): _whole(value) for name, value in fields["broken_goals"].items()},
        loads={str(name): [_number(each) for each in values] for name, values in fields["loads"].items()},
    )


def queue_list(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """(broker, queue id) in a producer's order: brokers by name, of each its queues by id.

    A producer sends a key to the queue with the number hash % n of this list. Source: SelectMessageQueueByHash and
    MQClientInstance.topicRouteData2TopicPublishInfo (RocketMQ).
    """
    return [(name, queue_id) for name in sorted(counts) for queue_id in range(counts[name])]


def moved_share(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    """The share of evenly spread hashes, 0 to 1, that move to another queue. Exact.

    hash % n = i and hash % m = j happen together for one hash in lcm(n, m) when i = j modulo gcd(n, m), and never otherwise.
    """
    old, new = queue_list(before), queue_list(after)
    if not old or not new:
        return 0.0 if old == new else 1.0
    index_of = {queue: index for index, queue in enumerate(new)}
    common = math.gcd(len(old), len(new))
    kept = sum(
        1 for index, queue in enumerate(old) if queue in index_of and (index_of[queue] - index) % common == 0
    )
    return 1.0 - kept / math.lcm(len(old), len(new))
