"""What a broker does now and then, and what it does beside serving: timers and tasks with one owner, who ends them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.clock import Clock, Timer

log = logging.getLogger(__name__)


class Background:
    """Periodic work and tasks of one broker. Belongs to its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[str, Timer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def every(self, name: str, interval_s: Callable[[], float], work: Callable[[], None]) -> None:
        """Do `work` again and again until stop(). The interval is asked each time; a failure is logged."""

        def tick() -> None:
            self._timers[name] = self._clock.call_later(interval_s(), tick)
            try:
                work()
            except Exception:
                log.exception("the periodic work %r failed", name)

        self._timers[name] = self._clock.call_later(interval_s(), tick)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task that is cancelled by stop()."""
        task = asyncio.create_task(work, name="broker-cold-pull")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Cancel everything."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in list(self._tasks):
            task.cancel()
