"""The Java client in less usual circumstances: binary headers, TLS, several NameServers, deliveries that fail."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.interop.java_topics import bodies, make_group, make_topic, numbered
from tests.interop.rocketmq import Broker, Cluster, Driver, NameServer
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def binary_driver(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A JVM whose requests have ROCKETMQ's binary header instead of JSON."""
    driver = Driver(tmp_path_factory.mktemp("binary-driver"), "-Drocketmq.serialize.type=ROCKETMQ")
    yield driver
    driver.stop()


def test_binary_headers_send_in_every_way_pull_and_commit(
    cluster: Cluster, binary_driver: Driver, topic: str
) -> None:
    driver = binary_driver
    topic = f"{topic}_binary"
    make_topic(driver, cluster, topic)
    with driver.producer(cluster.namesrv) as producer:
        with driver.push(cluster.namesrv, topic) as consumer:
            producer.send(numbered(topic, 20, tags="TagA", keys="k", properties={"colour": "grün"}))
            producer.send(numbered(topic, 20, tags="TagA"), "async")
            producer.send(numbered(topic, 20, tags="TagA"), "oneway")
            producer.send(numbered(topic, 20, tags="TagA"), "batch")
            assert bodies(consumer.received(80)) == sorted([f"m{n}" for n in range(20)] * 4)
        producer.send([{"topic": topic, "body": "late"}])
        with driver.push(cluster.namesrv, topic, group=consumer.group) as again:
            assert bodies(again.received(1)) == ["late"]
    with driver.lite(cluster.namesrv, topic=topic) as lite:
        assert len(lite.call("poll", count=81, timeout_ms=20_000)) == 81
        lite.call("commit")


def test_tls_on_the_same_port(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    with (
        driver.producer(cluster.namesrv, tls=True) as producer,
        driver.push(cluster.namesrv, topic, tls=True) as consumer,
        driver.push(cluster.namesrv, topic) as plain,
    ):
        producer.send(numbered(topic, 20))
        expected = sorted(f"m{number}" for number in range(20))
        assert bodies(consumer.received(20)) == expected
        assert bodies(plain.received(20)) == expected


def test_a_failed_message_comes_again_after_its_delay(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    group = driver.unique("CG_retry")
    make_group(driver, cluster, group)
    with (
        driver.producer(cluster.namesrv) as producer,
        driver.push(cluster.namesrv, topic, group=group, fail_once="m3") as consumer,
    ):
        producer.send(numbered(topic, 6))
        messages = consumer.received(7)
        assert bodies(messages) == sorted([*(f"m{n}" for n in range(6)), "m3"])
        first, second = (message for message in messages if message["body"] == "m3")
        assert (first["reconsume_times"], second["reconsume_times"]) == (0, 1)
        assert second["topic"] == topic
        assert second["msg_id"] == first["msg_id"]
        # Delay level 1 is a second.
        assert second["store_timestamp"] - first["store_timestamp"] >= 900


def test_a_message_that_fails_for_good_lands_with_the_dead_letters(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    group = driver.unique("CG_dead")
    make_group(driver, cluster, group)
    dead = f"%DLQ%{group}"
    with (
        driver.producer(cluster.namesrv) as producer,
        driver.push(cluster.namesrv, topic, group=group, fail_once="m1", max_reconsume=0) as consumer,
        driver.pull(cluster.namesrv) as puller,
    ):
        producer.send(numbered(topic, 3))
        consumer.received(3)

        def dead_letters() -> list[dict[str, object]] | None:
            found = puller.call("pull", topic=dead, broker="broker-a", queue=0, offset=0)
            return found["messages"] or None

        wait_for("the dead letter's topic", lambda: dead in driver.admin(cluster.namesrv, "topicList"))
        assert "success" in driver.admin(
            cluster.namesrv, "updateTopicPerm", "-c", "DefaultCluster", "-t", dead, "-p", "6"
        )
        (dead_letter,) = wait_for("the dead letter", dead_letters)
    assert dead_letter["body"] == "m1"
    assert dead_letter["properties"]["RETRY_TOPIC"] == topic  # type: ignore[index]


def test_one_of_two_nameservers_may_be_down(
    kind: str, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    first, second = (NameServer(kind, tmp_path / name) for name in ("first", "second"))
    namesrv = f"{first.address};{second.address}"
    broker = Broker(kind, tmp_path / "broker", namesrv)
    try:
        for server in (first, second, broker):
            server.start()
        with driver.producer(namesrv) as producer, driver.push(namesrv, topic) as consumer:
            producer.send(numbered(topic, 5))
            consumer.received(5)
            first.kill()
            late = f"{topic}_late"
            out = driver.admin(
                second.address, "updateTopic", "-b", broker.address, "-t", late, "-r", "2", "-w", "2"
            )
            assert "success" in out
            producer.send(numbered(late, 5))
            producer.send([{"topic": topic, "body": "after"}])
            assert bodies(consumer.received(6))[0] == "after"
            first.start()
            wait_for(
                "the broker to register again",
                lambda: "broker-a" in driver.admin(first.address, "clusterList"),
            )
    finally:
        for server in (broker, first, second):
            server.kill()
