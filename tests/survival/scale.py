"""Very many of a thing at one broker: what each costs, and whether the others notice.

    python tests/survival/scale.py connections [--count 10000]
    python tests/survival/scale.py polls [--count 2000]
    python tests/survival/scale.py topics [--count 5000] [--queues 8]
    python tests/survival/scale.py backlog [--messages 20000000] [--rounds 3]

connections: memory of the broker for each that is open, and for each that sends heartbeats; what a producer among them waits.
polls: long polls that are parked at their own queues, and the time from a send to the answer of the poll that waits for
it; then all of them at one queue, and one message for all.
topics: time to make them, memory, start-up with them, size of the registration at a nameserver.
backlog: end to end latency of a producer and a long-polling consumer at the head of a queue, alone and while another
consumer reads the same queues from the beginning. The broker is started again before each round, and the page cache of its
files dropped, so that the backlog is read from the disk. Needs 1.3 KB of disk a message (AEROBEE_BENCH_DIR says where)
and leaves 20 GB of it free.

Each starts its own servers on loopback (--server rocketmq: of RocketMQ, except for topics), prints JSON and ends with status 1 when a
promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(Path(__file__).resolve().parent)]

import compare  # noqa: E402
import servers  # noqa: E402
from process_figures import ProcessFigures, look_at  # noqa: E402
from wire_load import WirePeer, connect, pull_request, request, send_request  # noqa: E402

from aerobee.remoting.codes import RequestCode, ResponseCode  # noqa: E402
from aerobee.remoting.frame import decode_frame  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

DEFAULT_COUNTS = {"connections": 10_000, "polls": 2_000, "topics": 5_000, "backlog": 20_000_000}
STEP_TIMEOUT_S = 120.0
SPARE_HANDLES = 64  # besides the connections, in this process and in the broker
PROBE_SENDS = 300
PROBE_HANDLES = 2
IDLE_LOOK_S = 5.0
POLL_HOLD_S = 110.0
POLL_OPAQUE, FENCE_OPAQUE = 1, 2
BUSY_PAUSE_S = 0.2
RELEASES_PER_S = 200.0
ROCKETMQ_PULL_WAIT_S = 6.0  # its waitTimeMillsInPullQueue is 5 s: until then a poll may be refused
TOPICS_AT_ONCE = 32
BACKLOG_TOPIC, BACKLOG_QUEUES = "backlog", 4
BACKLOG_BODY_BYTES = 1024
BACKLOG_MESSAGE_BYTES = 1300  # body, record head, properties, queue entry, rounded up
DISK_LEFT_MIN_BYTES = 20 << 30
DISK_SMALL_BYTES = 1 << 30  # what is requested without a look at what is left
HEAD_TRIES = 5
HEAD_RATE = 500  # messages a second
HEAD_P99_GROWTH_MAX = 1.5


class Fault(Exception):
    """A promise was broken."""


class HeadDelayed(Fault):
    """The reader at the head noticed the one at the beginning."""

    def __init__(self, figures: dict[str, Any]) -> None:
        super().__init__(f"the head's p99 moved {figures['head_p99_growth']}-fold: {json.dumps(figures)}")
        self.figures = figures


def percentiles_ms(waits_s: list[float]) -> dict[str, float]:
    ordered = sorted(waits_s)
    return {
        name: round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


class Caller:
    """One connection for one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._peer: WirePeer | None = None

    async def connect(self, port: int) -> Caller:
        (self._peer,) = await connect(port, self._answered)
        return self

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    async def call(self, frame: bytes) -> bytes:
        """The reply's frame. Raises Fault when its code is not 0; a request to a busy broker is repeated."""
        assert self._peer is not None
        until = time.monotonic() + STEP_TIMEOUT_S
        while True:
            self._answer = asyncio.get_running_loop().create_future()
            self._peer.send(frame)
            async with asyncio.timeout(STEP_TIMEOUT_S):
                answer = await self._answer
            reply = decode_frame(answer)
            if reply.code == 0:
                return answer
            if reply.code != ResponseCode.SYSTEM_BUSY or time.monotonic() > until:
                raise Fault(f"code {reply.code}: {reply.remark}")
            await asyncio.sleep(BUSY_PAUSE_S)

    def close(self) -> None:
        if self._peer is not None and self._peer.transport is not None:
            self._peer.transport.abort()


