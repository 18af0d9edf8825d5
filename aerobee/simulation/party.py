"""Shared base of simulated clients: a machine, random numbers that a run can reset, pauses that can be interrupted."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from aerobee.client import ClientConfig
from aerobee.simulation.host import Host
from aerobee.simulation.names import LOCAL
from aerobee.simulation.simulated_loop import SimulatedClock
from aerobee.simulation.simulated_network import SimulatedNetwork


@dataclass(slots=True)
class Sent:
    """A send of a producer and its reply."""

    body: bytes
    at: float
    queue_id: int
    is_once: bool  # the client does not retry it
    offset: int = -1  # queue offset; -1: not acknowledged
    broker: str = ""  # the broker that acknowledged it
    answered_at: float = float("inf")
    error: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    level: str = ""  # ACK_LEVEL of the message or its topic

    def is_promised(self, waits_for_replicas: bool) -> bool:
        """Whether the message was acknowledged at a level that survives a change of master."""
        return self.offset >= 0 and ("replicated" in self.level if self.level else waits_for_replicas)


class Party:
    """Clients on one machine."""

    def __init__(
        self, name: str, rng: random.Random, clock: SimulatedClock, network: SimulatedNetwork
    ) -> None:
        self._rng, self._clock, self._network = rng, clock, network
        self._host = Host(name, rng=rng, clock=clock, network=network)
        self._numbers: list[random.Random] = []  # random numbers of its producers and consumers
        self._pauses: dict[asyncio.Future[None], None] = {}  # pauses of producers between two bursts
        self._is_sending = True

    def reseed(self, rng: random.Random) -> None:
        """Draw the actions of these clients from this generator from now on."""
        self._rng = rng
        self._host.reseed(rng)
        for each in self._numbers:
            each.seed(rng.getrandbits(64))

    def _settings(self, name: str) -> dict[str, Any]:
        return {
            "client": ClientConfig(
                instance=name, client_ip=LOCAL, route_refresh_s=2.0, heartbeat_s=5.0, require_nameserver=False
            ),
            "clock": self._host.clock,
            "network": self._network.endpoint(name),
            "random": self._own_numbers(),
        }

    def _own_numbers(self) -> random.Random:
        self._numbers.append(random.Random(self._rng.getrandbits(64)))
        return self._numbers[-1]

    async def _pause(self, seconds: float) -> None:
        """Wait for this time, or until sending ends."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pauses[woken] = None
        timer = self._clock.call_later(seconds, _wake, woken)
        try:
            if self._is_sending:
                await woken
        finally:
            del self._pauses[woken]
            timer.cancel()

    def _send_no_more(self) -> None:
        """Wake the producers that pause between two bursts."""
        self._is_sending = False
        for woken in self._pauses:
            _wake(woken)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
