"""A simulated host: a disk, a clock, a network endpoint, and the processes on it.

Its clock runs a little faster or slower than the simulation's, and its wall time may be wrong and may jump. A
paused machine (SIGSTOP, a stalled hypervisor) gets no timer and no byte; after the pause all arrive
simultaneously.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from aerobee.clock import Timer
from aerobee.simulation.simulated_disk import ALL_LOST_OR_SOME_KEPT, SimulatedDisk
from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedTimer, SlowExecutor
from aerobee.simulation.simulated_network import Endpoint, SimulatedNetwork

DRIFT_MAX = 0.01  # maximum drift of a clock against the simulation's
LATE_S = 1e-6  # a timer runs a little late: rounding must not make it early on a clock with a drift


class HostClock:
    """One machine's clock, derived from the simulation's."""

    def __init__(self, base: SimulatedClock, *, rate: float = 1.0, wall_offset_ms: int = 0) -> None:
        self._base = base
        self._rate = rate
        # Time at which the rate was set: by the simulation's clock, and by this clock.
        self._base_then = self._then = 0.0
        self.wall_offset_ms = wall_offset_ms
        self.held: list[SimulatedTimer] | None = None  # timers that became due while the machine is paused
        self.busy_until = (
            0.0  # time of the simulation's clock until which the loop is busy; meanwhile it runs nothing else
        )

    def now_ms(self) -> int:
        return self._base.now_ms() + self.wall_offset_ms

    def monotonic(self) -> float:
        return self._then + (self._now() - self._base_then) * self._rate

    def _now(self) -> float:
        """The simulation's time plus the work that the loop has done since."""
        now, busy_until = self._base._elapsed, self.busy_until
        return busy_until if busy_until > now else now

    def charge(self, seconds: float) -> None:
        """Charge the duration of work to the running thread, else to the loop. Timers and arrivals of the
        loop wait until its work is done.
        """
        base = self._base
        if base.thread_s is not None:
            base.thread_s += seconds
        else:
            self.busy_until = self._now() + seconds

    @property
    def rate(self) -> float:
        """Seconds of this clock per second of the simulation."""
        return self._rate

    def set_rate(self, rate: float) -> None:
        """Change the rate from now on; timers that are set keep their due time."""
        self._then, self._base_then = self.monotonic(), self._now()
        self._rate = rate

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = SimulatedTimer(callback, args, self)
        self._base.push(self._now() + (seconds / self._rate + LATE_S if seconds > 0 else 0.0), timer)
        return timer

    def pause(self) -> None:
        """No timer runs until resume()."""
        if self.held is None:
            self.held = []

    def resume(self) -> None:
        """Run the timers that became due meanwhile, in order."""
        held, self.held = self.held or [], None
        for timer in held:
            if timer.cancelled:
                continue
            if self.held is not None:  # a timer has paused the machine again
                self.held.append(timer)
            else:
                timer.callback(*timer.args)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class Host:
    """One named machine. Its owner manages the processes on it."""

    def __init__(
        self, name: str, *, rng: random.Random, clock: SimulatedClock, network: SimulatedNetwork
    ) -> None:
        self.name = name
        self.clock = HostClock(clock, rate=1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX))
        self._rng = random.Random(rng.getrandbits(64))
        self.byte_cost_s = 0.0  # seconds to read one byte of a mapped file
        self.disk = self._empty_disk()
        self.executor = SlowExecutor()  # runs the syncs and reads of this machine
        self.network: Endpoint = network.endpoint(name)
        self.is_up = False
        self._net = network
        network.loops[name] = self.clock

    def _empty_disk(self) -> SimulatedDisk:
        disk = SimulatedDisk(self._rng, now_ms=self.clock.now_ms, kept_parts=ALL_LOST_OR_SOME_KEPT)
        disk.on_read = self._has_read
        return disk

    def _has_read(self, count: int) -> None:
        if self.byte_cost_s:
            self.clock.charge(count * self.byte_cost_s)

    def replace_disk(self) -> None:
        """Replace the disk by an empty one. No process may run on the machine."""
        self.disk = self._empty_disk()

    def reseed(self, rng: random.Random) -> None:
        """Draw the rate of the clock and the behaviour of the disk from this generator from now on."""
        self.clock.set_rate(1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX))
        self._rng = random.Random(rng.getrandbits(64))
        self.disk.reseed(self._rng)

    def pause(self) -> None:
        """Pause as SIGSTOP does. Connections stay open, and the machine reads nothing."""
        self.clock.pause()
        self._net.isolate(self.name)

    def resume(self) -> None:
        """As SIGCONT."""
        self._net.rejoin(self.name)
        self.clock.resume()

    def unplug(self) -> None:
        """Stop all bytes from and to this machine."""
        self._net.isolate(self.name)

    def plug(self) -> None:
        """Restore the links of this machine."""
        self._net.rejoin(self.name)

    def lose_connections(self) -> None:
        """Close the connections of an ended process: peers notice it."""
        self._net.sever(self.name)
        self._net.close_servers(self.name)