async def probe(port: int) -> dict[str, float]:
    """What a producer with one message in flight waits."""
    caller = await Caller().connect(port)
    frame = send_request("probe", b"x" * 128)
    await caller.call(frame)
    waits_s = []
    for _ in range(PROBE_SENDS):
        at = time.perf_counter()
        await caller.call(frame)
        waits_s.append(time.perf_counter() - at)
    caller.close()
    return percentiles_ms(waits_s)


def close_all(peers: list[WirePeer]) -> None:
    for peer in peers:
        if peer.transport is not None:
            peer.transport.abort()


def per_one(after: ProcessFigures, before: ProcessFigures, count: int) -> int:
    """Bytes of the broker's own memory for one of `count` things."""
    return round((after.anonymous_bytes - before.anonymous_bytes) / count)


# --- connections


async def idle_connections(server: servers.Server, count: int) -> dict[str, Any]:
    """Raises Fault; returns figures. Memory is the broker's own (RssAnon); the kernel's buffers are not in it."""
    pid = server.pids[-1]
    alone = await probe(server.port)
    before = look_at(pid)
    answered = 0

    def on_reply(peer: WirePeer, code: int, frame: bytes) -> None:
        nonlocal answered
        answered += code == 0

    peers = await connect(server.port, on_reply, at_once=count)
    try:
        # The probe's own connection may have been closed since the first look.
        await wait_until(
            lambda: look_at(pid).handles >= before.handles + count - PROBE_HANDLES,
            f"{count} connections",
            timeout_s=STEP_TIMEOUT_S,
        )
        opened = look_at(pid)
        for number, peer in enumerate(peers):
            client = {"clientID": f"127.0.0.1@{number}", "producerDataSet": [{"groupName": "idle"}]}
            body = json.dumps({**client, "consumerDataSet": []}).encode()
            peer.send(request(RequestCode.HEART_BEAT, {}, body))
            if number % 100 == 99:
                await asyncio.sleep(0)
        await wait_until(
            lambda: answered >= count,
            f"{count} heartbeats answered, {answered} were",
            timeout_s=STEP_TIMEOUT_S,
        )
        greeted = look_at(pid)
        among_them = await probe(server.port)
        cpu_s = look_at(pid).cpu_s
        await asyncio.sleep(IDLE_LOOK_S if count >= 1000 else 0.0)
        idle_cpu_s = look_at(pid).cpu_s - cpu_s
        if any(peer.is_lost for peer in peers):
            raise Fault("a connection was closed")
    finally:
        close_all(peers)
    await wait_until(
        lambda: look_at(pid).handles <= before.handles + SPARE_HANDLES // 8,
        "handles given back",
        timeout_s=STEP_TIMEOUT_S,
    )
    after = await probe(server.port)
    return {
        "server": server.name,
        "connections": count,
        "bytes_per_open_connection": per_one(opened, before, count),
        "bytes_per_connection_with_heartbeat": per_one(greeted, before, count),
        "broker_mib": round(greeted.anonymous_bytes / 2**20, 1),
        "broker_mib_before": round(before.anonymous_bytes / 2**20, 1),
        "broker_mib_after": round(look_at(pid).anonymous_bytes / 2**20, 1),
        "idle_cpu_share": round(idle_cpu_s / IDLE_LOOK_S, 4),
        "send_ms_alone": alone,
        "send_ms_among_them": among_them,
        "send_ms_afterwards": after,
    }


# --- parked long polls


