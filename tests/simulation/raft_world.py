"""One run of a Raft group, from a seed: real nodes on simulated disks, clocks and a network that fails.

`World` owns time. Messages are lost, doubled, delayed, reordered, damaged and cut off, in both directions or in one;
nodes are killed, lose power in the middle of a disk call, pause, and find that a sync failed; clocks run at different
speeds; members come and go; the leadership is handed over. Checked all the while, AssertionError when broken:

- election safety: one leader a term
- log matching: an entry of one index and term has one content and one predecessor, in every log
- leader completeness: who is elected has every committed entry
- state-machine safety: all nodes apply the same commands at the same indexes
- the lease: no node leads a later term while a leader holds its lease
- linearizability: writes and reads, in true time, fit one order
- progress: once the faults end, all nodes catch up
"""

from __future__ import annotations

import bisect
import errno
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aerobee.errors import MalformedFrame, QuorumError, StoreError
from aerobee.ha.packed import pack, unpack
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Entry, Membership
from aerobee.ha.raft.messages import Message, decode_message, encode_message
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.replica import Outcome, Replica
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk

GROUP = "simulated"
ELECTION_TIMEOUT_MS = 200
TICK_MS = 12.0
DRIFT = 0.1  # clocks run up to this much faster or slower


class Values:
    """The state machine: a list of values; a command adds one. Compared with what others applied immediately."""

    def __init__(self, world: World) -> None:
        self.values: list[tuple[int, bytes]] = []  # (index, value)
        self._world = world

    def apply(self, index: int, data: bytes) -> object:
        self.values.append((index, data))
        self._world.check_applied(index, data)
        return index

    def snapshot(self) -> bytes:
        return pack(self.values)

    def restore(self, data: bytes) -> None:
        self.values = list(unpack(data, "a snapshot"))
        for index, value in self.values:
            self._world.check_applied(index, value)


class WatchedReplica(Replica):
    """Shows the simulation each entry that it holds for committed."""

    world: World

    def _apply_entry(self, entry: Entry) -> None:
        self.world.check_committed(entry, self.node.term)
        super()._apply_entry(entry)


@dataclass(slots=True)
class Operation:
    """A client's write or read. `index`: the entry that a write became, or the last one that a read saw."""

    value: bytes  # empty: a read
    start: float
    end: float = float("inf")
    index: int = -1


