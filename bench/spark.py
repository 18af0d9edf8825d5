#!/usr/bin/env python3
"""Spark's source, sink and jobs of this project compared with Spark's own Kafka source and sink with a Kafka broker.

    scripts/setup-bench-spark
    .interop/spark-venv/bin/python bench/spark.py [--messages 1000000] [--rounds 2] [--only read,kib,stream] [--json FILE]

One run: one Spark (local[2]) for all, both brokers up, the two products interleaved in each round. What counts is rows a CPU second: rows
divided by the CPU time of Spark (the driver's Python, its JVM, all Python workers) and of the broker together, from /proc. Both products
write the messages by Spark's own write (the row "sink"), 8 queues or partitions, and read the same columns: the body, topic, queue, offset and
store time. The first turn of each shape warms the JVM and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.kafka_server import INTEROP, kafka
from bench.servers import Server, aerobee
from bench.spark_stream import ages, sender

ROOT = Path(__file__).resolve().parent.parent
QUEUES = 8
STREAM_WARM_S = 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What Spark has itself stays at home.
OWN_JARS = ("scala-library", "hadoop-", "slf4j-", "spark-tags")
COLUMNS = "value binary, topic string, queue_id int, queue_offset bigint, store_ts timestamp"
KAFKA_COLUMNS = ("value", "topic", "partition", "offset", "timestamp")


def tree(root: int, without: Collection[int] = ()) -> list[int]:
    """A process and all its descendants, but `without` these and theirs."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
    found = [root]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid and child not in without)
    return found


def cpu_s(root: int, without: Collection[int] = ()) -> float:
    """CPU seconds of a tree of processes, those that ended and were waited for included."""
    total = 0
    for pid in tree(root, without):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            total += sum(int(each) for each in fields[11:15])
    return total / TICKS_PER_S


@dataclass(frozen=True)
class Cost:
    """CPU seconds of Spark and of the broker, and seconds that passed."""

    spark_s: float
    broker_s: float
    wall_s: float

    @property
    def cpu_s(self) -> float:
        return self.spark_s + self.broker_s


def cost_of(work: Callable[[], object], server: Server, servers: Collection[int] = ()) -> Cost:
    """Of one piece of work of Spark at one broker. `servers`: processes of all brokers, which this process started as well."""
    pids = server.pids
    others = servers or pids
    begun, spark, broker = time.monotonic(), cpu_s(os.getpid(), others), sum(map(cpu_s, pids))
    work()
    return Cost(cpu_s(os.getpid(), others) - spark, sum(map(cpu_s, pids)) - broker, time.monotonic() - begun)


class Product:
    """One of the two, as the shapes use it."""

    def __init__(self, name: str, spark: Any, server: Server) -> None:
        self.name, self.spark, self.server = name, spark, server

    def read(self, topic: str, kind: Any = None) -> Any:
        """A DataFrame, or a stream with `kind` = spark.readStream, of the columns that are compared."""
        reader = kind or self.spark.read
        if self.name == "kafka":
            frame = reader.format("kafka").options(
                **self._servers(), subscribe=topic, startingOffsets="earliest"
            )
            return frame.load().selectExpr(*KAFKA_COLUMNS[:-1], "timestamp AS store_ts")
        frame = reader.format("rocketmq").options(
            **self._servers(), subscribe=topic, startingOffsets="earliest"
        )
        return frame.schema(COLUMNS).load()

    def stream(self, topic: str) -> Any:
        """The same columns as a stream from the topic's beginning, with the time of sending instead of storing."""
        if self.name == "kafka":
            frame = self.spark.readStream.format("kafka").options(
                **self._servers(), subscribe=topic, startingOffsets="earliest"
            )
            return frame.load().selectExpr(*KAFKA_COLUMNS[:-1], "timestamp AS sent_ts")
        frame = self.spark.readStream.format("rocketmq").options(
            **self._servers(), subscribe=topic, startingOffsets="earliest"
        )
        return (
            frame.schema(COLUMNS.replace("store_ts", "born_ts"))
            .load()
            .withColumnRenamed("born_ts", "sent_ts")
        )

    def write(self, frame: Any, topic: str) -> None:
        kind = "kafka" if self.name == "kafka" else "rocketmq"
        frame.write.format(kind).options(**self._servers(), topic=topic).mode("append").save()

    @property
    def address(self) -> str:
        """Where a client begins."""
        return next(iter(self._servers().values()))

    def _servers(self) -> dict[str, str]:
        if self.name == "kafka":
            return {"kafka.bootstrap.servers": self.server.address}
        return {"nameservers": f"127.0.0.1:{self.server.nameserver_port}"}

    def create_topic(self, topic: str) -> None:
        """Kafka makes it at the first message."""
        if self.name != "kafka":
            from aerobee.client.sync import SyncAdmin

            with SyncAdmin(self._servers()["nameservers"]) as admin:
                admin.create_topic(topic, queue_count=QUEUES)


