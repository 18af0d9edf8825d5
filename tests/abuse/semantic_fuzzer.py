"""Sequences of well-formed, hostile requests against a broker, a nameserver and clients, in one process.

    python tests/abuse/semantic_fuzzer.py [--role broker|nameserver|client|all] [--count 1000000] [--seed N]

What the requests are: hostile_requests.py. A sequence is one to eight requests over one connection. Whatever they ask:

- no file is made outside the store and no directory in it that is no legal topic;
- a topic that nobody touches keeps its messages, byte for byte, also over a restart;
- no request takes more than STALL_CPU_S of the event loop in one piece;
- nothing is logged with a traceback, no exception reaches the event loop;
- a peer that behaves is served all the while;
- the memory of the process does not grow with the number of sequences.

Ends with status 1 when one does not hold, and prints each kind of fault once with the request before it.
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
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parents[2]),
    str(Path(__file__).resolve().parents[1] / "survival"),
]

from process_figures import look_at  # noqa: E402

from aerobee.client import PushConsumer  # noqa: E402
from aerobee.message import decode_records  # noqa: E402
from aerobee.remoting.command import RemotingCommand  # noqa: E402
from aerobee.remoting.connection import Connection, Endpoint  # noqa: E402
from aerobee.remoting.frame import FrameDecoder, encode_frame  # noqa: E402
from aerobee.remoting.loop_watch import LoopWatch  # noqa: E402
from aerobee.remoting.peer import Handler  # noqa: E402
from aerobee.store.queue_table import is_queue_name  # noqa: E402
from aerobee.testing.local_cluster import LocalCluster  # noqa: E402
from tests.abuse.hostile_requests import HostileRequests  # noqa: E402
from tests.survival.hostile_frames import FakeTransport, Fault, FaultLog, TappedNetwork  # noqa: E402

ROLES = ("broker", "nameserver", "client")
SEQUENCES_PER_CLUSTER = 2_000  # then it stops, starts again over its files, and is looked at
SEQUENCES_PER_CHECK = 100
STALL_CPU_S = 0.1
STALLS_OF_ONE_KIND = 3
MEMORY_GROWTH_MAX_BYTES = 256 << 20
SYSTEM_BUSY, SENDS_AGAIN_MAX = 2, 100
MEMORY_DIRECTORY = "/dev/shm"  # a store there waits for no disk
VICTIM = "somebody-elses"
BROKER: dict[str, Any] = {"enable_property_filter": True, "recall_message_enable": True}
STORE: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}


class Judge:
    """Feeds one connection after the other, and measures what each read costs."""

    def __init__(self, faults: FaultLog, make: Any) -> None:
        self.faults = faults
        self.longest_s = 0.0
        self._stalls: Counter[str] = Counter()
        self._make = make

    def sequence(self, requests: HostileRequests, count: int) -> None:
        decoder = FrameDecoder()

        def on_write(data: bytes) -> None:
            decoder.feed(data)
            while (reply := decoder.next_frame()) is not None:
                requests.take(reply)

        connection = self._make()
        transport = FakeTransport(connection, on_write)
        connection.connection_made(transport)
        for _ in range(count):
            command = requests.next()
            frame = self.faults.frame = encode_frame(command)
            if not connection.is_open:
                break
            started = time.thread_time()
            try:
                connection.data_received(frame)
            except Exception as error:
                self.faults.add(f"data_received raised {type(error).__name__}: {error}")
            self.judge(time.thread_time() - started, f"request {command.code}")
        transport.close()

    def judge(self, cpu_s: float, what: str) -> None:
        self.longest_s = max(self.longest_s, cpu_s)
        if cpu_s > STALL_CPU_S:
            # Once may be the machine; what a request costs, it costs again.
            self._stalls[what] += 1
            if self._stalls[what] >= STALLS_OF_ONE_KIND:
                self.faults.add(f"{what} took {cpu_s * 1000:.0f} ms of the event loop")


class CpuWatch(LoopWatch):
    """Steps of handlers' coroutines, by CPU time of this thread."""

    def __init__(self, judge: Judge) -> None:
        super().__init__(time.thread_time)
        self._judge = judge

    def note(self, code: int, address: str, held_s: float) -> None:
        self._judge.judge(held_s, f"a step of request {code}")


async def attack(role: str, requests_rng: random.Random, count: int, faults: FaultLog) -> float:
    """Returns the longest CPU time of one piece, seconds."""
    sent, longest = 0, 0.0
    while sent < count:
        part = min(SEQUENCES_PER_CLUSTER, count - sent)
        with tempfile.TemporaryDirectory(prefix="aerobee-semantic-", dir=_directory()) as outside:
            longest = max(longest, await _attack(role, requests_rng, part, faults, Path(outside)))
        sent += part
        print(
            f"{role}: {sent} of {count}, {look_at(os.getpid()).anonymous_bytes >> 20} MiB, {len(faults.faults)} faults",
            file=sys.stderr,
            flush=True,
        )
    return longest


def _directory() -> str | None:
    return MEMORY_DIRECTORY if os.access(MEMORY_DIRECTORY, os.W_OK) else None