class Polls:
    """One connection and one parked pull for each queue, and the moments of their answers."""

    def __init__(self, port: int, *, quiet_s: float = 0.0) -> None:
        """A broker may answer for so long that it is too busy for a poll; such a one is repeated, as clients do."""
        self.answers: dict[int, float] = {}  # number of the poll -> seconds on the clock
        self._port = port
        self._quiet_s = quiet_s
        self._frames: dict[WirePeer, bytes] = {}
        self._refused_at = 0.0
        self._peers: list[WirePeer] = []
        self._numbers: dict[WirePeer, int] = {}
        self._fenced: set[WirePeer] = set()

    async def open(self, count: int) -> None:
        self._peers = await connect(self._port, self._answered, at_once=count)
        self._numbers = {peer: number for number, peer in enumerate(self._peers)}

    async def park(self, position_of: Callable[[int], tuple[str, int, int]]) -> None:
        """Poll `place(number)`: topic, queue, offset. A request behind each poll is answered when the poll was looked at."""
        self.answers.clear()
        self._fenced.clear()
        for number, peer in enumerate(self._peers):
            topic, queue_id, offset = position_of(number)
            group = f"group-{number}"
            fence = {"topic": topic, "queueId": str(queue_id)}
            self._frames[peer] = pull_request(topic, queue_id, offset, hold_s=POLL_HOLD_S, group=group)
            peer.send(self._frames[peer] + request(RequestCode.GET_MAX_OFFSET, fence, opaque=FENCE_OPAQUE))
            if number % 100 == 99:
                await asyncio.sleep(0)
        await wait_until(
            lambda: len(self._fenced) == len(self._peers),
            "every poll was looked at",
            timeout_s=STEP_TIMEOUT_S,
        )
        self._refused_at = time.perf_counter()
        await wait_until(
            lambda: time.perf_counter() - self._refused_at >= self._quiet_s,
            "no poll refused",
            timeout_s=STEP_TIMEOUT_S,
        )
        if self.answers:
            raise Fault(f"{len(self.answers)} polls were answered although there is no message")

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        reply = decode_frame(frame)
        if reply.opaque == FENCE_OPAQUE:
            self._fenced.add(peer)
        elif code == 0:
            self.answers[self._numbers[peer]] = time.perf_counter()
        elif code == ResponseCode.SYSTEM_BUSY:
            self._refused_at = time.perf_counter()
            peer.send(self._frames[peer])
        else:
            raise Fault(f"poll {self._numbers[peer]}: code {code}: {reply.remark}")

    def close(self) -> None:
        close_all(self._peers)


