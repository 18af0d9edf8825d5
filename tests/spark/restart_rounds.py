"""Streaming queries whose processes are killed and started again: what is lost, what comes twice.

    .venv-spark/bin/python tests/spark/restart_rounds.py [--ranges 10] [--rounds 20] [--seed 1] [--rate 100] [--results FILE] [--new 10]

Each range is so many rounds with a seed, a separate cluster and checkpoints, and is judged by itself. With --results a line is added for
each range, and ranges that the file has are passed over: what was cut off continues. --new ends after so many. A range:

A cluster in this process, messages with rising numbers, and a driver process with two queries: topic to Parquet, and topic to another
topic with dedup=true. Each round chooses when kill -9 comes: while the driver starts, at any moment, or just after a micro-batch of one
of the queries came to a Stage, which its checkpoint shows. It goes to the driver with all its Python processes, and the next round
starts another; or to one Python process alone, whose query fails then, in local mode, and is started again by the driver. Where both
queries stood is looked up after each kill, and counted.
At the end the driver runs until all is read. Parquet and the second topic must have every number exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import aerobee.spark
from aerobee.errors import AerobeeError
from aerobee.message import Message
from aerobee.testing.threaded_cluster import ThreadedCluster

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 900.0
STAGE_TIMEOUT_S = 60.0
END_TIMEOUT_S = 1800.0
# A driver lives for some seconds: what compiles little, and collects with one thread, costs less.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
SLOW_START = "Python worker failed to connect back"
QUERIES = ("parquet", "topic")
AT_START = 7  # of eight rounds: while the driver starts


class Stage(Enum):
    """Where a query's newest micro-batch stands, by what is on the disk."""

    NONE = "no micro-batch yet"
    PLANNED = "planned, nothing written"
    WRITING = "its tasks have written something"
    SINK_COMMITTED = "committed by the sink, not by the query"
    COMMITTED = "committed"


class Watched:
    """A query's checkpoint and output, seen from outside. `written()`: how much its sink holds, committed or not."""

    def __init__(self, directory: Path, name: str, written: Callable[[], int]) -> None:
        self._offsets = directory / f"{name}-checkpoint" / "offsets"
        self._commits = directory / f"{name}-checkpoint" / "commits"
        self._sink_log = directory / "out" / "_spark_metadata" if name == "parquet" else None
        self._written = written
        self._written_now = 0
        self._planned_batch = -1
        self._written_before = 0

    def stage(self) -> Stage:
        """Asked often enough, it knows how much was written before the newest micro-batch was planned."""
        planned, committed = _newest(self._offsets), _newest(self._commits)
        if planned < 0:
            return Stage.NONE
        if planned <= committed:
            return Stage.COMMITTED
        if self._sink_log is not None and _newest(self._sink_log) >= planned:
            return Stage.SINK_COMMITTED
        # A broker that got no turn for two minutes is not registered for a moment: then what was known before counts.
        with contextlib.suppress(AerobeeError):
            self._written_now = self._written()
        written = self._written_now
        if planned != self._planned_batch:
            self._planned_batch, self._written_before = planned, written
        return Stage.WRITING if written > self._written_before else Stage.PLANNED


def _newest(log: Path) -> int:
    """The newest batch in a log of Spark's, -1 without one."""
    with contextlib.suppress(FileNotFoundError):
        names = (entry.name.split(".")[0] for entry in log.iterdir() if not entry.name.startswith("."))
        return max((int(name) for name in names if name.isdigit()), default=-1)
    return -1


