"""When sends are refused, and what the refusal says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.broker.admission.overload import HICCUP_LIMITS, IDLE_SAMPLE_S, SAMPLE_S, Overload
from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedLoop

LIMIT_MS = 100


def make(wait_limit_ms: int = 200) -> Overload:
    return Overload(wait_limit_ms=wait_limit_ms, pending_limit_bytes=1000, pending_bytes=lambda: 0)


def simulated(work: Callable[[SimulatedClock], Coroutine[Any, Any, None]]) -> None:
    """Run `work` on an event loop whose time passes without waiting."""
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    loop.run_until_complete(work(clock))
    loop.close()


def test_one_late_sample_is_a_hiccup_and_two_are_load() -> None:
    overload = make()
    overload.observe(300, 0)
    assert overload.reason == ""
    overload.observe(350, 0)
    assert "requests wait 350 ms" in overload.reason
    overload.observe(0, 0)
    assert overload.reason == ""


def test_one_sample_that_is_very_late_is_load() -> None:
    overload = make()
    overload.observe(200 * HICCUP_LIMITS + 1, 0)
    assert "requests wait 2001 ms" in overload.reason


def test_requests_that_delay_the_sample_are_refused_in_the_same_pass() -> None:
    async def burst(clock: SimulatedClock) -> None:
        overload = make(wait_limit_ms=LIMIT_MS)
        overload.start()
        assert overload.reason == ""
        clock.advance(SAMPLE_S + HICCUP_LIMITS * LIMIT_MS / 1000 + 0.05)  # a huge burst blocks the event loop
        assert "requests wait" in overload.reason
        overload.stop()
        await asyncio.sleep(0)

    simulated(burst)


def test_a_request_that_held_the_loop_by_itself_is_no_load() -> None:
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    stalled: list[float] = []
    reasons: list[str] = []

    def overload() -> Overload:
        return Overload(
            wait_limit_ms=200,
            pending_limit_bytes=1000,
            pending_bytes=lambda: 0,
            stalled_s=lambda: sum(stalled),
        )

    async def stalls(gate: Overload, *, is_noted: bool) -> None:
        gate.start()
        assert gate.reason == ""
        for _ in range(4):
            clock.advance(3.0)  # one request has the loop for so long
            if is_noted:
                stalled.append(3.0)
            reasons.append(gate.reason)
            await asyncio.sleep(SAMPLE_S)
            reasons.append(gate.reason)
        gate.stop()

    loop.run_until_complete(stalls(overload(), is_noted=True))
    assert set(reasons) == {""}, "sends that waited behind it are served"
    reasons.clear()
    loop.run_until_complete(stalls(overload(), is_noted=False))
    assert any("requests wait" in reason for reason in reasons), "the same without a single culprit is load"
    loop.close()


def test_an_idle_broker_is_sampled_once_a_second_and_a_busy_one_ten_times() -> None:
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    looks: list[float] = []

    async def idle_then_busy() -> None:
        overload = Overload(wait_limit_ms=200, pending_limit_bytes=1000, pending_bytes=lambda: 0)
        original = overload.observe

        def observe(wait_ms: int, pending_bytes: int) -> None:
            looks.append(loop.time())
            original(wait_ms, pending_bytes)

        overload.observe = observe  # type: ignore[method-assign]
        overload.start()
        await asyncio.sleep(10 * IDLE_SAMPLE_S)
        idle, looks[:] = len(looks), []
        for _ in range(20):
            assert overload.reason == ""
            await asyncio.sleep(SAMPLE_S / 2)
        overload.stop()
        assert idle <= 11
        assert 9 <= len(looks) <= 11

    loop.run_until_complete(idle_then_busy())
    loop.close()


def test_work_that_blocks_an_idle_broker_is_measured_immediately() -> None:
    async def work(clock: SimulatedClock) -> None:
        overload = make(wait_limit_ms=LIMIT_MS)
        overload.start()
        await asyncio.sleep(2 * SAMPLE_S)  # idle now, and the next sample is far away
        assert overload.reason == ""
        clock.advance(SAMPLE_S + HICCUP_LIMITS * LIMIT_MS / 1000 + 0.05)
        assert "requests wait" in overload.reason
        overload.stop()

    simulated(work)


def test_a_stopped_one_stays_stopped_when_it_is_read() -> None:
    async def stopped(clock: SimulatedClock) -> None:
        overload = make()
        overload.start()
        await asyncio.sleep(2 * SAMPLE_S)
        overload.stop()
        assert overload.reason == ""
        assert overload._timer is None

    simulated(stopped)
