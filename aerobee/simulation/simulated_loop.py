"""An event loop whose time is a clock of the simulation: when nothing is left to do, time jumps to the next timer.

The real clients, brokers and NameServers run on it unchanged: a simulated hour of a quiet cluster costs
seconds, and equal random numbers give equal runs. No code may wait for anything outside the simulation:
sockets are SimulatedNetwork's, threads are replaced by InlineExecutor, the disk is SimulatedDisk. The timers
of the loop and of the clock share one heap.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import heapq
import selectors
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack

from aerobee.clock import ManualClock
from aerobee.errors import UsageError
from aerobee.simulation.simulated_disk import PowerCut

_copy_context = contextvars.copy_context
# iterations of the loop at one moment; the busiest moments of a cluster take some dozens
STILL_TURNS_MAX = 100_000
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class StoodStill(BaseException):
    """Simulated time has stopped. Error handlers must not catch this exception."""


class Holder(Protocol):
    """The owner of timers, which wait while it is paused. A protocol, because host.py, whose HostClock it is, lies
    above."""

    held: list[SimulatedTimer] | None  # timers that became due during the pause; None: not paused
    busy_until: float  # time of the simulation's clock until which its current work takes


class SimulatedTimer:
    """A callback with a due time. `owner` None: it always runs."""

    __slots__ = ("args", "callback", "cancelled", "owner")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], owner: Holder | None = None
    ) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False
        self.owner = owner

    def cancel(self) -> None:
        self.cancelled = True


class SimulatedClock(ManualClock):
    """A ManualClock that advances from one timer to the next."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        super().__init__(start_ms)
        self._timers: list[tuple[float, int, SimulatedTimer]] = []
        self._count = 0
        self.thread_s: float | None = None  # duration of the work of the running thread; None: a loop runs

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> SimulatedTimer:
        timer = SimulatedTimer(callback, args)
        self.push(self._elapsed + seconds if seconds > 0 else self._elapsed, timer)
        return timer

    def push(self, due: float, timer: SimulatedTimer) -> None:
        """Schedule a timer at `due`, by monotonic()."""
        self._count += 1
        heapq.heappush(self._timers, (due, self._count, timer))

    def advance(self, seconds: float) -> None:
        end = self._elapsed + seconds
        self._drop_cancelled()
        while self._timers and self._timers[0][0] <= end:
            self.step()
            self._drop_cancelled()
        self._elapsed = end

    def step(self) -> None:
        """Advance to the next timer, and run all timers that are due then. Raises UsageError without a timer."""
        timers, pop = self._timers, heapq.heappop
        self._drop_cancelled()
        if not timers:
            raise UsageError("the simulation stands still: something waits for what will never happen")
        due = timers[0][0]
        if due > self._elapsed:
            self._elapsed = due
        while timers and timers[0][0] <= due:
            timer = pop(timers)[2]
            if timer.cancelled:
                continue
            owner = timer.owner
            if owner is None:
                timer.callback(*timer.args)
            elif owner.held is not None:
                owner.held.append(timer)
            elif owner.busy_until > due:
                self.push(owner.busy_until, timer)
            else:
                timer.callback(*timer.args)

    def uncharged(self, work: Callable[[], T]) -> T:
        """Run work without charging its time to a broker, and return its result."""
        before, self.thread_s = self.thread_s, 0.0
        try:
            return work()
        finally:
            self.thread_s = before

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)


