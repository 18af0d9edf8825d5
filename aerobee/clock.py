"""Time as a thing that is passed in.

A part that needs the time or a timer receives a Clock. Production gives SystemClock; a test moves a
ManualClock; LocalCluster gives an AdvancingClock, which is the system's time plus what the test added.
Time-outs of network calls use the event loop's own time (asyncio.timeout) and are not moved by a Clock.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol

MS_PER_HOUR = 3_600_000
MS_PER_DAY = 24 * MS_PER_HOUR


class Timer(Protocol):
    """A scheduled callback that can be taken back."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Wall time for what is stored or sent, monotonic time for intervals, and timers."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch. May step backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards and also count while the machine is suspended; the zero point means nothing."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; cancellation passes through."""
        ...

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call back once in the running event loop."""
        ...


def machine_seconds(source: Any = time) -> Callable[[], float]:
    """The function that reads the machine's steady clock, of a module like `time`.

    CLOCK_BOOTTIME where the system has it (Linux). CLOCK_MONOTONIC, which time.monotonic and event loops read, stands still while
    a machine or a virtual machine is suspended: a master that wakes up would believe in a lease that the others saw expire.
    """
    clock_id = getattr(source, "CLOCK_BOOTTIME", None)
    if clock_id is None:
        return source.monotonic  # type: ignore[no-any-return]
    read = functools.partial(source.clock_gettime, clock_id)
    try:
        read()
    except OSError:  # a kernel, or a sandbox, that knows the name and not the clock
        return source.monotonic  # type: ignore[no-any-return]
    return read


_machine_seconds = machine_seconds()


class SystemClock:
    """The machine's clocks and the running loop's timers.

    Timers count the loop's time, which stands still while the machine is suspended: a deadline is compared with monotonic().
    """

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(_machine_seconds)  # asked twice with each burst: no call of ours around it

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback, *args)


class _HeapTimer:
    __slots__ = ("args", "callback", "cancelled", "due")

    def __init__(self, due: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.due = due
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def to_next_step(now: float, interval_s: float) -> float:
    """Seconds from `now` to a whole multiple of `interval_s`: the next one, or the one behind it when that is near."""
    if interval_s <= 0:
        return 0.0
    left_s = interval_s - now % interval_s
    return left_s if left_s > interval_s / 4 else left_s + interval_s


def in_step(clock: Clock, interval_s: float) -> float:
    """Wait of a periodic timer until its next run: about `interval_s`, aligned with other timers of the same interval.

    Timers that are in step share one wake-up of an idle process. A clock that a test moves keeps intervals unchanged.
    """
    return to_next_step(clock.monotonic(), interval_s) if isinstance(clock, SystemClock) else interval_s


WALL_LOOK_S = 10.0


def steady_ms(clock: Clock) -> int:
    """Milliseconds of the steady clock: for time-outs, which a change of the wall clock must not affect."""
    return round(clock.monotonic() * 1000)


def wall_wait_s(clock: Clock, due_ms: int) -> float:
    """Seconds to pass to call_later() for a moment of the wall clock, which an operator may set meanwhile.

    At most WALL_LOOK_S: the callback may run before the moment, and must wait again then. So setting the clock ahead by
    hours delays no timer for longer than that, and setting it back makes none early.
    """
    return min(max(0, due_ms - clock.now_ms()) / 1000, WALL_LOOK_S)


class WallSteps:
    """Detects that the wall clock was set back, by comparing it with the steady one."""

    def __init__(self, clock: Clock, notice_ms: int) -> None:
        """Steps of up to `notice_ms` are not noticed: what keeps a clock right makes such."""
        self._clock = clock
        self._notice_ms = notice_ms
        self._ahead_ms = self._look()

    def _look(self) -> int:
        return self._clock.now_ms() - steady_ms(self._clock)

    def went_back(self) -> bool:
        """Whether the wall clock was set back since the last call."""
        ahead_ms = self._look()
        went_back = ahead_ms + self._notice_ms < self._ahead_ms
        if went_back or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms
        return went_back


class ManualClock:
    """Stands still until advance(); then due timers run in the order in which they are due."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed = 0.0
        self._heap: list[tuple[float, int, _HeapTimer]] = []
        self._sequence = itertools.count()

    def now_ms(self) -> int:
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = _HeapTimer(self.monotonic() + max(0.0, seconds), callback, args)
        heapq.heappush(self._heap, (timer.due, next(self._sequence), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move time forward. Each callback sees the moment at which it was due."""
        end = self._elapsed + seconds
        while self._heap and self._heap[0][0] <= end:
            due, _, timer = heapq.heappop(self._heap)
            self._elapsed = max(self._elapsed, due)
            if not timer.cancelled:
                timer.callback(*timer.args)
        self._elapsed = end


class AdvancingClock:
    """The system's clock running `advanced` seconds ahead; advance() fires the timers it passes.

    Belongs to one event loop, that of its first timer.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._heap: list[tuple[float, int, _HeapTimer]] = []
        self._sequence = itertools.count()
        self._wake: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + round(self._ahead * 1000)

    def monotonic(self) -> float:
        return _machine_seconds() + self._ahead

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = _HeapTimer(self.monotonic() + max(0.0, seconds), callback, args)
        heapq.heappush(self._heap, (timer.due, next(self._sequence), timer))
        if self._heap[0][2] is timer:
            self._arm()
        return timer

    def advance(self, seconds: float) -> None:
        """Jump ahead. Timers that are now due run in order, at the new time, in the next loop pass."""
        self._ahead += seconds
        self._arm()

    def _arm(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        if self._heap:
            delay = max(0.0, self._heap[0][0] - self.monotonic())
            self._wake = asyncio.get_running_loop().call_later(delay, self._run_due)

    def _run_due(self) -> None:
        self._wake = None
        now = self.monotonic()
        due: list[_HeapTimer] = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        self._arm()
        for timer in due:
            if not timer.cancelled:
                timer.callback(*timer.args)
