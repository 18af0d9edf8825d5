"""Server CPU and memory of gRPC clients: Aerobee's broker and RocketMQ 5.5.0's proxy in local mode, its broker in the same process.

    python bench/grpc.py [--servers aerobee,aerobee-python,rocketmq] [--rows send,receive,streams,idle] [--rounds 3]
        [--messages 20000] [--warm 300000] [--streams 5000] [--acks 1] [--write]

Rows: SendMessage of 128 B with 64 and with 1 in flight over one connection; ReceiveMessage of 32 with the acknowledgements that
follow (one AckMessage a message, as official clients send them; --acks 32: 32 of them in one); as many waiting ReceiveMessage
calls as --streams says, over 50 connections; the process without a client. CPU is that of the server's process, all
threads. Each server is warmed up by --warm sends before the first row: a JVM needs 300,000 of them until its figures stay.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aerobee.grpc.proto import messages as pb
from bench import results_file, servers
from bench.kinds.filter import Wire
from bench.load.grpc_wire import GrpcWire
from bench.load.server import process_cpu_s, sample_server
from bench.load.wire import LoadError
from bench.servers import Server

TOPIC, GROUP = "grpc-bench", "grpc-bench-group"
GROUPS = [
    GROUP,
    *(f"{GROUP}-{number}" for number in range(1, 10)),
]  # both products let at most 1,024 calls wait for one
QUEUES = 8
BODY = b"x" * 128
BATCH = 32
RECEIVES = 4  # ReceiveMessage calls in flight
CONNECTIONS = 50  # of the waiting calls
SETTLE_S = 3.0
IDLE_S = 6.0
RELEASES, WARM_RELEASES = 200, 64  # the first messages of a queue create its files
RECEIVED_WARM = 30_000  # messages that a JVM receives before its first row
CREATE_TOPIC, CREATE_GROUP = 17, 200
OK_CODE = pb.OK
RPCS = ("SendMessage", "ReceiveMessage", "AckMessage", "QueryAssignment", "Telemetry", "Heartbeat")


@dataclass(frozen=True)
class Target:
    """A started server: what is measured, and the ports of both protocols."""

    server: Server
    grpc_port: int

    @property
    def pid(self) -> int:
        return self.server.pids[-1]

    @property
    def cpu_s(self) -> float:
        return process_cpu_s(self.pid)

    @property
    def anonymous_mib(self) -> float:
        return sample_server([self.pid]).anon_mb

    def wire(self, client_id: str = "bench@1@0@load") -> GrpcWire:
        made = GrpcWire(("127.0.0.1", self.grpc_port), client_id)
        made.prepare(*RPCS)
        return made


@contextmanager
def aerobee(environment: dict[str, str] | None = None, *, is_served: bool = True) -> Iterator[Target]:
    """A broker with grpcServerPort, or one without it."""
    port = servers.broker_ports(3)[-1]  # aerobee() takes the first two
    extra = {"grpcServerPort": str(port)} if is_served else {}
    with servers.aerobee(extra={**servers.PATIENT, **extra}, environment=environment) as server:
        yield Target(server, port if is_served else server.port)


@contextmanager
def rocketmq() -> Iterator[Target]:
    with servers.rocketmq_local_proxy(extra=servers.PATIENT) as (server, port):
        yield Target(server, port)


SERVERS: dict[str, Callable[[], Any]] = {
    "aerobee": aerobee,
    "aerobee-python": lambda: aerobee({"AEROBEE_FAST_PATH": "python"}),
    "rocketmq": rocketmq,
}


def create(target: Target) -> None:
    """The topic, and the groups that local mode wants to know before."""
    wire = Wire(("127.0.0.1", target.server.port))
    ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
           "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
           "attributes": "+message.type=NORMAL"}  # fmt: skip
    group = {"consumeEnable": True, "consumeBroadcastEnable": True, "retryQueueNums": 1, "retryMaxTimes": 16, "brokerId": 0,
             "whichBrokerWhenConsumeSlowly": 1}  # fmt: skip
    bodies = [json.dumps({"groupName": name, **group}).encode() for name in GROUPS]
    for code, fields, body in ((CREATE_TOPIC, ext, b""), *((CREATE_GROUP, {}, body) for body in bodies)):
        _, answer, remark = wire.call(code, fields, body)
        if answer != 0:
            raise LoadError(f"request {code} is refused: {answer} {remark!r}")


# --- what clients send


def send_request(number: int) -> bytes:
    """A NORMAL message as the Java client 5.2.0 sends it."""
    now = time.time()
    system = pb.SystemProperties(
        message_id=f"01{number:032X}", message_type=pb.NORMAL, body_encoding=pb.IDENTITY,
        born_host="client-host", queue_id=number % QUEUES,
        body_digest=pb.Digest(type=pb.CRC32, checksum="5CB1E0F5"),
    )  # fmt: skip
    system.born_timestamp.seconds, system.born_timestamp.nanos = int(now), 123_000_000
    message = pb.Message(topic=pb.Resource(name=TOPIC), system_properties=system, body=BODY)
    return bytes(pb.SendMessageRequest(messages=[message]).SerializeToString())


def check_sent(data: bytes) -> None:
    response = pb.SendMessageResponse.FromString(data)
    if response.status.code != OK_CODE:
        raise LoadError(f"SendMessage is refused: {response.status}")


def send(wire: GrpcWire, count: int, in_flight: int) -> None:
    """Send `count` messages; every 50th response is read, the others are looked at."""
    sent = done = 0
    request = send_request(0)
    before, after = request.split(b"01" + b"0" * 32)
    while done < count:
        while sent < count and sent - done < in_flight:
            wire.call("SendMessage", before + b"01%032X" % sent + after, 3)
            sent += 1
        wire.flush()
        for answer in wire.wait():
            for response in answer.messages:
                if done % 50 == 0 or b"OK" not in response:
                    check_sent(response)
            done += answer.is_over


def consumer(target: Target, number: int = 0, group_name: str = GROUP) -> tuple[GrpcWire, list[Any]]:
    """A simple consumer whose settings the server knows, and the queues that it is assigned."""
    wire = target.wire(f"bench@1@{number}@consumer")
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=target.grpc_port)])
    topic, group = pb.Resource(name=TOPIC), pb.Resource(name=group_name)
    settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER, access_point=endpoints)
    settings.subscription.group.CopyFrom(group)
    entry = settings.subscription.subscriptions.add()
    entry.topic.CopyFrom(topic)
    entry.expression.CopyFrom(pb.FilterExpression(type=pb.TAG, expression="*"))
    settings.subscription.long_polling_timeout.seconds = 30
    settings.user_agent.CopyFrom(pb.UA(language=pb.JAVA, version="5.2.0"))
    command = pb.TelemetryCommand(settings=settings)
    wire.call("Telemetry", command.SerializeToString(), 86_400, ends=False)
    wire.flush()
    while not any(answer.messages for answer in wire.wait()):
        pass
    beat = pb.HeartbeatRequest(group=group, client_type=pb.SIMPLE_CONSUMER)
    wire.unary("Heartbeat", beat.SerializeToString())
    request = pb.QueryAssignmentRequest(topic=topic, group=group, endpoints=endpoints)
    response = pb.QueryAssignmentResponse.FromString(
        wire.unary("QueryAssignment", request.SerializeToString())
    )
    if response.status.code != OK_CODE:
        raise LoadError(f"QueryAssignment is refused: {response.status}")
    return wire, [each.message_queue for each in response.assignments]


def receive_request(queue: Any, poll_s: int, group_name: str = GROUP) -> bytes:
    request = pb.ReceiveMessageRequest(
        group=pb.Resource(name=group_name), message_queue=queue, batch_size=BATCH,
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
    )  # fmt: skip
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = poll_s
    return bytes(request.SerializeToString())


def ack_request(handles: list[tuple[str, str]]) -> bytes:
    entries = [pb.AckMessageEntry(message_id=each, receipt_handle=handle) for each, handle in handles]
    request = pb.AckMessageRequest(
        group=pb.Resource(name=GROUP), topic=pb.Resource(name=TOPIC), entries=entries
    )
    return bytes(request.SerializeToString())


# --- rows


def cpu_of(target: Target, count: int, work: Callable[[], None]) -> float:
    """Microseconds of the server's CPU a message."""
    before = target.cpu_s
    work()
    return (target.cpu_s - before) / count * 1e6


