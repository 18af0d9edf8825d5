"""Runs handler calls with bounded concurrency, without a task for each.

Workers are started when there is work without an idle worker, up to the bound. A worker that takes an item wakes at
most one other when more items are waiting: one worker handles all items when handlers never await, and items spread
over all workers when handlers do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from aerobee.client.base.tasks import Tasks

T = TypeVar("T")

ITEMS_BEFORE_YIELD = (
    64  # then the worker yields to the event loop, so that busy handlers do not starve the connections
)


class WorkerPool(Generic[T]):
    """A bounded number of workers for one queue of items. The caller bounds the queue."""

    def __init__(
        self, tasks: Tasks, run: Callable[[Callable[[], T | None]], Awaitable[None]], *, concurrency: int
    ) -> None:
        """`run(take)` handles the items that take() returns, until take() returns None; it raises nothing.

        See one_by_one() for a function that handles one item.
        """
        self._tasks = tasks
        self._run = run
        self._concurrency = concurrency
        self._ready: deque[T] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._worker_count = 0
        self._current: dict[asyncio.Task[Any], T] = {}
        self._waking = False  # a worker was woken or started and will take the next item
        self._stopped = False
        self._quiet: asyncio.Future[None] | None = None

    def submit(self, items: Iterable[T]) -> None:
        self._ready.extend(items)
        self._wake_one()

    def _wake_one(self) -> None:
        if self._waking or self._stopped or not self._ready:
            return
        if self._idle:
            self._waking = True
            self._idle.pop().set_result(None)
        elif self._worker_count < self._concurrency:
            self._waking = True
            self._worker_count += 1
            self._tasks.spawn(self._serve(), f"consumer-worker-{self._worker_count}")

    @property
    def busy(self) -> int:
        """Number of items that are being handled."""
        return len(self._current)

    @property
    def running(self) -> dict[asyncio.Task[Any], T]:
        """The item that each worker handles now."""
        return dict(self._current)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        ready, current, run = self._ready, self._current, self._run
        left = 0  # before the worker yields to the event loop

        def take() -> T | None:
            nonlocal left
            if not ready or not left or self._stopped:
                return None
            left -= 1
            item = current[task] = ready.popleft()
            if ready and not self._waking:
                self._wake_one()
            return item

        while True:
            self._waking = False
            while ready and not self._stopped:
                left = ITEMS_BEFORE_YIELD
                try:
                    await run(take)
                finally:
                    current.pop(task, None)
                    if not current and self._quiet is not None and not self._quiet.done():
                        self._quiet.set_result(None)
                if not left:
                    await asyncio.sleep(0)
            idle: asyncio.Future[None] = loop.create_future()
            self._idle.append(idle)
            await idle

    async def _serve(self) -> None:
        try:
            await self._work()
        finally:
            # A handler that cancels its own task ends a worker: a new worker replaces it.
            self._worker_count -= 1

    async def stop(self, timeout_s: float) -> bool:
        """Take no more items and wait for the running calls. False when calls still run after the time-out."""
        self._stopped = True
        self._ready.clear()
        if not self.busy:
            return True
        self._quiet = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._quiet
        except TimeoutError:
            return False
        return True


def one_by_one(
    run: Callable[[T], Awaitable[None]],
) -> Callable[[Callable[[], T | None]], Awaitable[None]]:
    """Build a WorkerPool's `run` from a function that handles one item and raises nothing."""

    async def run_all(take: Callable[[], T | None]) -> None:
        while (item := take()) is not None:
            await run(item)

    return run_all
