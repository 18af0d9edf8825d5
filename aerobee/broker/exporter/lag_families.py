"""Lag of groups as families of /metrics, in chunks of pairs: an unchanged pair costs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter

from aerobee.broker.exporter.lag_sampler import Lag, LagSample
from aerobee.broker.parts.parts import BrokerParts
from aerobee.monitoring.exposition import GAUGE, Family, Slice, joined, label_text
from aerobee.monitoring.lag_state import LagState
from aerobee.system_names import is_system_group

OTHER = "other"  # the topic under which everything beyond metricsTopicsMax is summed
PAIRS_A_SLICE = 256
LOCKS_MAX = 5_000  # maximum number of locks with separate series: the longest held
_STATE_LABELS = {state: f',state="{state.value}"' for state in LagState}

_Samples = Iterable[tuple[str, float]]


class Chunk:
    """An immutable chunk of pairs. Equality is identity."""

    __slots__ = ("labels", "lags")

    def __init__(self, lags: tuple[Lag, ...]) -> None:
        self.lags = lags
        self.labels = tuple(lag.labels for lag in lags)


class LagChunks:
    """The pairs of a measurement in chunks. A chunk without changes since the previous measurement is the same object."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._made_of: tuple[LagSample, frozenset[str]] | None = None

    def of(self, sample: LagSample, shown: frozenset[str]) -> Iterable[Chunk]:
        """Created lazily at the first reading: iterating over 100,000 pairs takes some milliseconds."""
        known = self._made_of
        if known is not None and known[0] is sample and known[1] is shown:
            return self._chunks
        return self._make(sample, shown)

    def _make(self, sample: LagSample, shown: frozenset[str]) -> Iterator[Chunk]:
        before, chunks = self._chunks, list[Chunk]()
        for number, lags in enumerate(_cut(sample.lags, shown)):
            known = before[number] if number < len(before) else None
            chunks.append(known if known is not None and known.lags == lags else Chunk(lags))
            yield chunks[-1]
        self._chunks, self._made_of = chunks, (sample, shown)


def lag_families(
    parts: BrokerParts, sample: LagSample, chunks: LagChunks, common: str, shown: frozenset[str]
) -> Iterator[Family]:
    """`shown`: topics with separate series. `chunks`: those of the previous page."""
    if sample.measured_at is None:
        return
    age_s = max(0.0, parts.clock.monotonic() - sample.measured_at)
    yield Family(
        "aerobee_lag_sample_age_seconds", GAUGE, "Time since the lag was measured, s", ((common, age_s),)
    )
    for name, meaning, samples in _FAMILIES:
        slices = (
            Slice((common, chunk), partial(samples, chunk), common) for chunk in chunks.of(sample, shown)
        )
        yield Family(name, GAUGE, meaning, slices=slices)


def group_families(parts: BrokerParts, common: str, shown: frozenset[str]) -> Iterator[Family]:
    """Metrics of whole groups, and the queue locks of ordered consumers on `shown` topics.

    Clients may lock queues of missing topics, each with a separate series: at most LOCKS_MAX locks are exported.
    """
    members = (
        (joined(common, label_text({"consumer_group": name})), parts.consumers.size_of(name))
        for name in list(parts.groups.groups)
        if not is_system_group(name)
    )
    yield Family(
        "aerobee_consumer_members",
        GAUGE,
        "Connected consumers of a group; 0 for a group without any",
        members,
    )
    now_ms = parts.clock.now_ms()
    locks = [
        (
            label_text(
                {
                    "consumer_group": lock.group,
                    "topic": lock.queue.topic,
                    "queue_id": str(lock.queue.queue_id),
                    "client_id": lock.client_id,
                }
            ),
            lock,
        )
        for lock in parts.locks.longest_held(LOCKS_MAX, shown)
    ]
    yield Family(
        "aerobee_consumer_locks", GAUGE, "Queues locked by ordered consumers", ((common, parts.locks.count),)
    )
    yield Family(
        "aerobee_consumer_lock_held_seconds",
        GAUGE,
        "Time since this consumer locked the ordered queue",
        ((joined(common, text), max(0, now_ms - lock.since_ms) / 1000) for text, lock in locks),
    )
    yield Family(
        "aerobee_consumer_lock_age_seconds",
        GAUGE,
        "Time since this consumer renewed its lock of the ordered queue",
        ((joined(common, text), lock.age_ms / 1000) for text, lock in locks),
    )


def _numbers(name: str) -> Callable[[Chunk], _Samples]:
    """The exported values of a Lag. Unknown values are left out."""
    read: Callable[[Lag], float | None] = attrgetter(name)

    def samples(chunk: Chunk) -> _Samples:
        pairs = zip(chunk.labels, map(read, chunk.lags), strict=True)
        return [(labels, value) for labels, value in pairs if value is not None]

    return samples


