"""Health of a group on one queue, derived from its offsets over some minutes. Core: samples in, a state and
its reason out.

A threshold in messages says little: a lag of a thousand is nothing for a fast consumer and a day for a slow
one. So these rules judge the samples of a window, in this order; the first rule that applies is the state:

    UNKNOWN     the group has no committed offset, or the history is too short
    MISMATCH    members of the group have different subscriptions, so they miss messages
    OK          no lag now
    REWIND      the offset decreased and has not reached its previous value again
    BLOCKED     one member has locked the ordered queue for long, and the offset has not moved meanwhile
    OK          no lag at some time in the window
    STOP        lag, and no commit in the whole window
    STALL       lag, with members online or commits, but the offset has not moved in the whole window
    WARN        the offset moves, but the lag has never become smaller
    OK          the lag becomes smaller

A window is a tuple of samples with rising times. extended() adds one and drops samples that no rule needs: rules use
only the first and the last sample of one offset, so an idle queue has two samples.

Source: evaluator/caching.go (Burrow) for REWIND, STOP, STALL and WARN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from aerobee.errors import UsageError

WINDOW_MS = 120_000
SPAN_MIN_MS = (
    60_000  # shorter histories are not judged: members commit every 5 s, and a handler may take a while
)
BLOCKED_AFTER_MS = 60_000  # three times as long as an ordered consumer waits before it renews its lock
SAMPLES_MAX = 64  # in one window; a faster sampler keeps every n-th


class LagState(Enum):
    """The health of one queue of a group, worst first as in SEVERITY."""

    OK = "OK"
    WARN = "WARN"
    STALL = "STALL"
    STOP = "STOP"
    REWIND = "REWIND"
    BLOCKED = "BLOCKED"
    MISMATCH = "MISMATCH"
    UNKNOWN = "UNKNOWN"


# States ordered by severity, worst first: a group has the worst state of its queues. OK precedes UNKNOWN: all
# known queues are healthy.
SEVERITY = (
    LagState.MISMATCH,
    LagState.STOP,
    LagState.BLOCKED,
    LagState.STALL,
    LagState.REWIND,
    LagState.WARN,
    LagState.OK,
    LagState.UNKNOWN,
)
_RANK = {state: rank for rank, state in enumerate(SEVERITY)}


class Sample(NamedTuple):
    """One sample of one queue. Offsets count messages, times are ms since any fixed moment."""

    at_ms: int
    committed: int | None  # the committed offset; None: none
    max_offset: int  # one past the last message
    min_offset: int = 0  # the first stored message
    is_attended: bool | None = None  # whether the group has a member that may take this queue; None: unknown
    committed_at_ms: int | None = None  # time of its last commit, even of the same offset; None: unknown

    @property
    def lag(self) -> int:
        """Messages that the group has not consumed and still can; 0 when it never committed."""
        if self.committed is None:
            return 0
        return max(0, self.max_offset - max(self.committed, self.min_offset))


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state with the reason as a clause without a full stop."""

    state: LagState
    reason: str


Window = tuple[Sample, ...]


def extended(window: Window, sample: Sample, *, window_ms: int = WINDOW_MS) -> Window:
    """The window with a further sample, without samples that no rule needs.

    One sample older than the window stays, so that the rules see a whole window. Raises UsageError when the
    new sample is older than the last one; a sample with the same time replaces the last one.
    """
    if window and sample.at_ms < window[-1].at_ms:
        raise UsageError(f"a sample of {sample.at_ms} ms comes after one of {window[-1].at_ms} ms")
    if window and sample.at_ms == window[-1].at_ms:
        window = window[:-1]
    kept = list(window)
    while len(kept) >= 2 and kept[1].at_ms <= sample.at_ms - window_ms:
        del kept[0]
    if len(kept) >= 2 and _stands(kept[-2], kept[-1]) and _stands(kept[-1], sample):
        kept.pop()
    if len(kept) >= SAMPLES_MAX:
        kept = [kept[0], *kept[2::2]]
    return (*kept, sample)


def _stands(one: Sample, next_one: Sample) -> bool:
    """Whether the queue looks the same to every rule: no progress, and lag in both or in neither."""
    return (
        one.committed == next_one.committed
        and one.min_offset == next_one.min_offset
        and (one.lag == 0) == (next_one.lag == 0)
        and one.max_offset <= next_one.max_offset
    )


