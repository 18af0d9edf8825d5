"""SendMessage of gRPC by both backends compared: brokers with the same topics answer and store the same requests alike.

    python tests/fuzz/grpc_differential.py [--requests 1000000] [--seconds 60] [--seed 1]

A round is one read of a connection with up to eight requests, ordinary, odd and damaged ones (grpc_sends.py), given to a broker with the
native backend, whose HTTP/2 core and fast path parse and store what they can, and to one with the Python backend. After
each round the answers of each call and the stored messages have to be equal. No sockets: bytes go to the sessions.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import struct
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hpack import Encoder

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, VARIABLE
from aerobee.grpc.frame_scanner import DATA, PREFACE, SETTINGS, WINDOW_UPDATE
from aerobee.grpc.proto import messages as pb
from aerobee.message import Record, decode_records
from aerobee.testing import LocalCluster
from tests.fuzz.grpc_sends import Requests, frame

BODY_BYTES_MAX = 4_096
TOPICS = ("plain", "fifo")
ROUNDS_OF_CONNECTION = 200
REQUESTS_OF_CLUSTER = 100_000  # then both brokers begin with empty stores
REQUESTS_OF_READ = 8


class Disagreement(Exception):
    """The brokers differ; the text says in what."""


class Wire:
    """One connection as a session knows it; keeps what is written."""

    host_port, own_host, own_port = ("127.0.0.1", 4_711), "127.0.0.1", 8_081
    address, listener, principal, congested, burst_note = "127.0.0.1:4711", "default", "", False, None

    def __init__(self, cluster: LocalCluster) -> None:
        self.is_open = True
        self.written = b""
        self.fault: BaseException | None = None
        make = cluster.broker().ports.main._endpoint.http2
        assert make is not None
        self.session: Any = make(self)  # type: ignore[arg-type]
        window = struct.pack(">HI", 4, 1 << 20)  # INITIAL_WINDOW_SIZE: no response waits
        self.session.receive(
            PREFACE + frame(SETTINGS, 0, 0, window) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
        )

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self, reason: str = "") -> None:
        self.is_open = False

    def failed(self, error: BaseException | None = None) -> None:
        self.fault = error or sys.exception()

    def set_reading(self) -> None:
        """Bytes are given whenever the session has no more."""

    async def give(self, data: bytes) -> dict[int, list[Any]]:
        """The frames by stream that answer these bytes."""
        if self.is_open:
            self.session.receive(data)
        while self.is_open and self.session.is_full:  # noqa: ASYNC110 (the session continues in the loop's next iteration)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        written, self.written = self.written, b""
        return by_stream(written)


def by_stream(data: bytes) -> dict[int, list[Any]]:
    """(type, flags, payload) by stream, a block without the beginning that only the connection's first one has; then the response."""
    found: dict[int, list[Any]] = {}
    bodies: dict[int, bytes] = {}
    while data:
        end = 9 + int.from_bytes(data[:3], "big")
        kind, flags, stream_id, payload = data[3], data[4], int.from_bytes(data[5:9], "big"), data[9:end]
        data = data[end:]
        if kind == DATA:
            bodies[stream_id] = bodies.get(stream_id, b"") + payload
        elif kind != WINDOW_UPDATE:
            found.setdefault(stream_id, []).append((kind, flags, payload.removeprefix(b"\x20")))
    for stream_id, body in bodies.items():
        found[stream_id].append(without_offsets(body))
    return found


def without_offsets(body: bytes) -> str:
    """A response without the offsets: calls of one read that are no ordinary sends may be stored in another order."""
    response = pb.SendMessageResponse.FromString(body[5:])
    for entry in response.entries:
        entry.offset = 0
    return str(response)


def stored(cluster: LocalCluster, topic: str, begin: int) -> tuple[int, list[Any]]:
    """(end of the queue, what tells its new messages apart)."""
    store = cluster.broker().store
    end = store.queue(topic, 0).max_offset
    if begin == end:
        return end, []
    found = store.get_messages(topic, 0, begin, count_max=end - begin)
    entries = store.queue(topic, 0).entries(begin, end - begin)
    told = [
        (record_told(record), entry[2])
        for record, entry in zip(decode_records(found.body), entries, strict=True)
    ]
    return end, told


