"""The states of a group's queue: one history for each rule, and what forgetting samples must not change."""

from __future__ import annotations

import random

import pytest

from aerobee.errors import UsageError
from aerobee.monitoring.lag_state import (
    SAMPLES_MAX,
    SEVERITY,
    WINDOW_MS,
    LagState,
    Sample,
    Window,
    drain_s,
    extended,
    judge,
    worst,
)

STEP_MS = 10_000


def history(*offsets: tuple[int | None, int], is_attended: bool | None = True) -> Window:
    """(committed, end) every ten seconds."""
    window: Window = ()
    for number, (committed, end) in enumerate(offsets):
        window = extended(window, Sample(number * STEP_MS, committed, end, is_attended=is_attended))
    return window


def state(window: Window, **options: int | bool) -> LagState:
    return judge(window, **options).state  # type: ignore[arg-type]


def standing(count: int = 10) -> list[tuple[int | None, int]]:
    return [(5, 10 + number) for number in range(count)]


def test_a_group_without_commits_has_unknown_lag() -> None:
    assert state(()) is LagState.UNKNOWN
    assert state(history((None, 10), (None, 20))) is LagState.UNKNOWN


def test_a_short_history_is_judged_only_when_nothing_waits() -> None:
    assert state(history((5, 10), (6, 11))) is LagState.UNKNOWN
    assert state(history((10, 10))) is LagState.OK
    assert state(history((8, 10)), allowed_lag=2) is LagState.OK


def test_a_lag_that_shrinks_is_well_however_large() -> None:
    assert state(history(*((n * 100, 1_000_000 + n * 50) for n in range(10)))) is LagState.OK


def test_a_lag_that_never_shrinks_is_a_warning() -> None:
    assert state(history(*((n * 50, 1_000 + n * 100) for n in range(10)))) is LagState.WARN
    assert state(history(*((n * 50, 1_000 + n * 50) for n in range(10)))) is LagState.WARN


def test_members_that_do_not_get_on_are_a_stall_and_absent_ones_a_stop() -> None:
    assert state(history(*standing())) is LagState.STALL
    assert state(history(*standing(), is_attended=None)) is LagState.STALL
    assert state(history(*standing(), is_attended=False)) is LagState.STOP


def test_known_commit_times_tell_a_stop_from_a_stall() -> None:
    def committing(times: list[int]) -> Window:
        window: Window = ()
        for number, at_ms in enumerate(times):
            window = extended(window, Sample(number * STEP_MS, 5, 10, committed_at_ms=at_ms))
        return window

    assert state(committing([number * STEP_MS for number in range(30)])) is LagState.STALL
    assert state(committing([min(number, 8) * STEP_MS for number in range(30)])) is LagState.STOP
    assert state(committing([min(number, 25) * STEP_MS for number in range(30)])) is LagState.STALL


def test_what_was_worked_off_a_short_time_ago_is_well_until_the_window_has_passed() -> None:
    idle = [(10, 10)] * 6
    assert state(history(*idle, *[(10, 20)] * 8)) is LagState.OK
    steps = WINDOW_MS // STEP_MS
    assert state(history(*idle, *[(10, 20)] * (steps + 1))) is LagState.STALL


def test_an_offset_that_went_back_is_a_rewind_until_it_comes_again_or_is_forgotten() -> None:
    back = [(100, 200), (110, 210), (20, 220), (30, 230)]
    assert state(history(*back)) is LagState.REWIND
    assert state(history((300, 300), (20, 300))) is LagState.REWIND
    assert state(history(*back, *[(n, 300) for n in range(110, 180, 10)])) is LagState.OK
    steps = WINDOW_MS // STEP_MS
    assert state(history(*back, *[(30 + n, 300) for n in range(1, steps + 2)])) is LagState.OK


