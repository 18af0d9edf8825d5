"""RocketMQ's C++ client (inside PyPI's `rocketmq`) against the cluster under test: produce in three ways, push consume."""

from __future__ import annotations

import pathlib

import pytest

from tests.interop.rocketmq import Cluster, Driver, by_queue, cpp_consume, cpp_send
from tests.interop.test_java_client import make_topic, numbered

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