def record_told(record: Record) -> tuple[Any, ...]:
    """What both write alike; the born time only if it is the client's, not the moment."""
    is_given = record.properties.get("BORN_TIMESTAMP") == str(record.born_timestamp)
    return (
        record.body, dict(record.properties), record.flag, record.sys_flag, record.born_host[0],
        record.born_timestamp if is_given else 0, record.reconsume_times,
    )  # fmt: skip


async def started(stack: AsyncExitStack, backend: str) -> LocalCluster:
    """A cluster whose broker has this backend."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = backend
    try:
        cluster = await stack.enter_async_context(
            LocalCluster(broker_config={"maxMessageSize": BODY_BYTES_MAX})
        )
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
    await cluster.create_topic("plain", queues=1)
    await cluster.create_topic("fifo", queues=1, attributes="+message.type=FIFO")
    await cluster.create_topic("read-only", queues=1, perm=4)
    return cluster


def read_of(requests: Requests, encoder: Encoder, first_stream: int) -> tuple[bytes, list[bytes]]:
    """(bytes of some calls, their requests)."""
    data, made = b"", []
    for number in range(requests.pick.choice((1, 1, 2, REQUESTS_OF_READ))):
        request, client_id = requests.request(), requests.client_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/apache.rocketmq.v2.MessagingService/SendMessage"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("x-mq-client-id", client_id),
        ]
        data += b"".join(requests.pieces(first_stream + 2 * number, bytes(encoder.encode(headers)), request))
        made.append(request)
    return data, made


async def compare(count: int, seed: int, until: float, hurt: float) -> tuple[int, int]:
    """Give at most so many requests to two new brokers. Returns (requests, stored messages). Raises Disagreement."""
    requests = Requests(random.Random(seed), hurt=hurt)
    done = messages = 0
    async with AsyncExitStack() as stack:
        clusters = [await started(stack, backend) for backend in (NATIVE, PYTHON)]
        ends = [dict.fromkeys(TOPICS, 0) for _ in clusters]
        number = 0
        wires: list[Wire] = []
        while done < count and time.monotonic() < until:
            if number % ROUNDS_OF_CONNECTION == 0 or not all(wire.is_open for wire in wires):
                for wire in wires:
                    wire.session.lost()
                wires, encoder, stream_id = [Wire(cluster) for cluster in clusters], Encoder(), 1
                assert [wire.session._bursts is not None for wire in wires] == [True, False]
            number += 1
            data, made = read_of(requests, encoder, stream_id)
            stream_id += 2 * len(made)
            done += len(made)
            answers = [await wire.give(data) for wire in wires]
            if answers[0] != answers[1]:
                raise Disagreement(
                    f"seed {seed}, round {number}: answers differ for {made}:\n{answers[0]}\n{answers[1]}"
                )
            for topic in TOPICS:
                told = []
                for cluster, end in zip(clusters, ends, strict=True):
                    end[topic], found = stored(cluster, topic, end[topic])
                    told.append(sorted(found, key=repr))
                messages += len(told[0])
                if told[0] != told[1]:
                    raise Disagreement(
                        f"seed {seed}, round {number}: {topic} has other messages for {made}: {told}"
                    )
        for wire in wires:
            wire.session.lost()
    return done, messages


def run(count: int, seed: int, *, seconds: float = 0.0, hurt: float = 0.6) -> tuple[int, int]:
    """(requests, stored messages). `hurt`: the share of damaged requests. Raises Disagreement."""
    until = time.monotonic() + seconds if seconds else float("inf")
    done = messages = 0
    while done < count and time.monotonic() < until:
        some = min(REQUESTS_OF_CLUSTER, count - done)
        requests, found = asyncio.run(compare(some, seed + done, until, hurt))
        done, messages = done + requests, messages + found
    return done, messages


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after that time (default: never)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done, messages = run(options.requests, options.seed, seconds=options.seconds)
    print(f"{done} requests of seed {options.seed}, {messages} messages stored, no difference")


if __name__ == "__main__":
    main()
