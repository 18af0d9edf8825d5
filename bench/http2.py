"""CPU of gRPC's HTTP/2 cores: what one SendMessage costs in them.

    python bench/http2.py [--calls 20000] [--flights 64,1] [--cores python,native] [--instructions]

Bytes of a client as grpc-java writes them (headers in HPACK's table, a call is a HEADERS and a DATA frame, windows opened
again) go through memory: no sockets, no other process. A figure is microseconds of this process's CPU a call, the median
of five rounds, and with --instructions thousands of instructions under callgrind, which no other process disturbs.
"""

from __future__ import annotations

import argparse
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hpack import Encoder

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.grpc.call import RequestEnded
from aerobee.grpc.core import MakeHttp2
from aerobee.grpc.frame_scanner import DATA, HEADERS, PREFACE, SETTINGS, WINDOW_UPDATE
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.status import GrpcStatus

ROUNDS = 5
COUNTED_CALLS = 640  # of a round under callgrind
REQUEST = bytes(300)  # about a SendMessageRequest with a body of 128 B
RESPONSE = bytes(100)
PATH = "/apache.rocketmq.v2.MessagingService/SendMessage"
FIXED = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "127.0.0.1:8081"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "grpc-java-netty/1.53.0"),
    ("x-mq-client-id", "host@1@0@abcdef"),
    ("x-mq-client-version", "5.2.0"),
    ("x-mq-language", "JAVA"),
    ("x-mq-protocol", "v2"),
    ("x-mq-namespace", ""),
    ("grpc-accept-encoding", "gzip"),
]
TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def reads(calls: int, flight: int) -> list[bytes]:
    """What the client sends, one read for `flight` calls."""
    encoder = Encoder()
    found, stream = [], 1
    for _ in range(calls // flight):
        read = b""
        for _ in range(flight):
            headers = [
                *FIXED,
                ("x-mq-request-id", f"{stream:036d}", True),  # not indexed, as it changes
                ("grpc-timeout", "2999m", True),
            ]
            read += frame(HEADERS, bytes(encoder.encode(headers)), 0x4, stream)
            read += frame(DATA, frame_message(REQUEST), 0x1, stream)
            stream += 2
        found.append(read + frame(WINDOW_UPDATE, struct.pack(">I", flight * (len(RESPONSE) + 5))))
    return found


def maker(core: str) -> MakeHttp2:
    """The core of this name."""
    if core == "python":
        return Http2Connection
    made = choose_backend("native").make_http2
    assert made is not None
    return made


def through_core(core: str, calls: int, flight: int) -> Callable[[], None]:
    """The HTTP/2 core alone: requests in, a message and a status out."""
    make, data = maker(core), reads(calls, flight)

    def run() -> None:
        connection = make(Http2Limits(), 0.0)
        connection.receive(PREFACE + frame(SETTINGS), 0.0)
        for number, read in enumerate(data):
            now = number * 1e-3
            for event in connection.receive(read, now):
                if isinstance(event, RequestEnded):
                    connection.send_message(event.call, RESPONSE, now)
                    connection.finish(event.call, GrpcStatus.OK, "", now)
            connection.outgoing()
            connection.due()
        assert not connection.is_closed, connection.close_reason

    return run


def instructions(core: str, flight: int) -> float:
    """Thousands of instructions a call: the difference of three rounds and one, so that the start does not count."""
    totals = []
    for rounds in (1, 3):
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory) / "callgrind"
            command = [
                "valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
                sys.executable, __file__, "--count", core, str(flight), str(rounds),
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True)
            found = TOTAL.search(out.read_text())
            assert found is not None
            totals.append(int(found.group(1)))
    return (totals[1] - totals[0]) / 2 / COUNTED_CALLS / 1_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument(
        "--flights", type=lambda text: [int(each) for each in text.split(",")], default=[64, 1]
    )
    parser.add_argument("--cores", type=lambda text: text.split(","), default=["python", "native"])
    parser.add_argument(
        "--instructions", action="store_true", help="count them, which takes a minute for each row"
    )
    parser.add_argument("--count", nargs=3, metavar=("CORE", "FLIGHT", "ROUNDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        core, flight, rounds = options.count
        run = through_core(core, COUNTED_CALLS, int(flight))
        for _ in range(int(rounds)):
            run()
        return
    print("| HTTP/2 core, calls in flight | us a call | thousands of instructions |\n|---|---|---|")
    for core in options.cores:
        for flight in options.flights:
            run, took = through_core(core, options.calls, flight), []
            for _ in range(ROUNDS):
                began = time.process_time()
                run()
                took.append((time.process_time() - began) / (options.calls // flight * flight) * 1e6)
            counted = f"{instructions(core, flight):.1f}" if options.instructions else ""
            print(f"| {core}, {flight} | {statistics.median(took):.1f} | {counted} |", flush=True)


if __name__ == "__main__":
    main()
