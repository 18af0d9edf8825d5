"""The faults of one run, drawn from its random numbers: hosts die, pause and lose power, links break, disks fail.

At most one broker at a time may lose data: a message on two replicas survives the loss of one. Several
brokers lose power simultaneously only if each of them acknowledges from its disk (SYNC_FLUSH).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from aerobee.errors import AerobeeError
from aerobee.simulation.change_of_master import ChangeOfMaster
from aerobee.simulation.churn import Churn
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.host import DRIFT_MAX
from aerobee.simulation.node import Node
from aerobee.simulation.restart import start

Work = Callable[[], Coroutine[Any, Any, None]]
QUIET_S_MAX = 4.0  # pause between two faults
DOWN_S_MAX = 8.0
BEHIND_S_MAX = 25.0  # longer than a replica may lag and stay in sync
SHORTEST_MAX_S = 2.0  # longest duration of a fault in a short run
CHANGING_SHARE = 0.8  # share of the runs with deliberate changes of master
CHANGES = 3
CHANGE_TRIES_MAX = 8  # maximum number of faults of such a run
SHORTEST_QUIET_S = 1.0  # longest pause before a fault in a short run
STARTS_THAT_DIE_MAX = 2  # consecutive restarts after a death in a write
CLOCK_JUMP_MS_MAX = 3_600_000
# for runs with delayed messages: their lateness equals the jump of the clock
CLOCK_JUMP_OF_TIMERS_MS_MAX = 2_000


class Nemesis:
    """Injects faults until it is stopped, and repairs them. It skips the faults with the numbers in `left_out`."""

    def __init__(self, cluster: Cluster, left_out: frozenset[int] = frozenset()) -> None:
        self._cluster = cluster
        self._rng = random.Random(cluster.rng.getrandbits(64))
        self._left_out = left_out
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter()
        self.count = 0  # number of faults that began or were skipped

    async def run(self, seconds: float) -> None:
        """Inject faults for this time. On return all faults are repaired, and every process runs."""
        cluster, rng = self._cluster, self._rng
        end = cluster.clock.monotonic() + seconds
        longest_s = max(SHORTEST_MAX_S, seconds / 2)  # faults of a short run are short
        quiet_s_max = min(QUIET_S_MAX, max(SHORTEST_QUIET_S, seconds / 2))
        wanted = CHANGES if cluster.settings.changes_masters and rng.random() < CHANGING_SHARE else 0
        while cluster.clock.monotonic() < end or (cluster.changes < wanted and self.count < CHANGE_TRIES_MAX):
            cluster.raise_broken()
            # Each fault has separate random numbers, so that one can be left out and the others stay the same.
            quiet_s, own, is_waited_for = (
                rng.uniform(0.05, quiet_s_max),
                rng.getrandbits(64),
                rng.random() < 0.6,
            )
            number, self.count = self.count, self.count + 1
            await cluster.clock.sleep(quiet_s)
            if number in self._left_out:
                continue
            fault = Fault(cluster, random.Random(own), longest_s)
            name, work = fault.chosen()
            if wanted and number % 4 != 3:
                name, work = ChangeOfMaster(cluster, random.Random(own)).chosen()
            self.counts[name] += 1
            cluster.story.tell(f"fault {number}: {name}")
            cluster.contacts.fault(name)
            task = asyncio.create_task(work())
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            if is_waited_for or wanted:
                await asyncio.wait({task})
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self.mend()

    async def mend(self) -> None:
        """Restore all links, and resume every process."""
        cluster = self._cluster
        cluster.network.mend()
        for node in cluster.nodes:
            cluster.resume(node)
            await start(cluster, node)
        cluster.story.tell("no more faults")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]


class Fault:
    """One fault, drawn from its random numbers."""

    def __init__(self, cluster: Cluster, rng: random.Random, longest_s: float = BEHIND_S_MAX) -> None:
        self._cluster = cluster
        self._rng = rng
        self._longest_s = longest_s
        self._name = ""

    def chosen(self) -> tuple[str, Work]:
        """Name and function of a fault."""
        self._name, work = self._rng.choice(self._faults())
        return self._name, work

    def _faults(self) -> list[tuple[str, Work]]:
        return [
            ("kill", lambda: self._die(power=False)),
            ("kill of the master", lambda: self._die(power=False, node=self._cluster.master())),
            ("power loss", lambda: self._die(power=True)),
            ("kill at a write", lambda: self._die_at_write(power=False)),
            ("kill at a write", lambda: self._die_at_write(power=False)),
            ("power loss at a write", lambda: self._die_at_write(power=True)),
            ("pause", self._pause),
            ("pause of the master", lambda: self._pause(self._cluster.master())),
            ("isolation", self._isolate),
            ("cut of one direction", self._one_way),
            ("unreplicated master", self._alone),
            ("replica that is left behind", self._behind),
            ("replica that is left behind", self._behind),
            ("failing fsync", self._bad_disk),
            ("slow network", self._slow),
            ("partition", self._partition),
            ("connections that hang", self._hang),
            ("full disk", self._full),
            ("slow disk", self._slow_disk),
            ("clock that is set", self._set_clock),
            ("restart", self._restart),
            *(Churn(self._cluster, self._rng).all() if self._cluster.controllers else ()),
        ]

    async def _time(self, most_s: float) -> None:
        await self._cluster.clock.sleep(self._rng.uniform(0.02, min(most_s, self._longest_s)))
        self._cluster.contacts.fault(self._name)  # the fault becomes another one, or is repaired

    def _victim(self) -> Node:
        rng, cluster = self._rng, self._cluster
        kinds = (cluster.brokers, cluster.brokers, cluster.brokers, cluster.controllers, cluster.nameservers)
        return rng.choice(rng.choice([kind for kind in kinds if kind]))

    async def _die(self, *, power: bool, node: Node | None = None) -> None:
        cluster = self._cluster
        node = node or self._victim()
        if power and not cluster.settings.sync_disk and node in cluster.brokers:
            # messages in the memory of two brokers need to survive only the death of a process, no power loss
            power = False
        await cluster.kill(node, power=power)
        await self._time(DOWN_S_MAX)
        await start(cluster, node)

    async def _die_at_write(self, *, power: bool) -> None:
        """The process or the machine dies inside a disk call, and sometimes again in its next start."""
        cluster, rng = self._cluster, self._rng
        node = rng.choice((*cluster.brokers, *cluster.brokers, *cluster.controllers))
        power = power and (cluster.settings.sync_disk or node not in cluster.brokers)
        disk, died = node.host.disk, asyncio.Event()

        def die() -> None:
            node.host.unplug()
            died.set()

        disk.die_at_write(int(2 ** rng.uniform(0, 6)) - 1, power=power, on_death=die)
        end = cluster.clock.monotonic() + rng.uniform(0.5, self._longest_s)
        timer = cluster.clock.call_later(end - cluster.clock.monotonic(), died.set)
        await died.wait()
        timer.cancel()
        if not disk.is_dead:
            disk.die_at_write(-1)
            return
        if node.process is not None:
            await cluster.kill(node, power=power)
        await self._time(DOWN_S_MAX / 4)
        for _ in range(STARTS_THAT_DIE_MAX):
            if rng.random() < 0.5:
                break
            disk.die_at_write(int(2 ** rng.uniform(0, 5)) - 1, power=power, on_death=node.host.unplug)
            with contextlib.suppress(AerobeeError, OSError):
                await cluster.start_node(node)
        disk.die_at_write(-1)
        await start(cluster, node)

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
        cluster.story.tell(f"the link from {one.host.name} to {other.host.name} is restored")

    async def _alone(self) -> None:
        """The master's log reaches no replica while the master still accepts messages; then it dies, or loses
        the controllers too.
        """
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
        cluster.story.tell(f"{master.host.name} reaches all hosts again")
        await start(cluster, master)

    async def _behind(self) -> None:
        """A replica is paused for a while, then the other brokers die and it is alone: it must not become
        master unless it has every acknowledged message.
        """
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
            await start(cluster, each)

    async def _partition(self) -> None:
        """Some machines do not reach the others; in some cases one machine reaches both sides."""
        cluster, rng = self._cluster, self._rng
        nodes = rng.sample(cluster.nodes, len(cluster.nodes))
        size = rng.randint(1, len(nodes) // 2)
        inside, outside = nodes[:size], nodes[size + rng.randint(0, 1) :]
        cluster.story.tell(
            f"{', '.join(node.host.name for node in inside)} do not reach {', '.join(node.host.name for node in outside)}"
        )
        for one in inside:
            for other in outside:
                cluster.cut(one, other)
                cluster.cut(other, one)
        await self._time(DOWN_S_MAX)
        for one in inside:
            for other in outside:
                cluster.network.uncut(one.host.name, other.host.name)
                cluster.network.uncut(other.host.name, one.host.name)
        cluster.story.tell("the two sides reach each other")

    async def _hang(self) -> None:
        one, other = self._rng.sample(self._cluster.nodes, 2)
        self._cluster.story.tell(f"the open connections of {one.host.name} and {other.host.name} hang")
        self._cluster.network.hang(one.host.name, other.host.name)
        await self._time(DOWN_S_MAX)

    async def _slow_disk(self) -> None:
        host = self._rng.choice(self._cluster.brokers).host
        host.executor.delay_s = self._rng.choice((0.02, 0.2, 1.0))
        self._cluster.story.tell(f"the disk of {host.name} takes {host.executor.delay_s} s for a sync")
        await self._time(DOWN_S_MAX)
        host.executor.delay_s = 0.0
        self._cluster.story.tell(f"the disk of {host.name} is quick")

    async def _full(self) -> None:
        cluster = self._cluster
        node = self._rng.choice(cluster.brokers)
        disk = node.host.disk
        before, disk.total_bytes = disk.total_bytes, disk.used_bytes
        cluster.story.tell(f"the disk of {node.host.name} is full")
        await self._time(DOWN_S_MAX)
        disk.total_bytes = max(before, disk.total_bytes)
        cluster.story.tell(f"there is room on the disk of {node.host.name}")
        await cluster.kill(node, power=False)
        await start(cluster, node)

    async def _set_clock(self) -> None:
        """The wall clock of a machine jumps, and its monotonic clock changes its rate."""
        host, rng = self._victim().host, self._rng
        features = self._cluster.features
        most_ms = CLOCK_JUMP_MS_MAX if features is None else CLOCK_JUMP_OF_TIMERS_MS_MAX
        if features is not None:
            features.is_clock_set = True
        host.clock.wall_offset_ms = rng.randint(-most_ms, most_ms)
        host.clock.set_rate(1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX))
        self._cluster.story.tell(
            f"the clock of {host.name} is {host.clock.wall_offset_ms / 1000:.0f} s off and runs {host.clock.rate:.4f} times as fast"
        )

    async def _restart(self) -> None:
        """A process stops cleanly and starts again, as in an upgrade."""
        node = self._victim()
        await self._cluster.end(node)
        await self._time(2.0)
        await start(self._cluster, node)

    async def _bad_disk(self) -> None:
        """Each sync of a broker fails for a while; the broker does not trust the disk again before a restart."""
        cluster = self._cluster
        node = self._rng.choice(cluster.brokers)
        cluster.story.tell(f"the disk of {node.host.name} fails")
        node.host.disk.fail = lambda call, path: errno.EIO if call == "sync" else 0
        await self._time(DOWN_S_MAX)
        node.host.disk.fail = lambda call, path: 0
        cluster.story.tell(f"the disk of {node.host.name} is replaced by one that works, with what it had")
        await cluster.kill(node, power=False)
        await start(cluster, node)

    async def _slow(self) -> None:
        network = self._cluster.network
        before, network.delay_max_s = network.delay_max_s, self._rng.choice((0.05, 0.2, 0.5))
        self._cluster.story.tell(f"the network is slow, up to {network.delay_max_s} s")
        await self._time(DOWN_S_MAX)
        network.delay_max_s = before
        self._cluster.story.tell("the network is quick")
