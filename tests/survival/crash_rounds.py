"""kill -9 under load, again and again: no acknowledged message is lost, none is invented, offsets have no gaps.

    python tests/survival/crash_rounds.py [--rounds 200] [--sync-flush] [--seed N]

Each round sends for a random moment, kills the broker's process with SIGKILL in the middle, starts it again, and reads
everything back (rmqload.py verify: CRC of each body, queue offsets without gaps, each acknowledged message exactly
once). The store keeps growing over the rounds; recovery times are reported against its size, in ten groups of rounds.
Ends with status 1 at the first fault; then the broker's directory is kept and named.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import servers  # noqa: E402

SEND_S = (0.1, 1.2)  # a kill falls at random into this span of sending
FIRST_MESSAGE_TIMEOUT_S = 120.0


# What the broker says about its recovery, aerobee/store/recovery/recovery.py.
OPENED = re.compile(r"opened after a crash: log (\d+)\.\.(\d+), (\d+) records scanned.*?, (\d+) bytes cut")


class Fault(Exception):
    """A promise was broken."""


def last_recovery(log: Path) -> tuple[int, int, int]:
    """Bytes of the log, records scanned and bytes cut at the last start, as the broker's log says."""
    found = OPENED.findall(log.read_text(errors="replace"))
    if not found:
        raise Fault(f"{log} does not say that the store was opened after a crash")
    start, end, scanned, cut = (int(text) for text in found[-1])
    return end - start, scanned, cut


def rmqload(*arguments: str) -> list[str]:
    return [sys.executable, str(BENCH / "rmqload.py"), *arguments, "--json"]


def wait_for_messages(server: servers.Server, topic: str, sender: subprocess.Popen[str]) -> None:
    """Return when the first message of the topic is stored. Raises Fault."""
    queue = server.directory / "store" / "consumequeue" / topic
    deadline = time.monotonic() + FIRST_MESSAGE_TIMEOUT_S
    while not queue.is_dir():
        if sender.poll() is not None or time.monotonic() > deadline:
            raise Fault(f"nothing was stored for {topic}")
        time.sleep(0.02)


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
        wait_for_messages(server, topic, sender)
        time.sleep(rng.uniform(*SEND_S))
        started = time.monotonic()
        server.restart("broker.log", kill=True)
        recovery_s = time.monotonic() - started
        output, errors = sender.communicate(timeout=300)
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
    log_bytes, scanned, cut = last_recovery(server.directory / "broker.log")
    acked.unlink()
    return {
        "recovery_s": recovery_s,
        "messages": float(sent["total"]),
        "log_bytes": log_bytes,
        "scanned": scanned,
        "cut_bytes": cut,
    }


def run(rounds: int, *, sync_flush: bool, seed: int) -> dict[str, object]:
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
            try:
                figures.append(one_round(server, rng, number))
            except BaseException:
                kept = server.directory.with_name(server.directory.name + "-fault")
                shutil.copytree(server.directory, kept)
                print(f"the broker's directory is kept in {kept}", file=sys.stderr)
                raise
            latest = figures[-1]
            print(
                f"round {number + 1}/{rounds}: {latest['messages']:.0f} messages, back in "
                f"{latest['recovery_s']:.2f} s with {latest['log_bytes'] / 1e6:.0f} MB of log",
                file=sys.stderr,
                flush=True,
            )
    return summary(figures, sync_flush=sync_flush)


def summary(figures: list[dict[str, float]], *, sync_flush: bool) -> dict[str, object]:
    """What goes into bench/results: times from SIGKILL to an open port, the start of Python included."""
    recoveries = [figure["recovery_s"] for figure in figures]
    step = max(1, len(figures) // 10)
    return {
        "flush": "sync" if sync_flush else "async",
        "rounds": len(figures),
        "faults": 0,
        "messages": int(sum(figure["messages"] for figure in figures)),
        "records_scanned_median": int(statistics.median(figure["scanned"] for figure in figures)),
        "records_scanned_max": int(max(figure["scanned"] for figure in figures)),
        "rounds_with_a_torn_tail": sum(figure["cut_bytes"] > 0 for figure in figures),
        "recovery_median_s": round(statistics.median(recoveries), 3),
        "recovery_max_s": round(max(recoveries), 3),
        "recovery_by_log_size": [
            {
                "log_mb": round(figures[at]["log_bytes"] / 1e6),
                "median_s": round(statistics.median(recoveries[at : at + step]), 3),
            }
            for at in range(0, len(figures), step)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sync-flush", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--out", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    try:
        figures = run(options.rounds, sync_flush=options.sync_flush, seed=options.seed)
        text = json.dumps({"seed": options.seed, **figures}, indent=1)
        print(text)
        if options.out is not None:
            options.out.write_text(text + "\n")
    except (Fault, servers.ServerFailed) as fault:
        print(f"FAULT (seed {options.seed}): {fault}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
