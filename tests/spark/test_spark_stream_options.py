"""Options of a stream that Spark's planner asks the reader for: no JVM, a real cluster."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from aerobee.message import Message, MessageQueue
from aerobee.spark.options import parse_source_options
from aerobee.spark.source import StreamReader
from aerobee.spark.stream_offsets import offsets_of
from aerobee.testing.threaded_cluster import ThreadedCluster
from tests.spark.streams import names


def reader_of(cluster: ThreadedCluster, topic: str, **more: str) -> StreamReader:
    options = {"nameservers": cluster.nameserver_address, "subscribe": topic, "startingOffsets": "earliest"}
    return StreamReader(parse_source_options({**options, **more}, streaming=True), ("value",))


def send(cluster: ThreadedCluster, topic: str, count: int) -> None:
    with cluster.producer() as producer:
        for n in range(count):
            producer.send(Message(topic, b"%d" % n), queue=MessageQueue(topic, "broker-a", 0))


def end_of(reader: StreamReader, start: dict[str, Any]) -> int:
    """Where the next micro-batch of the one queue with messages ends."""
    offsets = offsets_of(reader.latestOffset(start, reader.getDefaultReadLimit()))
    return sum(offsets.values())


def test_a_minimum_lets_a_micro_batch_wait(cluster: ThreadedCluster):
    topic = next(names)
    cluster.create_topic(topic, 1)
    reader = reader_of(cluster, topic, minOffsetsPerTrigger="5")
    assert reader.getDefaultReadLimit() == ReadMinRows(5)
    start = reader.initialOffset()
    try:
        send(cluster, topic, 4)
        assert end_of(reader, start) == 0
        send(cluster, topic, 1)
        assert end_of(reader, start) == 5
    finally:
        reader.stop()


def test_a_minimum_holds_together_with_a_maximum(cluster: ThreadedCluster):
    topic = next(names)
    cluster.create_topic(topic, 1)
    reader = reader_of(cluster, topic, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="7")
    assert reader.getDefaultReadLimit() == ReadMaxRows(7)
    start = reader.initialOffset()
    try:
        send(cluster, topic, 4)
        assert end_of(reader, start) == 0
        send(cluster, topic, 6)
        assert end_of(reader, start) == 7
    finally:
        reader.stop()


def test_a_micro_batch_waits_for_the_minimum_no_longer_than_the_delay(cluster: ThreadedCluster):
    topic = next(names)
    cluster.create_topic(topic, 1)
    reader = reader_of(cluster, topic, minOffsetsPerTrigger="5", maxTriggerDelay="300ms")
    start = reader.initialOffset()
    try:
        send(cluster, topic, 1)
        begun = time.monotonic()
        assert end_of(reader, start) == 0
        while end_of(reader, start) == 0:
            assert time.monotonic() - begun < 60
        assert time.monotonic() - begun >= 0.3
    finally:
        reader.stop()
    assert reader_of(cluster, topic).getDefaultReadLimit() == ReadAllAvailable()
