"""The sink in Spark: columns, refusals, streams that are run again."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aerobee.testing.threaded_cluster import ThreadedCluster

names = (f"sink-{number}" for number in count())


@pytest.fixture
def topic(cluster: ThreadedCluster) -> str:
    name = next(names)
    cluster.create_topic(name, 2)
    return name


def rows_of(spark: Any, cluster: ThreadedCluster, topic: str) -> list[Any]:
    options = {"nameservers": cluster.nameserver_address, "subscribe": topic, "includeProperties": "true"}
    return spark.read.format("rocketmq").options(**options).load().collect()


def write(frame: Any, cluster: ThreadedCluster, **options: str) -> None:
    frame.write.format("rocketmq").options(nameservers=cluster.nameserver_address, **options).mode(
        "append"
    ).save()


def test_columns_become_messages(spark: Any, cluster: ThreadedCluster, topic: str):
    frame = spark.sql(
        "SELECT string(id) AS value, concat('k', id) AS key, 'T' AS tags, map('a', string(id)) AS properties, "
        "CASE WHEN id % 2 = 0 THEN 'even' END AS message_group FROM range(0, 40, 1, 2)"
    )
    write(frame, cluster, topic=topic)
    found = rows_of(spark, cluster, topic)
    assert sorted(int(bytes(row.value)) for row in found) == list(range(40))
    assert all(row.key == f"k{row.properties['a']}" and row.tags == "T" for row in found)
    evens = {(row.broker, row.queue_id) for row in found if int(bytes(row.value)) % 2 == 0}
    assert len(evens) == 1, "one message group, one queue"


def test_thousands_of_plain_rows_arrive_once(spark: Any, cluster: ThreadedCluster, topic: str):
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        f"'{topic}' AS topic", "encode(string(id), 'utf-8') AS value"
    )
    write(frame, cluster)
    found = rows_of(spark, cluster, topic)
    assert sorted(int(bytes(row.value)) for row in found) == list(range(5000))


def test_a_row_that_cannot_be_sent_is_named(spark: Any, cluster: ThreadedCluster, topic: str):
    frame = spark.sql("SELECT CASE WHEN id <> 3 THEN 'x' END AS value FROM range(0, 5, 1, 1)")
    with pytest.raises(Exception, match=r"row 3 of the task, for topic sink-.*its value is null"):
        write(frame, cluster, topic=topic)
    with pytest.raises(Exception, match="the sink has no column colour"):
        write(spark.sql("SELECT 'x' AS value, 1 AS colour"), cluster, topic=topic)
    with pytest.raises(Exception, match="no topic: set the option topic"):
        write(spark.sql("SELECT 'x' AS value"), cluster)


def test_the_same_scope_written_again_is_stored_once(spark: Any, cluster: ThreadedCluster, topic: str):
    frame = spark.range(0, 50, 1, 2).selectExpr("string(id) AS value")
    for _ in range(2):
        write(frame, cluster, topic=topic, dedup="true", dedupScope="load-1")
    assert sorted(int(bytes(row.value)) for row in rows_of(spark, cluster, topic)) == list(range(50))
    write(frame, cluster, topic=topic, dedup="true")
    assert len(rows_of(spark, cluster, topic)) == 100, "another write has its own keys"


def test_a_batch_of_a_stream_that_is_run_again_is_stored_once(
    spark: Any, cluster: ThreadedCluster, topic: str, tmp_path: Path
):
    source = tmp_path / "in"
    spark.range(0, 60, 1, 2).selectExpr("string(id) AS value").write.json(str(source))
    for _ in range(2):
        query = (
            spark.readStream.schema("value string")
            .json(str(source))
            .writeStream.format("rocketmq")
            .options(nameservers=cluster.nameserver_address, topic=topic, dedup="true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        shutil.rmtree(
            tmp_path / "checkpoint" / "commits"
        )  # as if the driver had died before it noted the batch
    assert sorted(int(bytes(row.value)) for row in rows_of(spark, cluster, topic)) == list(range(60))


def test_dedup_is_refused_where_no_broker_remembers(spark: Any):
    with ThreadedCluster() as forgetful:
        forgetful.create_topic("t", 1)
        with pytest.raises(Exception, match="remembers no keys: set its dedupWindowMillis"):
            write(spark.sql("SELECT 'x' AS value"), forgetful, topic="t", dedup="true")