class Host:
    """A machine: its disk, its clock, and the process when it runs."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = SimulatedDisk(world.rng)
        self.replica: Replica | None = None
        self.files: RaftFiles | None = None
        self.machine = Values(world)
        self.paused_until = 0.0
        self.life = 0
        self._rate = 1.0
        self._local_ms = world.rng.uniform(0, 1e6)
        self._set_at = 0.0
        self.verified: dict[int, int] = {}  # entries of this log that were checked: index, term
        self.was_leader_in = 0

    def local_ms(self) -> float:
        return self._local_ms + (self.world.now - self._set_at) * self._rate

    def set_rate(self, rate: float) -> None:
        self._local_ms, self._set_at, self._rate = self.local_ms(), self.world.now, rate

    @property
    def node(self) -> RaftNode:
        assert self.replica is not None
        return self.replica.node

    def start(self, members: Membership) -> None:
        """Start the process; a disk that fails meanwhile ends it."""
        world = self.world
        self.life += 1
        self.machine = Values(world)
        self.verified.clear()
        self.was_leader_in = 0
        self.files = RaftFiles(
            f"/raft-{self.name}",
            disk=self.disk,
            file_bytes=world.file_bytes,
            entry_bytes_max=200,
            new_identity=lambda: f"{self.name}.{self.life}" if world.names_directories else "",
        )
        recovered = self.files.open()
        if recovered.is_new and self.name in members.all_members:
            recovered = self.files.initialize(members)
        node = RaftNode(self.name, world.config, recovered, now_ms=self.local_ms(), random=world.rng.random)
        self.replica = WatchedReplica(node, self.files, self.machine, send=world.send)
        self.replica.world = world

    def replace_disk(self) -> None:
        """The machine, which is down, gets an empty disk."""
        assert self.replica is None
        self.disk = SimulatedDisk(self.world.rng)

    def stop(self, *, power_loss: bool) -> None:
        self.replica = None
        self.files = None
        if power_loss:
            self.disk.power_loss()
        else:
            self.disk.crash()


class World:
    """A group, its clients and its faults."""

    names_directories = False  # each data directory has an identity

    def __init__(self, seed: int, *, voters: int = 0, spares: int = 0) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        rng = self.rng
        self.config = RaftConfig(
            election_timeout_ms=ELECTION_TIMEOUT_MS,
            heartbeat_interval_ms=rng.choice((30, 60)),
            clock_drift_ratio_max=DRIFT,
            entry_bytes_max=200,
            append_bytes_max=rng.choice((1, 300, 4000)),
            append_entries_max=rng.choice((1, 3, 50)),
            in_flight_max=rng.choice((1, 2, 8)),
            snapshot_chunk_bytes=rng.choice((40, 100_000)),
            snapshot_interval_entries=rng.choice((4, 15, 60)),
            entries_kept_max=rng.choice((0, 3, 20)),
        )
        self.now = 0.0
        self.loss = rng.choice((0.0, 0.02, 0.2))
        self.doubling = rng.choice((0.0, 0.05, 0.3))
        self.late = rng.choice((0.0, 0.02, 0.1))
        self.damage = rng.choice((0.0, 0.01))
        self.file_bytes = rng.choice((1536, 20_000))
        self.restart_ms = rng.choice((10, 600))
        self.cut: set[tuple[str, str]] = set()
        names = [f"n{number}" for number in range(voters or rng.choice((1, 2, 3, 3, 3, 4, 5)))]
        self.first = Membership(tuple(names))
        self.hosts = {
            name: Host(self, name) for name in [*names, *(f"s{number}" for number in range(spares))]
        }
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = itertools.count()
        self._value = itertools.count(1)
        self.operations: list[Operation] = []
        self.history: dict[int, bytes] = {}  # applied commands by index
        self.applied_indexes: list[int] = []
        self.committed: dict[
            int, tuple[int, int]
        ] = {}  # by index: its term, the term in which it was committed
        self.entries: dict[tuple[int, int], tuple[int, bytes]] = {}  # (index, term): predecessor's term, data
        self.leaders: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        for host in self.hosts.values():
            host.set_rate(rng.uniform(1 - DRIFT, 1 + DRIFT))
            self.start(host)
            self._tick_later(host)

    # -- time

    def at(self, delay_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_ms, next(self._sequence), act))

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen until `end`, or until `done`. Return whether it is done."""
        while self._queue and self._queue[0][0] <= end:
            if done():
                return True
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self.now = max(self.now, end)
        return done()

    def _tick_later(self, host: Host) -> None:
        def tick() -> None:
            if host.replica is not None and host.paused_until <= self.now:
                self.act(host, lambda replica: replica.tick(host.local_ms()))
            self._tick_later(host)

        self.at(TICK_MS * self.rng.uniform(0.7, 1.3), tick)

    # -- hosts

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def start(self, host: Host) -> None:
        try:
            host.start(self.first)
        except PowerCut:
            self._die(host, power_loss=True)
        except StoreError:
            assert not host.disk.fail("open", ""), "a disk that does not fail is refused"
            if host.files is not None and not getattr(host, "disk_fails", False):
                raise AssertionError(f"{host.name} refuses its own disk") from None
            self._die(host, power_loss=False)
        else:
            self.observe(host)

    def act(self, host: Host, call: Callable[[Replica], Any]) -> None:
        """Have a host do something, and look at what it became."""
        assert host.replica is not None
        try:
            call(host.replica)
        except PowerCut:
            self._die(host, power_loss=True)
            return
        except QuorumError:
            self.count("refused")
        except StoreError:
            self.count("failed disk")
            self._die(host, power_loss=self.rng.random() < 0.5)
            return
        self.observe(host)

    def _die(self, host: Host, *, power_loss: bool) -> None:
        host.disk.fail = lambda call, path: 0
        host.stop(power_loss=power_loss)
        self.count("power loss" if power_loss else "kill")
        self.at(self.rng.uniform(1, self.restart_ms), lambda: None if host.replica else self.start(host))

    # -- network

    def send(self, message: Message) -> None:
        rng = self.rng
        if (message.source, message.target) in self.cut or rng.random() < self.loss:
            return
        data = encode_message(message, GROUP)
        for _ in range(2 if rng.random() < self.doubling else 1):
            delay = rng.uniform(0.5, 8)
            if rng.random() < self.late:
                delay = rng.uniform(10, 800)
            self.at(delay, lambda: self.deliver(message.target, data))

    def deliver(self, target: str, data: bytes) -> None:
        host = self.hosts[target]
        if host.replica is None:
            return
        if host.paused_until > self.now:
            self.at(host.paused_until - self.now + self.rng.random(), lambda: self.deliver(target, data))
            return
        if self.damage and self.rng.random() < self.damage:
            place = self.rng.randrange(len(data))
            data = data[:place] + bytes((data[place] ^ 1 << self.rng.randrange(8),)) + data[place + 1 :]
        try:
            message = decode_message(data, GROUP, bytes_max=self.config.message_bytes_max)
        except MalformedFrame:
            self.count("damaged message")
            return
        self.act(host, lambda replica: replica.receive(message, host.local_ms()))

    # -- clients

    def live(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.replica and host.paused_until <= self.now]

    def leader(self) -> Host | None:
        """The live leader of the highest term."""
        return max(
            (host for host in self.live() if host.node.is_leader),
            key=lambda host: host.node.term,
            default=None,
        )

    def write(self, host: Host) -> Operation | None:
        if host.replica is None:
            return None
        value = b"%d" % next(self._value) + b"." * self.rng.choice((0, 0, 20, 120))
        operation = Operation(value, self.now)
        self.operations.append(operation)
        life = host.life

        def on_done(outcome: Outcome, result: object) -> None:
            if outcome is Outcome.APPLIED and host.life == life:
                operation.end = self.now
                assert isinstance(result, int)
                operation.index = result

        self.act(host, lambda replica: replica.propose(value, on_done, host.local_ms()))
        return operation

    def read(self, host: Host) -> None:
        if host.replica is None:
            return
        operation = Operation(b"", self.now)
        self.operations.append(operation)
        machine = host.machine

        def on_ready(is_ready: bool) -> None:
            if is_ready:
                assert host.replica is not None
                assert host.machine is machine
                operation.end = self.now
                operation.index = host.replica.applied_index
                expected = bisect.bisect_right(self.applied_indexes, operation.index)
                assert len(machine.values) == expected, "a read saw a state that is not the history"

        self.act(host, lambda replica: replica.read(on_ready, host.local_ms()))

    # -- checks while it runs

    def observe(self, host: Host) -> None:
        node = host.node
        log = node.log
        self._check_log(host)
        if node.is_leader and host.was_leader_in != node.term:
            host.was_leader_in = node.term
            self.count("elections")
            other = self.leaders.setdefault(node.term, host.name)
            assert other == host.name, f"{other} and {host.name} both lead in term {node.term}"
            for index, (term, committed_in) in self.committed.items():
                # One that is elected late in a term that has ended may lack what a later term committed.
                if committed_in < node.term and index > log.base_index:
                    assert log.term_at(index) == term, (
                        f"{host.name} leads in term {node.term} without the entry {index}, "
                        f"committed in term {committed_in}"
                    )
        self._check_lease()

    def check_committed(self, entry: Entry, term: int) -> None:
        """A node in `term` holds this entry for committed."""
        known, _ = self.committed.setdefault(entry.index, (entry.term, term))
        assert known == entry.term, f"entry {entry.index} is committed with terms {known} and {entry.term}"

    def check_applied(self, index: int, data: bytes) -> None:
        known = self.history.get(index)
        if known is None:
            assert index > max(self.applied_indexes[-1:], default=0), f"entry {index} was left out at first"
            self.history[index] = data
            self.applied_indexes.append(index)
        else:
            assert known == data, f"two commands were applied at {index}"

    def _check_log(self, host: Host) -> None:
        log = host.node.log
        for index in range(log.last_index, log.base_index, -1):
            (entry,) = log.range(index, index)
            if host.verified.get(index) == entry.term:
                break
            before = log.term_at(index - 1)
            known = self.entries.setdefault((index, entry.term), (before or 0, entry.data))
            assert known == (before, entry.data), f"two entries {index} of term {entry.term} differ"
            host.verified[index] = entry.term

    def _check_lease(self) -> None:
        leaders = [host for host in self.hosts.values() if host.replica and host.node.is_leader]
        if len(leaders) < 2:
            return
        newest = max(host.node.term for host in leaders)
        for host in leaders:
            if host.node.term < newest:
                assert not host.node.has_lease(host.local_ms()), (
                    f"{host.name} holds its lease of term {host.node.term} while another node leads in term {newest}"
                )

    def check_history(self) -> None:
        """Writes and reads fit one order: an operation that began after another ended comes behind it."""
        index_of = {value: index for index, value in self.history.items()}
        assert len(index_of) == len(self.history), "a write took effect twice"
        finished: list[tuple[float, float, Operation]] = []
        for operation in self.operations:
            if operation.value and operation.index >= 0:
                assert index_of.get(operation.value) == operation.index, "an acknowledged write is lost"
            if operation.value and operation.value in index_of:
                operation.index = index_of[operation.value]
            if operation.index >= 0:
                finished.append((operation.start, operation.end, operation))
        ended = sorted((operation for _, _, operation in finished), key=lambda each: each.end)
        newest, at = -1, 0
        for start, _, operation in sorted(finished, key=lambda each: each[0]):
            while at < len(ended) and ended[at].end < start:
                newest = max(newest, ended[at].index)
                at += 1
            if operation.value:
                assert operation.index > newest, "a write came before one that was acknowledged when it began"
            else:
                assert operation.index >= newest, "a read missed what was acknowledged when it began"

    # -- the end

    def heal(self) -> None:
        """End all faults."""
        self.loss = self.doubling = self.late = self.damage = 0.0
        self.cut.clear()
        for host in self.hosts.values():
            host.disk.fail = lambda call, path: 0
            if host.disk.is_cut:
                self._die(host, power_loss=True)
            host.disk.cut_power_at(-1)
            host.paused_until = 0.0
            host.set_rate(1.0)
            if host.replica is None:
                host.start(self.first)
                self.observe(host)

    def check_progress(self, limit_ms: float = 60 * ELECTION_TIMEOUT_MS) -> None:
        """Within the limit a new write is applied by every member."""
        end = self.now + limit_ms
        written: list[Operation] = []

        def done() -> bool:
            leader = self.leader()
            if leader is None:
                return False
            if not written or (
                written[-1].end == float("inf") and self.now - written[-1].start > 2 * ELECTION_TIMEOUT_MS
            ):
                operation = self.write(leader)
                if operation is not None:
                    written.append(operation)
                return False
            index = written[-1].index
            members = leader.node.log.membership.all_members if leader.replica else ()
            return index >= 0 and all(
                (replica := self.hosts[member].replica) is not None and replica.applied_index >= index
                for member in members
            )

        assert self.run_until(end, done), f"no progress in {limit_ms:.0f} ms after the faults: " + ", ".join(
            f"{host.name} {host.node.role.name} term {host.node.term} commit {host.node.commit_index} of "
            f"{host.node.log.last_index}"
            for host in self.hosts.values()
            if host.replica
        )
        self.check_history()


