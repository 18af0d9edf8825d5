"""kill -9 under load, again and again: no acknowledged message is lost, none is invented, offsets have no gaps.

    python tests/survival/crash_rounds.py [--rounds 200] [--sync-flush] [--seed N]

Each round sends for a random moment, kills the broker's process with SIGKILL in the middle, starts it again, and reads
everything back (rmqload.py verify: CRC of each body, queue offsets without gaps, each acknowledged message exactly
once). The store keeps growing over the rounds; recovery times are reported against its size. Ends with status 1 at
the first fault and keeps the store directory then.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import servers  # noqa: E402

SEND_S = (0.3, 1.2)  # a kill falls at random into this span of sending


class Fault(Exception):
    """A promise was broken."""


def rmqload(*arguments: str) -> list[str]:
    return [sys.executable, str(BENCH / "rmqload.py"), *arguments, "--json"]


def one_round(server: servers.Server, rng: random.Random, number: int) -> dict[str, float]:
    """Send, kill, restart, verify. Returns figures of the round."""
    acked = server.directory / f"acked-{number}.json"
    topic = f"crash-{number}"
    connections, in_flight = rng.choice(((1, 64), (4, 16), (8, 1)))
    sender = subprocess.Popen(
        rmqload(
            *("send", "--broker", server.address, "--topic", topic, "--survive", "--acked-out", str(acked)),
            *("--connections", str(connections), "--in-flight", str(in_flight)),
            *("--size", str(rng.choice((24, 128, 3000))), "--duration", "30"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(0.4 + rng.uniform(*SEND_S))
        started = time.monotonic()
        server.restart("broker.log", kill=True)
        recovery_s = time.monotonic() - started
        output, errors = sender.communicate(timeout=60)
    finally:
        if sender.poll() is None:
            sender.kill()
            sender.wait()
    if not acked.exists():
        raise Fault(f"round {number}: the sender wrote no list of acknowledged messages: {errors[-500:]}")
    sent = json.loads(output.strip().splitlines()[-1])
    verify = subprocess.run(
        rmqload("verify", "--broker", server.address, "--topic", topic, "--acked-in", str(acked)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if verify.returncode != 0:
        raise Fault(f"round {number}: {verify.stdout.strip()[-1000:]} {verify.stderr.strip()[-1000:]}")
    return {"recovery_s": recovery_s, "messages": float(sent["total"])}


def run(rounds: int, *, sync_flush: bool, seed: int) -> dict[str, float]:
    """Run all rounds on one broker directory. Raises Fault."""
    rng = random.Random(seed)
    # Small files, so that kills fall on roll-overs of the log, of queues and of the index too.
    small = {
        "mappedFileSizeCommitLog": str(8 << 20),
        "mappedFileSizeConsumeQueue": str(20 * 5_000),
        "maxHashSlotNum": "5000",
        "maxIndexNum": "20000",
    }
    figures: list[dict[str, float]] = []
    with servers.aerobee(sync_flush=sync_flush, extra=small) as server:
        for number in range(rounds):
            figures.append(one_round(server, rng, number))
            latest = figures[-1]
            print(
                f"round {number + 1}/{rounds}: {latest['messages']:.0f} messages, back in {latest['recovery_s']:.2f} s",
                file=sys.stderr,
                flush=True,
            )
    recoveries = [figure["recovery_s"] for figure in figures]
    return {
        "rounds": rounds,
        "messages": sum(figure["messages"] for figure in figures),
        "recovery_median_s": round(statistics.median(recoveries), 3),
        "recovery_max_s": round(max(recoveries), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sync-flush", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    try:
        print(json.dumps(run(options.rounds, sync_flush=options.sync_flush, seed=options.seed)))
    except (Fault, servers.ServerFailed) as fault:
        print(f"FAULT (seed {options.seed}): {fault}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
