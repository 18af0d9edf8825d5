"""Sequences of well-formed, hostile requests against a broker, a nameserver and clients, in one process.

    python tests/abuse/semantic_fuzzer.py [--role broker|nameserver|client|all] [--count 1000000] [--seed N] [--first-cluster N]

What the requests are: hostile_requests.py. A sequence is one to eight requests over one connection, most of them given to
it as the event loop would, one in SOCKET_EVERY over a real socket. Whatever they ask (semantic_judges.py):

- no file is made outside the store and no directory in it that is no legal topic;
- no topic, group, route or offset exists that cannot be, nothing is the broker's own that a client made;
- a topic without requests keeps its messages, byte for byte, and its consumer's offset;
- with SYNC_FLUSH nothing is answered before the disk has it, unless the sender said so;
- no setting, in force or in a file, moves a file;
- nothing takes more than STALL_CPU_S of the event loop in one piece;
- nothing is logged with a traceback, no exception reaches the event loop;
- a peer that behaves is served all the while;
- after a restart, in order or as if killed, every queue has what it had;
- the memory of the process does not grow with the number of sequences.

Sequences come in clusters of SEQUENCES_PER_WORLD, each with its own random numbers: a fault names the cluster, and
`--first-cluster N --count 1` runs it again. Ends with status 1 when something does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2]),
    str(Path(__file__).resolve().parents[1] / "survival"),
]

from process_figures import look_at  # noqa: E402

from aerobee.remoting.command import RemotingCommand  # noqa: E402
from aerobee.remoting.frame import FrameDecoder, encode_frame  # noqa: E402
from tests.abuse.hostile_requests import HostileRequests  # noqa: E402
from tests.abuse.semantic_judges import CpuWatch, Judges, Stalls, is_extension  # noqa: E402
from tests.abuse.semantic_world import World  # noqa: E402
from tests.fakes import FakeTransport  # noqa: E402
from tests.survival.hostile_frames import Fault, FaultLog  # noqa: E402

ROLES = ("broker", "nameserver", "client")
SEQUENCES_PER_WORLD = 4_000  # then it stops, or is killed, starts again over its files, and is looked at
SEQUENCES_PER_PASS = 10  # of the event loop, while no answer waits for it
SEQUENCES_PER_LOOK = 50  # at what is not looked at after each
SEQUENCES_PER_CHECK = 500  # a well-behaved peer sends, commits and reads
SOCKET_EVERY = 1_000
WAITS_FOR_DISK_EVERY = 4  # clusters
CLOCK_STEP_S = 2.0
ANSWER_WAIT_S = 0.02
MEMORY_GROWTH_MAX_BYTES = 128 << 20
WORLDS_BEFORE_MEMORY_COUNTS = 2
MEMORY_DIRECTORY = "/dev/shm"  # a store there waits for no disk


class Attack:
    """Sequences against one cluster."""

    def __init__(self, world: World, rng: random.Random, faults: FaultLog, stalls: Stalls) -> None:
        self.world = world
        self.judges = Judges(world, faults)
        self.done = 0
        self.stored = 0  # messages that were taken
        self._rng = rng
        self._faults = faults
        self._stalls = stalls

    async def run(self, count: int) -> None:
        world = self.world
        await world.start()
        self.judges.begin()
        await self._check()
        requests = HostileRequests(self._rng, world.handlers)
        for part, crash in ((count - count // 2, self._rng.random() < 0.5), (count // 2, True)):
            world.endpoint.watch = CpuWatch(self._stalls)
            gc.collect()
            gc.disable()
            try:
                await self._sequences(requests, part)
            finally:
                gc.enable()
            await self._restart(crash)
        await world.stop()

    async def _sequences(self, requests: HostileRequests, count: int) -> None:
        world, rng, judges = self.world, self._rng, self.judges
        for _ in range(count):
            self.done += 1
            size = rng.choice((1, 1, 2, 3, 8))
            if self.done % SOCKET_EVERY == 0:
                await self._over_a_socket([requests.next() for _ in range(size)])
            else:
                self._sequence(requests, size)
            judges.after_sequence()
            if self.done % SEQUENCES_PER_PASS == 0:
                await asyncio.sleep(0)
                judges.after_some()
            if self.done % SEQUENCES_PER_LOOK == 0:
                await world.pass_time(CLOCK_STEP_S)
                judges.now_and_then()
            if self.done % SEQUENCES_PER_CHECK == 0:
                await self._check()
                gc.collect()

    def _sequence(self, requests: HostileRequests, count: int) -> None:
        decoder = FrameDecoder()
        asked: dict[int, RemotingCommand] = {}

        def on_write(data: bytes) -> None:
            decoder.feed(data)
            while (reply := decoder.next_frame()) is not None:
                requests.take(reply)
                request = asked.get(reply.opaque)
                if request is not None and reply.is_response:
                    self.judges.reply(request, reply)

        connection = self.world.make()
        transport = FakeTransport(on_write=on_write, lose=connection.connection_lost)
        connection.connection_made(transport)
        for _ in range(count):
            command = requests.next()
            asked[command.opaque] = command
            frame = self._faults.frame = encode_frame(command)
            if not connection.is_open:
                break
            started = time.thread_time()
            try:
                connection.data_received(frame)
            except Exception as error:
                self._faults.add(f"data_received raised {type(error).__name__}: {error}")
            self._stalls.judge(time.thread_time() - started, f"request {command.code}")
        # Answers may still come: to whom waits for the disk or for messages, a little; then the peer is gone.
        if self._rng.random() < 0.5:
            transport.close()
        else:
            asyncio.get_running_loop().call_later(ANSWER_WAIT_S, transport.close)

    async def _over_a_socket(self, commands: list[RemotingCommand]) -> None:
        if self.world.role == "client":
            return  # a client listens nowhere
        frames = b"".join(map(encode_frame, commands))
        self._faults.frame = frames
        reader, writer = await asyncio.open_connection(*self.world.address)
        writer.write(frames)
        with contextlib.suppress(
            TimeoutError, ConnectionError
        ):  # answered, parked, or closed: all are answers
            async with asyncio.timeout(ANSWER_WAIT_S):
                await reader.read(1 << 20)
        writer.close()

    async def _check(self) -> None:
        world = self.world
        await world.send()
        if await world.read_victim() != world.bodies:
            self._faults.add("the victim's queue has other messages than its owner sent")
        await world.commit(self._rng.randrange(len(world.bodies) + 1))

    async def _restart(self, crash: bool) -> None:
        """What every queue has before is what it has afterwards."""
        world = self.world
        await world.settle()
        await self._check()
        how = "a crash" if crash else "a restart"
        before = world.everything_stored()
        self.stored = self.judges.stored()
        config = {name: c.to_dict() for name, c in world.broker.topics.topics.items()}
        kept = {name: dict(keys) for name, keys in world.nameserver._kv_config._table.items()}
        await world.restart(crash=crash)
        self.judges.begin()
        if wrong := is_extension(before, world.everything_stored()):
            self._faults.add(f"after {how} {wrong}")
        after = {name: c.to_dict() for name, c in world.broker.topics.topics.items()}
        if missing := {name: config[name] for name in config if after.get(name) != config[name]}:
            self._faults.add(f"after {how} other topics: {str(missing)[:1000]}")
        if world.nameserver._kv_config._table != kept:
            self._faults.add(f"after {how} another KV configuration than {str(kept)[:1000]}")
        await self._check()
        self.judges.now_and_then()


def _directory() -> str | None:
    return MEMORY_DIRECTORY if os.access(MEMORY_DIRECTORY, os.W_OK) else None


@contextlib.contextmanager
def _collecting(faults: FaultLog) -> Iterator[None]:
    root, product = logging.getLogger(), logging.getLogger("aerobee")
    level = product.level
    root.addHandler(faults)
    product.setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: faults.add(f"{context.get('message')}: {context.get('exception')!r}")
    )
    try:
        yield
    finally:
        root.removeHandler(faults)
        product.setLevel(level)


async def run(
    role: str,
    count: int,
    seed: int,
    *,
    first_cluster: int = 0,
    size: int = SEQUENCES_PER_WORLD,
    keep_going: bool = False,
) -> dict[str, object]:
    """`count` sequences against one role. Raises Fault; returns figures. With `keep_going` faults are printed instead."""
    started, cpu = time.monotonic(), time.process_time()
    longest_s, longest, base, grown, kinds = 0.0, "", 0, 0, 0
    stored: list[int] = []  # messages, of each cluster
    sent, number = 0, first_cluster
    while sent < count:
        part = min(size, count - sent)
        faults = FaultLog()
        stalls = Stalls(faults)
        with (
            _collecting(faults),
            tempfile.TemporaryDirectory(prefix="aerobee-semantic-", dir=_directory()) as outside,
        ):
            world = World(Path(outside), role, waits_for_disk=number % WAITS_FOR_DISK_EVERY == 3)
            attack = Attack(world, random.Random(f"{seed} {role} {number}"), faults, stalls)
            with stalls.watching():
                try:
                    await stalls.ours(attack.run(part))
                except Fault as fault:
                    faults.add(str(fault))
                    await world.abandon()
        sent += part
        stored.append(attack.stored)
        if stalls.longest_s > longest_s:
            longest_s, longest = stalls.longest_s, stalls.longest
        gc.collect()
        memory = look_at(os.getpid()).anonymous_bytes
        if number - first_cluster < WORLDS_BEFORE_MEMORY_COUNTS:
            base = max(base, memory)
        grown = max(grown, memory - base)
        if grown > MEMORY_GROWTH_MAX_BYTES:
            faults.add(f"memory grew by {grown >> 20} MiB")
        if faults.faults:
            kinds += len(faults.faults)
            text = f"seed {seed}, {role}, cluster {number} of {size}:\n" + "\n\n".join(faults.faults.values())
            if not keep_going:
                raise Fault(text)
            print(text, flush=True)
        number += 1
        spent = time.process_time() - cpu
        print(
            f"{role}: {sent} of {count}, clusters {first_cluster} to {number - 1}, {sent / spent:.0f} a CPU second, "
            f"{memory >> 20} MiB, {stored[-1]} stored, {kinds} faults",
            file=sys.stderr,
            flush=True,
        )
    return {
        "role": role, "sequences": sent, "seed": seed, "clusters": [first_cluster, number - 1], "faults": kinds,
        "stored": sum(stored), "least_stored_of_a_world": min(stored, default=0),
        "longest_cpu_ms": round(longest_s * 1000), "longest": longest, "grown_mib": grown >> 20,
        "seconds": round(time.monotonic() - started), "cpu_seconds": round(time.process_time() - cpu),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=[*ROLES, "all"], default="all")
    parser.add_argument("--count", type=int, default=1_000_000, help="sequences of each role")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first-cluster", type=int, default=0, help="where an earlier run ended")
    parser.add_argument(
        "--keep-going", action="store_true", help="print faults instead of ending at the first"
    )
    arguments = parser.parse_args()
    failed = False
    for role in ROLES if arguments.role == "all" else (arguments.role,):
        try:
            figures = asyncio.run(
                run(
                    role,
                    arguments.count,
                    arguments.seed,
                    first_cluster=arguments.first_cluster,
                    keep_going=arguments.keep_going,
                )
            )
        except Fault as fault:
            print(fault, flush=True)
            return 1
        print(json.dumps(figures), flush=True)
        failed = failed or bool(figures["faults"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