class Faults:
    """What goes wrong in one run, at random moments."""

    def __init__(self, world: World) -> None:
        self.world = world
        rng = world.rng
        kinds: list[tuple[Callable[[], None], float]] = [
            (self.kill, rng.choice((0, 1))),
            (self.lose_power, rng.choice((0, 1))),
            (self.lose_power_soon, rng.choice((0, 2))),
            (self.fail_sync, rng.choice((0, 1))),
            (self.pause, rng.choice((0, 1))),
            (self.drift, 1),
            (self.split, rng.choice((0, 2))),
            (self.cut_one_way, rng.choice((0, 2))),
            (self.isolate_leader, rng.choice((0, 2))),
            (self.mend, rng.choice((2, 6))),
            (self.change_members, rng.choice((0, 3))),
            (self.hand_over, rng.choice((0, 2))),
        ]
        self._kinds = [kind for kind, weight in kinds if weight]
        self._weights = [weight for _, weight in kinds if weight]
        self._interval_ms = rng.choice((40, 150, 400))
        self.is_over = False

    def later(self) -> None:
        self.world.at(self.world.rng.expovariate(1 / self._interval_ms), self._strike)

    def _strike(self) -> None:
        if self.is_over:
            return
        (kind,) = self.world.rng.choices(self._kinds, self._weights)
        self.world.count(kind.__name__)
        kind()
        self.later()

    def _victim(self) -> Host | None:
        """A live host, often the leader."""
        world = self.world
        leader = world.leader()
        if leader is not None and world.rng.random() < 0.4:
            return leader
        live = world.live()
        return world.rng.choice(live) if live else None

    def kill(self) -> None:
        if (host := self._victim()) is not None:
            self.world._die(host, power_loss=False)

    def lose_power(self) -> None:
        if (host := self._victim()) is not None:
            self.world._die(host, power_loss=True)

    def lose_power_soon(self) -> None:
        if (host := self._victim()) is not None:
            host.disk.cut_power_at(self.world.rng.randrange(20))

    def fail_sync(self) -> None:
        if (host := self._victim()) is not None:
            host.disk.fail = lambda call, path: errno.EIO if call == "sync" else 0

    def pause(self) -> None:
        if (host := self._victim()) is not None:
            host.paused_until = self.world.now + self.world.rng.uniform(10, 900)

    def drift(self) -> None:
        if (host := self._victim()) is not None:
            host.set_rate(self.world.rng.choice((1 - DRIFT, 1, 1 + DRIFT)))

    def split(self) -> None:
        world = self.world
        side = {name for name in world.hosts if world.rng.random() < 0.5}
        world.cut |= {
            (one, other) for one in world.hosts for other in world.hosts if (one in side) != (other in side)
        }

    def cut_one_way(self) -> None:
        world = self.world
        names = list(world.hosts)
        world.cut |= {(world.rng.choice(names), world.rng.choice(names)) for _ in range(3)}

    def isolate_leader(self) -> None:
        world = self.world
        if (leader := world.leader()) is None:
            return
        others = [name for name in world.hosts if name != leader.name]
        ways = world.rng.choice((1, 2, 3))
        for other in others:
            if ways & 1:
                world.cut.add((leader.name, other))
            if ways & 2:
                world.cut.add((other, leader.name))

    def mend(self) -> None:
        self.world.cut.clear()

    def change_members(self) -> None:
        """Ask each host that thinks it leads: an old leader must not get through what a new one forbids."""
        world, rng = self.world, self.world.rng
        for host in world.live():
            if host.node.is_leader:
                self._change_one(host, rng.choice(list(world.hosts)))

    def _change_one(self, host: Host, name: str) -> None:
        members, now_ms = host.node.log.membership, host.local_ms()
        if name in members.learners and self.world.rng.random() < 0.7:
            change = RaftNode.promote
        elif name in members.all_members:
            change = RaftNode.remove
        else:
            change = RaftNode.add_learner
        self.world.act(host, lambda replica: replica.run(lambda node: change(node, name, now_ms), now_ms))

    def hand_over(self) -> None:
        world = self.world
        if (leader := world.leader()) is None:
            return
        others = [name for name in leader.node.log.membership.voters if name != leader.name]
        if others:
            target, now_ms = world.rng.choice(others), leader.local_ms()
            world.act(leader, lambda replica: replica.run(lambda node: node.transfer(target, now_ms), now_ms))


def run_life(seed: int, *, length_ms: float = 5_000) -> World:
    """One run with faults, then peace. Raises AssertionError when something that must hold does not."""
    world = World(seed, spares=random.Random(seed).choice((0, 0, 1, 2)))
    rng = world.rng
    faults = Faults(world)
    faults.later()
    interval_ms = rng.choice((5, 20, 60))

    def client() -> None:
        live = world.live()
        if live:
            host = world.leader() or rng.choice(live)
            if rng.random() < 0.3:
                host = rng.choice(live)
            world.write(host) if rng.random() < 0.6 else world.read(rng.choice((host, rng.choice(live))))
        if world.now < length_ms:
            world.at(rng.expovariate(1 / interval_ms), client)

    world.at(50, client)
    world.run_until(length_ms)
    world.check_history()
    faults.is_over = True
    world.heal()
    world.check_progress()
    return world
