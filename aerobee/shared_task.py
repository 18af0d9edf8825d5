"""One task that many wait for, or that is waited for to its end."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


async def to_its_end(task: asyncio.Task[T]) -> T:
    """What the task returns or raises. Who is cancelled meanwhile waits for the task's end all the same, and is cancelled then."""
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        raise asyncio.CancelledError
    return task.result()


class SharedTask(Generic[T]):
    """Work that is done once for all who wait for it; a waiter that is cancelled takes nothing away from the others.

    As asyncio.shield(), whose waiters are a list that each of them searches when it gives up: ten thousand whose time-out had
    expired blocked the event loop for half a minute. Here each leaves in one step.
    """

    __slots__ = ("_waiters", "task")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self._waiters: dict[asyncio.Future[None], None] = {}
        task.add_done_callback(self._done)

    async def outcome(self) -> T:
        """What the task returns or raises; CancelledError when the task was cancelled."""
        if not self.task.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)
        return self.task.result()

    def _done(self, task: asyncio.Task[T]) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if not task.cancelled():
            task.exception()  # seen, when all who waited have given up
