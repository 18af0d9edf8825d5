"""Work of a proxy that no client waits for, a bounded number at a time: renewals, and messages that are given back.

200,000 renewals may be due in the same second: as many tasks and requests would delay every client's call.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

from aerobee.client.base.tasks import Tasks

log = logging.getLogger(__name__)

AT_ONCE = 64
WAITING_MAX = 200_000

Work = Callable[[], Awaitable[None]]


class Background:
    """Runs pieces of work in their order, at most AT_ONCE at a time. Belongs to the event loop."""

    def __init__(self, tasks: Tasks, name: str) -> None:
        self._tasks = tasks
        self._name = name
        self._waiting: deque[Work] = deque()
        self.running_count = 0

    def __len__(self) -> int:
        """Pieces that wait."""
        return len(self._waiting)

    def add(self, work: Work) -> bool:
        """Run this now or later; False when WAITING_MAX pieces wait already, and it is dropped. An exception of `work` is logged."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(work)
        if self.running_count < AT_ONCE:
            self.running_count += 1
            self._tasks.spawn(self._run(), self._name)
        return True

    async def _run(self) -> None:
        try:
            while self._waiting:
                try:
                    await self._waiting.popleft()()
                except Exception:
                    # Boundary of one piece: what waits behind it is done nevertheless.
                    log.exception("%s failed", self._name)
        finally:
            self.running_count -= 1