def _retention_left(chunk: Chunk) -> _Samples:
    return [(lag.labels, lag.retention_ms / 1000) for lag in chunk.lags if lag.retention_ms is not None]


def _states(chunk: Chunk) -> _Samples:
    samples: list[tuple[str, float]] = []
    for lag in chunk.lags:
        if len(lag.states) == 1:
            samples.append((lag.labels + _STATE_LABELS[lag.states[0]], 1))
        else:
            samples += [
                (lag.labels + _STATE_LABELS[state], count) for state, count in Counter(lag.states).items()
            ]
    return samples


def _queue_states(chunk: Chunk) -> _Samples:
    return [
        (f'{lag.labels},queue_id="{queue_id}"{_STATE_LABELS[state]}', 1)
        for lag in chunk.lags
        if lag.topic != OTHER
        for queue_id, state in enumerate(lag.states)
        if state is not LagState.OK
    ]


# Metrics used by alerts come first: a page with little time left omits the last ones.
_FAMILIES: tuple[tuple[str, str, Callable[[Chunk], _Samples]], ...] = (
    ("rocketmq_consumer_lag_messages", "Lag in messages", _numbers("messages")),
    ("rocketmq_consumer_lag_latency", "Age of the first message of the lag, ms", _numbers("latency_ms")),
    (
        "aerobee_consumer_lag_state",
        "Queues of a group in this state: OK WARN STALL STOP REWIND BLOCKED MISMATCH UNKNOWN",
        _states,
    ),
    ("aerobee_consumer_queue_lag_state", "1 for each queue that is not OK", _queue_states),
    (
        "aerobee_consumer_retention_left_seconds",
        "Seconds until the first message of the lag is as old as fileReservedTime",
        _retention_left,
    ),
    (
        "aerobee_consumer_drain_seconds",
        "Time to drain at the rates of the last two minutes; absent when the lag does not shrink",
        _numbers("drain_s"),
    ),
    (
        "aerobee_consumer_lag_filtered_messages",
        "Messages of the lag that the group's filter takes; absent without a filter",
        _numbers("wanted"),
    ),
    ("rocketmq_consumer_inflight_messages", "Messages delivered, not committed", _numbers("in_flight")),
    ("rocketmq_consumer_ready_messages", "Messages not delivered yet", _numbers("ready")),
    (
        "rocketmq_consumer_queueing_latency",
        "Age of the first message not delivered yet, ms",
        _numbers("queueing_ms"),
    ),
    ("aerobee_consumer_unknown_queues", "Queues without a committed offset", _numbers("unknown_queues")),
)


def _cut(lags: tuple[Lag, ...], shown: frozenset[str]) -> Iterator[tuple[Lag, ...]]:
    """Pairs of the shown topics; the other pairs of each group combined under the topic OTHER."""
    rest: dict[str, list[Lag]] = {}
    for begin in range(0, len(lags), PAIRS_A_SLICE):
        some = lags[begin : begin + PAIRS_A_SLICE]
        if not shown.issuperset([lag.topic for lag in some]):
            for lag in some:
                if lag.topic not in shown:
                    rest.setdefault(lag.group, []).append(lag)
            some = tuple(lag for lag in some if lag.topic in shown)
        yield some
    sums = tuple(_sum(each) for each in rest.values())
    for begin in range(0, len(sums), PAIRS_A_SLICE):
        yield sums[begin : begin + PAIRS_A_SLICE]


def _sum(lags: list[Lag]) -> Lag:
    """Sum of messages, maximum of times; a value that is unknown for one pair is unknown for the combination."""
    group = lags[0].group
    labels = label_text({"consumer_group": group, "topic": OTHER, "is_retry": "false", "is_system": "false"})
    latencies = [lag.latency_ms for lag in lags if lag.latency_ms is not None]
    queueing = [lag.queueing_ms for lag in lags if lag.queueing_ms is not None]
    retention = [lag.retention_ms for lag in lags if lag.retention_ms is not None]
    drains = [lag.drain_s for lag in lags if lag.drain_s is not None]
    counts: Counter[LagState] = Counter(state for lag in lags for state in lag.states)
    return Lag(
        group=group,
        topic=OTHER,
        labels=labels,
        messages=sum(lag.messages for lag in lags),
        wanted=None,
        in_flight=sum(lag.in_flight for lag in lags),
        ready=sum(lag.ready for lag in lags),
        latency_ms=max(latencies) if len(latencies) == len(lags) else None,
        queueing_ms=max(queueing) if len(queueing) == len(lags) else None,
        retention_ms=min(retention, default=None),
        unknown_queues=sum(lag.unknown_queues for lag in lags),
        drain_s=max(drains) if len(drains) == len(lags) else None,
        states=tuple(counts.elements()),
    )
