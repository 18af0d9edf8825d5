"""What a simulated machine reads takes it time: its loop's, or a thread's."""

from __future__ import annotations

import asyncio
import random

from aerobee.simulation.host import Host
from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedLoop
from aerobee.simulation.simulated_network import SimulatedNetwork

SIZE = 1_000
COST_S = 0.001  # a second for all of the file


class _Heard(asyncio.Protocol):
    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self.at: list[float] = []

    def data_received(self, data: bytes) -> None:
        self.at.append(self._clock.monotonic())


def test_what_the_loop_reads_holds_back_timers_and_arrivals() -> None:
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    network = SimulatedNetwork(random.Random(1), clock, resends=True)
    busy, other = (
        Host(name, rng=random.Random(1), clock=clock, network=network) for name in ("busy", "other")
    )
    busy.byte_cost_s = COST_S
    file = busy.disk.create_mapped("/file", SIZE)
    heard, rang = _Heard(clock), []

    async def run() -> None:
        await busy.network.create_server(lambda: heard, "127.0.0.1", 1)
        sender = _Sender()
        await other.network.create_connection(lambda: sender, "127.0.0.1", 1)
        began, local = clock.monotonic(), busy.clock.monotonic()
        for host in (busy, other):
            host.clock.call_later(0.1, lambda name=host.name: rang.append((name, clock.monotonic() - began)))
        file.read(0, SIZE)
        sender.transport.write(b"hello")
        assert busy.clock.monotonic() - local > 0.98, "its own clock has gone on"
        await clock.sleep(3.0)
        (arrived,) = heard.at
        assert 1.0 <= arrived - began < 1.1
        (first, first_at), (second, second_at) = rang
        assert (first, second) == ("other", "busy")
        assert first_at < 0.2
        assert 1.0 <= second_at < 1.1

    loop.run_until_complete(run())
    loop.close()


def test_what_a_thread_reads_holds_back_only_its_result() -> None:
    clock = SimulatedClock()
    loop = SimulatedLoop(clock)
    network = SimulatedNetwork(random.Random(1), clock)
    host = Host("one", rng=random.Random(1), clock=clock, network=network)
    host.byte_cost_s = COST_S
    file = host.disk.create_mapped("/file", SIZE)
    rang: list[float] = []

    async def run() -> None:
        began = clock.monotonic()
        host.clock.call_later(0.1, lambda: rang.append(clock.monotonic() - began))
        data = await asyncio.get_running_loop().run_in_executor(host.executor, file.read, 0, SIZE)
        assert len(data) == SIZE
        assert abs(clock.monotonic() - began - 1.0) < 0.01
        assert rang[0] < 0.2

    loop.run_until_complete(run())
    loop.close()


class _Sender(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
