"""The one way in which tests wait: for a condition, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(condition: Callable[[], object], what: str = "", *, timeout_s: float = 30.0) -> None:
    """Return as soon as the condition holds, looking at each pass of the event loop and then each few milliseconds.

    Raises AssertionError, with `what`, when it does not within `timeout_s`: long, for a busy machine is not a fault.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  what tests wait for has no event
                await asyncio.sleep(0.003)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what or 'what was waited for'}") from None