class Table:
    """What was measured, as it comes; printed immediately."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def compare(self, what: str, count: int, costs: dict[str, list[Cost]]) -> None:
        """Rows a CPU second of both, by the median of the turns, and the ratio."""
        rates = {}
        for name, taken in costs.items():
            middle = sorted(taken, key=lambda cost: cost.cpu_s)[(len(taken) - 1) // 2]
            rates[name] = count / middle.cpu_s
            self.add(
                what=what,
                product=name,
                rows_a_cpu_second=round(rates[name]),
                spark_cpu_s=round(middle.spark_s, 2),
                broker_cpu_s=round(middle.broker_s, 2),
                wall_s=round(middle.wall_s, 2),
                turns=len(taken),
            )
        self.add(what=what, ratio=round(rates["aerobee"] / rates["kafka"], 3), load=os.getloadavg()[0])


@dataclass
class Bench:
    """Everything that the shapes share."""

    spark: Any
    products: list[Product]
    table: Table
    directory: Path
    rounds: int

    def turns(self, work: Callable[[Product], object]) -> dict[str, list[Cost]]:
        """Interleaved, a warm one first."""
        costs: dict[str, list[Cost]] = {product.name: [] for product in self.products}
        servers = {pid for product in self.products for pid in product.server.pids}
        for number in range(self.rounds + 1):
            for product in self.products:
                cost = cost_of(lambda product=product: work(product), product.server, servers)
                if number:
                    costs[product.name].append(cost)
        return costs

    def fill(self, topic: str, count: int, size: int) -> None:
        """`count` messages of `size` bytes by each sink, in as many writes as there are rounds and a warm one."""
        for product in self.products:
            product.create_topic(topic)
        part = count // (self.rounds + 1)
        frame = self.spark.range(0, part, 1, 2).selectExpr(
            f"CAST(rpad(CAST(id AS string), {size}, sha2(CAST(id AS string), 512)) AS binary) AS value"
        )
        costs = self.turns(lambda product: product.write(frame, topic))
        self.table.compare(f"sink, {size} B", part, costs)

    def read(self, topic: str, count: int, size: int) -> None:
        """To a count, and to Parquet."""
        found: set[int] = set()
        costs = self.turns(lambda product: found.add(product.read(topic).count()))
        assert len(found) == 1, found
        stored = found.pop()
        assert stored >= count // (self.rounds + 1) * (self.rounds + 1), stored
        self.table.compare(f"read {stored} of {size} B to a count", stored, costs)

        def to_parquet(product: Product) -> None:
            target = self.directory / f"{product.name}-out"
            product.read(topic).write.mode("overwrite").parquet(str(target))
            shutil.rmtree(target)

        self.table.compare(f"read {stored} of {size} B to Parquet", stored, self.turns(to_parquet))

    def stream(self, rate: int, seconds: int, warm_s: int) -> None:
        """Age of the messages of a steady sender when they are written, in a query with a trigger of a second."""
        p99: dict[str, list[float]] = {product.name: [] for product in self.products}
        for number in range(self.rounds + 1):
            counted_s = seconds if number else 1  # the first turn warms
            for product in self.products:
                topic = f"stream-{number}"
                product.create_topic(topic)
                product.write(self.spark.range(0, 1).selectExpr("CAST('first' AS binary) AS value"), topic)
                directory = self.directory / f"{product.name}-{topic}"
                command = sender(product.name, product.address, topic, rate, warm_s + counted_s, 100)
                count = rate * (warm_s + counted_s)
                found = ages(self.spark, product.stream(topic), command, directory, count, warm_s)
                if not number:
                    continue
                p99[product.name].append(found[len(found) * 99 // 100])
                self.table.add(
                    what=f"stream of {rate} a second",
                    product=product.name,
                    messages=len(found),
                    p50_s=round(found[len(found) // 2], 3),
                    p99_s=round(p99[product.name][-1], 3),
                    longest_s=round(found[-1], 3),
                    load=os.getloadavg()[0],
                )
        self.table.add(
            what=f"stream of {rate} a second",
            ratio_of_p99=round(median(p99["aerobee"]) / median(p99["kafka"]), 3),
        )

    def memory(self, topic: str) -> None:
        """The largest Python worker while everything is read, compared with one that reads nothing."""
        ours = next(product for product in self.products if product.name == "aerobee")
        ran = self.spark.sparkContext.parallelize(range(2), 2).map(str)
        peaks = []
        for work in (ran.count, ours.read(topic).count):  # the empty one first, for workers are used again
            with peak_of_workers() as peak:
                work()
            peaks.append(peak[0])
        self.table.add(what="memory of a Python worker, MiB", empty=peaks[0], reading=peaks[1])


@contextlib.contextmanager
def peak_of_workers() -> Iterator[list[int]]:
    """The largest resident memory, MiB, of a Python process of Spark's tasks meanwhile."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for pid in tree(os.getpid()):
                with contextlib.suppress(OSError, ValueError):
                    if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                        peak[0] = max(peak[0], pages * os.sysconf("SC_PAGE_SIZE") >> 20)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def spark_session(directory: Path) -> Iterator[Any]:
    """local[2] with Kafka's source; the heap is 2 GB."""
    from pyspark.sql import SparkSession

    import aerobee.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    jars = sorted(
        str(jar) for jar in (INTEROP / "spark-kafka-jars").glob("*.jar") if not jar.name.startswith(OWN_JARS)
    )
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.jars", ",".join(jars))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    aerobee.spark.register(session)
    try:
        yield session
    finally:
        session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000, help="of 100 B; of 1 KiB a tenth")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each product that count")
    parser.add_argument("--only", default="read,kib", help="read, kib, stream")
    parser.add_argument("--rate", type=int, default=20_000, help="stream: messages of 100 B a second")
    parser.add_argument(
        "--seconds", type=int, default=30, help="stream: of which messages count, after 10 that do not"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="at our broker; again for more"
    )
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    wanted = set(args.only.split(","))
    table = Table()
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as directory,
        kafka(partitions=QUEUES) as theirs,
        aerobee(extra=dict(each.split("=", 1) for each in args.set)) as ours,
        spark_session(Path(directory)) as spark,
    ):
        products = [Product("kafka", spark, theirs), Product("aerobee", spark, ours)]
        bench = Bench(spark, products, table, Path(directory), args.rounds)
        if "read" in wanted:
            bench.fill("small", args.messages, 100)
            bench.read("small", args.messages, 100)
            bench.memory("small")
        if "kib" in wanted:
            bench.fill("large", args.messages // 10, 1024)
            bench.read("large", args.messages // 10, 1024)
        if "stream" in wanted:
            bench.stream(args.rate, args.seconds, STREAM_WARM_S)
    if args.json:
        args.json.write_text(json.dumps(table.rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
