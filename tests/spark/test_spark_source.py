"""The source in Spark: batches, streams, limits, pushed conditions, restarts, losses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import aerobee.spark
from aerobee.client.config import ConsumeFrom, ConsumerConfig
from aerobee.message import Message, MessageQueue
from aerobee.testing.threaded_cluster import ThreadedCluster

COUNT = 240
names = (f"topic-{number}" for number in count())


@pytest.fixture(scope="module")
def orders(cluster: ThreadedCluster) -> str:
    cluster.create_topic("orders", 2)
    send(cluster, "orders", range(COUNT))
    return "orders"


def send(cluster: ThreadedCluster, topic: str, numbers: range) -> None:
    with cluster.producer() as producer:
        for n in numbers:
            message = Message(topic, b"%d" % n, tag="AB"[n % 2], keys=(f"k{n}",), properties={"n": str(n)})
            producer.send(message, queue=MessageQueue(topic, "broker-ab"[:7] + "ab"[n // 2 % 2], n % 2))


def options(cluster: ThreadedCluster, topic: str, **more: Any) -> dict[str, str]:
    return {"nameservers": cluster.nameserver_address, "subscribe": topic} | {
        name: str(value) for name, value in more.items()
    }


def read(spark: Any, cluster: ThreadedCluster, topic: str, **more: Any) -> Any:
    return spark.read.format("rocketmq").options(**options(cluster, topic, **more)).load()


def values(frame: Any) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def test_a_batch_has_every_message_with_its_columns(spark: Any, cluster: ThreadedCluster, orders: str):
    rows = read(spark, cluster, orders, includeProperties="true").collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(COUNT))
    row = next(row for row in rows if row.key == "k7")
    assert (row.topic, row.tags, row.broker, row.queue_id) == ("orders", "B", "broker-b", 1)
    assert (row.properties["n"], row.reconsume_times, len(row.msg_id)) == ("7", 0, 32)
    assert abs((row.store_ts - row.born_ts).total_seconds()) < 60


def test_tasks_and_columns_are_as_asked_for(spark: Any, cluster: ThreadedCluster, orders: str):
    frame = read(spark, cluster, orders, maxRecordsPerPartition=25)
    assert frame.rdd.getNumPartitions() == 12
    assert read(spark, cluster, orders, minPartitions=8).rdd.getNumPartitions() == 8
    few = (
        spark.read.format("rocketmq")
        .options(**options(cluster, orders))
        .schema("value binary, queue_offset bigint")
    )
    assert few.load().columns == ["value", "queue_offset"]
    assert few.load().count() == COUNT


def test_pushed_conditions_give_what_spark_would(spark: Any, cluster: ThreadedCluster, orders: str):
    everything = [row.asDict() for row in read(spark, cluster, orders).collect()]
    middle = sorted(row["store_ts"] for row in everything)[COUNT // 2]
    conditions = {
        "broker = 'broker-a' AND queue_id = 0": lambda r: r["broker"] == "broker-a" and r["queue_id"] == 0,
        "tags IN ('B') AND queue_offset >= 10 AND queue_offset < 20": lambda r: (
            r["tags"] == "B" and 10 <= r["queue_offset"] < 20
        ),
        f"store_ts >= timestamp'{middle}Z'": lambda r: r["store_ts"] >= middle,
        f"store_ts <= timestamp'{middle}Z' AND topic LIKE 'ord%'": lambda r: r["store_ts"] <= middle,
        "queue_id <> 1": lambda r: r["queue_id"] != 1,
        "tags = 'C'": lambda r: False,
    }
    for condition, test in conditions.items():
        expected = sorted(int(bytes(row["value"])) for row in everything if test(row))
        assert values(read(spark, cluster, orders).where(condition)) == expected, condition
    plan = read(spark, cluster, orders).where("broker = 'broker-a'")
    assert plan.rdd.getNumPartitions() == 2, "the other broker's queues are not read"
    off = read(spark, cluster, orders, pushFilters="false").where("broker = 'broker-a'")
    assert off.rdd.getNumPartitions() == 4, "Spark keeps the condition to itself"
    assert values(off) == values(plan)


def test_offsets_and_times_bound_a_batch(spark: Any, cluster: ThreadedCluster, orders: str):
    queues = [f"broker-{name}:{number}" for name in "ab" for number in (0, 1)]
    begin = json.dumps({"orders": dict.fromkeys(queues, 5)})
    end = json.dumps({"orders": {**dict.fromkeys(queues, 8), "broker-a:0": -1}})
    assert (
        read(spark, cluster, orders, startingOffsets=begin, endingOffsets=end).count()
        == 3 * 3 + COUNT // 4 - 5
    )
    assert read(spark, cluster, orders, startingTimestamp=0).count() == COUNT
    assert read(spark, cluster, orders, endingTimestamp=0).count() == 0
    by_queue = json.dumps({"orders": dict.fromkeys(queues, 0)})
    assert read(spark, cluster, orders, startingOffsetsByTimestamp=by_queue).count() == COUNT
    ends = json.dumps({"orders": {**dict.fromkeys(queues, 0), "broker-a:0": 2**42}})
    assert read(spark, cluster, orders, endingOffsetsByTimestamp=ends).count() == COUNT // 4
    with pytest.raises(Exception, match="no message was stored at or after"):
        read(spark, cluster, orders, startingTimestamp=2**42).count()
    late = read(spark, cluster, orders, startingTimestamp=2**42, startingOffsetsByTimestampStrategy="latest")
    assert late.count() == 0


def test_expressions_filter_at_the_broker(spark: Any, cluster: ThreadedCluster, orders: str):
    assert values(read(spark, cluster, orders, tags="B")) == list(range(1, COUNT, 2))
    assert values(read(spark, cluster, orders, sql="n BETWEEN 10 AND 12")) == [10, 11, 12]


def test_what_cannot_be_is_said_in_words(spark: Any, cluster: ThreadedCluster, orders: str):
    with pytest.raises(Exception, match="subscribeto is not known"):
        read(spark, cluster, orders, subscribeTo="x").count()
    with pytest.raises(Exception, match="topic nothing does not exist"):
        read(spark, cluster, "nothing").count()
    with pytest.raises(Exception, match="it is binary"):
        spark.read.format("rocketmq").options(**options(cluster, orders)).schema(
            "value string"
        ).load().count()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Stream:
    """A query into Parquet that stops when all that is there is read."""

    def __init__(self, spark: Any, directory: Path, source: dict[str, str]) -> None:
        self.spark, self.directory, self.source = spark, directory, source

    def run(self) -> list[dict[str, Any]]:
        """Run to the end; returns the progress of each batch that read something."""
        stream = self.spark.readStream.format("rocketmq").options(**self.source).load()
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(self.directory / "out"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
            return [
                batch
                for batch in map(json.loads, (p.json for p in query.recentProgress))
                if batch["numInputRows"]
            ]
        finally:
            query.stop()

    def values(self) -> list[int]:
        return values(self.spark.read.parquet(str(self.directory / "out")))


def test_a_stream_goes_on_where_it_stopped_and_is_limited(
    spark: Any, cluster: ThreadedCluster, tmp_path: Path
):
    topic = next(names)
    cluster.create_topic(topic, 2)
    send(cluster, topic, range(100))
    source = options(cluster, topic, startingOffsets="earliest", maxOffsetsPerTrigger=40, group="spark-jobs")
    stream = Stream(spark, tmp_path, source)
    assert [batch["numInputRows"] for batch in stream.run()] == [40, 40, 20]
    send(cluster, topic, range(100, 130))
    last = stream.run()[-1]["sources"][0]
    assert last["endOffset"] == last["latestOffset"]
    assert stream.values() == list(range(130))
    with cluster.admin() as admin:
        assert sum(move.before or 0 for move in admin.offsets("spark-jobs", topic)) == 130


def test_a_new_queue_is_read_from_its_first_message(spark: Any, cluster: ThreadedCluster, tmp_path: Path):
    topic = next(names)
    cluster.create_topic(topic, 1)
    stream = Stream(spark, tmp_path, options(cluster, topic, startingOffsets="earliest"))
    with cluster.producer() as producer:
        producer.send(Message(topic, b"0"), queue=MessageQueue(topic, "broker-a", 0))
        stream.run()
        cluster.create_topic(topic, 2)
        producer.send(Message(topic, b"1"), queue=MessageQueue(topic, "broker-b", 1))
    stream.run()
    assert stream.values() == [0, 1]


def test_a_topic_made_again_is_a_loss_or_begins_anew(spark: Any, cluster: ThreadedCluster, tmp_path: Path):
    topic = next(names)
    cluster.create_topic(topic, 1)
    send_to = MessageQueue(topic, "broker-a", 0)
    with cluster.producer() as producer, cluster.admin() as admin:
        for n in range(5):
            producer.send(Message(topic, b"%d" % n), queue=send_to)
        source = options(cluster, topic, startingOffsets="earliest")
        Stream(spark, tmp_path, source).run()
        admin.delete_topic(topic)
        cluster.create_topic(topic, 1)
        producer.send(Message(topic, b"100"), queue=send_to)
    with pytest.raises(
        Exception, match=r"broker-a:0 has lost offsets 1 to 4 .*made again.*failOnDataLoss=false"
    ):
        Stream(spark, tmp_path, source).run()
    stream = Stream(spark, tmp_path, {**source, "failOnDataLoss": "false"})
    stream.run()
    assert stream.values() == [0, 1, 2, 3, 4, 100]


def test_retry_and_dead_letter_topics_are_readable_by_name(spark: Any, cluster: ThreadedCluster):
    topic = next(names)
    cluster.create_topic(topic, 1)
    with cluster.producer() as producer:
        producer.send(Message(topic, b"7", keys=("dead",)))
    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    with cluster.push_consumer("undertakers", [topic], config=first) as consumer:
        for message in consumer:
            message.reject("not wanted")
            break

    with cluster.admin() as admin:  # the letter is on its way
        wait_until(lambda: admin.topic_exists("%DLQ%undertakers"))
        wait_until(lambda: any(each.max_offset for each in admin.topic_stats("%DLQ%undertakers")))
    found = aerobee.spark.dead_letters(spark, "undertakers", nameservers=cluster.nameserver_address).collect()
    (row,) = found
    assert (row.key, row.origin_topic, row.reason) == ("dead", topic, "not wanted")
    assert row.died_ts == row.store_ts


def test_a_broker_that_is_killed_is_waited_for_and_nothing_is_lost(spark: Any, tmp_path: Path):
    with ThreadedCluster(brokers=2) as own:
        own.create_topic("orders", 1)
        send_to = [MessageQueue("orders", name, 0) for name in own.broker_names]
        stream = Stream(spark, tmp_path, options(own, "orders", startingOffsets="earliest"))
        with own.producer() as producer:
            for n in range(20):
                producer.send(Message("orders", b"%d" % n), queue=send_to[n % 2])
            stream.run()
            for n in range(20, 40):
                producer.send(Message("orders", b"%d" % n), queue=send_to[n % 2])
        own.kill_broker(1)
        stream.run()
        assert stream.values() == [*range(20), *range(20, 40, 2)], "the queues of the other broker go on"
        own.start_broker(1)
        stream.run()
        assert stream.values() == list(range(40))


def test_retention_that_passes_the_checkpoint_is_a_loss(spark: Any, tmp_path: Path):
    every_hour = ";".join(f"{hour:02}" for hour in range(24))
    store = {"mappedFileSizeCommitLog": 65_536, "fileReservedTime": 1, "deleteWhen": every_hour}
    with ThreadedCluster(store_config=store) as own:
        own.create_topic("orders", 1)
        queue = MessageQueue("orders", "broker-a", 0)
        source = options(own, "orders", startingOffsets="earliest")
        with own.producer() as producer, own.admin() as admin:
            producer.send(Message("orders", b"0"), queue=queue)
            Stream(spark, tmp_path, source).run()
            for n in range(1, 400):
                producer.send(Message("orders", b"%d" % n + b" " * 1000), queue=queue)
            own.advance_clock(2 * 3600)
            for _ in range(20):
                begin = admin.topic_stats("orders")[0].min_offset
                if begin > 1:
                    break
                own.advance_clock(120)
        assert begin > 1
        with pytest.raises(Exception, match=rf"broker-a:0 has lost offsets 1 to {begin - 1} .*retention"):
            Stream(spark, tmp_path, source).run()
        stream = Stream(spark, tmp_path, {**source, "failOnDataLoss": "false"})
        stream.run()
        assert stream.values() == [0, *range(begin, 400)]
