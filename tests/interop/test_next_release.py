"""A broker of RocketMQ 5.5.1 behind our NameServer: our clients and our command line, and RocketMQ's tools of 5.5.0, as at 5.5.0.

Maven Central has broker, controller, store, remoting and common of 5.5.1; of client, auth, filter and srvutil only the poms, so 5.5.0's
stand in (java-next/pom.xml). Replication and controllers of that release: test_replication.py, test_controller_groups.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from aerobee import Message, Producer
from aerobee.client import Admin, ReceivedMessage, SimpleConsumer
from aerobee.ops.diagnosis.doctor import examine
from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import NEXT, Cluster, Driver


@pytest.fixture(scope="module")
def newer(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(NEXT, tmp_path_factory.mktemp("next"))
    try:
        yield cluster.start()
    finally:
        cluster.stop()


async def test_our_clients_send_pop_and_delay(newer: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, newer, topic)
    found: dict[str, ReceivedMessage] = {}
    async with (
        Producer(newer.namesrv) as producer,
        SimpleConsumer(newer.namesrv, f"G{topic}", [topic]) as consumer,
    ):
        await consumer.receive(wait_s=0.1)  # the group begins here
        await producer.send_batch([Message(topic, b"a", tag="A", keys=("k1",)), Message(topic, b"b")])
        await producer.send(Message(topic, b"later", deliver_after=3))
        end = time.monotonic() + 120
        while len(found) < 3 and time.monotonic() < end:
            for each in await consumer.receive(32, wait_s=2):
                found[each.body.decode()] = each
                await consumer.ack(each)
    assert sorted(found) == ["a", "b", "later"]
    assert (found["a"].tag, found["a"].keys) == ("A", ("k1",))


async def test_our_administration_knows_it(newer: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, newer, topic)
    async with Admin(newer.namesrv) as admin:
        assert topic in await admin.topics()
        config = await admin.broker_config(newer.broker.address)
    assert config["brokerName"] == newer.broker.broker_name
    findings = await examine([newer.namesrv])
    assert findings
    assert [each for each in findings if each.level == "fail"] == []


def test_java_sends_and_receives(newer: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, newer, topic)
    with driver.push(newer.namesrv, topic) as consumer, driver.producer(newer.namesrv) as producer:
        producer.send([{"topic": topic, "body": "x", "tags": "T"}])
        (received,) = consumer.received(1)
    assert (received["body"], received["tags"]) == ("x", "T")
