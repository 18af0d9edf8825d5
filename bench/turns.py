"""Another checkout of Aerobee compared with this one, interleaved every few milliseconds: what a version costs more or less.

    AEROBEE_BENCH_BEFORE=../before python bench/turns.py [fast-path] [client] [sockets] [--turns 200] [--shapes send-1,producer]

Two processes, one of each checkout with its own .venv, do the same interleaved: whatever else the machine does meets both. It
changes its speed by half from one second to the next, as virtual machines do: of each shape the least, the tenth part, and the
median of the ratios of adjacent runs; the last is the most trustworthy. fast-path: bursts without sockets, through
Connection; client: Producer and PushConsumer at one broker of this checkout; sockets: compare.py's sends at two brokers,
0.5 s each time. Pulls, latency and kinds of messages over sockets: compare.py, latency.py and kinds/*.py take "before" and
"before-python" among their --servers.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import servers
from compare import SHAPES as SERVER_SHAPES
from compare import LoadFailed, Shape, run_load

from aerobee.client import Admin

WORKER = servers.HERE / "turns_worker.py"
TOPIC = "turns"
# Shape -> what one turn is given: seconds of CPU.
FAST_PATH: dict[str, dict[str, float]] = {
    "native": {"send-1": 0.006, "send-64": 0.006, "send-1k": 0.006, "batch-64": 0.006, "pull-32": 0.006, "half": 0, "commit": 0},
    "python": {
        "send-1": 0.01, "send-64": 0.01, "batch-64": 0.01, "pull-32": 0.01, "half": 0, "commit": 0, "level": 0, "timer": 0,
    },
}  # fmt: skip
CLIENT: dict[str, float] = {"producer": 1_500, "consumer": 6_000}  # messages
LONG, LONG_SHARE = ("consumer",), 4  # whose turns are long, and so fewer


class Side:
    """A worker of one checkout."""

    def __init__(self, python: str, *arguments: str) -> None:
        command = [python, str(WORKER), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._read()

    def turn(self, shape: str, amount: float) -> float:
        """us a message."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{shape} {amount}\n")
        self._process.stdin.flush()
        return float(self._read())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended: {self._process.args!r}")
        return line


def in_turns(
    turns: int, before: Callable[[], float], now: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Figures of both; who begins changes, for the second finds warm caches."""
    was: list[float] = []
    found: list[float] = []
    for number in range(turns):
        for figures, take in (
            ((was, before), (found, now)) if number % 2 == 0 else ((found, now), (was, before))
        ):
            figures.append(take())
    return was, found


def ratio(before: float, now: float) -> float:
    """NaN when the turn before took nothing: a server's CPU is counted in steps of 10 ms."""
    return now / before if before else math.nan


def report(name: str, was: list[float], found: list[float]) -> None:
    tenth = len(was) // 10
    cells = [
        f"{a:.2f}, {b:.2f}, {ratio(a, b):.2f}"
        for a, b in ((min(was), min(found)), (sorted(was)[tenth], sorted(found)[tenth]))
    ]
    ratios = [now / before for before, now in zip(was, found, strict=True) if before]
    pairs = statistics.median(ratios) if ratios else math.nan
    print(f"| {name} | {' | '.join(cells)} | {pairs:.3f} | {len(was)} |", flush=True)


def pythons() -> tuple[str, str]:
    """Of the checkout before and of this one."""
    return servers.before_python_of(os.environ.get(servers.BEFORE, "")), sys.executable


def workers(title: str, arguments: list[str], shapes: dict[str, float], options: argparse.Namespace) -> None:
    """Every shape interleaved."""
    wanted = {
        shape: amount for shape, amount in shapes.items() if not options.shapes or shape in options.shapes
    }
    if not wanted:
        return
    before, now = (Side(python, *arguments) for python in pythons())
    try:
        for shape, amount in wanted.items():
            for side in (before, now):
                side.turn(shape, amount * 4)  # warm
            turns = options.turns // (LONG_SHARE if shape in LONG else 1)
            figures = in_turns(turns, partial(before.turn, shape, amount), partial(now.turn, shape, amount))
            report(f"{title}, {shape}", *figures)
    finally:
        before.stop()
        now.stop()


async def make_topic(nameserver: str) -> None:
    async with Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queue_count=4)


def clients(options: argparse.Namespace) -> None:
    with servers.aerobee(extra=servers.PATIENT) as server:
        nameserver = f"127.0.0.1:{server.nameserver_port}"
        asyncio.run(make_topic(nameserver))
        filling = ("--topic", TOPIC, "--no-create", "--count", "20000", "--in-flight", "64")
        run_load("rmqload.py", "send", "--broker", server.address, *filling)
        for codec in options.backends:
            workers(f"client, {codec} codec", ["client", codec, nameserver, TOPIC], CLIENT, options)


def sockets(options: argparse.Namespace) -> None:
    """The sends of compare.py, 0.5 s each time."""
    for is_sync in (False, True):
        wanted = [each for each in SERVER_SHAPES if each.sync_flush is is_sync and each.mode == "send"]
        wanted = [each for each in wanted if not options.shapes or each.name in options.shapes]
        for title, old, new in (
            ("native", servers.before, servers.aerobee),
            ("Python", servers.before_python, servers.aerobee_python),
        ):
            if title.lower() not in options.backends or not wanted:
                continue
            settings: dict[str, Any] = {"extra": servers.PATIENT, "sync_flush": is_sync}
            with old(**settings) as before, new(**settings) as now:
                for server in (before, now):
                    half_a_second(server, SERVER_SHAPES[0])  # warm
                for shape in wanted:
                    turns = max(6, options.turns // 16)
                    figures = in_turns(
                        turns, partial(half_a_second, before, shape), partial(half_a_second, now, shape)
                    )
                    report(f"{title}, {shape.title}", *figures)


def half_a_second(server: servers.Server, shape: Shape) -> float:
    """us of the server's CPU a message."""
    where = ("--broker", server.address, "--server-pid", str(server.pids[-1]))
    window = ("--warmup", "0.2", "--duration", "0.5")
    try:
        found = run_load("rmqload.py", "send", *where, *shape.arguments, *window)
    except LoadFailed:  # a load that a busy machine never let run has answered nothing in its half second
        found = run_load("rmqload.py", "send", *where, *shape.arguments, *window)
    return float(found["server_us_per_msg"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", default=["fast-path", "client", "sockets"])
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--backends", type=lambda text: text.split(","), default=["native", "python"])
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[], help="default: all")
    options = parser.parse_args()
    print("| us a message | least: before, now, ratio | tenth part | pairs | turns |\n|---|---|---|---|---|")
    if "fast-path" in options.what:
        for backend in options.backends:
            workers(f"without sockets, {backend}", ["fast-path", backend], FAST_PATH[backend], options)
    if "client" in options.what:
        clients(options)
    if "sockets" in options.what:
        sockets(options)


if __name__ == "__main__":
    main()
