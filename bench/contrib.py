"""Celery and FastStream over Aerobee compared with the same over Redis and NATS: CPU of worker and broker together, and latency.

    bench/contrib.py [celery | faststream] [--tasks 2000] [--rate 50] [--rounds 1]

One worker process. Celery has one thread, tasks that are acknowledged late, no results; FastStream has one handler, and in Redis a
stream with a consumer group, in NATS a stream in files with a durable consumer. First as many tasks as the worker takes, for CPU; then `--rate` tasks a second, for the time
between the sending of a task and its run. Redis keeps nothing on disk here (`--save ''`), Aerobee's broker has its default
settings. Each round measures every broker; the last line of a table has the medians divided by Aerobee's. Needs redis-server,
and for FastStream nats-server and nats-py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
WITHIN_S = 120.0
LATENCY_TASKS = 300
CLUSTER = """
import sys
from aerobee.testing import ThreadedCluster
with ThreadedCluster() as cluster:
    print(cluster.nameserver_address, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Framework:
    """How tasks of a framework are sent and run; the programs are arguments of Python."""

    worker: Sequence[str]
    ready: bytes  # what the worker logs when it consumes
    sender: Sequence[str]  # takes the number of tasks and the pause between two, in seconds
    sends_first: bool  # the tasks wait for the worker; a new consumer group of Redis misses older messages
    brokers: Sequence[str]


CELERY_SENDER = """
import sys, time
from contrib_app import note
for _ in range(int(sys.argv[1])):
    note.delay(time.time())
    time.sleep(float(sys.argv[2]))
"""
FASTSTREAM = str(ROOT / "bench" / "contrib_faststream.py")
FRAMEWORKS = {
    "celery": Framework(
        ("-m", "celery", "-A", "contrib_app", "worker", "-c", "1", "-P", "threads", "-l", "INFO"),
        b" ready.",
        ("-c", CELERY_SENDER),
        sends_first=True,
        brokers=("aerobee", "redis"),
    ),
    "faststream": Framework(
        (FASTSTREAM,),
        b"started successfully",
        (FASTSTREAM,),
        sends_first=False,
        brokers=("aerobee", "redis", "nats"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=2000, help="Number of tasks of the run for CPU.")
    parser.add_argument("--rate", type=float, default=50.0, help="Tasks per second of the run for latency.")
    parser.add_argument("--rounds", type=int, default=1, help="Rounds over all brokers.")
    parser.add_argument("framework", nargs="?", choices=FRAMEWORKS, help="Framework; both by default.")
    options = parser.parse_args()
    for name in [options.framework] if options.framework else FRAMEWORKS:
        print(name)
        compare(FRAMEWORKS[name], options.tasks, options.rate, options.rounds)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: tasks a second, CPU a task in µs, latencies in ms."""

    rate: float
    cpu_us: float
    worker_us: float
    broker_us: float
    p50_ms: float
    p99_ms: float

    def values(self) -> list[float]:
        return [self.rate, self.cpu_us, self.worker_us, self.broker_us, self.p50_ms, self.p99_ms]


def compare(framework: Framework, task_count: int, rate: float, rounds: int) -> None:
    """One table."""
    print(
        f"{'broker':16} {'tasks/s':>8} {'CPU µs/task':>12} {'worker':>8} {'broker':>8} {'p50 ms':>7} {'p99 ms':>7}"
    )
    servers = {"aerobee": aerobee_server, "redis": redis_server, "nats": nats_server}
    rows: dict[str, list[Row]] = {name: [] for name in framework.brokers}
    for _ in range(rounds):
        for name, found in rows.items():
            with (
                tempfile.TemporaryDirectory() as directory,
                servers[name](Path(directory)) as (url, broker_pid),
            ):
                found.append(measure(framework, Path(directory), url, broker_pid, task_count, rate))
            show(name, found[-1].values(), digits=1)
    medians = {
        name: [statistics.median(column) for column in zip(*(row.values() for row in found), strict=True)]
        for name, found in rows.items()
    }
    for name in framework.brokers[1:]:
        pairs = zip(medians[name], medians["aerobee"], strict=True)
        show(f"{name} / aerobee", [theirs / ours if ours else 0.0 for theirs, ours in pairs], digits=2)


def show(name: str, values: Sequence[float], *, digits: int) -> None:
    widths = (8, 12, 8, 8, 7, 7)
    columns = (
        f"{value:{width}.{digits if digits == 2 or at > 3 else 0}f}"
        for at, (value, width) in enumerate(zip(values, widths, strict=True))
    )
    print(f"{name:16}", *columns, flush=True)


@contextmanager
def aerobee_server(_directory: Path) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"aerobee://{process.stdout.readline().strip()}/", process.pid
    finally:
        process.stdin.close()
        process.wait()


@contextmanager
def redis_server(directory: Path) -> Iterator[tuple[str, int]]:
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("contrib.py: redis-server is not installed: scripts/setup-bench installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait(lambda: listens(port))
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def nats_server(directory: Path) -> Iterator[tuple[str, int]]:
    program = shutil.which("nats-server")
    if program is None:
        raise SystemExit("contrib.py: nats-server is not installed: scripts/setup-bench installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory / "nats")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: listens(port))
        yield f"nats://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def measure(
    framework: Framework, directory: Path, url: str, broker_pid: int, task_count: int, rate: float
) -> Row:
    """One row of the table."""
    notes, log = directory / "notes", directory / "worker.log"
    os.environ.update(BENCH_BROKER=url, BENCH_NOTES=str(notes))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'bench'}"}
    sender = [sys.executable, *framework.sender]
    if framework.sends_first:
        subprocess.run([*sender, str(task_count), "0"], env=environment, check=True)
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, *framework.worker],
            env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        wait(lambda: framework.ready in log.read_bytes())
        begin, broker_cpu, worker_cpu = time.monotonic(), cpu_s(broker_pid), cpu_s(worker.pid)
        done = lines(notes)
        if not framework.sends_first:
            subprocess.run([*sender, str(task_count), "0"], env=environment, check=True)
        wait(lambda: lines(notes) >= task_count)
        elapsed = time.monotonic() - begin
        count = task_count - done
        broker_us = (cpu_s(broker_pid) - broker_cpu) / count * 1e6
        worker_us = (cpu_s(worker.pid) - worker_cpu) / count * 1e6
        notes.unlink()
        subprocess.run([*sender, str(LATENCY_TASKS), str(1 / rate)], env=environment, check=True)
        wait(lambda: lines(notes) >= LATENCY_TASKS)
        late = sorted(float(line) * 1000 for line in notes.read_text(encoding="utf-8").split())
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    p99 = late[int(len(late) * 0.99)]
    return Row(count / elapsed, broker_us + worker_us, worker_us, broker_us, statistics.median(late), p99)


def cpu_s(pid: int) -> float:
    """CPU of a process so far, user and system, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("contrib.py: the worker is not done in time")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
