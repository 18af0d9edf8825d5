"""Delay levels and timers: server CPU compared with RocketMQ's, a million pending messages, and how late they are delivered.

    python bench/kinds/timer.py levels  [--servers aerobee,rocketmq] [--messages 20000] [--rounds 3]
    python bench/kinds/timer.py pending [--messages 1000000] [--rate 5000] [--seconds 30]

levels: messages of 128 bytes with delay level 1, 64 in flight over one connection; the figure is the server's CPU time a
message from the first send until all are delivered, less what the server spends idle in that time. "timer" does the same
with TIMER_DELAY_MS of 2 s.

pending: stores messages for the timer, most of them far ahead, and reports the broker's memory. Then --rate messages a
second are due, and as many are sent. Due against delivered is read from the delivered messages themselves: the time of
storing of each against its TIMER_DELIVER_MS.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench import results_file, servers
from bench.load import wire
from bench.load.server import process_cpu_s, sample_server
from bench.servers import Server

SEND, CREATE_TOPIC, MAX_OFFSET, PULL = 310, 17, 30, 11
QUEUES = 4
IN_FLIGHT = 64
BODY = b"x" * 128
IDLE_S = 3.0
STARTERS: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
    "aerobee": lambda: servers.aerobee(extra=servers.PATIENT),
    "aerobee-python": lambda: servers.aerobee_python(extra=servers.PATIENT),
    "before": lambda: servers.before(extra=servers.PATIENT),
    "before-python": lambda: servers.before_python(extra=servers.PATIENT),
    "rocketmq": lambda: servers.rocketmq(extra=servers.PATIENT),
}
_WORDS = struct.Struct(">II")


class Wire:
    """One connection with a window of requests."""

    def __init__(self, port: int) -> None:
        self._link = wire.Link(("127.0.0.1", port))
        self._link.sock.setblocking(True)
        self._number = 0
        self.waiting = 0

    def call(self, code: int, ext: dict[str, str]) -> tuple[dict[str, str], bytes]:
        _, fields, body = self._link.call(code, ext, expect=(0, 19, 20))
        self._link.sock.setblocking(True)
        return fields, body

    def send_delayed(self, topic: str, properties: list[str]) -> None:
        """Send one message for each property text; waits so that no more than IN_FLIGHT are unanswered."""
        parts = []
        now = int(time.time() * 1000)
        for text in properties:
            self._number += 1
            ext = {"a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": str(self._number % QUEUES), "f": "0",
                   "g": str(now), "h": "0", "i": f"{text}UNIQ_KEY\x017F00000100002A9F{self._number:016X}\x02WAIT\x01true\x02",
                   "j": "0", "k": "false", "m": "false"}  # fmt: skip
            parts.append(wire.encode_frame(SEND, ext, BODY, opaque=self._number))
        self._link.sock.sendall(b"".join(parts))
        self.waiting += len(parts)
        while self.waiting > IN_FLIGHT // 2:
            self.collect()

    def collect(self) -> None:
        for kind, header, _ in self._link.read():
            if wire.reply_code(kind, header):
                raise wire.LoadError(header.decode(errors="replace"))
            self.waiting -= 1

    def settle(self) -> None:
        while self.waiting:
            self.collect()

    def make_topic(self, topic: str) -> None:
        self.call(
            CREATE_TOPIC,
            {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
             "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        )  # fmt: skip

    def delivered(self, topic: str) -> int:
        return sum(
            int(self.call(MAX_OFFSET, {"topic": topic, "queueId": str(queue)})[0]["offset"])
            for queue in range(QUEUES)
        )


def cpu_s(server: Server) -> float:
    return sum(map(process_cpu_s, server.pids))


def one_round(server: Server, topic: str, count: int, text: str, delay_s: float) -> float:
    """CPU microseconds a message, from the first send until all are delivered."""
    wire = Wire(server.port)
    wire.make_topic(topic)
    before = wire.delivered(topic)
    began, cpu = time.monotonic(), cpu_s(server)
    for first in range(0, count, 32):
        wire.send_delayed(topic, [text] * min(32, count - first))
    wire.settle()
    time.sleep(delay_s)
    while wire.delivered(topic) < before + count:
        time.sleep(0.02)
    spent, elapsed = cpu_s(server) - cpu, time.monotonic() - began
    time.sleep(1)
    idle_began, idle = time.monotonic(), cpu_s(server)
    time.sleep(IDLE_S)
    idle_share = (cpu_s(server) - idle) / (time.monotonic() - idle_began)
    return (spent - idle_share * elapsed) / count * 1e6


def levels(options: argparse.Namespace) -> None:
    shapes = {"level 1": ("DELAY\x011\x02", 1.0), "timer 2 s": ("TIMER_DELAY_MS\x012000\x02", 2.0)}
    found: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(STARTERS[name]()) for name in options.servers.split(",")}
        for name, server in running.items():  # the JVM is slow when it is cold
            one_round(server, "Warm", 60_000 if name == "rocketmq" else 2_000, *shapes["level 1"])
            one_round(server, "Warm", 20_000 if name == "rocketmq" else 2_000, *shapes["timer 2 s"])
        for number in range(options.rounds):
            for name, server in running.items():
                for shape, (text, delay_s) in shapes.items():
                    cost = one_round(server, f"Bench{number}", options.messages, text, delay_s)
                    found.setdefault(shape, {}).setdefault(name, []).append(cost)
    report(options, found)
    rows = []
    for shape, costs in found.items():
        values = {name: statistics.median(each) for name, each in costs.items()}
        goal = "<= 0.3 x" if shape.startswith("level") else ""
        rows.append(results_file.kind_row(shape, values, goal=goal, base=values.get("rocketmq")))
    results_file.write_kind("delay", "Delayed messages, stored and delivered", rows, found)
    for shape, costs in found.items():
        medians = {name: statistics.median(values) for name, values in costs.items()}
        line = ", ".join(f"{name} {value:.1f} us" for name, value in medians.items())
        ratio = medians["aerobee"] / medians["rocketmq"] if {"aerobee", "rocketmq"} <= medians.keys() else 0
        print(f"{shape}: stored and delivered {line}" + (f", {ratio:.2f} x" if ratio else ""))


def pending(options: argparse.Namespace) -> None:
    figures: dict[str, Any] = {}
    with STARTERS["aerobee"]() as server:
        wire = Wire(server.port)
        wire.make_topic("Timed")
        wire.make_topic("Far")
        wire.send_delayed("Far", ["TIMER_DELAY_MS\x013600000\x02"])
        wire.settle()
        figures["memory before, MB"] = memory(server)
        began, cpu = time.monotonic(), cpu_s(server)
        for first in range(0, options.messages, 32):
            # Over an hour, from two hours ahead on.
            ahead = 7_200_000 + (first * 7919) % 3_600_000
            wire.send_delayed("Far", [f"TIMER_DELAY_MS\x01{ahead + n * 1000}\x02" for n in range(32)])
        wire.settle()
        elapsed = time.monotonic() - began
        figures["stored a second"] = round(options.messages / elapsed)
        figures["CPU to store one, us"] = round((cpu_s(server) - cpu) / options.messages * 1e6, 1)
        time.sleep(2)
        figures["memory with all pending, MB"] = memory(server)
        due_from = time.time() + 12.0
        fill(wire, options, due_from)
        figures.update(under_load(server, wire, options, due_from))
        figures["memory afterwards, MB"] = memory(server)
    report(options, figures)
    write_pending(options, figures)
    for name, value in figures.items():
        print(f"{name}: {value}")


def write_pending(options: argparse.Namespace, figures: dict[str, Any]) -> None:
    late, load = figures["late, ms"], f"{options.rate} due and {options.rate} sent a second"
    pending = f"{options.messages} pending"
    rows = [
        results_file.kind_row(f"late, p50, {load}, {pending}", {"aerobee": late["p50"]}, unit="ms"),
        results_file.kind_row(
            f"late, p99, {load}, {pending}", {"aerobee": late["p99"]}, unit="ms", goal="<= 100 ms"
        ),
        *(
            results_file.kind_row(
                f"memory without file pages, {when}",
                {"aerobee": figures[f"memory {key}, MB"]["without file pages"]},
                unit="MB",
            )
            for key, when in (("before", "none pending"), ("with all pending", pending))
        ),
    ]
    results_file.write_kind("timer", "Timer", rows, figures)


def fill(wire: Wire, options: argparse.Namespace, due_from: float) -> None:
    """The messages that are due while it is measured: `rate` in every second, evenly."""
    total = options.rate * options.seconds
    base = int(due_from * 1000)
    for first in range(0, total, 32):
        moments = (base + (first + n) * 1000 // options.rate for n in range(32))
        wire.send_delayed("Timed", [f"TIMER_DELIVER_MS\x01{moment}\x02" for moment in moments])
        late = time.time() - due_from - first / options.rate + 2
        if late > 0:
            raise SystemExit("the machine is too slow to store what is due in time: lower --rate")
    wire.settle()


def under_load(
    server: Server, wire: Wire, options: argparse.Namespace, due_from: float
) -> Iterator[tuple[str, object]] | dict[str, object]:
    """Send `rate` a second while as many are due; returns how late those came."""
    time.sleep(max(0.0, due_from - time.time()))
    began, cpu, sent = time.monotonic(), cpu_s(server), 0
    while (elapsed := time.monotonic() - began) < options.seconds:
        due = int(elapsed * options.rate) - sent
        if due < 32:
            time.sleep(0.002)
            continue
        wire.send_delayed("Far", ["TIMER_DELAY_MS\x017200000\x02"] * 32)
        sent += 32
    wire.settle()
    busy = (cpu_s(server) - cpu) / (time.monotonic() - began)
    time.sleep(2)
    late = sorted(lateness(wire, "Timed"))
    return {
        "due": len(late),
        "due a second": options.rate,
        "sent a second meanwhile": round(sent / options.seconds),
        "late, ms": {
            "p50": late[len(late) // 2],
            "p99": late[len(late) * 99 // 100],
            "p99.9": late[len(late) * 999 // 1000],
            "max": late[-1],
            "min": late[0],
        },
        "broker's share of a core": round(busy, 2),
    }


def lateness(wire: Wire, topic: str) -> Iterator[int]:
    """Time of storing less due time of every delivered message, ms."""
    for queue in range(QUEUES):
        offset = 0
        while True:
            ext = {
                "consumerGroup": "bench", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
                "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                "subscription": "*", "subVersion": "0", "expressionType": "TAG", "maxMsgBytes": "262144",
            }  # fmt: skip
            _, body = wire.call(PULL, ext)
            at, count = 0, 0
            while at < len(body):
                (size,) = struct.unpack_from(">I", body, at)
                record = body[at : at + size]
                (stored,) = struct.unpack_from(">q", record, 56)
                due = record.partition(b"TIMER_DELIVER_MS\x01")[2].partition(b"\x02")[0]
                yield stored - int(due)
                at += size
                count += 1
            if not count:
                break
            offset += count


def memory(server: Server) -> dict[str, int]:
    sample = sample_server(server.pids[-1:])
    return {"resident": round(sample.rss_mb), "without file pages": round(sample.anon_mb)}


def report(options: argparse.Namespace, figures: object) -> None:
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("levels", "pending"))
    parser.add_argument("--servers", default="aerobee,rocketmq")
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    if options.what == "levels":
        options.messages = options.messages or 20_000
        levels(options)
    else:
        options.messages = options.messages or 1_000_000
        pending(options)


if __name__ == "__main__":
    main()
