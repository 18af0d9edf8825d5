"""RocketMQ's C++ client (inside PyPI's `rocketmq`) against the cluster under test: produce in three ways, push consume,
transactions. Its delay levels are in test_timers.py.
"""

from __future__ import annotations

import pathlib
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.interop.java_topics import make_topic, numbered
from tests.interop.rocketmq import (
    AEROBEE,
    Cluster,
    CppTransactions,
    Driver,
    by_queue,
    cpp_consume,
    cpp_send,
)
from tests.waiting import wait_for

LINES = [f"Zeile {number} grüße 你好" for number in range(40)]


@pytest.mark.parametrize("mode", ["sync", "oneway"])
def test_what_cpp_sends_java_and_cpp_receive(
    cluster: Cluster, driver: Driver, topic: str, tmp_path: pathlib.Path, mode: str
) -> None:
    make_topic(driver, cluster, topic)
    results = cpp_send(cluster.namesrv, topic, mode, LINES, tmp_path)
    if mode == "sync":
        assert [result["status"] for result in results] == ["OK"] * len(LINES)
    with driver.push(cluster.namesrv, topic) as consumer:
        messages = consumer.received(len(LINES))
    assert sorted(message["body"] for message in messages) == sorted(LINES)
    assert {message["tags"] for message in messages} == {"TagC"}
    assert {message["keys"]: message["properties"]["lineNumber"] for message in messages} == {
        f"cpp{number}": str(number) for number in range(len(LINES))
    }
    received = cpp_consume(cluster.namesrv, topic, f"CPP_{topic}", len(LINES), tmp_path)
    assert sorted(message["body"] for message in received) == sorted(LINES)


def test_cpp_orderly_producer_and_consumer_keep_the_order_of_each_queue(
    cluster: Cluster, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    make_topic(driver, cluster, topic)
    results = cpp_send(cluster.namesrv, topic, "orderly", LINES, tmp_path)
    assert {result["status"] for result in results} == {"OK"}
    received = cpp_consume(cluster.namesrv, topic, f"CPP_{topic}", len(LINES), tmp_path, order="orderly")
    groups = by_queue(received)
    assert sorted(queue for _, queue in groups) == [0, 1, 2, 3]
    for (_, queue), messages in groups.items():
        assert [message["body"] for message in messages] == LINES[queue::4]
        assert [message["offset"] for message in messages] == list(range(10))


def test_cpp_consumer_filters_by_tag(
    cluster: Cluster, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer:
        for tag in ("TagA", "TagB"):
            producer.send(
                [{**message, "body": f"{tag} {message['body']}"} for message in numbered(topic, 8, tags=tag)]
            )
    received = cpp_consume(cluster.namesrv, topic, f"CPP_{topic}", 8, tmp_path, tags="TagB")
    assert sorted(message["body"] for message in received) == [f"TagB m{number}" for number in range(8)]


@pytest.fixture(scope="module")
def quick(kind: str, peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the product under test that asks about a transaction after one second, and every second."""
    times = dict.fromkeys(
        ("transactionTimeOut", "transactionCheckInterval", "transactionMetricFlushInterval"), "1000"
    )
    cluster = Cluster(kind, tmp_path_factory.mktemp(f"cpp-quick-{kind}"), **times)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def make_topic_without_java(cluster: Cluster) -> str:
    topic = f"Transactions{uuid.uuid4().hex}"
    subprocess.run(
        [*AEROBEE, "topic", "create", topic, "--queues", "4", "-n", cluster.namesrv], check=True, timeout=60
    )
    return topic


def test_cpp_commits_rolls_back_and_answers_checks_also_for_a_producer_that_died(
    quick: Cluster, tmp_path: pathlib.Path
) -> None:
    topic = make_topic_without_java(quick)
    group = f"PG_{topic}"
    with CppTransactions(quick.namesrv, topic, group, tmp_path) as producer:
        producer.send("orphan", "UNKNOWN")
        wait_for("the local work", lambda: "orphan" in producer.executed)
        producer.kill()
    with CppTransactions(quick.namesrv, topic, group, tmp_path) as producer:
        producer.answer("orphan", "COMMIT")
        producer.send("rolled back", "ROLLBACK")
        producer.send("committed", "COMMIT")
        producer.send("asked, roll back", "UNKNOWN", answer="ROLLBACK")
        producer.send("asked, commit", "UNKNOWN", answer="COMMIT")
        # A broker can ask those whose heartbeat it has; a C++ producer's first one comes 30 s after its start.
        asked = {"orphan", "asked, roll back", "asked, commit"}
        wait_for("checks", lambda: asked <= set(producer.checked), 90)
        received = cpp_consume(quick.namesrv, topic, f"CPP_{topic}", 3, tmp_path)
        assert {message["body"] for message in received} == {"orphan", "committed", "asked, commit"}
        if quick.kind == "aerobee":
            # What was ended is not asked about: the one-way ends were taken. RocketMQ's broker reads them 3 s later.
            assert set(producer.checked) == asked
