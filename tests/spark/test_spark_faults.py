"""What a query does when a cluster changes or fails under it: the table "what happens" of docs/spark.md, row by row."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aerobee.client.base.config import ProducerConfig
from aerobee.client.sync import SyncProducer
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue
from aerobee.testing.threaded_cluster import ThreadedCluster
from tests.spark.streams import Stream, names, source_options, values
from tests.spark.up_processes import UpProcesses
from tests.waiting import wait_for


def send(cluster: ThreadedCluster, topic: str, numbers: range, *queues: tuple[str, int]) -> None:
    """The numbers to the queues, (broker, id), alternately."""
    with cluster.producer() as producer:
        for n in numbers:
            broker, queue_id = queues[n % len(queues)]
            producer.send(Message(topic, b"%d" % n), queue=MessageQueue(topic, broker, queue_id))


def stream_of(spark: Any, directory: Path, nameservers: str, topic: str, **more: Any) -> Stream:
    return Stream(spark, directory, source_options(nameservers, topic, startingOffsets="earliest", **more))


def test_a_running_query_waits_for_a_broker_that_is_killed(spark: Any, tmp_path: Path):
    a, b = ("broker-a", 0), ("broker-b", 0)
    with ThreadedCluster(brokers=2) as own:
        own.create_topic("orders", 1)
        stream = stream_of(spark, tmp_path, own.nameserver_address, "orders")
        send(own, "orders", range(20), a, b)
        with stream.running() as query:
            stream.wait_for(list(range(20)), query)
            own.kill_broker(1)
            send(own, "orders", range(20, 30), a)
            stream.wait_for(list(range(30)), query)
            own.start_broker(1)
            send(own, "orders", range(30, 40), b)
            stream.wait_for(list(range(40)), query)


def test_a_broker_that_is_killed_is_waited_for_and_nothing_is_lost(spark: Any, tmp_path: Path):
    a, b = ("broker-a", 0), ("broker-b", 0)
    with ThreadedCluster(brokers=2) as own:
        own.create_topic("orders", 1)
        stream = stream_of(spark, tmp_path, own.nameserver_address, "orders")
        send(own, "orders", range(20), a, b)
        stream.run()
        send(own, "orders", range(20, 40), a, b)
        own.kill_broker(1)
        stream.run()
        assert stream.values() == [*range(20), *range(20, 40, 2)], "the queues of the other broker continue"
        own.start_broker(1)
        stream.run()
        assert stream.values() == list(range(40))


@contextmanager
def sending(nameserver: str, topic: str) -> Iterator[list[int]]:
    """Numbers, for as long as the test does something else. A number may be stored twice that is in the list once."""
    acknowledged: list[int] = []
    ended = threading.Event()

    def work() -> None:
        config = ProducerConfig(send_timeout_s=2.0, retry_count_max=0)
        with SyncProducer(nameserver, "numbers", config=config) as producer:
            number = 0
            while not ended.wait(0.01):
                number += 1
                with suppress(AerobeeError):
                    producer.send(Message(topic, b"%d" % number))
                    acknowledged.append(number)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield acknowledged
    finally:
        ended.set()
        thread.join()


def test_a_running_query_continues_after_a_master_switch(spark: Any, tmp_path: Path):
    with UpProcesses(tmp_path, "--replicas", "3") as up:
        up.admin.create_topic("orders", queue_count=2)
        stream = stream_of(spark, tmp_path, up.nameserver, "orders")
        with stream.running() as query:
            with sending(up.nameserver, "orders") as acknowledged:
                for _ in range(2):
                    wait_for("some more messages", lambda n=len(acknowledged): len(acknowledged) > n + 50)
                    before = wait_for("a master", up.master)
                    wait_for("a slave in sync", lambda master=before: up.has_successor(master))
                    os.kill(up.pid_of(before), signal.SIGKILL)
                    wait_for("another master", lambda old=before: up.master() not in (None, old))
                wait_for("some more messages", lambda n=len(acknowledged): len(acknowledged) > n + 50)

            def arrived() -> bool:
                assert query.isActive, query.exception()
                return set(acknowledged) <= set(stream.values())

            wait_for("every acknowledged message", arrived, 120)
        # What was sent again after an error may be stored twice; the query reads each stored message once.
        stored = [each.max_offset for each in up.admin.topic_stats("orders")]
        assert len(stream.values()) == sum(stored)


def test_queues_are_added_and_taken_away_under_a_running_query(
    spark: Any, cluster: ThreadedCluster, tmp_path: Path
):
    topic = next(names)
    cluster.create_topic(topic, 1)
    stream = stream_of(spark, tmp_path, cluster.nameserver_address, topic)
    send(cluster, topic, range(4), ("broker-a", 0), ("broker-b", 0))
    with stream.running() as query:
        stream.wait_for(list(range(4)), query)
        cluster.create_topic(topic, 3)
        send(
            cluster,
            topic,
            range(4, 16),
            *((name, number) for name in cluster.broker_names for number in range(3)),
        )
        stream.wait_for(list(range(16)), query)
        cluster.create_topic(topic, 2)
        wait_for("the end of the query", lambda: not query.isActive, 120)
        with pytest.raises(Exception, match=r"broker-[ab]:2 has lost .*the topic has no such queue any more"):
            query.awaitTermination()
    others = stream_of(spark, tmp_path, cluster.nameserver_address, topic, failOnDataLoss="false")
    with others.running() as query:
        send(
            cluster,
            topic,
            range(16, 20),
            *((name, number) for name in cluster.broker_names for number in (0, 1)),
        )
        others.wait_for(list(range(20)), query)
        cluster.create_topic(topic, 3)
        send(cluster, topic, range(20, 22), ("broker-a", 2), ("broker-b", 2))
        others.wait_for(list(range(22)), query)


def test_a_topic_that_is_deleted_and_made_again_under_a_running_query(
    spark: Any, cluster: ThreadedCluster, tmp_path: Path
):
    topic = next(names)
    cluster.create_topic(topic, 1)
    queue = ("broker-a", 0)
    send(cluster, topic, range(5), queue)
    stream = stream_of(spark, tmp_path, cluster.nameserver_address, topic)
    with stream.running() as query, cluster.admin() as admin:
        stream.wait_for(list(range(5)), query)
        admin.delete_topic(topic)
        wait_for("the end of the query", lambda: not query.isActive, 120)
        with pytest.raises(Exception, match=r"no such queue any more.*failOnDataLoss=false"):
            query.awaitTermination()
    cluster.create_topic(topic, 1)
    send(cluster, topic, range(100, 101), queue)
    with pytest.raises(
        Exception, match=r"broker-a:0 has lost offsets 1 to 4 .*recreated.*failOnDataLoss=false"
    ):
        stream.run()
    others = stream_of(spark, tmp_path, cluster.nameserver_address, topic, failOnDataLoss="false")
    with others.running() as query:
        others.wait_for([0, 1, 2, 3, 4, 100], query)
        send(cluster, topic, range(101, 103), queue)
        others.wait_for([0, 1, 2, 3, 4, 100, 101, 102], query)


EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
SHORT_STORE = {"mappedFileSizeCommitLog": 65_536, "fileReservedTime": 1, "deleteWhen": EVERY_HOUR}


def expire(own: ThreadedCluster, topic: str) -> int:
    """Let retention take what is older than an hour; returns the first offset that is left."""
    with own.admin() as admin:

        def begin() -> int | None:
            own.advance_clock(120)
            return admin.topic_stats(topic)[0].min_offset or None

        own.advance_clock(2 * 3600)
        return wait_for("retention", begin)


def padded(own: ThreadedCluster, topic: str, numbers: range) -> None:
    with own.producer() as producer:
        for n in numbers:
            producer.send(Message(topic, b"%d" % n + b" " * 1000), queue=MessageQueue(topic, "broker-a", 0))


def test_retention_that_passes_the_checkpoint_is_a_loss(spark: Any, tmp_path: Path):
    with ThreadedCluster(store_config=SHORT_STORE) as own:
        own.create_topic("orders", 1)
        stream = stream_of(spark, tmp_path, own.nameserver_address, "orders")
        padded(own, "orders", range(1))
        stream.run()
        padded(own, "orders", range(1, 400))
        begin = expire(own, "orders")
        assert begin > 1
        with pytest.raises(Exception, match=rf"broker-a:0 has lost offsets 1 to {begin - 1} .*retention"):
            stream.run()
        others = stream_of(spark, tmp_path, own.nameserver_address, "orders", failOnDataLoss="false")
        others.run()
        assert others.values() == [0, *range(begin, 400)]


def test_retention_that_passes_a_planned_batch_is_a_loss(spark: Any, tmp_path: Path):
    """The batch is in the checkpoint, and is planned again from there: its tasks find what is gone."""
    with ThreadedCluster(store_config=SHORT_STORE) as own:
        own.create_topic("orders", 1)
        padded(own, "orders", range(400))

        def run(handle: Any, **more: str) -> None:
            source = source_options(own.nameserver_address, "orders", startingOffsets="earliest", **more)
            query = (
                spark.readStream.format("rocketmq").options(**source).load().writeStream.foreachBatch(handle)
                .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination(120)

        def fail(frame: Any, number: int) -> None:
            raise ValueError("the sink is broken")

        with pytest.raises(Exception, match="the sink is broken"):
            run(fail)
        begin = expire(own, "orders")
        found: list[int] = []

        def keep(frame: Any, number: int) -> None:
            found.extend(values(frame))

        with pytest.raises(Exception, match=rf"broker-a:0 has lost offsets 0 to {begin - 1} .*retention"):
            run(keep)
        assert found == []
        run(keep, failOnDataLoss="false")
        assert found == list(range(begin, 400))


def test_what_is_sent_while_a_new_query_is_down_is_read(spark: Any, cluster: ThreadedCluster, tmp_path: Path):
    """It begins at the end, and dies in its first micro-batch: what its end was then is in no checkpoint of Spark's own."""
    topic = next(names)
    cluster.create_topic(topic, 1)
    send(cluster, topic, range(3), ("broker-a", 0))
    found: list[int] = []

    def run(handle: Any, **trigger: Any) -> Any:
        source = source_options(cluster.nameserver_address, topic)
        stream = spark.readStream.format("rocketmq").options(**source).load()
        writer = stream.writeStream.foreachBatch(handle).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        return writer.trigger(**trigger).start()

    def fail(frame: Any, number: int) -> None:
        raise ValueError("the sink is broken")

    first = run(fail, processingTime="100 milliseconds")
    wait_for("the end of the query", lambda: not first.isActive, 120)
    send(cluster, topic, range(3, 8), ("broker-a", 0))
    again = run(fail, availableNow=True)
    wait_for("the end of the query", lambda: not again.isActive, 120)
    assert run(lambda frame, number: found.extend(values(frame)), availableNow=True).awaitTermination(120)
    assert found == list(range(3, 8))


