"""End to end latency, from the moment a message was due to its arrival at a long-polling consumer.

    python bench/latency.py [--rounds 5] [--seconds 10] [--rates 100,1000,10000] [--servers aerobee,rocketmq]

The servers take turns within each round. The load is open loop (rmqload.py e2e): a server that stalls cannot hide it.
Results go to bench/results/latency.json: server -> rate -> rounds of rmqload's JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from typing import Any

import results_file
import servers
from compare import note, run_load
from servers import Server

PERCENTILES = ("p50", "p99", "p99.9")
WARM_MESSAGES = 300_000


def measure(server: Server, rate: int, seconds: float) -> dict[str, Any]:
    """One round at one server and rate."""
    where = ("--broker", server.address, "--server-pid", str(server.pids[-1]))
    return run_load("rmqload.py", "e2e", *where, "--rate", str(rate), "--duration", str(seconds))


def median(rounds: list[dict[str, Any]], percentile: str) -> float:
    """Milliseconds."""
    return statistics.median(float(result["e2e_latency_ms"][percentile]) for result in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rates", default="100,1000,10000")
    parser.add_argument("--servers", default="aerobee,rocketmq")
    options = parser.parse_args()
    rates = [int(rate) for rate in options.rates.split(",")]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(getattr(servers, name.replace("-", "_"))())
            for name in options.servers.split(",")
        ]
        for server in running:
            count = str(WARM_MESSAGES if server.name == "rocketmq" else WARM_MESSAGES // 10)
            note(f"warming {server.name} with {count} messages")
            run_load("rmqload.py", "send", "--broker", server.address, "--count", count, "--in-flight", "64")
            measure(server, max(rates), 2)
        for rate in rates:
            for round_number in range(options.rounds):
                for server in running:
                    result = measure(server, rate, options.seconds)
                    found.setdefault(server.name, {}).setdefault(str(rate), []).append(result)
                    note(f"{rate}/s round {round_number + 1} {server.name}: {result['e2e_latency_ms']}")
    results_file.write("latency", found)
    for name, by_rate in found.items():
        for rate_text, rounds in by_rate.items():
            figures = ", ".join(f"{p} {median(rounds, p):.3f} ms" for p in PERCENTILES)
            print(f"{name} {rate_text}/s: {figures}")


if __name__ == "__main__":
    main()