def judge(
    window: Window,
    *,
    allowed_lag: int = 0,
    window_ms: int = WINDOW_MS,
    span_min_ms: int = SPAN_MIN_MS,
    lock_held_ms: int | None = None,
    blocked_after_ms: int = BLOCKED_AFTER_MS,
    subscriptions_differ: bool = False,
) -> Verdict:
    """The state of one queue, by the rules of this file's docstring.

    `allowed_lag`: a lag up to this counts as none. `lock_held_ms`: how long the same member has locked the ordered queue;
    None if no member has. `span_min_ms`: a shorter history is UNKNOWN while there is lag.
    """
    if not window or window[-1].committed is None:
        return Verdict(LagState.UNKNOWN, "the group never committed an offset of this queue")
    now = window[-1]
    if subscriptions_differ:
        return Verdict(LagState.MISMATCH, "members of the group have different subscriptions")
    if now.lag <= allowed_lag:
        return Verdict(LagState.OK, _messages(now.lag))
    known = [sample for sample in window if sample.committed is not None]
    furthest = max(sample.committed for sample in known if sample.committed is not None)
    assert now.committed is not None
    if now.committed < furthest:
        return Verdict(LagState.REWIND, f"the offset went back from {furthest} to {now.committed}")
    stood_ms = _stood_ms(known, allowed_lag)
    if lock_held_ms is not None and min(lock_held_ms, stood_ms) >= blocked_after_ms:
        return Verdict(
            LagState.BLOCKED,
            f"a member has held the ordered queue for {lock_held_ms // 1000} s; "
            f"the offset has not moved for {stood_ms // 1000} s",
        )
    if any(sample.lag <= allowed_lag for sample in known):
        return Verdict(LagState.OK, "it had nothing to do a short time ago")
    span_ms = now.at_ms - known[0].at_ms
    if span_ms < min(span_min_ms, window_ms):
        return Verdict(LagState.UNKNOWN, f"watched for {span_ms // 1000} s only")
    return _judge_lagging(known, now, span_ms, window_ms)


def _judge_lagging(known: list[Sample], now: Sample, span_ms: int, window_ms: int) -> Verdict:
    first = known[0]
    watched = f"in {span_ms // 1000} s"
    if now.committed_at_ms is not None and now.at_ms - now.committed_at_ms >= min(span_ms, window_ms):
        return Verdict(LagState.STOP, f"{_messages(now.lag)}, and no commit {watched}")
    if now.committed == first.committed:
        if now.committed_at_ms is None and now.is_attended is False:
            return Verdict(
                LagState.STOP, f"{_messages(now.lag)}, and the group has no member that takes them"
            )
        return Verdict(LagState.STALL, f"{_messages(now.lag)}, and the offset has not moved {watched}")
    if not any(after.lag < before.lag for before, after in pairwise(known)):
        return Verdict(LagState.WARN, f"{_messages(now.lag)}; the lag has not decreased {watched}")
    return Verdict(LagState.OK, f"{_messages(now.lag)}, decreasing")


def _stood_ms(known: list[Sample], allowed_lag: int) -> int:
    """Duration for which the offset has not moved while there was lag."""
    now = known[-1]
    began_ms = now.at_ms
    for sample in reversed(known):
        if sample.committed != now.committed or sample.lag <= allowed_lag:
            break
        began_ms = sample.at_ms
    return now.at_ms - began_ms


def drain_s(windows: Iterable[Window], *, window_ms: int = WINDOW_MS) -> float | None:
    """Time to drain: seconds until these queues have no lag if producers and consumers keep their rates.

    0 without lag. None if unknown, or if the lag does not decrease.
    """
    lag = 0
    rate = 0.0  # messages a second by which the lag becomes smaller
    for window in windows:
        if not window or window[-1].committed is None:
            continue
        now = window[-1]
        before = [sample for sample in window if sample.at_ms <= now.at_ms - window_ms]
        first = before[-1] if before else window[0]
        lag += now.lag
        is_monotonic = (
            first.committed is not None and now.committed is not None and now.committed >= first.committed
        )
        if is_monotonic and now.at_ms > first.at_ms:
            rate += (first.lag - now.lag) * 1000 / (now.at_ms - first.at_ms)
    if lag == 0:
        return 0.0
    return lag / rate if rate > 0 else None


def worst(states: Iterable[LagState]) -> LagState:
    """The worst of these states; UNKNOWN when there are none."""
    return min(states, key=_RANK.__getitem__, default=LagState.UNKNOWN)


def _messages(count: int) -> str:
    return "no lag" if count == 0 else f"lag of {count} message{'s' if count > 1 else ''}"
