"""When sends are refused, and what the refusal says."""

from __future__ import annotations

import asyncio
import time

from aerobee.broker.overload import HICCUP_LIMITS, SAMPLE_S, Overload


def make(wait_limit_ms: int = 200) -> Overload:
    return Overload(wait_limit_ms=wait_limit_ms, pending_limit_bytes=1000, pending_bytes=lambda: 0)


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


async def test_requests_that_keep_the_sample_from_running_are_refused_in_the_same_pass() -> None:
    overload = make(wait_limit_ms=1)
    overload.start()
    assert overload.reason == ""
    time.sleep(SAMPLE_S + 0.02)  # noqa: ASYNC251  the loop is kept busy, as a huge burst does
    assert "requests wait" in overload.reason
    overload.stop()
    await asyncio.sleep(0)
