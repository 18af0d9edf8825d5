"""Server CPU per message, Aerobee compared with RocketMQ 5.5.0 and others, alternating in one run on one machine.

    python bench/compare.py [--quick] [--rounds 5] [--shapes send-64,pull-32] [--with rocketmq,null,redis,nats]

Each server stays up for the whole run; the rounds go round the servers, so that a noisy minute meets all of them.
A figure is the median over the rounds of `server_us_per_msg` (rmqload.py explains how it is measured). RocketMQ is
warmed by 300,000 messages first. Results go to bench/results/NAME.json, the table to standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import page_cache
import results_file
import servers
from servers import HERE, Server

WARM_MESSAGES = 300_000
PEERS = ("redis", "nats")
BROKERS = ("aerobee", "aerobee-python", "before", "before-python", "rocketmq")


@dataclass(frozen=True)
class Shape:
    """One load. `arguments` are rmqload's; `goal_native` and `goal_python` are factors of RocketMQ's figure."""

    name: str
    title: str
    mode: str
    arguments: tuple[str, ...]
    goal_native: float
    goal_python: float
    sync_flush: bool = False
    peers: bool = False


def _send(
    name: str,
    title: str,
    connections: int,
    in_flight: int,
    native: float,
    python: float,
    *,
    size: int = 128,
    batch: int = 1,
    sync_flush: bool = False,
    peers: bool = False,
) -> Shape:
    arguments = (
        *("--connections", str(connections), "--in-flight", str(in_flight), "--size", str(size)),
        *(("--batch", str(batch)) if batch > 1 else ()),
    )
    return Shape(name, title, "send", arguments, native, python, sync_flush, peers)


SHAPES = (
    _send("send-64", "128 B, 1 connection x 64", 1, 64, 0.12, 0.6, peers=True),
    _send("send-256", "128 B, 1 connection x 256", 1, 256, 0.12, 0.6, peers=True),
    _send("send-4x64", "128 B, 4 connections x 64", 4, 64, 0.12, 0.6, peers=True),
    _send("send-4x256", "128 B, 4 connections x 256", 4, 256, 0.12, 0.6, peers=True),
    _send("send-8x8", "128 B, 8 connections x 8", 8, 8, 0.2, 0.5),
    _send("send-64x1", "128 B, 64 connections x 1", 64, 1, 0.2, 0.5, peers=True),
    _send("send-1k", "1 KiB, 1 connection x 64", 1, 64, 0.2, 0.6, size=1024),
    _send("send-1", "128 B, 1 connection x 1", 1, 1, 0.25, 0.5, peers=True),
    _send("batch-64", "batches of 64 x 128 B", 1, 4, 0.2, 1.0, batch=64),
    Shape("pull-32", "pull of 32 x 128 B", "pull", ("--pull-count", "32"), 0.2, 0.5, peers=True),
    _send("sync-64", "sync flush, 1 connection x 64", 1, 64, 0.25, 0.6, sync_flush=True),
    _send("sync-4x64", "sync flush, 4 connections x 64", 4, 64, 0.25, 0.6, sync_flush=True),
)


class LoadFailed(Exception):
    """A load generator ended with an error."""


def run_load(tool: str, *arguments: str) -> dict[str, Any]:
    """Run a load generator of this directory and return its JSON."""
    command = [sys.executable, str(HERE / tool), *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(server: Server, shape: Shape, seconds: float) -> dict[str, Any]:
    """One round of one shape at one server."""
    window = ("--duration", str(seconds), "--warmup", str(max(1.0, seconds / 3)))
    if server.name in PEERS:
        mode = "pull" if shape.mode == "pull" else "send"
        keep = [a for a in shape.arguments if a not in ("--pull-count", "32")]
        where = ("--address", server.address, "--server-port", str(server.port))
        return run_load("peerload.py", server.name, mode, *where, *keep, *window)
    where = ("--broker", server.address, "--server-pid", str(server.pids[-1]))
    if server.name == "null":
        where = (*where, "--no-create")
    if shape.mode == "pull":
        topic = "load-pull"
        if not (server.directory / "pull-filled").exists():
            filling = ("--topic", topic, "--count", "200000", "--connections", "1", "--in-flight", "256")
            run_load("rmqload.py", "send", *where, *filling, "--size", "128")
            (server.directory / "pull-filled").touch()
        return run_load("rmqload.py", "pull", *where, "--topic", topic, *shape.arguments, *window)
    return run_load("rmqload.py", shape.mode, *where, *shape.arguments, *window)


def applies(server: Server, shape: Shape) -> bool:
    if server.name == "null":
        return shape.mode == "send" and "--batch" not in shape.arguments and not shape.sync_flush
    return shape.peers if server.name in PEERS else True


def run(
    shapes: list[Shape], names: list[str], rounds: int, seconds: float, *, sync_flush: bool
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Measure `shapes` round by round. Returns shape -> server -> rounds."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {shape.name: {} for shape in shapes}
    with contextlib.ExitStack() as stack:
        note("filling the page cache")
        stack.enter_context(page_cache.filled())
        running: list[Server] = []
        for name in names:
            start = getattr(servers, name.replace("-", "_") if name != "null" else "null_server")
            settings: dict[str, Any] = {"extra": servers.PATIENT} if name in BROKERS else {}
            if sync_flush:
                settings["sync_flush"] = True
            running.append(stack.enter_context(start(**settings)))
        for server in running:
            if server.name in BROKERS and not sync_flush:
                warm = str(WARM_MESSAGES if server.name == "rocketmq" else WARM_MESSAGES // 10)
                note(f"warming {server.name} with {warm} messages")
                warming = ("--count", warm, "--in-flight", "64", "--connections", "1", "--size", "128")
                run_load("rmqload.py", "send", "--broker", server.address, *warming)
        for shape in shapes:
            for round_number in range(rounds):
                for server in running:
                    if not applies(server, shape):
                        continue
                    result = measure(server, shape, seconds)
                    found[shape.name].setdefault(server.name, []).append(result)
                    note(
                        f"{shape.name} round {round_number + 1} {server.name}: "
                        f"{result['server_us_per_msg']:.2f} us, {result['msg_per_s']:.0f}/s"
                    )
    return found


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def median(rounds: list[dict[str, Any]], key: str = "server_us_per_msg") -> float:
    return statistics.median(float(result[key]) for result in rounds)


def table(shapes: list[Shape], found: dict[str, dict[str, list[dict[str, Any]]]], names: list[str]) -> str:
    """A markdown table: medians in microseconds of server CPU a message, Aerobee's factor of RocketMQ, the goals."""
    lines = [
        "| shape | " + " | ".join(names) + " | factor of RocketMQ | goal native | goal Python |",
        "|---|" + "---|" * (len(names) + 3),
    ]
    for shape in shapes:
        measured = found.get(shape.name, {})
        cells = [f"{median(measured[name]):.2f}" if name in measured else "" for name in names]
        factor = ""
        if "aerobee" in measured and "rocketmq" in measured:
            factor = f"{median(measured['aerobee']) / median(measured['rocketmq']):.2f}"
        goals = f"{shape.goal_native:g} | {shape.goal_python:g}"
        lines.append(f"| {shape.title} | " + " | ".join(cells) + f" | {factor} | {goals} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds of 3 s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--shapes", default="", help="comma list of names; default all")
    parser.add_argument("--with", dest="others", default="rocketmq,null", help="rocketmq,null,redis,nats")
    parser.add_argument(
        "--servers",
        default="aerobee",
        help="of aerobee, aerobee-python, before, before-python (servers.BEFORE)",
    )
    parser.add_argument("--name", default="compare", help="results file in bench/results")
    options = parser.parse_args()
    rounds, seconds = (2, 3.0) if options.quick else (options.rounds, options.seconds)
    wanted = [name for name in options.shapes.split(",") if name]
    unknown = set(wanted) - {shape.name for shape in SHAPES}
    if unknown:
        parser.error(f"unknown shapes {sorted(unknown)}; there are {[shape.name for shape in SHAPES]}")
    shapes = [shape for shape in SHAPES if not wanted or shape.name in wanted]
    names = [*options.servers.split(","), *(name for name in options.others.split(",") if name)]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for sync_flush in (False, True):
        part = [shape for shape in shapes if shape.sync_flush is sync_flush]
        chosen = [name for name in names if not sync_flush or name in BROKERS]
        if part:
            found |= run(part, chosen, rounds, seconds, sync_flush=sync_flush)
    text = table(shapes, found, names)
    results_file.write(options.name, {"rounds": rounds, "seconds": seconds, "shapes": found})
    print(text)


if __name__ == "__main__":
    main()
