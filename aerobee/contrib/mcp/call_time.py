"""When the call of a tool ends: what runs in it stops in time, instead of being cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

CALL_TIMEOUT_S = 60.0
# Of a call's time, what is left for the message that is being sent and for the storing of the progress.
RESERVE_S = 15.0

_ends_at: ContextVar[float] = ContextVar("mcp_call_ends_at")


@asynccontextmanager
async def call_time() -> AsyncIterator[None]:
    """The time of one call. Raises TimeoutError after CALL_TIMEOUT_S."""
    async with asyncio.timeout(CALL_TIMEOUT_S) as timeout:
        ends_at = timeout.when()
        assert ends_at is not None
        token = _ends_at.set(ends_at)
        try:
            yield
        finally:
            _ends_at.reset(token)


def must_end() -> bool:
    """Whether no more than RESERVE_S of the call is left; only inside of call_time()."""
    return asyncio.get_running_loop().time() >= _ends_at.get() - RESERVE_S