def send_rows(target: Target, options: argparse.Namespace) -> dict[str, list[float]]:
    wire = target.wire()
    send(wire, 64, 64)
    found: dict[str, list[float]] = {"send, 64 in flight": [], "send, 1 in flight": []}
    for _ in range(options.rounds):
        for in_flight, count in ((64, options.messages), (1, options.messages // 4)):
            key = f"send, {in_flight} in flight"
            found[key].append(cpu_of(target, count, lambda: send(wire, count, in_flight)))  # noqa: B023
    wire.close()
    return found


def receive_rows(target: Target, options: argparse.Namespace) -> dict[str, list[float]]:
    producer = target.wire()
    wire, queues = consumer(target)
    drain(wire, queues, options.acks)
    taken: list[float] = []
    for _ in range(options.rounds):
        send(producer, options.messages // 2, 64)
        before, count = target.cpu_s, drain(wire, queues, options.acks)
        taken.append((target.cpu_s - before) / max(1, count) * 1e6)
    producer.close()
    wire.close()
    return {f"receive of {BATCH}, acks of {options.acks}": taken}


def drain(wire: GrpcWire, queues: list[Any], acks: int) -> int:
    """Receive and acknowledge until nothing comes; returns how many messages."""
    receiving: dict[int, Any] = {}
    got: dict[int, int] = {}
    acking: set[int] = set()
    handles: list[tuple[str, str]] = []
    count, empty = 0, 0
    while receiving or acking or empty < 2 * RECEIVES:
        while empty < 2 * RECEIVES and len(receiving) < RECEIVES:
            queue = queues[(count + empty + len(receiving)) % len(queues)]
            stream = wire.call("ReceiveMessage", receive_request(queue, 1))
            receiving[stream], got[stream] = queue, 0
        while handles and (len(handles) >= acks or not receiving):
            acking.add(wire.call("AckMessage", ack_request(handles[:acks])))
            del handles[:acks]
        wire.flush()
        for answer in wire.wait():
            if answer.stream_id in acking:
                for data in answer.messages:
                    response = pb.AckMessageResponse.FromString(data)
                    if response.status.code != OK_CODE:
                        raise LoadError(f"AckMessage is refused: {response.status}")
            for data in answer.messages if answer.stream_id in receiving else ():
                message = pb.ReceiveMessageResponse.FromString(data).message
                if message.body:
                    system = message.system_properties
                    handles.append((system.message_id, system.receipt_handle))
                    got[answer.stream_id] += 1
            if answer.is_over:
                acking.discard(answer.stream_id)
                if receiving.pop(answer.stream_id, None) is not None:
                    found = got.pop(answer.stream_id)
                    count += found
                    empty = 0 if found else empty + 1
    return count


def stream_rows(target: Target, options: argparse.Namespace) -> dict[str, list[float]]:
    """Memory and CPU of waiting calls, and how long a message takes to one of them."""
    producer = target.wire()
    made = [consumer(target, number, GROUPS[number % len(GROUPS)]) for number in range(CONNECTIONS)]
    wires, (queue, *_) = [wire for wire, _ in made], made[0][1]
    time.sleep(SETTLE_S)
    before = target.anonymous_mib
    for number in range(options.streams):
        group = GROUPS[number % CONNECTIONS % len(GROUPS)]
        wires[number % CONNECTIONS].call("ReceiveMessage", receive_request(queue, 20, group), 3_600)
    for wire in wires:
        wire.flush()
    time.sleep(SETTLE_S)
    taken = (target.anonymous_mib - before) * 1024 / options.streams
    began, cpu = time.monotonic(), target.cpu_s
    time.sleep(IDLE_S)
    share = (target.cpu_s - cpu) / (time.monotonic() - began) * 100
    for _ in range(WARM_RELEASES):
        release(producer, wires)
    late, taken_ms = [], []
    for _ in range(RELEASES):
        cpu = target.cpu_s
        late.append(release(producer, wires))
        taken_ms.append((target.cpu_s - cpu) * 1e3)
    for wire in (producer, *wires):
        wire.close()
    return {
        "waiting call, KiB": [taken],
        "waiting calls, % of a core": [share],
        "release, median ms": [statistics.median(late)],
        "release, p99 ms": [statistics.quantiles(late, n=100)[98]],
        "release, median ms of CPU": [statistics.median(taken_ms)],
        "release, p99 ms of CPU": [statistics.quantiles(taken_ms, n=100)[98]],
    }


def release(producer: GrpcWire, wires: list[GrpcWire]) -> float:
    """Milliseconds from a send until each group has got the message at one of its waiting calls."""
    by_number = {wire.fileno(): wire for wire in wires}
    began, count = time.monotonic(), 0
    producer.call("SendMessage", send_request(int(began * 1e6)), 3)
    producer.flush()
    while count < len(GROUPS):
        ready, _, _ = select.select(list(by_number), [], [], 30)
        if not ready:
            raise LoadError(f"a message came to {count} groups of {len(GROUPS)} within 30 s")
        for number in ready:
            for answer in by_number[number].wait():
                for data in answer.messages:
                    response = pb.ReceiveMessageResponse.FromString(data)
                    count += response.HasField("message")
                    if response.status.code not in (0, OK_CODE):
                        raise LoadError(f"a waiting call ends: {response.status}")
    took = (time.monotonic() - began) * 1e3
    producer.wait_one()
    return took


def idle_rows(name: str) -> dict[str, list[float]]:
    """Memory of a started process that has served one remoting request: with gRPC, and without."""
    found = []
    for is_served in (True, False):
        context = aerobee(is_served=is_served) if name == "aerobee" else SERVERS[name]()
        with context as target:
            create(target)
            time.sleep(SETTLE_S)
            found.append(target.anonymous_mib)
        if name != "aerobee":
            return {"idle process, MiB": found}
    return {"idle process, MiB": found[:1], "idle process without gRPC, MiB": found[1:]}


ROWS = {"send": send_rows, "receive": receive_rows, "streams": stream_rows}


def measure(name: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Every row of one server."""
    found: dict[str, list[float]] = {}
    # Waiting calls get a separate process: in one that has worked they would fill memory that is free already.
    for rows in ([row for row in options.rows if row in ("send", "receive")], ["streams"]):
        wanted = [row for row in rows if row in options.rows]
        if not wanted:
            continue
        with SERVERS[name]() as target:
            create(target)
            if wanted != ["streams"]:
                warm(target, options)
            for row in wanted:
                try:
                    found |= ROWS[row](target, options)
                except (LoadError, OSError) as error:  # the other rows are measured nevertheless
                    print(f"{name}: {row}: {error}", file=sys.stderr, flush=True)
                print(f"{name}: {found}", file=sys.stderr, flush=True)
    if "idle" in options.rows and name != "aerobee-python":
        found |= idle_rows(name)
    return found


def warm(target: Target, options: argparse.Namespace) -> None:
    """Send with 64 in flight, and receive what was sent, until compilers have nothing left to do."""
    is_java = "java" in Path(f"/proc/{target.pid}/cmdline").read_text()
    wire = target.wire()
    send(wire, options.warm if is_java else options.warm // 30, 64)
    if "receive" in options.rows:
        received, queues = consumer(target)
        drain(received, queues, options.acks)  # the group begins with what is sent from here on
        send(wire, min(RECEIVED_WARM, options.warm) if is_java else BATCH, 64)
        drain(received, queues, options.acks)
        received.close()
    wire.close()


def table(results: dict[str, dict[str, list[float]]]) -> Iterator[str]:
    """The rows as Markdown, with what is Aerobee's to RocketMQ's."""
    names = list(results)
    yield "| | " + " | ".join([*names, "aerobee / rocketmq"]) + " |"
    yield "|---|" + "---|" * (len(names) + 1)
    rows = dict.fromkeys(row for found in results.values() for row in found)
    for row in rows:
        values = [statistics.median(results[name][row]) if row in results[name] else None for name in names]
        by_name = dict(zip(names, values, strict=True))
        ours, theirs = by_name.get("aerobee"), by_name.get("rocketmq")
        ratio = f"{ours / theirs:.3f}" if ours is not None and theirs else ""
        cells = ["" if value is None else f"{value:.2f}" for value in values]
        yield "| " + " | ".join([row, *cells, ratio]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--servers", type=listed, default=["aerobee", "aerobee-python", "rocketmq"])
    parser.add_argument("--rows", type=listed, default=["send", "receive", "streams", "idle"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000, help="of a round")
    parser.add_argument(
        "--warm", type=int, default=300_000, help="sends before the first row; 1/30 of them without a JVM"
    )
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--acks", type=int, default=1, help="acknowledgements of one AckMessage")
    parser.add_argument("--write", action="store_true", help="write bench/results/grpc.json")
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for name in options.servers:
        results[name] = measure(name, options)
        if options.write:  # after each server: a later one that fails takes nothing along
            results_file.write("grpc", results)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
