"""How many sends of one producer may wait for an answer at a time; further ones wait here, first come first served.

asyncio.Semaphore costs 0.5 us for a send that need not wait. Here such a send counts `taken` up and down itself, and calls
nothing as long as no send waits.
"""

from __future__ import annotations

import asyncio
from collections import deque


class SendSemaphore:
    """`taken` never passes `count_max`. Belongs to one event loop.

    Taking: `taken += 1` while it is below `count_max`, else wait(). Giving back: `taken -= 1` while not `is_watched`, else
    give_back(). While a send waits, all are taken: a slot that is given back goes to it and is never free in between.
    """

    __slots__ = ("_emptied", "_waiters", "count_max", "is_watched", "taken")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.taken = 0
        self.is_watched = False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._emptied: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Take a slot as soon as it is our turn."""
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
                self.give_back()  # it was handed to us and we do not use it
            raise  # a cancelled waiter is passed over when its turn comes: to look for it would cost n for each of n

    def give_back(self) -> None:
        """Hand the slot to who waits longest, or free it."""
        waiters = self._waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot stays taken: it is the waiter's now
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