def test_a_slow_broker_delays_and_one_that_stands_still_ends_the_query_with_its_name(
    spark: Any, tmp_path: Path
):
    with UpProcesses(tmp_path, "--brokers", "2") as up:
        up.admin.create_topic("orders", queue_count=1)
        queues = [MessageQueue("orders", name, 0) for name in ("broker-a", "broker-b")]
        slow = up.master("broker-b")
        assert slow is not None
        short = {"fetchOffset.numRetries": "1", "rocketmq.requestTimeoutS": "1", "pollTimeoutMs": "1000"}
        with SyncProducer(up.nameserver, "numbers") as producer:

            def send_each(numbers: range) -> None:
                for n in numbers:
                    producer.send(Message("orders", b"%d" % n), queue=queues[n % 2])

            send_each(range(40))
            stream = stream_of(spark, tmp_path, up.nameserver, "orders", maxOffsetsPerTrigger=10)
            with up.stopped(slow, for_s=0.4, every_s=0.1), stream.running() as query:
                stream.wait_for(list(range(40)), query)
            send_each(range(40, 60))
        impatient = stream_of(spark, tmp_path, up.nameserver, "orders", **short)
        with up.stopped(slow), pytest.raises(Exception, match=slow):
            impatient.run()
        impatient.run()
        assert impatient.values() == list(range(60))


def test_a_queue_that_lost_its_end_is_a_loss(spark: Any, tmp_path: Path):
    """A broker comes back with an older copy of its store."""
    queue = ("broker-a", 0)
    with ThreadedCluster() as own:
        own.create_topic("orders", 1)
        store = own.cluster.directory / "broker-a"
        stream = stream_of(spark, tmp_path, own.nameserver_address, "orders")
        send(own, "orders", range(30), queue)
        own.stop_broker()
        shutil.copytree(store, tmp_path / "copy")
        own.start_broker()
        send(own, "orders", range(30, 40), queue)
        stream.run()
        own.stop_broker()
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "copy", store)
        own.start_broker()
        with pytest.raises(
            Exception, match=r"broker-a:0 has lost offsets 30 to 39 \(10 messages\).*lost its end"
        ):
            stream.run()
        others = stream_of(spark, tmp_path, own.nameserver_address, "orders", failOnDataLoss="false")
        others.run()
        assert others.values() == sorted([*range(40), *range(30)]), "what the queue still has is read again"
        send(own, "orders", range(40, 45), queue)
        others.run()
        assert others.values() == sorted([*range(45), *range(30)])