class InlineExecutor(Executor):
    """Runs each call immediately, in the thread of the caller."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class SlowExecutor(InlineExecutor):
    """A thread whose work takes `delay_s` of simulated time; 0: immediately. For work that the event loop runs in an executor."""

    def __init__(self) -> None:
        self.delay_s = 0.0


class LaggingExecutor(SlowExecutor):
    """A thread in simulated time: each call takes `delay_s`, one after the other, also without a waiter.

    discard() ends it as the death of a process does: pending calls never run.
    """

    def __init__(self, clock: SimulatedClock, delay_s: float) -> None:
        super().__init__()
        self._clock = clock
        self._lag_s = delay_s
        self._free_at = 0.0
        self._waiting: dict[SimulatedTimer, Future[Any]] = {}
        self._is_gone = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        if self._is_gone:
            future.cancel()
            return future
        if not self._lag_s:
            return super().submit(fn, *args, **kwargs)

        def run() -> None:
            del self._waiting[timer]
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now) + self._lag_s
        timer = self._clock.call_later(self._free_at - now, run)
        self._waiting[timer] = future
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """With `wait`, run the pending calls now, in order."""
        for timer in list(self._waiting) if wait else ():
            timer.cancel()
            timer.callback()

    def discard(self) -> None:
        """Drop all pending and all later calls."""
        self._is_gone = True
        for timer, future in self._waiting.items():
            timer.cancel()
            future.cancel()
        self._waiting.clear()


class _NoSelector(selectors.BaseSelector):
    """Has no sockets; the loop never asks it."""

    def __init__(self) -> None:
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
        return []


class _LoopTimer(asyncio.TimerHandle):
    """A timer of the loop in the clock's heap; it runs in the next loop iteration, as asyncio's do."""

    __slots__ = ("entry",)

    entry: SimulatedTimer

    def cancel(self) -> None:
        self.entry.cancelled = True
        super().cancel()


class _Handle(asyncio.Handle):
    """A call of the next loop iteration, without asyncio's data for its debug mode."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Any,
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = _copy_context() if context is None else context
        self._cancelled = False
        self._source_traceback = self._repr = None


def _task_of(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    """A task factory. From Python 3.14 on the options contain the task's name, before the context alone."""
    assert isinstance(loop, SimulatedLoop)
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
    loop._tasks.add(task)
    return task


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop on a SimulatedClock."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._simulated_clock = clock
        super().__init__(_NoSelector())
        self.stood_still: StoodStill | None = None
        self._turn = self._ready  # type: ignore[attr-defined]  # deque of handles, of asyncio's BaseEventLoop
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.set_task_factory(_task_of)

    def time(self) -> float:
        return self._simulated_clock._elapsed

    def lost_exceptions(self) -> list[BaseException]:
        """Exceptions of ended tasks that no code has retrieved. asyncio reports them when the task is freed, if ever."""
        lost = [
            task.exception()
            for task in self._tasks
            if task.done() and not task.cancelled() and task._log_traceback
        ]
        return [error for error in lost if error is not None]

    # asyncio's versions of these methods check its timer heap and its selector in each iteration.

    def _run_once(self) -> None:
        ready, clock = self._turn, self._simulated_clock
        popleft, step = ready.popleft, clock.step
        moment, turns = clock._elapsed, 0
        while not self._stopping:  # type: ignore[attr-defined]  # of asyncio's BaseEventLoop
            if not ready:
                try:
                    step()
                except PowerCut as error:
                    # A process died in a disk call; the remaining timers run in the next step.
                    self.call_exception_handler({"message": "a process died", "exception": error})
            turns += 1
            if clock._elapsed != moment:
                moment, turns = clock._elapsed, 0
            elif turns > STILL_TURNS_MAX:
                self.stood_still = StoodStill(
                    f"{turns} event loop iterations, and the time is still {moment:.6f} s"
                )
            if self.stood_still is not None:
                raise self.stood_still
            for _ in range(len(ready)):
                handle = popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler(
                        {"message": f"Exception in callback {handle._callback!r}", "exception": error}
                    )

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Any = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._turn.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _LoopTimer(when, callback, args, self, context)
        timer.entry = SimulatedTimer(self._turn.append, (timer,))
        clock = self._simulated_clock
        clock.push(max(when, clock._elapsed), timer.entry)
        return timer

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        clock = self._simulated_clock

        def end(done: Callable[[], None]) -> None:
            if not future.cancelled():
                done()

        def run() -> None:
            if future.cancelled():
                return
            done: Callable[[], None]
            before, clock.thread_s = clock.thread_s, 0.0
            try:
                done = functools.partial(future.set_result, func(*args))
            except Exception as error:
                done = functools.partial(future.set_exception, error)
            finally:
                took_s, clock.thread_s = clock.thread_s, before
            if took_s:
                self.call_later(took_s, end, done)
            else:
                done()

        if isinstance(executor, LaggingExecutor):
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        if isinstance(executor, SlowExecutor) and executor.delay_s:
            self.call_later(executor.delay_s, run)
        else:
            run()
        return future

    def _write_to_self(self) -> None:
        """No thread waits in select() to be woken."""
