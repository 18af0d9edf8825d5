"""Where a server's CPU goes while it is loaded: kernel, native backend, interpreter, libc, event loop, other.

    python bench/cpu_shares.py [--shapes batch-64,send-64x1,pull-32,transaction,pop-32,pop-1] [--seconds 4]

One broker with the native backend; for each shape `perf record` samples its process while the load runs, and `perf report`
adds up its samples by the file that the code is in. Needs perf, and leave to use it (root, or kernel.perf_event_paranoid).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import servers
from compare import SHAPES, measure, note, run_load

sys.path.insert(0, str(servers.REPOSITORY))
from bench.kinds import pop

POPPED = 4000
PARTS = ("kernel", "native backend", "interpreter", "libc", "event loop", "other")


def part_of(file: str) -> str:
    """Whose code a file of `perf report --sort dso` is."""
    if "kernel" in file or file.startswith(("[vdso", "[unknown")):
        return "kernel"
    if "aerobee_native" in file:
        return "native backend"
    if "uvloop" in file or "_asyncio" in file or "select" in file:
        return "event loop"
    if "python" in file:
        return "interpreter"
    if file.startswith(("libc", "ld-", "libm", "libpthread")):
        return "libc"
    return "other"


def shares(data: Path) -> dict[str, float]:
    """Percent of the samples, by part."""
    command = ["perf", "report", "-i", str(data), "--sort", "dso", "--stdio", "--percent-limit", "0"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict.fromkeys(PARTS, 0.0)
    for line in text.splitlines():
        pieces = line.split()
        if len(pieces) >= 2 and pieces[0].endswith("%"):
            found[part_of(pieces[1])] += float(pieces[0][:-1])
    return found


def load(server: servers.Server, shape: str, seconds: float) -> None:
    """One load of this shape."""
    if shape.startswith("pop-"):
        batch = int(shape[4:])
        wires = (pop.Wire(("127.0.0.1", server.port)), pop.Wire(("127.0.0.1", server.port)))
        topic = f"shares-{shape}-{time.monotonic_ns()}"
        pop.fill(wires[0], topic, POPPED)
        pop.pop_and_ack(*wires, topic, batch, POPPED)
    elif shape == "transaction":
        where = ("--broker", server.address, "--server-pid", str(server.pids[-1]))
        window = ("--duration", str(seconds), "--warmup", "0.5")
        run_load(
            "rmqload.py",
            "txn",
            *where,
            "--topic",
            "shares-txn",
            "--connections",
            "1",
            "--in-flight",
            "64",
            *window,
        )
    else:
        measure(server, next(each for each in SHAPES if each.name == shape), seconds)


def sampled(server: servers.Server, shape: str, seconds: float) -> dict[str, float]:
    """Percent by part while the broker is loaded."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory, "perf.data")
        command = ["perf", "record", "-q", "-F", "499", "-p", str(server.pids[-1]), "-o", str(data)]
        recording = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.3)
        load(server, shape, seconds)
        recording.terminate()
        recording.wait(30)
        return shares(data)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="batch-64,send-64x1,pull-32,transaction,pop-32,pop-1")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    if os.environ.get("AEROBEE_FAST_PATH") == "python":
        parser.error("the shares are those of the native backend")
    print("| shape | " + " | ".join(PARTS) + " |\n|---|" + "---|" * len(PARTS))
    with servers.aerobee(extra=servers.PATIENT) as server:
        load(server, "pull-32", 1.0)  # fills the topic of the pulls
        for shape in options.shapes.split(","):
            note(f"sampling {shape}")
            found = sampled(server, shape, options.seconds)
            print(f"| {shape} | " + " | ".join(f"{found[part]:.0f} %" for part in PARTS) + " |", flush=True)


if __name__ == "__main__":
    main()
