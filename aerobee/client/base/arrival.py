"""A signal that wakes all tasks that wait for it at that moment."""

from __future__ import annotations

import asyncio

from aerobee.clock import Clock


class Arrival:
    """Event that is fired when a message arrived. Each waiter checks again, because another waiter may have taken the
    message."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    async def wait_at_most(self, seconds: float, clock: Clock) -> None:
        """Return when the event is fired, or after `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        timer = clock.call_later(seconds, lambda: None if waiter.done() else waiter.set_result(None))
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self._waiting:
                self._waiting.remove(waiter)
