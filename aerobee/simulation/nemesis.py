"""The faults of one run, chosen by its random numbers: machines that die, pause and lose power, ways that are cut, disks that fail.

At most one broker is without its disk's promise at a time: what is confirmed by two replicas survives the loss of one. A power loss of
several brokers at once is a fault only where every one of them answers from its disk (SYNC_FLUSH).
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.errors import AerobeeError
from aerobee.simulation.cluster import Cluster, Node

Fault = Callable[[], Coroutine[Any, Any, None]]
QUIET_S_MAX = 4.0  # between two faults
DOWN_S_MAX = 8.0
BEHIND_S_MAX = 25.0  # longer than a replica may be behind and stay in the set
RETRY_S = 2.0


class Nemesis:
    """Makes faults until it is told to end, and mends them again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._rng = random.Random(cluster.rng.getrandbits(64))
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Faults for so long; on return all of them are mended, and every process runs."""
        cluster, rng = self._cluster, self._rng
        end = cluster.clock.monotonic() + seconds
        while cluster.clock.monotonic() < end:
            await cluster.clock.sleep(rng.uniform(0.05, QUIET_S_MAX))
            name, fault = rng.choice(self._faults())
            self.counts[name] += 1
            task = asyncio.create_task(fault())
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            if rng.random() < 0.6:
                await asyncio.wait({task})
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        cluster.network.mend()
        for node in cluster.nodes:
            cluster.resume(node)
            await self._start(node)
        cluster.story.tell("no more faults")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]

    def _faults(self) -> list[tuple[str, Fault]]:
        return [
            ("kill", lambda: self._die(power=False)),
            ("kill of the master", lambda: self._die(power=False, node=self._cluster.master())),
            ("power loss", lambda: self._die(power=True)),
            ("pause", self._pause),
            ("pause of the master", lambda: self._pause(self._cluster.master())),
            ("isolation", self._isolate),
            ("one-way cut", self._one_way),
            ("master that nobody copies", self._alone),
            ("replica that is left behind", self._behind),
            ("replica that is left behind", self._behind),
            ("failing fsync", self._bad_disk),
            ("slow network", self._slow),
        ]

    async def _time(self, most_s: float) -> None:
        await self._cluster.clock.sleep(self._rng.uniform(0.02, most_s))

    def _victim(self) -> Node:
        rng, cluster = self._rng, self._cluster
        kinds = (cluster.brokers, cluster.brokers, cluster.brokers, cluster.controllers, cluster.nameservers)
        return rng.choice(rng.choice(kinds))

    async def _die(self, *, power: bool, node: Node | None = None) -> None:
        cluster = self._cluster
        node = node or self._victim()
        if power and not cluster.sync_disk and node in cluster.brokers:
            power = False  # what is in memory of two brokers is promised for a process's death only
        await cluster.kill(node, power=power)
        await self._time(DOWN_S_MAX)
        await self._start(node)

    async def _start(self, node: Node) -> None:
        while node.process is None:
            try:
                await self._cluster.start_node(node)
            except (AerobeeError, OSError):
                await self._cluster.clock.sleep(RETRY_S)

    async def _pause(self, node: Node | None = None) -> None:
        node = node or self._victim()
        self._cluster.pause(node)
        await self._time(DOWN_S_MAX)
        self._cluster.resume(node)

    async def _isolate(self) -> None:
        node, network = self._victim(), self._cluster.network
        self._cluster.story.tell(f"{node.host.name} is cut off")
        network.isolate(node.host.name)
        await self._time(DOWN_S_MAX)
        if not node.is_paused:
            network.rejoin(node.host.name)
        self._cluster.story.tell(f"{node.host.name} is reachable again")

    async def _one_way(self) -> None:
        cluster = self._cluster
        one, other = self._rng.sample(cluster.nodes, 2)
        cluster.story.tell(f"nothing gets from {one.host.name} to {other.host.name}")
        cluster.network.cut(one.host.name, other.host.name)
        await self._time(DOWN_S_MAX)
        cluster.network.uncut(one.host.name, other.host.name)
        cluster.story.tell(f"the way from {one.host.name} to {other.host.name} is open")

    async def _alone(self) -> None:
        """The master's log reaches no replica, while it still takes messages; then it dies, or is cut off from all."""
        cluster, rng = self._cluster, self._rng
        master = cluster.master()
        if master is None:
            return
        others = [node for node in cluster.brokers if node is not master]
        cluster.story.tell(f"nothing gets from {master.host.name}, the master, to the other brokers")
        for node in others:
            cluster.network.cut(master.host.name, node.host.name)
        await self._time(1.5)
        if rng.random() < 0.5:
            await cluster.kill(master, power=False)
            await self._time(DOWN_S_MAX)
        else:
            for node in cluster.controllers:
                cluster.network.cut(node.host.name, master.host.name)
                cluster.network.cut(master.host.name, node.host.name)
            cluster.story.tell(f"{master.host.name} and the controllers do not reach each other")
            await self._time(DOWN_S_MAX)
        for node in (*others, *cluster.controllers):
            cluster.network.uncut(master.host.name, node.host.name)
            cluster.network.uncut(node.host.name, master.host.name)
        cluster.story.tell(f"{master.host.name} reaches everybody again")
        await self._start(master)

    async def _behind(self) -> None:
        """A replica sees nothing for a while, others die together, and it is the only one there: it must not lead unless it has all."""
        cluster = self._cluster
        master = cluster.master()
        behind = [node for node in cluster.brokers if node is not master and node.process is not None]
        if master is None or not behind:
            return
        node = self._rng.choice(behind)
        others = [each for each in cluster.brokers if each is not node]
        cluster.pause(node)
        await self._time(BEHIND_S_MAX)
        await asyncio.gather(*(cluster.kill(each, power=False) for each in others))
        cluster.resume(node)
        await self._time(DOWN_S_MAX)
        for each in others:
            await self._start(each)

    async def _bad_disk(self) -> None:
        """Each sync of a broker fails for a while; such a disk is not trusted again without a restart."""
        cluster = self._cluster
        node = self._rng.choice(cluster.brokers)
        cluster.story.tell(f"the disk of {node.host.name} fails")
        node.host.disk.fail = lambda call, path: errno.EIO if call == "sync" else 0
        await self._time(DOWN_S_MAX)
        node.host.disk.fail = lambda call, path: 0
        cluster.story.tell(f"the disk of {node.host.name} is replaced by one that works, with what it had")
        await cluster.kill(node, power=False)
        await self._start(node)

    async def _slow(self) -> None:
        network = self._cluster.network
        before, network.delay_max_s = network.delay_max_s, self._rng.choice((0.05, 0.2, 0.5))
        self._cluster.story.tell(f"the network is slow, up to {network.delay_max_s} s")
        await self._time(DOWN_S_MAX)
        network.delay_max_s = before
        self._cluster.story.tell("the network is quick")