def drive(nameservers: str, directory: Path, *, until_drained: bool) -> None:
    """The driver process: both queries until it is killed, or until everything is read."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    aerobee.spark.register(spark)

    def begin(name: str, kind: str, **options: str) -> Any:
        source = spark.readStream.format("rocketmq").options(
            nameservers=nameservers,
            subscribe="numbers",
            startingOffsets="earliest",
            maxOffsetsPerTrigger="300",  # so that micro-batches are short, and many
        )
        trigger: dict[str, Any] = (
            {"availableNow": True} if until_drained else {"processingTime": "100 milliseconds"}
        )
        writer = source.load().select("value").writeStream.format(kind).options(**options)
        return (
            writer.option("checkpointLocation", str(directory / f"{name}-checkpoint"))
            .trigger(**trigger)
            .start()
        )

    begins = (
        lambda: begin("parquet", "parquet", path=str(directory / "out")),
        lambda: begin("topic", "rocketmq", nameservers=nameservers, topic="copies", dedup="true"),
    )
    queries = [begin() for begin in begins]
    (directory / "works").touch()
    if until_drained:
        for query in queries:
            query.awaitTermination()
        return
    while True:
        queries = [query if query.isActive else begin() for query, begin in zip(queries, begins, strict=True)]
        time.sleep(0.05)


class Driver:
    """A driver process in a separate process group."""

    def __init__(self, nameservers: str, directory: Path, *, until_drained: bool = False) -> None:
        (directory / "works").unlink(missing_ok=True)
        self._works = directory / "works"
        self._log = (directory / "driver.log").open("ab")
        end = ["--until-drained"] if until_drained else []
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--drive", nameservers, str(directory), *end],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "JAVA_TOOL_OPTIONS": JVM},
        )

    def wait_until_it_works(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._works.exists() and self.is_alive():
            if time.monotonic() > deadline:
                raise AssertionError("the driver did not start")
            time.sleep(0.05)

    def is_alive(self) -> bool:
        """Without taking its end: until kill() has ended its group, no other process can get its number."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def wait(self) -> int:
        """Until it ends by itself; returns its code, that of SIGKILL when it took too long."""
        deadline = time.monotonic() + END_TIMEOUT_S
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.2)
        self.kill()
        return self._process.returncode

    def kill(self) -> None:
        """The JVM, its Python workers, the Python driver: the whole group together."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def kill_a_worker(self, chosen: random.Random) -> bool:
        """One Python process that the JVM started, of a source, a sink or tasks; False when there is none."""
        mine = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                command = (entry / "cmdline").read_bytes()
                if os.getpgid(int(entry.name)) == self._process.pid and b"\0-m\0pyspark." in command:
                    mine.append(int(entry.name))
        if not mine:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(chosen.choice(mine), signal.SIGKILL)
        return True


def numbers_of(cluster: ThreadedCluster, topic: str) -> Counter[int]:
    """What a topic holds, read by a client."""
    found: Counter[int] = Counter()
    with cluster.admin() as admin:
        total = sum(stats.max_offset for stats in admin.topic_stats(topic))
    with cluster.pull_consumer("judge") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        while found.total() < total:
            found.update(int(message.body) for message in consumer.poll())
    return found


def numbers_in_parquet(directory: Path) -> Counter[int]:
    """What a reader of the sink's log sees: files of batches that were committed."""
    import pyarrow.parquet as parquet

    found: Counter[int] = Counter()
    log = directory / "_spark_metadata"
    files: set[str] = set()
    batches = sorted(
        (entry for entry in log.iterdir() if not entry.name.startswith(".")),
        key=lambda e: int(e.name.split(".")[0]),
    )
    for batch in batches:
        lines = batch.read_text().splitlines()[1:]
        files |= {json.loads(line)["path"] for line in lines if line}
    for name in sorted(files):
        found.update(
            int(value) for value in parquet.read_table(name.removeprefix("file://"))["value"].to_pylist()
        )
    return found


def run(rounds: int, seed: int, rate: int) -> dict[str, int]:
    """Returns what was counted. Raises AssertionError with the numbers that are missing or came twice."""
    chosen = random.Random(seed)
    counted = Counter({"rounds": 0, "worker kills": 0})
    broker = {"dedupWindowMillis": "7200000"}
    with tempfile.TemporaryDirectory() as path, ThreadedCluster(brokers=2, broker_config=broker) as cluster:
        directory = Path(path)
        cluster.create_topic("numbers", 1)
        cluster.create_topic("copies", 1)
        ended = threading.Event()
        sent = 0

        def send() -> None:
            nonlocal sent
            with cluster.producer() as producer:
                queues = producer.queues("numbers")
                while not ended.is_set():
                    # A busy machine answers late: what is sent again is stored once, too.
                    number = Message("numbers", b"%d" % sent, properties={"DEDUP_KEY": f"number-{sent}"})
                    with contextlib.suppress(AerobeeError):
                        producer.send(number, queue=queues[sent % len(queues)])
                        sent += 1
                    time.sleep(1 / rate)

        producing = threading.Thread(target=send)
        with cluster.admin() as admin:
            watched = {
                "parquet": Watched(directory, "parquet", lambda: len(list(directory.glob("out/*.parquet")))),
                "topic": Watched(
                    directory, "topic", lambda: sum(each.max_offset for each in admin.topic_stats("copies"))
                ),
            }
            producing.start()
            driver: Driver | None = None
            try:
                for number in range(rounds):
                    begun = time.monotonic()
                    if driver is not None and (number % 8 == AT_START or not driver.is_alive()):
                        driver.kill()
                        driver = None
                    driver = driver or Driver(cluster.nameserver_address, directory)
                    aim = _wait_for_a_moment(driver, watched, chosen, number)
                    if number % 8 != AT_START and chosen.random() < 0.5 and driver.kill_a_worker(chosen):
                        counted["worker kills"] += 1
                        whom = "a worker"
                    else:
                        driver.kill()
                        driver, whom = None, "the driver"
                    counted["rounds"] += 1
                    found = {name: query.stage() for name, query in watched.items()}
                    counted.update(f"{name}: {stage.value}" for name, stage in found.items())
                    stages = ", ".join(f"{name} {stage.value}" for name, stage in found.items())
                    took = f"{time.monotonic() - begun:.0f} s"
                    print(
                        f"round {counted['rounds']}, {took}: {sent} sent; {whom}, at {aim}; {stages}",
                        flush=True,
                    )
            finally:
                if driver is not None:
                    driver.kill()
                ended.set()
                producing.join()
        print(f"{sent} sent; to the end", flush=True)
        _drive_until_drained(cluster.nameserver_address, directory)
        for where, found in (
            ("Parquet", numbers_in_parquet(directory / "out")),
            ("the second topic", numbers_of(cluster, "copies")),
        ):
            lost = [number for number in range(sent) if not found[number]]
            twice = [number for number in found if found[number] > 1]
            assert not lost, f"seed {seed}: {len(lost)} numbers are missing in {where}: {lost[:20]}"
            assert not twice, f"seed {seed}: {len(twice)} numbers are twice in {where}: {sorted(twice)[:20]}"
    return {**counted, "messages": sent}


