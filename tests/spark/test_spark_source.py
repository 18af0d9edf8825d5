"""The source in Spark: batches, streams, limits, pushed conditions, restarts. What fails is in test_spark_faults.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import aerobee.spark
from aerobee.client.base.config import ConsumeFrom, ConsumerConfig
from aerobee.message import Message, MessageQueue
from aerobee.testing.threaded_cluster import ThreadedCluster
from tests.spark.streams import Stream, names, source_options, values
from tests.waiting import wait_for

COUNT = 240


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
    return source_options(cluster.nameserver_address, topic, **more)


def read(spark: Any, cluster: ThreadedCluster, topic: str, **more: Any) -> Any:
    return spark.read.format("rocketmq").options(**options(cluster, topic, **more)).load()


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
        assert values(read(spark, cluster, orders, pushFilters="true").where(condition)) == expected, (
            condition
        )
    plan = read(spark, cluster, orders, pushFilters="true").where("broker = 'broker-a'")
    assert plan.rdd.getNumPartitions() == 2, "the other broker's queues are not read"
    off = read(spark, cluster, orders).where("broker = 'broker-a'")
    assert off.rdd.getNumPartitions() == 4, "Spark keeps the condition to itself"
    assert values(off) == values(plan)


def test_a_frame_that_is_used_with_two_conditions_has_the_rows_of_each(
    spark: Any, cluster: ThreadedCluster, orders: str
):
    """Spark keeps one plan of a Python source for a frame: conditions that were pushed down would stay in it."""
    frame = read(spark, cluster, orders)
    halves = [values(frame.where(f"tags = '{tag}'")) for tag in "AB"]
    assert halves == [list(range(0, COUNT, 2)), list(range(1, COUNT, 2))]
    assert values(frame.where("tags = 'A'").union(frame.where("tags = 'B'"))) == list(range(COUNT))
    assert values(frame) == list(range(COUNT))


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


def test_a_stream_resumes_at_its_offset_and_is_limited(spark: Any, cluster: ThreadedCluster, tmp_path: Path):
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

    with cluster.admin() as admin:  # the dead-letter message is on its way
        wait_for("a dead-letter message", lambda: admin.topic_exists("%DLQ%undertakers"))
        wait_for(
            "a dead-letter message",
            lambda: any(each.max_offset for each in admin.topic_stats("%DLQ%undertakers")),
        )
    found = aerobee.spark.dead_letters(spark, "undertakers", nameservers=cluster.nameserver_address).collect()
    (row,) = found
    assert (row.key, row.origin_topic, row.reason) == ("dead", topic, "not wanted")
    assert row.died_ts == row.store_ts
