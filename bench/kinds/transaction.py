"""Server CPU of transactions (half message, commit, delivered), Aerobee compared with RocketMQ 5.5.0, alternating in one run.

    python bench/kinds/transaction.py [--servers aerobee,aerobee-python,rocketmq] [--rounds 5] [--seconds 4]

One connection, 64 in flight, 128-byte bodies: rmqload's `txn` (half message, then END_TRANSACTION as RocketMQ's clients
send it), and its `pull` of what was committed, 32 at a time. The figure is the server's CPU time a transaction, the two
together, median of the rounds.

After its first transaction a RocketMQ broker burns up to one core for ever (its issue 10966), also while it is
idle. So it has a separate broker here, and what it burns in the same time while idle is shown and taken off in a second
figure; the first one is what a machine spends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench import results_file, servers
from bench.load.server import process_cpu_s
from bench.servers import Server

WARM_ROUNDS = 2
IDLE_S = 2.0
IN_FLIGHT = 64
SHAPES = (
    ("gross", "64 in flight, 128 B"),
    ("net", "64 in flight, 128 B, without what an idle broker burns"),
)
SERVERS = {
    "aerobee": lambda: servers.aerobee(extra=servers.PATIENT),
    "aerobee-python": lambda: servers.aerobee_python(extra=servers.PATIENT),
    "before": lambda: servers.before(extra=servers.PATIENT),
    "before-python": lambda: servers.before_python(extra=servers.PATIENT),
    "rocketmq": lambda: servers.rocketmq(heap="1g", extra=servers.PATIENT),
}


def load(server: Server, mode: str, topic: str, *arguments: str) -> dict[str, Any]:
    """Run rmqload in a separate process; return what it measured."""
    tool = Path(__file__).resolve().parent.parent / "rmqload.py"
    where = ("--broker", server.address, "--server-pid", str(server.pids[-1]), "--topic", topic)
    done = subprocess.run(
        [sys.executable, str(tool), mode, *where, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{server.name} {mode}: {done.stderr.strip()[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def idle_share(server: Server) -> float:
    """The share of a core that the server takes while it is idle."""
    before, began = process_cpu_s(server.pids[-1]), time.monotonic()
    time.sleep(IDLE_S)
    return (process_cpu_s(server.pids[-1]) - before) / (time.monotonic() - began)


def one_round(server: Server, topic: str, seconds: float) -> dict[str, float]:
    """Microseconds a transaction: gross, and without what the server burns while idle."""
    shape = ("--connections", "1", "--in-flight", str(IN_FLIGHT), "--size", "128")
    window = ("--duration", str(seconds), "--warmup", "1")
    sent = load(server, "txn", topic, *shape, *window)
    burn = idle_share(server)
    pulled = load(server, "pull", topic, "--pull-count", "32", *window)
    gross = sent["server_us_per_msg"] + pulled["server_us_per_msg"]
    burnt = burn * 1e6 / sent["msg_per_s"] + burn * 1e6 / pulled["msg_per_s"]
    return {
        "gross": gross,
        "net": gross - burnt,
        "half and commit": sent["server_us_per_msg"],
        "pull": pulled["server_us_per_msg"],
        "idle share of a core": burn,
        "transactions a second": sent["msg_per_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="aerobee,aerobee-python,rocketmq")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as stack:
        running = [stack.enter_context(SERVERS[name]()) for name in options.servers.split(",")]
        for number in range(-WARM_ROUNDS, options.rounds):
            for server in running:
                result = one_round(server, f"txn{number + WARM_ROUNDS}", options.seconds)
                text = ", ".join(f"{name} {value:.2f}" for name, value in result.items())
                print(f"round {number}: {server.name}: {text}", file=sys.stderr, flush=True)
                if number >= 0:
                    rounds.setdefault(server.name, []).append(result)
    medians = {
        name: {key: round(statistics.median(each[key] for each in results), 2) for key in results[0]}
        for name, results in rounds.items()
    }
    base = medians.get("rocketmq")
    rows = [
        results_file.kind_row(
            title,
            {name: figures[key] for name, figures in medians.items()},
            goal="<= 0.3 x",
            base=base[key] if base else None,
        )
        for key, title in SHAPES
    ]
    results_file.write_kind("transaction", "Transactions: half message, commit, delivered", rows, medians)
    print("| server | us a transaction | of RocketMQ | without its idle burn | of RocketMQ |")
    print("|---|---|---|---|---|")
    for name, figures in medians.items():
        shares = [f"{figures[kind] / base[kind]:.2f}" if base else "-" for kind in ("gross", "net")]
        print(f"| {name} | {figures['gross']:.1f} | {shares[0]} | {figures['net']:.1f} | {shares[1]} |")


if __name__ == "__main__":
    main()
