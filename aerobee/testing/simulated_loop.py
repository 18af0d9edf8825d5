"""An event loop whose time is a clock of the simulation: when nothing is left to do, time jumps to the next timer.

The real shells (clients, brokers, nameservers) run on it unchanged: a simulated hour of a quiet cluster costs milliseconds,
and the same random numbers give the same run. Nothing may wait for the outside: sockets are SimulatedNetwork's, threads
are replaced by InlineExecutor, the disk is SimulatedDisk.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, TypeVarTuple, Unpack

from aerobee.clock import ManualClock
from aerobee.errors import UsageError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimulatedClock(ManualClock):
    """A ManualClock that tells when its next timer is due."""

    def next_due(self) -> float | None:
        """Monotonic time of the earliest timer that was not cancelled, None without any."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class InlineExecutor(Executor):
    """Runs each call at once, in the thread of the caller."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _IdleSelector(selectors.BaseSelector):
    """Says that no socket is ever ready; being asked to wait means that time may pass."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(
            fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data
        )
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return []
        clock = self._clock
        due = clock.next_due()
        now = clock.monotonic()
        waits = [wait for wait in (timeout, None if due is None else due - now) if wait is not None]
        if not waits:
            raise UsageError("the simulation stands still: something waits for what will never happen")
        clock.advance(max(0.0, min(waits)))
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop on a SimulatedClock."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._simulated_clock = clock
        super().__init__(_IdleSelector(clock))
        # asyncio runs timers up to this much early, which on a clock that stands still would be never.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._simulated_clock.monotonic()

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _write_to_self(self) -> None:
        """Nobody waits in select() to be woken."""
