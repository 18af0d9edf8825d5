"""Parts of both products in one cluster: a broker of one at a NameServer of the other, and brokers of both side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aerobee.client import Producer
from aerobee.message import Message
from tests.interop.conftest import targets
from tests.interop.java_topics import bodies
from tests.interop.mixed_cluster import Mix
from tests.interop.rocketmq import Driver, routed_brokers
from tests.waiting import wait_for

MIXES = {
    "aerobee": [
        ("rocketmq", ("aerobee",)),
        ("aerobee", ("rocketmq",)),
        ("rocketmq", ("rocketmq", "aerobee")),
    ],
    "rocketmq": [("rocketmq", ("rocketmq", "rocketmq"))],
}


@pytest.fixture(
    scope="module",
    params=[mix for target in targets() for mix in MIXES[target]],  # type: ignore[attr-defined]
    ids=lambda mix: f"{mix[0]} nameserver with {' and '.join(mix[1])}",
)
def mix(
    request: pytest.FixtureRequest, peers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mix]:
    mix = Mix(tmp_path_factory.mktemp("mix"), *request.param)
    try:
        mix.nameserver.start()
        for broker in mix.brokers:
            broker.start()
        yield mix
    finally:
        mix.kill()


def make_topic(driver: Driver, mix: Mix, topic: str) -> None:
    out = driver.admin(mix.namesrv, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
    assert out.count("success") == len(mix.brokers)
    wait_for("the topic's route", lambda: len(routed_brokers(mix.namesrv, topic)) == len(mix.brokers))


def test_messages_flow_from_java_and_from_us(mix: Mix, driver: Driver, topic: str) -> None:
    make_topic(driver, mix, topic)
    expected = sorted(f"{sender}{n}" for sender in ("java", "ours") for n in range(200))

    async def send_ours() -> None:
        async with Producer(mix.namesrv) as producer:
            await asyncio.gather(*(producer.send(Message(topic, b"ours%d" % n)) for n in range(200)))

    with driver.producer(mix.namesrv) as producer, driver.push(mix.namesrv, topic) as consumer:
        producer.send([{"topic": topic, "body": f"java{n}"} for n in range(200)], "async")
        asyncio.run(send_ours())
        messages = consumer.received(400)
        assert bodies(messages) == expected
        assert {message["broker"] for message in messages} == {broker.broker_name for broker in mix.brokers}
        assert len(consumer.queues(topic)) == 4 * len(mix.brokers)


def test_the_cluster_is_listed_whole(mix: Mix, driver: Driver) -> None:
    lines = driver.admin(mix.namesrv, "clusterList").splitlines()
    for broker in mix.brokers:
        (line,) = [line for line in lines if broker.broker_name in line]
        assert line.split()[:5] == ["DefaultCluster", broker.broker_name, "0", broker.address, "V5_5_0"]


def test_write_permission_is_wiped_and_added_again(mix: Mix, driver: Driver, topic: str) -> None:
    make_topic(driver, mix, topic)
    name = mix.brokers[-1].broker_name
    assert "OK" in driver.admin(mix.namesrv, "wipeWritePerm", "-b", name)
    with driver.producer(mix.namesrv, retries=0) as producer:
        if len(mix.brokers) > 1:
            queues = producer.call("queues", topic=topic)
            assert {broker for _, broker, _ in queues} == {b.broker_name for b in mix.brokers[:-1]}
    assert "OK" in driver.admin(mix.namesrv, "addWritePerm", "-b", name)
    with driver.producer(mix.namesrv) as producer:
        assert len(producer.call("queues", topic=topic)) == 4 * len(mix.brokers)


def test_a_stopped_broker_leaves_the_route_and_returns(mix: Mix, driver: Driver, topic: str) -> None:
    make_topic(driver, mix, topic)
    broker = mix.brokers[-1]
    with driver.producer(mix.namesrv) as producer:
        producer.send(
            [{"topic": topic, "body": f"m{n}", "queue": 0, "broker": broker.broker_name} for n in range(5)]
        )
    broker.kill()
    wait_for(
        "the route to lose the dead broker",
        lambda: broker.broker_name not in routed_brokers(mix.namesrv, topic),
    )
    broker.start()
    wait_for("the route to have it again", lambda: broker.broker_name in routed_brokers(mix.namesrv, topic))
    with driver.pull(mix.namesrv) as consumer:
        found = consumer.call("pull", topic=topic, broker=broker.broker_name, queue=0, offset=0)
    assert [message["body"] for message in found["messages"]] == [f"m{n}" for n in range(5)]
