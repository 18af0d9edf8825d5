import asyncio
import time
from types import SimpleNamespace

import pytest

from aerobee.clock import AdvancingClock, ManualClock, SystemClock, in_step, machine_seconds, to_next_step


def machine_that_was_suspended(*, clock_works: bool = True) -> SimpleNamespace:
    """As the module `time` of a machine that was up for 100 s and suspended for 1,000 more."""

    def clock_gettime(clock_id: int) -> float:
        if not clock_works:
            raise OSError(22, "Invalid argument")
        return {1: 100.0, 7: 1_100.0}[clock_id]

    return SimpleNamespace(CLOCK_BOOTTIME=7, clock_gettime=clock_gettime, monotonic=lambda: 100.0)


def test_the_steady_clock_counts_while_the_machine_is_suspended():
    assert machine_seconds(machine_that_was_suspended())() == 1_100.0


def test_a_system_without_such_a_clock_counts_by_the_monotonic_one():
    assert machine_seconds(machine_that_was_suspended(clock_works=False))() == 100.0
    assert machine_seconds(SimpleNamespace(monotonic=lambda: 100.0))() == 100.0


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_clocks_of_servers_are_the_steady_one():
    # Both read the clock that continues, whatever the difference to time.monotonic() is on this machine.
    for clock in (SystemClock(), AdvancingClock()):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        assert before <= clock.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_manual_clock_runs_due_timers_in_order_and_shows_their_moment():
    clock = ManualClock(start_ms=1000)
    seen = []
    clock.call_later(2, lambda: seen.append(("b", clock.now_ms())))
    clock.call_later(1, lambda: seen.append(("a", clock.now_ms())))
    cancelled = clock.call_later(1.5, lambda: seen.append(("never", 0)))
    cancelled.cancel()
    clock.advance(3)
    assert seen == [("a", 2000), ("b", 3000)]
    assert clock.now_ms() == 4000


async def test_advancing_clock_wakes_sleepers_that_it_passes():
    clock = AdvancingClock()
    sleeper = asyncio.create_task(clock.sleep(60))
    await asyncio.sleep(0)
    clock.advance(61)
    await asyncio.wait_for(sleeper, 30)
    assert sleeper.done()


async def test_advancing_clock_runs_timers_in_real_time_too():
    clock = AdvancingClock()
    fired = asyncio.Event()
    set_at = clock.monotonic()
    clock.call_later(0.01, fired.set)
    await asyncio.wait_for(fired.wait(), 30)
    assert clock.monotonic() - set_at >= 0.01


def test_periodic_timers_fall_into_step():
    """Whenever two of them began, they are due together after a turn at most; none waits less than a quarter, nor twice."""
    for interval_s in (0.5, 1.0):
        for now in (0.0, 17.3, 1_000_000.999):
            waits = to_next_step(now, interval_s)
            assert interval_s / 4 < waits <= interval_s * 5 / 4
            assert (now + waits) % interval_s == pytest.approx(0, abs=1e-6) or (
                now + waits
            ) % interval_s == pytest.approx(interval_s, abs=1e-6)
    assert to_next_step(5.0, 0.0) == 0.0
    assert to_next_step(4.9999999, 1.0) == pytest.approx(1.0, abs=1e-3), (
        "a timer that came a moment early is not run twice"
    )


def test_a_clock_that_is_moved_keeps_intervals():
    assert in_step(ManualClock(), 0.5) == 0.5
    assert 0.125 < in_step(SystemClock(), 0.5) <= 0.625
