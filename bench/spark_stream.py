"""A stream of a steady rate into Parquet: how old a message is when its micro-batch has been written. Part of bench/spark.py.

The sender is a separate process: Kafka's ProducerPerformance, or this file with our client. A message's age counts from the time
that its producer gave it (Kafka's CreateTime, our born_ts). Each query has a trigger of a second and writes all that it compares.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.kafka_server import INTEROP

TICK_S = 0.01  # between two batches of our sender
LAST_BATCH_S = 20.0  # for the batches behind the sender's end
READY_S = 60.0


def sender(name: str, address: str, topic: str, rate: int, seconds: int, size: int) -> Sequence[str]:
    """The command that sends `rate` messages of `size` bytes a second. `address`: bootstrap server, or nameserver."""
    if name == "kafka":
        jars = f"{INTEROP}/kafka-jars/*:{INTEROP}/kafka-tools-jars/*"
        return (
            "java", "-Xmx256m", "-cp", jars, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic,
            "--num-records", str(rate * seconds), "--record-size", str(size), "--throughput", str(rate),
            "--producer-props", f"bootstrap.servers={address}", f"linger.ms={round(TICK_S * 1000)}",
        )  # fmt: skip
    return (
        sys.executable, str(Path(__file__).resolve()), address, topic,
        "--rate", str(rate), "--seconds", str(seconds), "--size", str(size),
    )  # fmt: skip


class Ages:
    """Writes micro-batches and notes when each was there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.written_ms: dict[int, float] = {}

    def write(self, frame: Any, batch_id: int) -> None:
        """As foreachBatch wants it."""
        frame.write.mode("overwrite").parquet(str(self._directory / f"batch={batch_id}"))
        self.written_ms[batch_id] = time.time() * 1000

    def of(self, spark: Any, from_ms: float) -> list[float]:
        """Seconds from sending to writing of every message sent from `from_ms` on, sorted."""
        sent = spark.read.parquet(str(self._directory)).selectExpr("batch", "unix_millis(sent_ts) AS sent_ms")
        counts = sent.where(f"sent_ms >= {round(from_ms)}").groupBy("batch", "sent_ms").count().collect()
        return sorted(
            (self.written_ms[row["batch"]] - row["sent_ms"]) / 1000
            for row in counts
            for _ in range(row["count"])
        )


def ages(
    spark: Any, stream: Any, command: Sequence[str], directory: Path, count: int, warm_s: float
) -> list[float]:
    """Run the sender and the query until its `count` messages are written. Ages of those sent after `warm_s` seconds.

    `stream` has the columns to be written, one of them sent_ts. Raises RuntimeError when messages are missing in the end.
    """
    noted = Ages(directory / "out")
    writer = stream.writeStream.foreachBatch(noted.write).option(
        "checkpointLocation", str(directory / "checkpoint")
    )
    query = writer.trigger(processingTime="1 second").start()
    try:
        until = time.monotonic() + READY_S
        while not query.recentProgress and time.monotonic() < until:
            time.sleep(0.1)
        began_ms = time.time() * 1000
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        until = time.monotonic() + LAST_BATCH_S
        while sum(each.numInputRows for each in query.recentProgress) < count and time.monotonic() < until:
            time.sleep(0.2)
        written = sum(each.numInputRows for each in query.recentProgress)
    finally:
        query.stop()
    if written < count:
        raise RuntimeError(f"{written} of {count} messages were written")
    return noted.of(spark, began_ms + warm_s * 1000)


async def send(nameservers: str, topic: str, rate: int, seconds: int, size: int) -> None:
    """A batch each tick, each to the next queue; what a busy machine delays is sent immediately afterwards."""
    from aerobee.client import Producer
    from aerobee.message import Message

    body, sent, began = b"x" * size, 0, time.monotonic()
    async with Producer(nameservers, "bench-stream") as producer, asyncio.TaskGroup() as tasks:
        while sent < rate * seconds:
            due = min(rate * seconds, int((time.monotonic() - began) * rate))
            if due > sent:
                tasks.create_task(producer.send_batch([Message(topic, body)] * (due - sent)))
                sent = due
            await asyncio.sleep(TICK_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="The sender of our client.")
    parser.add_argument("nameservers")
    parser.add_argument("topic")
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--size", type=int, default=100)
    args = parser.parse_args()
    asyncio.run(send(args.nameservers, args.topic, args.rate, args.seconds, args.size))


if __name__ == "__main__":
    main()
