"""Bound on the sends of one producer that wait for a reply; further sends wait here, first come first served.

asyncio.Semaphore costs 0.5 us for a send that need not wait. Here such a send changes `taken` itself, and makes no call
while no send waits.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SendSemaphore:
    """`taken` never passes `count_max`. Belongs to one event loop.

    To take a slot: `taken += 1` while it is below `count_max`, else wait(). To release it: `taken -= 1` while not
    `is_watched`, else give_back(). While a send waits, all slots are taken: a released slot passes to the waiting send
    and is never free in between.
    """

    __slots__ = ("_emptied", "_waiters", "count_max", "is_watched", "taken")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.taken = 0
        self.is_watched = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._emptied: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Take a slot, after all earlier waiters."""
        if self.taken < self.count_max:
            self.taken += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.is_watched = True
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back()  # this waiter received a slot that it does not use
            # A cancelled waiter is skipped when a slot reaches it: searching for it would cost O(n) for each
            # of n waiters.
            raise

    def give_back(self) -> None:
        """Pass the slot to the longest waiting send, or free it."""
        waiters = self._waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot stays taken: the waiter owns it now
                return
        self.taken -= 1
        self.is_watched = bool(self._emptied)
        if not self.taken:
            for emptied in self._emptied:
                if not emptied.done():
                    emptied.set_result(None)
            self._emptied.clear()

    async def emptied(self) -> None:
        """Return when no slot is taken."""
        if self.taken:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            self.is_watched = True
            await emptied