def _drive_until_drained(nameservers: str, directory: Path) -> None:
    """Until everything is read. Spark gives a Python process 10 s to start, which a busy machine may need: then once more."""
    log = directory / "driver.log"
    for _ in range(5):
        begin = log.stat().st_size if log.exists() else 0
        code = Driver(nameservers, directory, until_drained=True).wait()
        if code == 0:
            return
        said = log.read_bytes()[begin:].decode(errors="replace")
        if SLOW_START not in said:
            break
    named = [line for line in said.splitlines() if "Exception" in line or "Error" in line]
    raise AssertionError("\n".join((f"the last driver ended with {code}:", *named[:8], "…", said[-4000:])))


def _wait_for_a_moment(
    driver: Driver, watched: dict[str, Watched], chosen: random.Random, number: int
) -> str:
    """Return when kill -9 is to come, with the moment's name. One round of eight while it starts, one at any moment."""
    turn = number % 8
    if turn == AT_START:
        time.sleep(chosen.uniform(0, 8))
        return "its start"
    driver.wait_until_it_works()
    if turn == 6:
        time.sleep(chosen.uniform(0, 12))
        return "any moment"
    name = QUERIES[turn % 2]
    aim = (Stage.PLANNED, Stage.WRITING, Stage.SINK_COMMITTED if name == "parquet" else Stage.WRITING)[
        turn // 2
    ]
    deadline = time.monotonic() + STAGE_TIMEOUT_S
    # The micro-batch that an earlier round left half done is planned already: a new one has to begin.
    while watched[name].stage() is not Stage.COMMITTED and driver.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    if aim is Stage.PLANNED and chosen.random() < 0.5:
        return f"{name} after a commit"
    while watched[name].stage() is not aim and driver.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(chosen.choice((0.0, 0.0, 0.02, 0.1)))
    return f"{name} {aim.value}"


def done_seeds(results: Path) -> set[int]:
    """Of the ranges that a file of results has."""
    if not results.exists():
        return set()
    return {int(json.loads(line)["seed"]) for line in results.read_text().splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranges", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20, help="of each range")
    parser.add_argument("--seed", type=int, default=1, help="of the first range")
    parser.add_argument("--rate", type=int, default=50, help="messages a second")
    parser.add_argument("--results", type=Path, help="a file, a line of JSON for each range that held")
    parser.add_argument(
        "--new",
        type=int,
        default=1_000,
        help="Maximum number of ranges that are not in the results (default 1,000).",
    )
    parser.add_argument("--drive", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--until-drained", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        drive(args.drive[0], Path(args.drive[1]), until_drained=args.until_drained)
        return
    known = done_seeds(args.results) if args.results else set()
    wanted = [seed for seed in range(args.seed, args.seed + args.ranges) if seed not in known]
    for seed in wanted[: args.new]:
        begun = time.monotonic()
        counted = run(args.rounds, seed, args.rate)
        line = json.dumps({"seed": seed, **counted, "seconds": round(time.monotonic() - begun)})
        print(line, flush=True)
        if args.results:
            with args.results.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
