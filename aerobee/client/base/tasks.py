"""Background tasks with an owner: they end with their owner, and their failures are logged.

The tasks of a client live from start() to close(), which may run in different tasks, so that an asyncio.TaskGroup,
which belongs to one block of one task, does not fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from aerobee.ordered_set import OrderedSet

T = TypeVar("T")
log = logging.getLogger(__name__)


class Tasks:
    """Tasks of one owner. After close() none of them runs."""

    def __init__(self) -> None:
        self._running: OrderedSet[asyncio.Task[Any]] = OrderedSet()
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, T], name: str, *, awaited: bool = False) -> asyncio.Task[T]:
        """Start a task; after close() the returned task is cancelled. `awaited`: the caller awaits the task and
        receives its exception."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        if self._closed:
            task.cancel()
        self._running.add(task)
        task.add_done_callback(self._running.discard if awaited else self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel all and wait until they have ended. The calling task itself is left out."""
        self._closed = True
        current = asyncio.current_task()
        others = [task for task in self._running if task is not current]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
