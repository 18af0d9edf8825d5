import asyncio

from aerobee.clock import AdvancingClock, ManualClock


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
    await asyncio.wait_for(sleeper, 5)
    assert sleeper.done()


async def test_advancing_clock_runs_timers_in_real_time_too():
    clock = AdvancingClock()
    fired = asyncio.Event()
    set_at = clock.monotonic()
    clock.call_later(0.01, fired.set)
    await asyncio.wait_for(fired.wait(), 30)
    assert clock.monotonic() - set_at >= 0.01