async def _attack(role: str, rng: random.Random, count: int, faults: FaultLog, outside: Path) -> float:
    store = outside / "some" / "where" / "store"
    store.mkdir(parents=True)
    bodies: list[bytes] = []
    network = TappedNetwork()
    async with LocalCluster(
        directory=store, network=network, broker_config=BROKER, store_config=STORE
    ) as cluster:
        async with _target(role, cluster, network) as (handlers, make, endpoint):
            judge = Judge(faults, make)
            endpoint.watch = CpuWatch(judge)
            requests = HostileRequests(rng, handlers)
            await _send(cluster, bodies)
            gc.collect()
            gc.disable()
            try:
                for number in range(count):
                    judge.sequence(requests, rng.choice((1, 1, 2, 3, 8)))
                    await asyncio.sleep(0)
                    if number % SEQUENCES_PER_CHECK == SEQUENCES_PER_CHECK - 1:
                        await asyncio.sleep(0.002)
                        await _send(cluster, bodies)
                        gc.collect()
            finally:
                gc.enable()
        await _look(cluster, bodies, "while it ran", faults)
    async with LocalCluster(directory=store, store_config=STORE) as cluster:
        await _look(cluster, bodies, "after a restart", faults)
    _look_at_files(outside, store, faults)
    return judge.longest_s


def _look_at_files(outside: Path, store: Path, faults: FaultLog) -> None:
    """Whether there is anything outside the store, or a directory in it that is no queue."""
    made = {path for path in outside.rglob("*") if path != store and store not in path.parents} - set(
        store.parents
    )
    if made:
        faults.add(f"made outside the store: {sorted(map(str, made))[:5]}")
    if Path("/tmp/outside+").exists() or Path("/tmp/outside").exists():
        faults.add("made /tmp/outside")
    for directory in store.rglob("consumequeue"):
        for topic in directory.iterdir():
            if not is_queue_name(topic.name, 0) or not all(each.name.isdecimal() for each in topic.iterdir()):
                faults.add(f"made in the store: {topic}")


@contextlib.asynccontextmanager
async def _target(role: str, cluster: LocalCluster, network: TappedNetwork) -> Any:
    """Handlers, a maker of connections to them, and their Endpoint."""
    if role == "client":
        async with PushConsumer(
            cluster.nameserver_address, "hostile-group", subscriptions={VICTIM: "*"}, handler=lambda _: None
        ) as consumer:
            served: Mapping[int, Handler] = consumer._session.handlers
            endpoint = Endpoint(served)
            yield served, lambda: Connection(endpoint), endpoint
        return
    part: Any = cluster.broker() if role == "broker" else cluster.nameserver()
    address = cluster.broker_addresses[0] if role == "broker" else cluster.nameserver_addresses[0]
    server = part.ports.main if role == "broker" else part._server
    yield part.handlers, network.factories[int(address.rpartition(":")[2])], server._endpoint


async def _send(cluster: LocalCluster, bodies: list[bytes]) -> None:
    """A well-behaved peer sends one message to a topic of its own. Raises Fault."""
    ext = {"a": "good", "b": VICTIM, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
           "k": "false", "m": "false"}  # fmt: skip
    body = b"message %d" % len(bodies)
    reply = await _call(cluster, RemotingCommand(310, ext, body))
    for _ in range(SENDS_AGAIN_MAX):
        if reply.code != SYSTEM_BUSY:
            break
        await asyncio.sleep(0.2)  # the machine's disk is slow: that is said, and passes
        reply = await _call(cluster, RemotingCommand(310, ext, body))
    if reply.code != 0:
        raise Fault(f"a well-behaved producer was answered {reply.code}: {reply.remark}")
    bodies.append(body)


async def _look(cluster: LocalCluster, bodies: list[bytes], when: str, faults: FaultLog) -> None:
    """Whether the victim's queue has exactly what was sent to it."""
    found: list[bytes] = []
    while True:
        ext = {"consumerGroup": "good", "topic": VICTIM, "queueId": "0", "queueOffset": str(len(found)),
               "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}  # fmt: skip
        reply = await _call(cluster, RemotingCommand(11, ext))
        if reply.code != 0:
            break
        found += [record.body for record in decode_records(reply.body)]
    if found != bodies:
        faults.add(f"{when} the topic {VICTIM} has {len(found)} messages, {len(bodies)} were sent, or others")


async def _call(cluster: LocalCluster, request: RemotingCommand) -> RemotingCommand:
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*_host_port(cluster.broker_addresses[0]))
        writer.write(encode_frame(request))
        size = int.from_bytes(await reader.readexactly(4), "big")
        data = size.to_bytes(4, "big") + await reader.readexactly(size)
        writer.close()
    decoder = FrameDecoder()
    decoder.feed(data)
    reply = decoder.next_frame()
    assert reply is not None
    return reply


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def _collecting(faults: FaultLog) -> Iterator[None]:
    root = logging.getLogger()
    root.addHandler(faults)
    logging.getLogger("aerobee").setLevel(logging.ERROR)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: faults.add(f"{context.get('message')}: {context.get('exception')!r}")
    )
    try:
        yield
    finally:
        root.removeHandler(faults)


async def run(role: str, count: int, seed: int) -> dict[str, object]:
    """One role. Raises Fault; returns figures."""
    faults = FaultLog()
    started = time.monotonic()
    before = look_at(os.getpid()).anonymous_bytes
    with _collecting(faults):
        longest_s = await attack(role, random.Random(seed), count, faults)
    grown = look_at(os.getpid()).anonymous_bytes - before
    if grown > MEMORY_GROWTH_MAX_BYTES:
        faults.add(f"memory grew by {grown >> 20} MiB")
    if faults.faults:
        raise Fault(f"seed {seed}:\n" + "\n\n".join(faults.faults.values()))
    return {
        "role": role, "sequences": count, "seed": seed, "faults": 0, "longest_cpu_ms": round(longest_s * 1000),
        "grown_mib": grown >> 20, "seconds": round(time.monotonic() - started),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=[*ROLES, "all"], default="all")
    parser.add_argument("--count", type=int, default=1_000_000, help="sequences of each role")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    for role in ROLES if arguments.role == "all" else (arguments.role,):
        try:
            print(json.dumps(asyncio.run(run(role, arguments.count, arguments.seed))), flush=True)
        except Fault as fault:
            print(fault, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