async def parked_polls(server: servers.Server, count: int) -> dict[str, Any]:
    """Raises Fault; returns figures."""
    pid = server.pids[-1]
    queues = 8
    caller = await Caller().connect(server.port)
    topics = [f"polls-{number}" for number in range(-(-count // queues))]
    await make_topics(server.port, topics, queues)
    sender = await Caller().connect(server.port)
    for topic in topics:  # a pull at an offset that is yet to come is parked only where there is a queue
        for queue_id in range(queues):
            await sender.call(send_request(topic, b"first", queue_id))
    await asyncio.sleep(
        0.5 if server.name == "rocketmq" else 0.0
    )  # its queues are built by a thread behind the log
    polls = Polls(server.port, quiet_s=ROCKETMQ_PULL_WAIT_S if server.name == "rocketmq" else 0.0)
    before = look_at(pid)
    try:
        await polls.open(count)
        await polls.park(lambda number: (topics[number // queues], number % queues, 1))
        parked = look_at(pid)
        sent_at: list[float] = []
        acks_s: list[float] = []
        for number in range(count):
            due = asyncio.get_running_loop().time() + 1 / RELEASES_PER_S
            sent_at.append(time.perf_counter())
            await sender.call(send_request(topics[number // queues], b"x" * 128, number % queues))
            acks_s.append(time.perf_counter() - sent_at[-1])
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        await wait_until(
            lambda: len(polls.answers) == count, "a message for each poll", timeout_s=STEP_TIMEOUT_S
        )
        releases_s = [polls.answers[number] - sent_at[number] for number in range(count)]

        await polls.park(lambda number: (topics[0], 0, 2))
        at = time.perf_counter()
        await sender.call(send_request(topics[0], b"x" * 128, 0))
        await wait_until(
            lambda: len(polls.answers) == count, "one message for all polls", timeout_s=STEP_TIMEOUT_S
        )
        for_all_s = [answer - at for answer in polls.answers.values()]
    finally:
        polls.close()
        caller.close()
        sender.close()
    return {
        "server": server.name,
        "polls": count,
        "bytes_per_connection_and_poll": per_one(parked, before, count),
        "send_acknowledged_ms": percentiles_ms(acks_s),
        "send_to_released_ms": percentiles_ms(releases_s),
        "one_message_for_all_ms": percentiles_ms(for_all_s),
    }


async def make_topics(port: int, topics: list[str], queues: int) -> None:
    """Create them, some together. Raises Fault."""
    left = iter(topics)

    async def work() -> None:
        caller = await Caller().connect(port)
        for topic in left:
            ext = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
                "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            await caller.call(request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))
        caller.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TOPICS_AT_ONCE):
            tasks.create_task(work())


# --- topics


class RegistrationScale:
    """Listens as a nameserver does, accepts every registration and weighs it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: WirePeer(self._asked), "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def _asked(self, peer: WirePeer, code: int, frame: bytes) -> None:
        asked = decode_frame(frame)
        if asked.code == RequestCode.REGISTER_BROKER:
            self.sizes.append(len(frame))
        fields = {"code": 0, "flag": 1, "language": "JAVA", "opaque": asked.opaque, "version": 479}
        header = json.dumps(fields).encode()
        peer.send(struct.pack(">II", 4 + len(header), len(header)) + header)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()


async def many_topics(server: servers.Server, count: int, queues: int) -> dict[str, Any]:
    """Raises Fault; returns figures."""
    nameserver_pid, broker_pid = server.pids
    before, nameserver_before = look_at(broker_pid), look_at(nameserver_pid)
    topics = [f"topic-{number:05d}" for number in range(count)]
    started = time.monotonic()
    await make_topics(server.port, topics, queues)
    made_s = time.monotonic() - started
    await routed(server.nameserver_port, topics)
    routed_s = time.monotonic() - started
    sender = await Caller().connect(server.port)
    for topic in topics[:: max(1, count // 100)]:
        await sender.call(send_request(topic, b"x" * 128, queues - 1))
    sender.close()
    grown, nameserver_grown = look_at(broker_pid), look_at(nameserver_pid)

    weighing = RegistrationScale()
    port = await weighing.start()
    broker = server.processes[-1]
    command = [str(part) for part in broker.args]  # type: ignore[union-attr]
    command[-1] += f";127.0.0.1:{port}"
    broker.terminate()
    await asyncio.to_thread(broker.wait, servers.STOP_TIMEOUT_S)
    server.processes.pop()
    started = time.monotonic()
    server.spawn(command, "broker.log", server.environment)
    await asyncio.to_thread(server.wait_for_port, server.port, "broker.log")
    listening_s = time.monotonic() - started
    broker_pid = server.pids[-1]
    await wait_until(lambda: bool(weighing.sizes), "a registration", timeout_s=STEP_TIMEOUT_S)
    registered_s = time.monotonic() - started
    restarted = look_at(broker_pid)
    sender = await Caller().connect(server.port)
    await sender.call(send_request(topics[-1], b"x" * 128, queues - 1))
    sender.close()
    await weighing.stop()
    return {
        "topics": count,
        "queues": queues,
        "made_s": round(made_s, 2),
        "made_and_routed_s": round(routed_s, 2),
        "start_to_listening_s": round(listening_s, 2),
        "start_to_registered_s": round(registered_s, 2),
        "start_cpu_s": round(restarted.cpu_s, 2),
        "registration_bytes": max(weighing.sizes),
        "broker_mib_empty": round(before.anonymous_bytes / 2**20, 1),
        "broker_mib": round(grown.anonymous_bytes / 2**20, 1),
        "broker_mib_after_restart": round(restarted.anonymous_bytes / 2**20, 1),
        "broker_bytes_per_topic": per_one(restarted, before, count),
        "nameserver_mib_empty": round(nameserver_before.anonymous_bytes / 2**20, 1),
        "nameserver_mib": round(nameserver_grown.anonymous_bytes / 2**20, 1),
        "nameserver_bytes_per_topic": per_one(nameserver_grown, nameserver_before, count),
    }


async def routed(nameserver_port: int, topics: list[str]) -> None:
    """Return when the nameserver has all of them. Raises Fault."""
    caller = await Caller().connect(nameserver_port)
    until = time.monotonic() + STEP_TIMEOUT_S
    while True:
        answer = decode_frame(await caller.call(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})))
        missing = set(topics) - set(json.loads(answer.body)["topicList"])
        if not missing:
            return caller.close()
        if time.monotonic() > until:
            raise Fault(f"{len(missing)} topics have no route, {min(missing)} for one")
        await asyncio.sleep(0.1)


# --- backlog


def head_latency(head: tuple[str, ...]) -> dict[str, float]:
    """End to end latency at the head, ms. Raises compare.LoadFailed.

    The load generator gives up at the first refusal; on a disk that others keep busy for seconds the broker does refuse.
    """
    for tries_left in reversed(range(HEAD_TRIES)):
        try:
            latency: dict[str, float] = compare.run_load("rmqload.py", "e2e", *head)["e2e_latency_ms"]
            return latency
        except compare.LoadFailed as failed:
            if "[OVERLOAD]" not in str(failed) or not tries_left:
                raise
            note(f"once more: {failed}")
            time.sleep(1)
    raise AssertionError("unreachable")


def backlog(server: servers.Server, *, messages: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Raises Fault; returns figures."""
    store = server.directory / "store"
    where = ("--broker", server.address, "--topic", BACKLOG_TOPIC, "--queues", str(BACKLOG_QUEUES))
    size = ("--size", str(BACKLOG_BODY_BYTES))
    filling = ("--count", str(messages), "--connections", "2", "--in-flight", "4", "--batch", "64")
    filled = compare.run_load("rmqload.py", "send", *where, *size, *filling)
    note(f"filled: {filled['msg_per_s']:.0f} messages a second")
    head = (
        *where,
        "--no-create",
        *size,
        "--rate",
        str(HEAD_RATE),
        "--duration",
        str(seconds),
        "--warmup",
        "1",
    )
    reading = ("--no-crc", "--json", "--duration", str(seconds + 3))
    alone, concurrent, read, from_disk = [], [], [], []
    for number in range(rounds):
        start_cold(server, store)
        alone.append(head_latency(head))
        disk_before = disk_reads(server.pids[-1])
        # Niced: on a machine of few cores the reader's own work would delay the clients whose latency is taken.
        reader = subprocess.Popen(
            ["nice", "-n", "10", sys.executable, str(BENCH / "rmqload.py"), "pull", *where, *reading],
            stdout=subprocess.PIPE,
        )
        try:
            concurrent.append(head_latency(head))
            output, _ = reader.communicate(timeout=STEP_TIMEOUT_S)
        finally:
            reader.kill()
        if reader.returncode:
            raise Fault("the reader of the backlog failed")
        read.append(json.loads(output.splitlines()[-1])["msg_per_s"])
        from_disk.append(disk_reads(server.pids[-1]) - disk_before)
        note(
            f"round {number + 1}: alone {alone[-1]}, with a cold reader {concurrent[-1]}, {read[-1]:.0f}/s, {from_disk[-1] >> 20} MiB read"
        )
    figures = {
        "server": server.name,
        "messages": messages,
        "store_gib": round(
            sum(file.stat().st_blocks * 512 for file in store.rglob("*") if file.is_file()) / 2**30, 2
        ),
        "rounds": rounds,
        "head_rate": HEAD_RATE,
        "head_alone_ms": median_latency(alone),
        "head_beside_cold_reader_ms": median_latency(concurrent),
        "backlog_read_messages_per_s": round(statistics.median(read)),
        "read_from_disk_mib": round(statistics.median(from_disk) / 2**20),
    }
    p99_alone, p99_concurrent = figures["head_alone_ms"]["p99"], figures["head_beside_cold_reader_ms"]["p99"]
    figures["head_p99_growth"] = round(p99_concurrent / p99_alone, 2)
    if p99_concurrent > p99_alone * HEAD_P99_GROWTH_MAX:
        raise HeadDelayed(figures)
    return figures


def start_cold(server: servers.Server, store: Path) -> None:
    """Stop the broker, drop the pages of its files from the cache, start it. A clean stop: no recovery."""
    broker = server.processes.pop()
    broker.terminate()
    broker.wait(servers.STOP_TIMEOUT_S)
    for file in store.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())  # pages that are not on the disk yet would stay
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    server.spawn([str(part) for part in broker.args], "broker.log", server.environment)  # type: ignore[union-attr]
    server.wait_for_port(server.port, "broker.log")


def disk_reads(pid: int) -> int:
    """Bytes that a process had read from the disk, page faults of mapped files too."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["read_bytes"])


def median_latency(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in ("p50", "p99")}


def check_disk(messages: int) -> None:
    """Raises Fault when the backlog would leave too little."""
    directory = os.environ.get("AEROBEE_BENCH_DIR", "/tmp")
    needed, free = messages * BACKLOG_MESSAGE_BYTES, shutil.disk_usage(directory).free
    if needed > DISK_SMALL_BYTES and free - needed < DISK_LEFT_MIN_BYTES:
        raise Fault(
            f"{messages} messages need {needed >> 30} GiB, {directory} has {free >> 30} and keeps "
            f"{DISK_LEFT_MIN_BYTES >> 30}: give --messages, or another directory in AEROBEE_BENCH_DIR"
        )


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_handles(count: int) -> None:
    """Raises Fault when this process, and the broker that it starts, may not open so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 16 * SPARE_HANDLES
    if soft < wanted:
        if hard < wanted:
            raise Fault(
                f"{count} connections need {wanted} file handles, this process may have {hard}: raise ulimit -n"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def run(
    what: str, server_name: str, *, count: int, queues: int, rounds: int, seconds: float
) -> dict[str, Any]:
    """One of the four, with its own servers. Raises Fault, ServerFailed."""
    if what == "backlog":
        check_disk(count)
    else:
        check_handles(count if what != "topics" else 0)
    with getattr(servers, server_name.replace("-", "_"))() as server:
        if what == "connections":
            return asyncio.run(idle_connections(server, count))
        if what == "polls":
            return asyncio.run(parked_polls(server, count))
        if what == "topics":
            return asyncio.run(many_topics(server, count, queues))
        return backlog(server, messages=count, rounds=rounds, seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=tuple(DEFAULT_COUNTS))
    parser.add_argument(
        "--count", "--messages", type=int, help="how many connections, polls, topics or messages"
    )
    parser.add_argument("--queues", type=int, default=8, help="topics: queues of each")
    parser.add_argument("--rounds", type=int, default=3, help="backlog: the median is reported")
    parser.add_argument("--seconds", type=float, default=10.0, help="backlog: length of each measurement")
    parser.add_argument("--server", default="aerobee", choices=("aerobee", "aerobee-python", "rocketmq"))
    options = parser.parse_args()
    try:
        figures = run(
            options.what,
            options.server,
            count=options.count or DEFAULT_COUNTS[options.what],
            queues=options.queues,
            rounds=options.rounds,
            seconds=options.seconds,
        )
    except (Fault, servers.ServerFailed, compare.LoadFailed) as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
