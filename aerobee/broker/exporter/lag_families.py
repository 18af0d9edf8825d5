"""How far groups are behind, as families of /metrics, in slices of pairs: a pair that has not moved costs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from aerobee.broker.consumer.group_table import is_system_group
from aerobee.broker.exporter.lag_sampler import Lag, LagSample, state_counts
from aerobee.broker.parts import BrokerParts
from aerobee.monitoring.exposition import GAUGE, Family, Slice, joined, label_text
from aerobee.monitoring.lag_state import LagState

OTHER = "other"  # the topic under which everything beyond metricsTopicsMax is summed
PAIRS_A_SLICE = 256

_Samples = Iterator[tuple[str, float]]
_FAMILIES: tuple[tuple[str, str, Callable[[Lag], float | None]], ...] = (
    ("rocketmq_consumer_lag_messages", "Not consumed", lambda lag: lag.messages),
    (
        "aerobee_consumer_lag_filtered_messages",
        "Not consumed, and the group's filter takes them; absent without a filter",
        lambda lag: lag.wanted,
    ),
    ("rocketmq_consumer_inflight_messages", "Handed out, not committed", lambda lag: lag.in_flight),
    ("rocketmq_consumer_ready_messages", "Not handed out yet", lambda lag: lag.ready),
    ("rocketmq_consumer_lag_latency", "Age of the first not consumed, ms", lambda lag: lag.latency_ms),
    (
        "rocketmq_consumer_queueing_latency",
        "Age of the first not handed out, ms",
        lambda lag: lag.queueing_ms,
    ),
    ("aerobee_consumer_unknown_queues", "Without a committed offset", lambda lag: lag.unknown_queues),
    (
        "aerobee_consumer_retention_left_seconds",
        "Until the first message that is not consumed is as old as fileReservedTime",
        lambda lag: None if lag.retention_ms is None else lag.retention_ms / 1000,
    ),
    (
        "aerobee_consumer_drain_seconds",
        "Until all is consumed if it goes on as in the last two minutes; absent when it will not be",
        lambda lag: lag.drain_s,
    ),
)


def lag_families(
    parts: BrokerParts, sample: LagSample, common: str, shown: frozenset[str]
) -> Iterator[Family]:
    """`shown`: topics with series of their own."""
    if sample.measured_at is None:
        return
    age_s = max(0.0, parts.clock.monotonic() - sample.measured_at)
    yield Family("aerobee_lag_sample_age_seconds", GAUGE, "Since lag was measured", ((common, age_s),))
    lags = _bounded(sample.lags, shown)
    chunks = [lags[begin : begin + PAIRS_A_SLICE] for begin in range(0, len(lags), PAIRS_A_SLICE)]
    for name, meaning, read in _FAMILIES:
        slices = (Slice((common, chunk), partial(_samples, chunk, common, read)) for chunk in chunks)
        yield Family(name, GAUGE, meaning, slices=slices)
    slices = (Slice((common, chunk), partial(_states, chunk, common)) for chunk in chunks)
    meaning = "Queues of a group in this state: OK WARN STALL STOP REWIND BLOCKED MISMATCH UNKNOWN"
    yield Family("aerobee_consumer_lag_state", GAUGE, meaning, slices=slices)
    slices = (Slice((common, chunk), partial(_queue_states, chunk, common)) for chunk in chunks)
    meaning = "1 for each queue that is not OK"
    yield Family("aerobee_consumer_queue_lag_state", GAUGE, meaning, slices=slices)


def group_families(parts: BrokerParts, common: str) -> Iterator[Family]:
    """What holds for a whole group, and the queues that ordered consumers hold."""
    members = (
        (joined(common, label_text({"consumer_group": name})), parts.consumers.size_of(name))
        for name in list(parts.groups.groups)
        if not is_system_group(name)
    )
    yield Family("aerobee_consumer_members", GAUGE, "Connected consumers of a group, 0 too", members)
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
        for lock in parts.locks.infos()
    ]
    yield Family(
        "aerobee_consumer_lock_held_seconds",
        GAUGE,
        "Since this consumer got the ordered queue",
        ((joined(common, text), max(0, now_ms - lock.since_ms) / 1000) for text, lock in locks),
    )
    yield Family(
        "aerobee_consumer_lock_age_seconds",
        GAUGE,
        "Since this consumer renewed its lock of the ordered queue",
        ((joined(common, text), lock.age_ms / 1000) for text, lock in locks),
    )


def _samples(lags: tuple[Lag, ...], common: str, read: Callable[[Lag], float | None]) -> _Samples:
    for lag in lags:
        value = read(lag)
        if value is not None:
            yield f"{common},{lag.labels}", value


def _states(lags: tuple[Lag, ...], common: str) -> _Samples:
    for lag in lags:
        counts = {lag.states[0].value: 1} if len(lag.states) == 1 else state_counts(lag.states)
        for state, count in counts.items():
            yield f'{common},{lag.labels},state="{state}"', count


def _queue_states(lags: tuple[Lag, ...], common: str) -> _Samples:
    for lag in lags:
        if lag.topic == OTHER:
            continue
        for queue_id, state in enumerate(lag.states):
            if state is not LagState.OK:
                yield f'{common},{lag.labels},queue_id="{queue_id}",state="{state.value}"', 1


def _bounded(lags: tuple[Lag, ...], shown: frozenset[str]) -> tuple[Lag, ...]:
    """Pairs of topics that are shown; those of each group beyond them as one, of the topic OTHER."""
    if all(lag.topic in shown for lag in lags):
        return lags
    rest: dict[str, list[Lag]] = {}
    for lag in lags:
        if lag.topic not in shown:
            rest.setdefault(lag.group, []).append(lag)
    return (*(lag for lag in lags if lag.topic in shown), *(_sum(each) for each in rest.values()))


def _sum(lags: list[Lag]) -> Lag:
    """Messages together, times of the worst; what is not known of one is not known of all."""
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
