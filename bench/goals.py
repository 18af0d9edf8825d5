"""Every figure that has a goal, in one run: sends, batches, pulls, transactions, POP and clients.

    python bench/goals.py [--rounds 3] [--seconds 1.5]

Runs compare.py, kinds/transaction.py, kinds/pop.py and clients.py one after the other, each with its servers side by side and
interleaved, and prints one table: the figure, the figure compared with it, the ratio, the goal, whether it is met. About ten minutes;
nothing else should run. The figures go to bench/results/goals.json, those of sends and pulls in full to sends-and-pulls.json; what the
other scripts wrote before, with more rounds and servers, stays.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import results_file
import servers

TRANSACTION, POP_32, POP_1 = (
    "64 in flight, 128 B",
    "pop of 32, one ack a message",
    "pop of 1, one ack a message",
)


@dataclass(frozen=True)
class Goal:
    """A figure of `shape` is to be at most `most` times that of `compared`; with `compared` empty at most `most` us."""

    shape: str
    title: str
    compared: str
    most: float


GOALS = (
    Goal("send-1", "128 B, 1 connection x 1", "redis", 1.3),
    Goal("send-64x1", "128 B, 64 connections x 1", "redis", 1.3),
    Goal("send-64x1", "128 B, 64 connections x 1", "rocketmq", 0.15),
    Goal("send-64", "128 B, 1 connection x 64", "null", 1.0),
    Goal("send-4x64", "128 B, 4 connections x 64", "null", 1.0),
    Goal("batch-64", "batches of 64 x 128 B", "rocketmq", 0.12),
    Goal("pull-32", "pull of 32 x 128 B", "redis", 1.0),
    Goal("transaction", "transaction: half, commit, delivery", "rocketmq", 0.2),
    Goal("pop-32", "pop of 32, one ack a message", "", 23.0),
    Goal("pop-1", "pop of 1, one ack", "", 71.0),
    Goal("producer", "producer, CPU of a message", "", 4.0),
    Goal("consumer", "consumer, CPU of a message", "", 1.5),
)
OVERWRITTEN = ("kind-transaction", "kind-pop", "clients")  # results of longer runs, which are put back
Figures = dict[str, dict[str, list[float]]]  # shape -> server -> rounds


def run(*command: str) -> None:
    print("running", *command, file=sys.stderr, flush=True)
    began = time.monotonic()
    subprocess.run(
        [sys.executable, str(servers.HERE / command[0]), *command[1:]], check=True, stdout=sys.stderr
    )
    print(f"took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def result(name: str) -> Any:
    return json.loads((results_file.RESULTS / f"{name}.json").read_text())["results"]


def measured(rounds: int, seconds: float) -> Figures:
    """Run everything."""
    shapes = ",".join(dict.fromkeys(goal.shape for goal in GOALS[:7]))
    compared = ("--with", "rocketmq,null,redis", "--name", "sends-and-pulls", "--shapes", shapes)
    run("compare.py", "--rounds", str(rounds), "--seconds", str(seconds), *compared)
    paths = [results_file.RESULTS / f"{name}.json" for name in OVERWRITTEN]
    before = {path: path.read_bytes() for path in paths if path.exists()}
    try:
        run("kinds/transaction.py", "--servers", "aerobee,rocketmq", "--rounds", "2", "--seconds", "2")
        run("kinds/pop.py", "--servers", "aerobee", "--messages", "4000", "--warm", "4000", "--rounds", "2")
        run("clients.py", "--rounds", "3", "--count", "60000")
        return collected()
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def collected() -> Figures:
    """The figures that the scripts have written."""
    found: Figures = {
        shape: {
            server: [float(each["server_us_per_msg"]) for each in of_server]
            for server, of_server in of_shape.items()
        }
        for shape, of_shape in result("sends-and-pulls")["shapes"].items()
    }
    transaction = result("kind-transaction")["details"]
    found["transaction"] = {server: [figures["gross"]] for server, figures in transaction.items()}
    popped = result("kind-pop")["details"]["aerobee"]
    for shape, title in (("pop-32", POP_32), ("pop-1", POP_1)):
        found[shape] = {"aerobee": [each[0] for each in popped[title]]}
    clients = result("clients")
    for name in ("producer", "consumer"):
        found[name] = {"aerobee": clients[f"{name}_us"]}
    found["floor"] = {"asyncio": clients["floor_us"]}
    return found


def row(goal: Goal, found: Figures) -> str:
    figures = found[goal.shape]
    own = statistics.median(figures["aerobee"])
    rounds = ", ".join(f"{figure:.2f}" for figure in figures["aerobee"])
    if not goal.compared:
        return f"| {goal.title} | {own:.2f} ({rounds}) | | | <= {goal.most:g} us | {says(own <= goal.most)} |"
    other = statistics.median(figures[goal.compared])
    ratio = own / other
    return (
        f"| {goal.title} | {own:.2f} ({rounds}) | {goal.compared} {other:.2f} | {ratio:.2f} | <= {goal.most:g} x | "
        f"{says(ratio <= goal.most)} |"
    )


def says(is_met: bool) -> str:
    return "met" if is_met else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    found = measured(options.rounds, options.seconds)
    results_file.write("goals", {"rounds": options.rounds, "seconds": options.seconds, "shapes": found})
    print(
        "| shape | Aerobee, us a message (rounds) | compared with | ratio | goal | |\n|---|---|---|---|---|---|"
    )
    for goal in GOALS:
        print(row(goal, found))


if __name__ == "__main__":
    main()