def test_a_lock_that_is_held_without_progress_blocks() -> None:
    window = history(*standing())
    assert state(window, lock_held_ms=3_600_000) is LagState.BLOCKED
    assert state(window, lock_held_ms=10_000) is LagState.STALL  # another member has just begun
    moving = history(*((n * 100, 10_000) for n in range(10)))
    assert state(moving, lock_held_ms=3_600_000) is LagState.OK
    idle_until_now = history(*[(10, 10)] * 9, (10, 20))
    assert state(idle_until_now, lock_held_ms=3_600_000) is LagState.OK


def test_different_subscriptions_are_said_even_when_nothing_waits() -> None:
    assert state(history((10, 10)), subscriptions_differ=True) is LagState.MISMATCH


def test_messages_that_retention_took_are_no_lag() -> None:
    assert Sample(0, 5, 20, min_offset=18).lag == 2
    assert Sample(0, 5, 20, min_offset=20).lag == 0
    assert Sample(0, 30, 20).lag == 0


def test_reasons_say_how_many_and_for_how_long() -> None:
    assert judge(history(*standing())).reason == "lag of 14 messages, and the offset has not moved in 90 s"
    assert "from 110 to 30" in judge(history((110, 200), (30, 200))).reason


def test_time_does_not_go_back() -> None:
    window = extended((), Sample(10, 1, 1))
    with pytest.raises(UsageError, match="5 ms"):
        extended(window, Sample(5, 1, 1))
    assert extended(window, Sample(10, 2, 2)) == (Sample(10, 2, 2),)


def test_a_queue_that_stands_costs_two_samples() -> None:
    window = history(*standing(1_000))
    assert len(window) == 2
    assert window[0].at_ms == 0


def test_a_window_is_bounded_however_often_it_is_sampled() -> None:
    window: Window = ()
    for number in range(5_000):
        window = extended(window, Sample(number * 100, number, 2 * number + 10))
        assert len(window) <= SAMPLES_MAX
    assert window[-1].at_ms - window[0].at_ms >= WINDOW_MS * 0.9
    assert state(window) is LagState.WARN


@pytest.mark.parametrize("seed", range(50))
def test_forgetting_samples_changes_no_verdict(seed: int) -> None:
    """A window that is kept small says what one with every sample of its time says."""
    rng = random.Random(seed)
    small: Window = ()
    every: list[Sample] = []
    committed, end = 0, rng.choice((0, 50))
    for number in range(60):
        end += rng.choice((0, 0, 1, 5))
        if rng.random() < 0.5:
            committed = min(end, committed + rng.choice((0, 1, 3, 10)))
        sample = Sample(number * STEP_MS, committed, end, is_attended=rng.random() < 0.9)
        small = extended(small, sample)
        every.append(sample)
        begin = next(index for index, each in enumerate(every) if each.at_ms >= small[0].at_ms)
        held = rng.choice((None, 60_000, 10**9))
        whole = judge(tuple(every[begin:]), lock_held_ms=held)
        assert judge(small, lock_held_ms=held) == whole, (seed, number, small)


def test_drain_is_known_only_when_the_lag_shrinks() -> None:
    shrinking = history(*((n * 100, 10_000) for n in range(10)))
    assert drain_s([shrinking]) == pytest.approx(9_100 / 10)
    growing = history(*((n * 10, 1_000 + n * 100) for n in range(10)))
    assert drain_s([growing]) is None
    assert drain_s([shrinking, growing]) == pytest.approx((9_100 + 1_810) / 1)
    assert drain_s([history((10, 10))]) == 0.0
    assert drain_s([]) == 0.0
    assert drain_s([history((5, 10))]) is None
    # What stood for long and continues now is judged by what it does now.
    again = history(*[(0, 1_000)] * 200, *((n * 10, 1_000) for n in range(1, 14)))
    assert drain_s([again]) == pytest.approx(870, rel=0.1)


def test_the_worst_state_speaks_for_a_group() -> None:
    assert worst([]) is LagState.UNKNOWN
    assert worst([LagState.OK, LagState.UNKNOWN]) is LagState.OK
    assert worst([LagState.WARN, LagState.STOP, LagState.OK]) is LagState.STOP
    assert set(SEVERITY) == set(LagState)
