"""Background work of a broker: timers and tasks with one owner, which cancels them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aerobee.clock import Clock, Timer
from aerobee.ordered_set import OrderedSet

log = logging.getLogger(__name__)
T = TypeVar("T")


class Background:
    """Periodic work and tasks of one broker. Belongs to its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers: dict[str, Timer] = {}
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()

    def every(self, name: str, interval_s: Callable[[], float], work: Callable[[], None]) -> None:
        """Do `work` again and again until stop(). The interval is read each time; a failure is logged."""

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


_UNDER_WAY: set[asyncio.Future[Any]] = set()  # held here until they end


async def shield(work: Coroutine[Any, Any, T]) -> T:
    """Await work that must be finished even when the peer that requested it goes: the waiting ends then, the work does not."""
    task = asyncio.ensure_future(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


def _ended(task: asyncio.Future[Any]) -> None:
    _UNDER_WAY.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.warning("a requested change has failed: %s", task.exception())
