"""Server CPU of a pull through a filter: by tag, through SQL92 expressions, for everything; with the Python lane too.

    python bench/kinds/filter.py [--servers aerobee,aerobee-python,rocketmq] [--seconds 3] [--rounds 3] [--messages 20000]

The topic holds messages of 128 bytes with the tag TagA and the properties price (0..99) and region (eu). "all": the
filter takes every message; "half", "1 in 10": that share, so that a pull of 32 looks at 64 or 320 entries. Pulls go
out in turn over one connection, 8 at a time. The figure is the server's CPU time a delivered message, and next to it
what it is of the pull by a tag that takes the same share.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench import results_file, servers
from bench.load import wire
from bench.load.server import process_cpu_s
from bench.servers import Server

TOPIC, GROUP = "filtered", "bench-filter"
IN_FLIGHT = 8
PULL_MESSAGE, SUBSCRIPTION = 11, 4
SEND_BATCH, CREATE_TOPIC = 320, 17
SETTINGS = {"enablePropertyFilter": "true"}
SERVERS = {
    "aerobee": lambda: servers.aerobee(extra=SETTINGS),
    "aerobee-python": lambda: servers.aerobee_python(extra=SETTINGS),
    "before": lambda: servers.before(extra=SETTINGS),
    "before-python": lambda: servers.before_python(extra=SETTINGS),
    "rocketmq": lambda: servers.rocketmq(extra=SETTINGS),
}
# name, expression type, expression, name of the row it is compared with
SHAPES = (
    ("everything", "TAG", "*", ""),
    ("tag, all", "TAG", "Even || Odd || Tenth", ""),
    ("sql number, all", "SQL92", "price >= 0", "tag, all"),
    ("sql three conditions, all", "SQL92", "price BETWEEN 0 AND 99 AND region IN ('eu', 'us') AND a IS NULL", "tag, all"),
    ("tag, half", "TAG", "Odd", ""),
    ("sql text, half", "SQL92", "parity = 'odd'", "tag, half"),
    ("tag, 1 in 10", "TAG", "Tenth", ""),
    ("sql number, 1 in 10", "SQL92", "price < 10", "tag, 1 in 10"),
)  # fmt: skip


def properties_of(number: int) -> str:
    price = number % 100
    tag = "Tenth" if price < 10 else "Odd" if number % 2 else "Even"
    pairs = {"KEYS": f"k{number}", "UNIQ_KEY": f"7F00000100002A9F0000{number:012X}", "WAIT": "true", "TAGS": tag,
             "price": str(price), "region": "eu", "parity": "odd" if number % 2 else "even"}  # fmt: skip
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def tag_shares_match(number: int) -> bool:
    """The tag Odd leaves out odd ones below 10, so its share is 45 %; parity takes half."""
    return number % 2 == 1


def batch_body(first: int, count: int) -> bytes:
    parts = []
    for number in range(first, first + count):
        text, body = properties_of(number).encode(), b"x" * 128
        size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(text)
        parts.append(
            size.to_bytes(4, "big")
            + bytes(12)
            + len(body).to_bytes(4, "big")
            + body
            + len(text).to_bytes(2, "big")
            + text
        )
    return b"".join(parts)


class Wire:
    """One connection; frames out, whole replies in."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._link = wire.Link(address)
        self._link.sock.setblocking(True)
        self._buffer = b""
        self._opaque = 0

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self._opaque += 1
        self._link.sock.sendall(wire.encode_frame(code, ext, body, opaque=self._opaque))

    def receive(self) -> tuple[dict[str, str], int, bytes]:
        """Return (ext, code, body) of the next reply."""
        while True:
            if len(self._buffer) >= 8:
                length = int.from_bytes(self._buffer[:4], "big")
                if len(self._buffer) >= 4 + length:
                    break
            self._buffer += self._link.sock.recv(1 << 20)
        frame, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        header_size = int.from_bytes(frame[:4], "big") & 0xFFFFFF
        header = json.loads(frame[4 : 4 + header_size])
        return header.get("extFields") or {}, header["code"], frame[4 + header_size :]

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, str], int, bytes]:
        self.send(code, ext, body)
        return self.receive()


def fill(wire: Wire, count: int) -> None:
    ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
           "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    _, code, _ = wire.call(CREATE_TOPIC, ext)
    assert code == 0, code
    for first in range(0, count, 50):
        send = {"a": "PG", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(int(time.time() * 1000)),
                "h": "0", "i": f"UNIQ_KEY\x01{first:032X}\x02WAIT\x01true\x02", "j": "0", "k": "false", "m": "true"}  # fmt: skip
        _, code, _ = wire.call(SEND_BATCH, send, batch_body(first, 50))
        assert code == 0, code


def pulls(link: Wire, kind: str, expression: str, end: int, until: float) -> int:
    """Pull until the deadline; return how many messages came."""
    offset, waiting, got = 0, 0, 0
    stride = 32
    while time.monotonic() < until or waiting:
        while waiting < IN_FLIGHT and time.monotonic() < until:
            ext = {
                "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
                "sysFlag": str(SUBSCRIPTION), "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": expression,
                "subVersion": "0", "expressionType": kind, "maxMsgBytes": "262144",
            }  # fmt: skip
            link.send(PULL_MESSAGE, ext)
            waiting += 1
            offset = (offset + stride) % (end - 400)
        _, code, body = link.receive()
        waiting -= 1
        if code == 0:
            got += sum(1 for _ in wire.parse_records(body))
    return got


def rounds(server: Server, wire: Wire, seconds: float, end: int) -> Iterator[tuple[str, float]]:
    for name, kind, expression, _ in SHAPES:
        pulls(wire, kind, expression, end, time.monotonic() + 0.3)
        before = sum(map(process_cpu_s, server.pids))
        got = pulls(wire, kind, expression, end, time.monotonic() + seconds)
        spent = sum(map(process_cpu_s, server.pids)) - before
        yield name, spent / got * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="aerobee,aerobee-python")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        running = []
        for name in options.servers.split(","):
            server = stack.enter_context(SERVERS[name]())
            wire = Wire(("127.0.0.1", server.port))
            fill(wire, options.messages)
            running.append((name, server, wire))
        for _ in range(options.rounds):
            for name, server, wire in running:
                for shape, cost in rounds(server, wire, options.seconds, options.messages):
                    found.setdefault(name, {}).setdefault(shape, []).append(cost)
    print("server CPU, us a delivered message (and of the pull by tag with the same share)\n")
    print("| pull of 32 | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    for shape, _, _, reference in SHAPES:
        cells = []
        for figures in found.values():
            cost = statistics.median(figures[shape])
            ratio = f" ({cost / statistics.median(figures[reference]):.2f} x)" if reference else ""
            cells.append(f"{cost:.2f}{ratio}")
        print(f"| {shape} | " + " | ".join(cells) + " |")
    medians = {
        shape[0]: {name: statistics.median(figures[shape[0]]) for name, figures in found.items()}
        for shape in SHAPES
    }
    rows = [
        results_file.kind_row(
            f"{shape}, pull of 32",
            medians[shape],
            goal="<= 2 x",
            base=medians[reference],
            against="the same pull by tag",
        )
        for shape, _, _, reference in SHAPES
        if reference
    ]
    results_file.write_kind("filter", "SQL92 filters", rows, found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
