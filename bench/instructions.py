"""Another checkout of Aerobee compared with this one, by instructions: what no other process on the machine disturbs.

    AEROBEE_BENCH_BEFORE=../before python bench/instructions.py [--shapes send-1,pull-32] [--backends native] [--profile DIR]

Each shape runs in a process of each checkout under valgrind's callgrind, which counts from the first of so many bursts to the
last (turns_worker.py, "count"). A figure is thousands of instructions of user code for one burst; the kernel's are not in it,
nor what a cache that is missed costs. --profile keeps callgrind's files: `callgrind_annotate FILE`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import servers

WORKER = servers.HERE / "turns_worker.py"
# Shape -> bursts counted, after a quarter as many.
SHAPES = {
    "native": {"send-1": 1000, "send-64": 64, "send-1k": 64, "batch-64": 64, "pull-32": 500, "pop-32": 40, "pop-1": 200},
    "python": {
        "send-1": 400, "send-64": 16, "send-1k": 16, "batch-64": 40, "pull-32": 200, "half": 4, "commit": 4, "level": 4, "timer": 4,
        "pop-32": 40, "pop-1": 200,
    },
}  # fmt: skip
# libc's functions by which the worker tells where counting begins and ends.
BEGIN, END = "getloadavg", "sched_yield"
TOTAL = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


def counted(python: str, backend: str, shape: str, bursts: int, kept: Path) -> float:
    """Instructions of one burst."""
    out = kept / f"callgrind.{shape}.{backend}"
    # Nothing is looked at before the worker is ready: a start is a hundred times as long as the bursts.
    command = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", f"--zero-before={BEGIN}", f"--dump-before={END}",
        "--compress-strings=no", f"--callgrind-out-file={out}",
        python, str(WORKER), "count", backend, shape, str(bursts),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    worker = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    if worker.stdout.readline():
        subprocess.run(["callgrind_control", "--instr=on", str(worker.pid)], capture_output=True, check=True)
    said = worker.communicate("go\n")
    found = TOTAL.search(Path(f"{out}.1-01").read_text()) if Path(f"{out}.1-01").exists() else None
    if found is None:
        raise SystemExit(f"{' '.join(command)}\n{said[0][-1000:]}{said[1][-2000:]}")
    return int(found.group(1)) / bursts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", type=lambda text: text.split(","), default=list(SHAPES))
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=[], help="default: all")
    parser.add_argument("--profile", type=Path, help="keep callgrind's files in DIR/before and DIR/now")
    options = parser.parse_args()
    pythons = {"before": servers.before_python_of(os.environ.get(servers.BEFORE, "")), "now": sys.executable}
    print("| thousands of instructions a burst | before | now | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="aerobee-instructions-") as directory:
        kept = options.profile or Path(directory)
        for backend in options.backends:
            for shape, bursts in SHAPES[backend].items():
                if options.shapes and shape not in options.shapes:
                    continue
                figures = []
                for side, python in pythons.items():
                    (kept / side).mkdir(parents=True, exist_ok=True)
                    figures.append(counted(python, backend, shape, bursts, kept / side) / 1000)
                before, now = figures
                print(f"| {backend}, {shape} | {before:.2f} | {now:.2f} | {now / before:.3f} |", flush=True)


if __name__ == "__main__":
    main()
