"""A simulated machine: a disk, a clock of its own, a place in the network, and what runs on it.

Its clock is the simulation's, running a little faster or slower, with a wall time that may be wrong and may jump. A machine
that is paused (SIGSTOP, a hypervisor that looks elsewhere) sees none of its timers and no byte; afterwards all come at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from aerobee.clock import Timer
from aerobee.testing.simulated_disk import SimulatedDisk
from aerobee.testing.simulated_loop import SimulatedClock
from aerobee.testing.simulated_network import Endpoint, SimulatedNetwork

DRIFT_MAX = 0.01  # clocks run at most so much faster or slower than the simulation's
LATE_S = (
    1e-6  # a timer comes a little late, as everywhere: rounding must not make it early on a clock with a rate
)


class _HostTimer:
    __slots__ = ("args", "callback", "cancelled", "inner")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False
        self.inner: Timer | None = None

    def cancel(self) -> None:
        self.cancelled = True
        if self.inner is not None:
            self.inner.cancel()


class HostClock:
    """One machine's clock, made of the simulation's."""

    def __init__(self, base: SimulatedClock, *, rate: float = 1.0, wall_offset_ms: int = 0) -> None:
        self._base = base
        self._rate = rate
        self.wall_offset_ms = wall_offset_ms
        self._held: list[_HostTimer] | None = None  # those that came due while the machine is paused

    def now_ms(self) -> int:
        return self._base.now_ms() + self.wall_offset_ms

    def monotonic(self) -> float:
        return self._base.monotonic() * self._rate

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = _HostTimer(callback, args)
        delay_s = max(0.0, seconds) / self._rate + LATE_S if seconds > 0 else 0.0
        timer.inner = self._base.call_later(delay_s, self._due, timer)
        return timer

    def pause(self) -> None:
        """No timer runs until resume()."""
        if self._held is None:
            self._held = []

    def resume(self) -> None:
        """Run what came due meanwhile, in order."""
        held, self._held = self._held or [], None
        for timer in held:
            self._due(timer)

    def _due(self, timer: _HostTimer) -> None:
        if timer.cancelled:
            return
        if self._held is not None:
            self._held.append(timer)
        else:
            timer.callback(*timer.args)


class Host:
    """One machine by name. What runs on it is its owner's affair."""

    def __init__(
        self, name: str, *, rng: random.Random, clock: SimulatedClock, network: SimulatedNetwork
    ) -> None:
        self.name = name
        self.clock = HostClock(clock, rate=1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX))
        self.disk = SimulatedDisk(random.Random(rng.getrandbits(64)), now_ms=self.clock.now_ms)
        self.network: Endpoint = network.endpoint(name)
        self.is_up = False
        self._net = network

    def pause(self) -> None:
        """As SIGSTOP. Connections stay open, and nothing is read."""
        self.clock.pause()
        self._net.isolate(self.name)

    def resume(self) -> None:
        """As SIGCONT."""
        self._net.rejoin(self.name)
        self.clock.resume()

    def unplug(self) -> None:
        """Nothing reaches this machine, and nothing gets out."""
        self._net.isolate(self.name)

    def plug(self) -> None:
        """The cable is back."""
        self._net.rejoin(self.name)

    def lose_connections(self) -> None:
        """Its process is gone: whoever is connected sees it."""
        self._net.sever(self.name)
