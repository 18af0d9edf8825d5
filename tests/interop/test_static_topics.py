"""Static topics as RocketMQ's own tools and client make and use them: updateStaticTopic, remappingStaticTopic, Java.

Two brokers of the product under test at its NameServer; and one of each product, whose queues move from one to the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from aerobee.client import Admin, ConsumeFrom, ConsumerConfig, Producer, PushConsumer
from aerobee.client.base.static_plan import StaticTopic
from aerobee.message import Message
from tests.interop.conftest import targets
from tests.interop.java_topics import bodies
from tests.interop.mixed_cluster import Mix
from tests.interop.rocketmq import Driver, call
from tests.waiting import wait_for, wait_until

LOGICAL = "__syslo__global__"
QUEUES = 4
BEGIN = 10_000  # of a queue's next part when the one before has few messages: mqadmin leaves a gap
CLUSTERS = {
    "aerobee": [("aerobee", ("aerobee", "aerobee")), ("rocketmq", ("rocketmq", "aerobee"))],
    "rocketmq": [("rocketmq", ("rocketmq", "rocketmq"))],
}


@pytest.fixture(
    scope="module",
    params=[mix for target in targets() for mix in CLUSTERS[target]],
    ids=lambda mix: f"{mix[0]} nameserver with {' and '.join(mix[1])}",
)
def mix(
    request: pytest.FixtureRequest, peers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mix]:
    mix = Mix(tmp_path_factory.mktemp("static"), *request.param)
    try:
        mix.nameserver.start()
        for broker in mix.brokers:
            broker.start()
        yield mix
    finally:
        mix.kill()


def leaders(mix: Mix, topic: str) -> dict[int, str]:
    """Logical queue -> the broker that leads it by the route; the later epoch counts."""
    header, body = call(mix.namesrv, 105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if header["code"] != 0:
        return {}
    infos = sorted(
        (json.loads(body).get("topicQueueMappingByBroker") or {}).values(), key=lambda i: i["epoch"]
    )
    return {int(queue): info["bname"] for info in infos for queue in info["currIdMap"]}


def make(driver: Driver, mix: Mix, topic: str, brokers: str = "broker-a,broker-b") -> None:
    driver.admin(mix.namesrv, "updateStaticTopic", "-b", brokers, "-t", topic, "-qn", str(QUEUES))
    names = set(brokers.split(","))
    wait_for(
        "the logical queues",
        lambda: set(leaders(mix, topic).values()) == names and len(leaders(mix, topic)) == QUEUES,
    )


def move(driver: Driver, mix: Mix, topic: str, broker: str) -> None:
    driver.admin(mix.namesrv, "remappingStaticTopic", "-b", broker, "-t", topic)
    wait_for("all queues at one broker", lambda: leaders(mix, topic) == dict.fromkeys(range(QUEUES), broker))


def positions(messages: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """(body, logical queue, logical offset) of each message, sorted."""
    return sorted((message["body"], message["queue"], message["offset"]) for message in messages)


def batch(topic: str, prefix: str, rounds: int) -> list[dict[str, Any]]:
    """Messages for each logical queue in turn: letter, queue, number of the round."""
    return [
        {"topic": topic, "body": f"{prefix}{queue}-{n}", "broker": LOGICAL, "queue": queue}
        for n in range(rounds)
        for queue in range(QUEUES)
    ]


def test_java_sends_and_consumes_over_a_remapping(mix: Mix, driver: Driver, topic: str) -> None:
    """Two queues move from broker-a to broker-b and continue behind a gap; nothing is lost, or comes twice."""
    make(driver, mix, topic)
    moved = {queue for queue, leader in leaders(mix, topic).items() if leader == "broker-a"}
    with driver.producer(mix.namesrv) as producer, driver.push(mix.namesrv, topic) as consumer:
        assert sorted(producer.call("queues", topic=topic)) == [[topic, LOGICAL, n] for n in range(QUEUES)]
        producer.send(batch(topic, "m", 3))
        first = [(f"m{queue}-{n}", queue, n) for queue in range(QUEUES) for n in range(3)]
        assert positions(consumer.received(12)) == sorted(first)
        move(driver, mix, topic, "broker-b")
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "n", 1))
    second = [(f"n{queue}-0", queue, BEGIN if queue in moved else 3) for queue in range(QUEUES)]
    with driver.push(mix.namesrv, topic) as fresh:
        assert positions(fresh.received(16)) == sorted(first + second)
        assert fresh.queues(topic) == {(LOGICAL, n) for n in range(QUEUES)}
    with driver.pull(mix.namesrv) as reader:
        for queue in range(QUEUES):
            ends = reader.call("offsets", topic=topic, broker=LOGICAL, queue=queue)
            assert (ends["min"], ends["max"]) == (0, BEGIN + 1 if queue in moved else 4)


def test_what_a_group_committed_is_found_at_the_new_leader(mix: Mix, driver: Driver, topic: str) -> None:
    make(driver, mix, topic, "broker-a")
    group = driver.unique("G_static_")
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "m", 2))
    with driver.push(mix.namesrv, topic, group=group) as consumer:
        consumer.received(8)
        # What a member has received and not committed comes again, rightly so.
        wait_for("the commits", lambda: committed(mix, topic, group) == [2] * QUEUES)
    move(driver, mix, topic, "broker-b")
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "n", 1))
    with driver.push(mix.namesrv, topic, group=group) as consumer:
        assert bodies(consumer.received(QUEUES)) == sorted(f"n{queue}-0" for queue in range(QUEUES))


def committed(mix: Mix, topic: str, group: str) -> list[int]:
    """The offset that the leader of each logical queue has of a group; -1 where it has none."""
    offsets = []
    for queue, leader in sorted(leaders(mix, topic).items()):
        address = next(broker.address for broker in mix.brokers if broker.broker_name == leader)
        asked = {
            "topic": topic,
            "queueId": str(queue),
            "consumerGroup": group,
            "lo": "true",
            "bname": LOGICAL,
        }
        header, _ = call(address, 14, asked)
        offsets.append(int(header["extFields"]["offset"]) if header["code"] == 0 else -1)
    return offsets


def test_the_tools_show_logical_queues(mix: Mix, driver: Driver, topic: str) -> None:
    make(driver, mix, topic, "broker-a")
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "m", 2))
    move(driver, mix, topic, "broker-b")
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "n", 1))
    lines = [line.split() for line in driver.admin(mix.namesrv, "topicStatus", "-t", topic).splitlines()]
    shown = {(line[0], line[1]): (line[2], line[3]) for line in lines if line and line[0] == LOGICAL}
    assert shown == {(LOGICAL, str(queue)): ("0", str(BEGIN + 1)) for queue in range(QUEUES)}


def test_more_queues_are_added_and_fewer_refused(mix: Mix, driver: Driver, topic: str) -> None:
    make(driver, mix, topic)
    driver.admin(mix.namesrv, "updateStaticTopic", "-c", "DefaultCluster", "-t", topic, "-qn", "6")
    wait_for("six queues", lambda: sorted(leaders(mix, topic)) == list(range(6)))
    with driver.producer(mix.namesrv) as producer:
        sent = producer.send([{"topic": topic, "body": "x", "broker": LOGICAL, "queue": 5}])
        assert (sent[0]["queue"], sent[0]["offset"]) == (5, 0)
    out = driver.admin(
        mix.namesrv, "updateStaticTopic", "-c", "DefaultCluster", "-t", topic, "-qn", "2", with_errors=True
    )
    assert "Cannot decrease the queue num" in out


def test_our_tool_and_mqadmin_continue_each_others_topics(mix: Mix, driver: Driver, topic: str) -> None:
    """Made by ours, more by mqadmin, moved by ours, moved back by mqadmin: Java finds everything where it was put."""

    async def with_admin(act: Callable[[Admin], Awaitable[StaticTopic]]) -> StaticTopic:
        async with Admin(mix.namesrv) as admin:
            return await act(admin)

    made = asyncio.run(with_admin(lambda admin: admin.create_static_topic(topic, 2, brokers=["broker-a"])))
    assert set(made.leaders.values()) == {"broker-a"}
    wait_for("two queues", lambda: sorted(leaders(mix, topic)) == [0, 1])
    make(driver, mix, topic)
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "m", 2))
    moved = asyncio.run(with_admin(lambda admin: admin.move_static_topic(topic, ["broker-b"])))
    assert moved.is_whole
    wait_for("all at broker-b", lambda: leaders(mix, topic) == dict.fromkeys(range(QUEUES), "broker-b"))
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "n", 1))
    move(driver, mix, topic, "broker-a")
    with driver.producer(mix.namesrv) as producer:
        producer.send(batch(topic, "o", 1))
    with driver.push(mix.namesrv, topic) as consumer:
        received = bodies(consumer.received(QUEUES * 4))
    wanted = [f"m{queue}-{n}" for queue in range(QUEUES) for n in range(2)]
    assert received == sorted(wanted + [f"{prefix}{queue}-0" for prefix in "no" for queue in range(QUEUES)])
    assert asyncio.run(with_admin(lambda admin: admin.static_topic(topic))).is_whole


def test_our_client_and_java_share_the_queues_of_one_group(mix: Mix, driver: Driver, topic: str) -> None:
    make(driver, mix, topic)
    group = driver.unique("G_shared_")
    ours: list[str] = []

    async def run() -> None:
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with (
            Producer(mix.namesrv) as producer,
            PushConsumer(
                mix.namesrv,
                group,
                subscriptions={topic: "*"},
                handler=lambda message: ours.append(message.body.decode()),
                config=config,
            ) as consumer,
        ):

            def shared() -> bool:
                own = [queue for queue in consumer.owned if queue.topic == topic]
                return len(own) == 2 and len(java.queues(topic)) == 2

            try:
                await wait_until(shared, "two queues each")
            except AssertionError as e:
                raise AssertionError(f"{consumer.owned} {java.queues(topic)}") from e
            for queue in await producer.queues(topic):
                assert queue.broker_name == LOGICAL
                for n in range(3):
                    result = await producer.send(
                        Message(topic, f"{queue.queue_id}-{n}".encode()), queue=queue
                    )
                    assert (result.queue, result.queue_offset) == (queue, n)
            wanted = sorted(f"{queue}-{n}" for queue in range(QUEUES) for n in range(3))
            await wait_until(lambda: len(ours) == 6)
            theirs = await asyncio.to_thread(java.received, 6)
            assert sorted(ours + bodies(theirs)) == wanted

    with driver.push(mix.namesrv, topic, group=group) as java:
        wait_for("java to own all", lambda: len(java.queues(topic)) == QUEUES)
        asyncio.run(run())
