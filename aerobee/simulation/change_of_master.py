"""A deliberate change of master: the master dies, stops, hangs or is isolated, or an operator elects another one.

About half of the changes elect a previous master, to test the state files that it kept from its earlier
epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.errors import AerobeeError
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.node import Node
from aerobee.simulation.restart import start

Work = Callable[[], Coroutine[Any, Any, None]]
READY_S = 6.0  # longest wait for a possible successor
CHANGE_S = 12.0  # longest wait for the next master
LOOK_S = 0.05
LEASE_SHARE = 0.05  # share of the changes that wait for a lease of 10 s to expire
RETURN_SHARE = 0.6  # share of the changes that elect a previous master, if any


class ChangeOfMaster:
    """One change of master, drawn from its random numbers."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng

    def chosen(self) -> tuple[str, Work]:
        """Name and function of a fault."""
        if self._rng.random() < RETURN_SHARE and self._earlier():
            return "previous master by hand", self._by_hand
        if self._rng.random() < LEASE_SHARE:
            return self._rng.choice(
                (("pause of the master", self._pause), ("isolation of the master", self._isolate))
            )
        return self._rng.choice(
            (
                ("kill of the master", lambda: self._die(power=False)),
                ("kill of the master", lambda: self._die(power=False)),
                ("power loss of the master", lambda: self._die(power=True)),
                ("stop of the master", self._stop),
                ("another master by hand", self._by_hand),
            )
        )

    # --- how

    async def _die(self, *, power: bool) -> None:
        master = await self._ready()
        if master is None:
            return
        await self._cluster.kill(master, power=power and self._cluster.settings.sync_disk)
        await self._next(master)
        await start(self._cluster, master)

    async def _stop(self) -> None:
        master = await self._ready()
        if master is None:
            return
        await self._cluster.end(master)
        await self._next(master)
        await start(self._cluster, master)

    async def _pause(self) -> None:
        master = await self._ready()
        if master is None:
            return
        self._cluster.pause(master)
        self._cluster.watch.commits_come_late = True
        await self._next(master)
        self._cluster.resume(master)

    async def _isolate(self) -> None:
        master = await self._ready()
        if master is None:
            return
        cluster, name = self._cluster, master.host.name
        cluster.story.tell(f"{name} is cut off")
        cluster.network.isolate(name)
        cluster.watch.commits_come_late = True
        await self._next(master)
        if not master.is_paused:
            cluster.network.rejoin(name)
        cluster.story.tell(f"{name} is reachable again")

    async def _by_hand(self) -> None:
        cluster = self._cluster
        master = await self._ready()
        leader = cluster.leading_controller()
        if master is None or leader is None:
            return
        chosen = self._rng.choice(self._earlier() or [node for node in cluster.brokers if node is not master])
        cluster.story.tell(f"{chosen.host.name} is to become master")
        try:
            await cluster.elect(leader, chosen)
        except AerobeeError as error:
            cluster.story.tell(f"it is refused: {error}")
            return
        await self._next(master)

    # --- when

    def _earlier(self) -> list[Node]:
        """The previous master, if it runs."""
        cluster = self._cluster
        now = cluster.master()
        return [
            node
            for node in cluster.brokers
            if node is not now and node.host.name in cluster.masters and node.process is not None
        ]

    async def _ready(self) -> Node | None:
        """The master, once a successor exists; None when none appears."""
        await self._wait(READY_S, self._has_successor)
        await self._cluster.clock.sleep(self._rng.uniform(0.0, 0.3))
        return self._cluster.master()

    def _has_successor(self) -> bool:
        master = self._cluster.master()
        if master is None:
            return False
        mode = master.process.replication.mode
        return isinstance(mode, AutoSwitchMode) and len(mode.members) > 1

    async def _next(self, before: Node) -> None:
        """Wait for another master, then a short random time."""

        def is_there() -> bool:
            return any(
                node is not before and node.process is not None and node.process.role.takes_writes
                for node in self._cluster.brokers
            )

        await self._wait(CHANGE_S, is_there)
        await self._cluster.clock.sleep(self._rng.uniform(0.0, 0.4))

    async def _wait(self, seconds: float, condition: Callable[[], bool]) -> None:
        clock = self._cluster.clock
        end = clock.monotonic() + seconds
        while not condition() and clock.monotonic() < end:
            await clock.sleep(LOOK_S)
