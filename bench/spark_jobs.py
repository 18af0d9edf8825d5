#!/usr/bin/env python3
"""The lag job with 10,000 queues of 200 groups, and the placement job with 10,000 queues on 100 brokers. Part of bench/spark.py.

    .interop/spark-venv/bin/python bench/spark_jobs.py [--topics 200] [--queues 50] [--brokers 100] [--looks 48]

The lag job's cluster is one broker: each group has committed an offset in each queue of its topic, and is one message behind. The placement
job's history is made by Spark: as many looks, half an hour apart, every other broker with the busy topics.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from aerobee.client.base.config import ClientConfig
from aerobee.client.producer.producer import Producer
from aerobee.message import Message, MessageQueue
from bench.servers import Server, aerobee
from bench.spark import cost_of, spark_session

SENDS_AT_ONCE = 64


async def fill(nameservers: str, topics: int, queues: int) -> None:
    """Two messages in each queue, of which the topic's group has committed one."""
    from aerobee.spark.cluster_view import QueueAdmin

    gate = asyncio.Semaphore(SENDS_AT_ONCE)
    async with (
        QueueAdmin(nameservers, client=ClientConfig()) as admin,
        Producer(nameservers, "fill") as producer,
    ):

        async def one(topic: str) -> None:
            async with gate:
                await admin.create_topic(topic, queue_count=queues)
                await admin.create_group(f"group-of-{topic}")
                for number in range(queues):
                    queue = MessageQueue(topic, "broker-a", number)
                    for _ in range(2):
                        await producer.send(Message(topic, b"x" * 100), queue=queue)
                    await admin.commit(f"group-of-{topic}", queue, 1)

        await asyncio.gather(*(one(f"topic-{number}") for number in range(topics)))


def lag(spark: Any, server: Server, directory: Path, topics: int, queues: int) -> dict[str, Any]:
    """The second look counts: the first one warms Spark."""
    from aerobee.spark.lag_job import History, evaluation, groups_of, look

    nameservers = f"127.0.0.1:{server.nameserver_port}"
    asyncio.run(fill(nameservers, topics, queues))
    history = History("parquet", str(directory / "lag"))
    found: dict[str, Any] = {}

    def evaluate() -> None:
        begun = time.monotonic()
        at_ms = look(spark, nameservers, history)
        found["look_s"] = round(time.monotonic() - begun, 2)
        result = evaluation(history.read(spark), at_ms).cache()
        found["queues"], found["groups"] = result.count(), groups_of(result).count()
        result.unpersist()

    evaluate()
    cost = cost_of(evaluate, server)
    return {
        "what": "lag job",
        **found,
        "wall_s": round(cost.wall_s, 2),
        "spark_cpu_s": round(cost.spark_s, 2),
        "broker_cpu_s": round(cost.broker_s, 2),
    }


def placement(
    spark: Any, directory: Path, topics: int, queues: int, brokers: int, looks: int
) -> dict[str, Any]:
    """From a history that is there to a plan."""
    from aerobee.placement.plan import make_plan
    from aerobee.spark.lag_job import History
    from aerobee.spark.placement_job import LOAD_SCHEMA, load_model

    count = topics * queues
    at_broker = count // brokers
    # Each broker has one queue of each of its topics. Topics take 1 to 10 messages a second, the busy ones at every other broker.
    spark.range(0, (count + brokers) * looks).selectExpr(f"id % {looks} AS look", f"id div {looks} AS n").selectExpr(
        "look", "n", f"n >= {count} AS is_broker", f"IF(n >= {count}, n - {count}, n div {at_broker}) AS b"
    ).selectExpr(
        "1800000000000 + look * 1800000 AS at_ms",
        "concat('broker-', b) AS broker",
        "concat('zone-', b % 3) AS zone",
        f"IF(is_broker, '', concat('topic-', n % {topics})) AS topic",
        "IF(is_broker, -1, 0) AS queue_id",
        f"look * 1800 * IF(is_broker, {at_broker * 550}, 1 + n % {topics} div {topics // 10}) AS `end`",
        "100.0D AS size", "CAST(NULL AS double) AS bytes_out", "1 AS `groups`", "'4' AS members",
        "false AS is_ordered", "false AS is_sharded", "'' AS pinned", "1e12D AS disk_total", "259200000L AS retention_ms",
    ).write.parquet(str(directory / "load"))  # fmt: skip
    history = History("parquet", str(directory / "load"), {}, LOAD_SCHEMA)
    begun = time.monotonic()
    model, at_ms = load_model(history.read(spark), capacities={}, ordered=(), days=0)
    read_s = time.monotonic() - begun
    plan = make_plan(model, at_ms)
    return {
        "what": "placement job",
        "samples": (count + brokers) * looks,
        "read_s": round(read_s, 2),
        "plan_s": round(time.monotonic() - begun - read_s, 2),
        "changes": len(plan.changes),
        "warnings": len(plan.warnings),
        "before": {name: round(value, 3) for name, value in plan.before.imbalance.items()},
        "after": {name: round(value, 3) for name, value in plan.after.imbalance.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--queues", type=int, default=50, help="of each topic")
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--looks", type=int, default=48)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as directory,
        spark_session(Path(directory)) as spark,
    ):
        planned = placement(spark, Path(directory), args.topics, args.queues, args.brokers, args.looks)
        print(json.dumps({**planned, "load": os.getloadavg()[0]}), flush=True)
        with aerobee() as server:
            seen = lag(spark, server, Path(directory), args.topics, args.queues)
            print(json.dumps({**seen, "load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
