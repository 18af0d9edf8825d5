"""The one way in which tests wait: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
LOOK_EVERY_S = (
    0.003  # within an event loop; across processes, where a look may cost a call, ten times as long
)
LOOK_AT_OTHERS_EVERY_S = 0.03


async def wait_until(
    condition: Callable[[], object | Awaitable[object]],
    what: str = "",
    *,
    timeout_s: float = 60.0,
    passing: tuple[type[Exception], ...] = (),
) -> None:
    """Return as soon as the condition holds, looking at each pass of the event loop and then each few milliseconds.

    A condition may be a coroutine function. The errors in `passing` mean "not yet". Raises AssertionError, with `what`, when
    it does not hold within `timeout_s`: long, for a busy machine is not a fault.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await _look(condition, passing):  # noqa: ASYNC110  what tests wait for has no event
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what or _location(condition)}") from None


def _location(condition: Callable[[], object]) -> str:
    """Where the condition is written."""
    code = getattr(condition, "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(condition)


async def _look(
    condition: Callable[[], object | Awaitable[object]], passing: tuple[type[Exception], ...]
) -> object:
    try:
        found = condition()
        return await found if inspect.isawaitable(found) else found
    except passing:
        return None


def wait_for(what: str, probe: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    """The blocking form: return the first result of `probe` that is neither None nor False."""
    end = time.monotonic() + timeout_s
    while True:
        result = probe()
        if result is not None and result is not False:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"after {timeout_s:.0f} s still waiting for: {what}")
        time.sleep(LOOK_AT_OTHERS_EVERY_S)


async def wait_async(what: str, probe: Callable[[], object], timeout_s: float = 60.0) -> None:
    """wait_for() in a thread, for a probe that blocks and must not block the event loop."""
    await asyncio.to_thread(wait_for, what, probe, timeout_s)
