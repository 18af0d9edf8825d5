"""Rows of the lag job: samples, and the evaluation of a history of samples. Core.

A sample describes one queue of one group at one time. The history may be late, unordered and contain
duplicates: evaluate() sorts it and uses the last of several samples with equal times. For a broker without a
reply there is a sample with `error`; if that is the newest sample, the state is UNKNOWN and every value null,
never 0. Sample times come from the sampler's clock, store times from the broker's; a store time after the
sample's counts as now.

Retry and dead-letter topics count for the group that owns them: `kind` is "topic", "retry" or "dead".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.monitoring.lag_state import (
    BLOCKED_AFTER_MS,
    WINDOW_MS,
    LagState,
    Sample,
    Window,
    drain_s,
    extended,
    judge,
)

TOPIC, RETRY, DEAD = "topic", "retry", "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """One sample. Offsets count messages, times are ms since the epoch.

    `oldest_ms`: store time of the first message that the group has not consumed. `filtered_lag`: part of the
    lag that matches the group's filter. `retention_ms`: retention time of the broker. `lock_held_ms`:
    duration for which the same member has locked the ordered queue; RocketMQ's brokers do not report it.
    None: unknown, or no lag.
    """

    at_ms: int
    cluster: str
    group: str
    topic: str
    broker: str
    queue_id: int
    committed: int | None = None
    min_offset: int = 0
    max_offset: int = 0
    filtered_lag: int | None = None
    oldest_ms: int | None = None
    retention_ms: int | None = None
    is_attended: bool | None = None
    subscriptions_differ: bool = False
    error: str = ""
    lock_held_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """Evaluation of one queue of a group. Rates are messages a second over the window; None: unknown.

    `retention_s`: seconds until the first unread message may be deleted; below 0: it may be already.
    """

    at_ms: int
    cluster: str
    group: str
    topic: str
    broker: str
    queue_id: int
    kind: str
    state: str
    reason: str
    lag: int | None = None
    filtered_lag: int | None = None
    lag_ms: int | None = None
    consume_rate: float | None = None
    produce_rate: float | None = None
    drain_s: float | None = None
    retention_s: float | None = None


SAMPLE_FIELDS = tuple(each.name for each in fields(LagSample))
LAG_FIELDS = tuple(each.name for each in fields(QueueLag))


def kind_of(topic: str) -> str:
    """Kind of a topic for the group that reads it."""
    return RETRY if topic.startswith(RETRY_PREFIX) else DEAD if topic.startswith(DLQ_PREFIX) else TOPIC


def evaluate(history: Iterable[Mapping[str, Any]], *, window_ms: int = WINDOW_MS) -> QueueLag | None:
    """Evaluate the samples of one queue of one group, each a mapping of SAMPLE_FIELDS; None without any."""
    by_time = {row["at_ms"]: LagSample(**row) for row in history}
    samples = [by_time[at_ms] for at_ms in sorted(by_time)]
    if not samples:
        return None
    now = samples[-1]
    said: dict[str, Any] = {
        "at_ms": now.at_ms,
        # An unregistered broker counts for the cluster of its earlier samples.
        "cluster": next((each.cluster for each in reversed(samples) if each.cluster), ""),
        "group": now.group,
        "topic": now.topic,
        "broker": now.broker,
        "queue_id": now.queue_id,
        "kind": kind_of(now.topic),
    }
    if now.error:
        return QueueLag(**said, state=LagState.UNKNOWN.value, reason=now.error)
    window = _window(samples, window_ms)
    if said["kind"] == DEAD:
        return _dead(now, said)
    verdict = judge(
        window,
        window_ms=window_ms,
        lock_held_ms=now.lock_held_ms,
        blocked_after_ms=min(BLOCKED_AFTER_MS, window_ms),
        subscriptions_differ=now.subscriptions_differ,
    )
    said |= {"state": verdict.state.value, "reason": verdict.reason}
    if now.committed is None:
        return QueueLag(**said)
    lag = window[-1].lag
    filtered = None if now.filtered_lag is None else min(max(0, now.filtered_lag), lag)
    lag_ms = 0 if lag == 0 else None if now.oldest_ms is None else max(0, now.at_ms - now.oldest_ms)
    consumed, produced = _rates(window, window_ms)
    left_s = None
    if lag and now.oldest_ms is not None and now.retention_ms is not None:
        left_s = (min(now.oldest_ms, now.at_ms) + now.retention_ms - now.at_ms) / 1000
    return QueueLag(
        **said,
        lag=lag,
        filtered_lag=filtered,
        lag_ms=lag_ms,
        consume_rate=consumed,
        produce_rate=produced,
        drain_s=drain_s([window], window_ms=window_ms),
        retention_s=left_s,
    )


def _window(samples: Sequence[LagSample], window_ms: int) -> Window:
    """The samples with a reply, in the form that the rules read."""
    window: Window = ()
    for each in samples:
        if not each.error:
            sample = Sample(each.at_ms, each.committed, each.max_offset, each.min_offset, each.is_attended)
            window = extended(window, sample, window_ms=window_ms)
    return window


def _dead(now: LagSample, said: dict[str, Any]) -> QueueLag:
    """No group consumes dead-letter messages: they count as long as they are stored."""
    count = now.max_offset - now.min_offset
    state = LagState.OK if count == 0 else LagState.WARN
    reason = "no dead letters" if count == 0 else f"{count} dead letter{'s' if count > 1 else ''}"
    return QueueLag(**said, state=state.value, reason=reason, lag=count)


def _rates(window: Window, window_ms: int) -> tuple[float | None, float | None]:
    """(consumed, produced) messages a second since the first sample of the window; None for an offset that
    decreased.
    """
    now = window[-1]
    before = [sample for sample in window[:-1] if sample.at_ms >= now.at_ms - window_ms] or list(window[:1])
    first = before[0]
    span_s = (now.at_ms - first.at_ms) / 1000
    if span_s <= 0:
        return None, None
    produced = (now.max_offset - first.max_offset) / span_s
    consumed = None
    if first.committed is not None and now.committed is not None and now.committed >= first.committed:
        consumed = (now.committed - first.committed) / span_s
    return consumed, produced if produced >= 0 else None


def as_row(value: LagSample | QueueLag) -> dict[str, Any]:
    """A sample or a result as a mapping of its fields."""
    return asdict(value)
