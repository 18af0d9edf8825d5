"""Samples of the load of queues, and the model computed from them. Core.

One sample of a cluster has a row for each queue and one for each broker (`topic` "", `queue_id` -1). Offsets
and the end of the log only grow, so two samples give messages and bytes a second. A queue's bytes in are its
messages times the mean message size: of its topic at that broker as the broker counts it, else of all
messages that the broker wrote. Bytes out are the broker's counts for the groups that read the topic, divided
by messages; without counts, bytes in times the number of groups. Disk is bytes in times the retention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields

from aerobee.errors import UsageError
from aerobee.placement.model import NOTHING, Broker, Load, Model, Topic

CAPACITY_KEYS = ("bytes_in", "bytes_out", "disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """One row of one sample. Rates are per second, sizes in bytes, times in ms since the epoch; None: the
    broker has no count.

    `end`: the queue's end offset; in a broker's row the end of its log. `size`: mean message size of the
    topic at this broker. `bytes_out`: of all queues of the topic at this broker. `groups`: number of groups
    that read the topic; `members`: number of members of each, joined by commas.
    """

    at_ms: int
    broker: str
    zone: str = ""
    topic: str = ""
    queue_id: int = -1
    end: int = 0
    size: float | None = None
    bytes_out: float | None = None
    groups: int = 0
    members: str = ""
    is_ordered: bool = False
    is_sharded: bool = False
    pinned: str = ""
    disk_total: float = 0.0
    retention_ms: int = 0


LOAD_FIELDS = tuple(each.name for each in fields(LoadSample))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRate:
    """Load of one queue at the decisive hour: messages per second, and the values of the newest row."""

    newest: LoadSample
    messages: float
    size: float | None
    bytes_out: float | None


def rates_between(first: Iterable[LoadSample], second: Iterable[LoadSample]) -> list[QueueRate]:
    """The rates between two samples; 0 for queues that are in only one of them, or whose end decreased."""
    before = {(each.broker, each.topic, each.queue_id): each for each in first}
    found = []
    for now in second:
        was = before.get((now.broker, now.topic, now.queue_id))
        seconds = 0.0 if was is None else (now.at_ms - was.at_ms) / 1000
        gained = 0 if was is None else max(0, now.end - was.end)
        messages = gained / seconds if seconds > 0 else 0.0
        found.append(QueueRate(newest=now, messages=messages, size=now.size, bytes_out=now.bytes_out))
    return found


def model_of(
    rates: Collection[QueueRate],
    *,
    capacities: Mapping[str, Mapping[str, object]] | None = None,
    ordered: Collection[str] = (),
    growth: Mapping[str, float] | None = None,
) -> Model:
    """The planner's model. `capacities`: as read_capacities() gives them. `ordered`: topics to treat as ordered.

    `growth`: topic -> expected load divided by present load; a shrinking topic keeps its present load.
    """
    brokers = {rate.newest.broker: rate for rate in rates if not rate.newest.topic}
    queues = [rate for rate in rates if rate.newest.topic and rate.newest.broker in brokers]
    mean_size = _mean_sizes(brokers, queues)
    at_topic: dict[tuple[str, str], float] = defaultdict(float)
    for rate in queues:
        at_topic[rate.newest.topic, rate.newest.broker] += rate.messages
    loads: dict[str, dict[str, dict[int, Load]]] = defaultdict(lambda: defaultdict(dict))
    newest: dict[str, list[LoadSample]] = defaultdict(list)
    for rate in queues:
        row = rate.newest
        factor = max(1.0, (growth or {}).get(row.topic, 1.0))
        bytes_in = rate.messages * (rate.size or mean_size[row.broker]) * factor
        share = rate.messages / total if (total := at_topic[row.topic, row.broker]) else 0.0
        bytes_out = (rate.bytes_out or 0.0) * share * factor or bytes_in * row.groups
        retention_s = brokers[row.broker].newest.retention_ms / 1000
        loads[row.topic][row.broker][row.queue_id] = Load(bytes_in, bytes_out, bytes_in * retention_s)
        newest[row.topic].append(row)
    return Model(
        brokers=tuple(
            _broker(name, rate, (capacities or {}).get(name, {})) for name, rate in sorted(brokers.items())
        ),
        topics=tuple(_topic(name, loads[name], newest[name], ordered) for name in sorted(loads)),
    )


def _mean_sizes(brokers: Mapping[str, QueueRate], queues: Iterable[QueueRate]) -> dict[str, float]:
    messages: dict[str, float] = defaultdict(float)
    for rate in queues:
        messages[rate.newest.broker] += rate.messages
    # In a broker's row the "messages" are bytes: the growth of its log.
    return {name: rate.messages / messages[name] if messages[name] else 0.0 for name, rate in brokers.items()}


def _broker(name: str, rate: QueueRate, known: Mapping[str, object]) -> Broker:
    given = Load(*(_amount(name, key, known.get(key, 0.0)) for key in CAPACITY_KEYS))
    zone = known.get("zone", rate.newest.zone)
    return Broker(
        name=name, zone=str(zone), capacity=given._replace(disk=given.disk or rate.newest.disk_total)
    )


def _amount(broker: str, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UsageError(f"{key} of broker {broker} is {value!r}: a number, 0 for unknown")
    return float(value)


def _topic(
    name: str,
    loads: Mapping[str, Mapping[int, Load]],
    rows: list[LoadSample],
    ordered: Collection[str],
) -> Topic:
    members = max((row.members for row in rows), key=len, default="")
    return Topic(
        name=name,
        queues={
            broker: tuple(by_id.get(queue_id, NOTHING) for queue_id in range(max(by_id) + 1))
            for broker, by_id in sorted(loads.items())
        },
        is_ordered=name in ordered or any(row.is_ordered for row in rows),
        is_sharded=any(row.is_sharded for row in rows),
        group_sizes=tuple(sorted({int(each) for each in members.split(",") if each.isdigit()})),
        pinned=next((row.pinned for row in rows if row.pinned), ""),
    )


def read_capacities(document: object) -> dict[str, dict[str, object]]:
    """{"broker-a": {"zone": "east", "bytes_in": 1e8, "bytes_out": 2e8, "disk": 1e12}}, all but the name optional.

    Raises UsageError with the reason.
    """
    if not isinstance(document, dict):
        raise UsageError("brokers are an object: a name, and what is known of it")
    for name, known in document.items():
        if not isinstance(known, dict):
            raise UsageError(
                f"broker {name} is {known!r}: an object with {', '.join(CAPACITY_KEYS)} and zone"
            )
        unknown = set(known) - {*CAPACITY_KEYS, "zone"}
        if unknown:
            raise UsageError(
                f"broker {name} has {min(unknown)}: {', '.join(CAPACITY_KEYS)} and zone are known"
            )
    return document
