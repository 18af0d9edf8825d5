"""Filters and resets between both products: Java's consumers at the broker under test, ours at RocketMQ's broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from aerobee.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    OffsetTarget,
    Producer,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    Sql,
)
from aerobee.errors import RemoteError
from aerobee.message import Message, MessageQueue
from tests.interop.rocketmq import Cluster, Driver, DriverError
from tests.waiting import wait_for, wait_until

LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}
SETTINGS = {
    **LIGHT,
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
}
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture(scope="module")
def filtering(kind: str, peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of the product under test with SQL92 filters and filter bits."""
    cluster = Cluster(kind, tmp_path_factory.mktemp(f"{kind}-filters"), **SETTINGS)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def real_filtering(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same of RocketMQ, for our clients."""
    cluster = Cluster(
        "rocketmq", tmp_path_factory.mktemp("real-filters"), enablePropertyFilter="true", **LIGHT
    )
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def make_topic(driver: Driver, cluster: Cluster, topic: str, queues: int = 1) -> None:
    driver.admin(
        cluster.namesrv,
        "updateTopic",
        "-c",
        "DefaultCluster",
        "-t",
        topic,
        "-r",
        str(queues),
        "-w",
        str(queues),
    )


def bodies(messages: list[dict[str, object]]) -> list[object]:
    return sorted(str(message["body"]) for message in messages)


def test_java_consumers_get_what_tag_and_expression_ask_for(
    driver: Driver, filtering: Cluster, topic: str
) -> None:
    make_topic(driver, filtering, topic)
    with (
        driver.push(filtering.namesrv, topic, tags="TagA || TagC") as tagged,
        driver.push(
            filtering.namesrv, topic, sql="price BETWEEN 3 AND 6 AND region IN ('eu', 'us')"
        ) as priced,
        driver.push(filtering.namesrv, topic, sql="region IS NULL OR NOT (price > 1)") as rest,
        driver.producer(filtering.namesrv) as producer,
    ):
        producer.send(
            [
                {
                    "topic": topic,
                    "body": f"m{n}",
                    "tags": "TagA" if n % 3 == 0 else "TagB" if n % 3 == 1 else "TagC",
                    "properties": {"price": n, **({"region": "eu"} if n % 2 == 0 else {})},
                }
                for n in range(10)
            ]
        )
        assert bodies(tagged.received(7)) == ["m0", "m2", "m3", "m5", "m6", "m8", "m9"]
        assert bodies(priced.received(2)) == ["m4", "m6"]
        assert bodies(rest.received(6)) == ["m0", "m1", "m3", "m5", "m7", "m9"]
    if filtering.kind == "aerobee":

        def written() -> bool:
            path = filtering.broker.store / "config" / "consumerFilter.json"
            return path.exists() and topic in json.loads(path.read_text())["filterDataByTopic"]

        wait_for("the filters in consumerFilter.json", written)


def test_a_java_consumer_with_a_bad_expression_does_not_start(
    driver: Driver, filtering: Cluster, topic: str
) -> None:
    make_topic(driver, filtering, topic)
    with pytest.raises(DriverError, match="23"):
        driver.push(filtering.namesrv, topic, sql="price > ")


def test_a_java_consumer_follows_a_reset_while_it_runs(
    driver: Driver, filtering: Cluster, topic: str
) -> None:
    make_topic(driver, filtering, topic)
    with driver.producer(filtering.namesrv) as producer, driver.push(filtering.namesrv, topic) as consumer:
        producer.send([{"topic": topic, "body": f"m{n}"} for n in range(5)])
        consumer.received(5)

        async def move() -> list[int]:
            async with Admin(filtering.namesrv) as admin:
                plan = await admin.plan_offsets(consumer.group, topic, OffsetTarget.offset(3))
                return [move.after for move in await admin.move_offsets(consumer.group, plan)]

        assert asyncio.run(move()) == [3]
        again = consumer.received(7, timeout_s=120)  # Java waits 10 s before it takes the queue again
        assert bodies(again[5:]) == ["m3", "m4"]


def test_a_reset_of_a_stopped_java_consumer_is_where_it_starts(
    driver: Driver, filtering: Cluster, topic: str
) -> None:
    make_topic(driver, filtering, topic)
    with driver.producer(filtering.namesrv) as producer:
        producer.send([{"topic": topic, "body": f"m{n}"} for n in range(5)])
        with driver.push(filtering.namesrv, topic) as consumer:
            consumer.received(5)
        out = driver.admin(
            filtering.namesrv,
            "resetOffsetByTime",
            "-g",
            consumer.group,
            "-t",
            topic,
            "-s",
            "0",
            with_errors=True,
        )
        assert topic in out or filtering.broker.broker_name in out
        with driver.push(filtering.namesrv, topic, group=consumer.group) as second:
            assert bodies(second.received(5)) == [f"m{n}" for n in range(5)]


async def send_priced(namesrv: str, topic: str, count: int) -> None:
    async with Producer(namesrv, "PG_priced") as producer:
        for n in range(count):
            await producer.send(Message(topic, b"%d" % n, tag="T", properties={"price": str(n)}))


async def test_our_consumers_filter_at_rocketmqs_broker(
    driver: Driver, real_filtering: Cluster, topic: str
) -> None:
    namesrv = real_filtering.namesrv
    make_topic(driver, real_filtering, topic)
    with pytest.raises(RemoteError):
        await PushConsumer(namesrv, "CG_bad", subscriptions={topic: Sql("price >")}, handler=print).start()
    seen: list[bytes] = []
    async with PushConsumer(
        namesrv,
        "CG_sql",
        subscriptions={topic: Sql("price > 6")},
        handler=lambda m: seen.append(m.body),
        config=FIRST,
    ):
        await send_priced(namesrv, topic, 10)
        await wait_until(lambda: len(seen) >= 3, "messages")
    assert sorted(seen) == [b"7", b"8", b"9"]
    async with PullConsumer(
        namesrv, "CG_pull", config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    ) as consumer:
        await consumer.subscribe(topic, Sql("price IN ('1', '2')"))
        polled: list[bytes] = []
        async with asyncio.timeout(120):
            while len(polled) < 2:
                polled += [message.body for message in await consumer.poll(1.0)]
    assert sorted(polled) == [b"1", b"2"]


async def test_our_consumer_follows_a_reset_at_rocketmqs_broker(
    driver: Driver, real_filtering: Cluster, topic: str
) -> None:
    namesrv = real_filtering.namesrv
    make_topic(driver, real_filtering, topic)
    seen: list[bytes] = []
    async with (
        PushConsumer(
            namesrv,
            "CG_reset",
            subscriptions={topic: "*"},
            handler=lambda m: seen.append(m.body),
            config=FIRST,
        ),
        Admin(namesrv) as admin,
    ):
        await send_priced(namesrv, topic, 4)
        await wait_until(lambda: len(seen) >= 4, "messages")
        plan = await admin.plan_offsets("CG_reset", topic, OffsetTarget.relative(-99))
        assert [move.after for move in plan] == [0]
        await admin.move_offsets("CG_reset", plan)
        await send_priced(namesrv, topic, 1)  # a real broker wakes no pending pull for a reset
        await wait_until(lambda: len(seen) >= 9, "messages")
    assert seen[4:] == [b"0", b"1", b"2", b"3", b"0"]


async def light_round(driver: Driver, cluster: Cluster, topic: str) -> list[tuple[int, bytes, str]]:
    """Two messages to the LMQs x and y, one to y; what a reader of y sees."""
    make_topic(driver, cluster, topic)
    broker = cluster.broker.broker_name
    async with Producer(cluster.namesrv, "PG_light") as producer:
        for number, names in enumerate((("x", "y"), ("x", "y"), ("y",))):
            queues = ",".join(f"%LMQ%{topic}_{name}" for name in names)
            await producer.send(Message(topic, b"%d" % number, properties={"INNER_MULTI_DISPATCH": queues}))
    config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    seen: list[tuple[int, bytes, str]] = []
    async with PullConsumer(cluster.namesrv, "CG_light", config=config) as consumer:
        await consumer.assign([MessageQueue(f"%LMQ%{topic}_y", broker, 0)])
        async with asyncio.timeout(120):
            while len(seen) < 3:
                seen += [
                    (message.queue_offset, message.body, message.properties["INNER_MULTI_QUEUE_OFFSET"])
                    for message in await consumer.poll(1.0)
                ]
    return seen


LIGHT_SEEN = [(0, b"0", "0,0"), (1, b"1", "1,1"), (2, b"2", "2")]


async def test_our_pull_consumer_reads_lmq_of_rocketmqs_broker(
    driver: Driver, real_filtering: Cluster, topic: str
) -> None:
    assert await light_round(driver, real_filtering, topic) == LIGHT_SEEN


async def delayed_light_round(driver: Driver, cluster: Cluster, topic: str) -> list[tuple[bytes, str]]:
    """One immediate message to an LMQ, one with a level, one with a time: what its reader sees until all have come."""
    make_topic(driver, cluster, topic)
    light = f"%LMQ%{topic}_y"
    own = {"INNER_MULTI_DISPATCH": light}
    async with Producer(cluster.namesrv, "PG_light") as producer:
        await producer.send(Message(topic, b"level", properties=own, delay_level=2))
        await producer.send(Message(topic, b"time", properties=own, deliver_after=8))
        await producer.send(Message(topic, b"at once", properties=own))
    config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
    seen: list[tuple[bytes, str]] = []
    async with PullConsumer(cluster.namesrv, "CG_light", config=config) as consumer:
        await consumer.assign([MessageQueue(light, cluster.broker.broker_name, 0)])
        async with asyncio.timeout(60):
            while len(seen) < 3:
                seen += [
                    (message.body, message.properties["INNER_MULTI_QUEUE_OFFSET"])
                    for message in await consumer.poll(1.0)
                ]
    return seen


DELAYED_SEEN = [(b"at once", "0"), (b"level", "1"), (b"time", "2")]


async def test_delayed_messages_enter_lmq_on_delivery(driver: Driver, filtering: Cluster, topic: str) -> None:
    assert await delayed_light_round(driver, filtering, topic) == DELAYED_SEEN


async def test_delayed_messages_enter_lmq_of_rocketmqs_broker(
    driver: Driver, real_filtering: Cluster, topic: str
) -> None:
    assert await delayed_light_round(driver, real_filtering, topic) == DELAYED_SEEN


async def test_javas_pull_consumer_reads_an_lmq(driver: Driver, filtering: Cluster, topic: str) -> None:
    assert await light_round(driver, filtering, topic) == LIGHT_SEEN
    light = f"%LMQ%{topic}_y"
    with driver.pull(filtering.namesrv) as consumer:
        queue_fields = {
            "broker": filtering.broker.broker_name,
            "queue": 0,
            "expression": "*",
            "offset": 0,
            "count": 32,
        }
        consumer.call("pull", topic=topic, **queue_fields)  # so that it knows the broker's address
        found = consumer.call("pull", topic=light, **queue_fields)
    assert [message["body"] for message in found["messages"]] == ["0", "1", "2"]


def test_java_batches_to_a_batch_queue_are_consumed_by_java(
    driver: Driver, filtering: Cluster, topic: str
) -> None:
    driver.admin(
        filtering.namesrv,
        "updateTopic",
        "-c",
        "DefaultCluster",
        "-t",
        topic,
        "-r",
        "1",
        "-w",
        "1",
        "-a",
        "+queue.type=BatchCQ",
    )
    with driver.push(filtering.namesrv, topic) as consumer, driver.producer(filtering.namesrv) as producer:
        producer.send([{"topic": topic, "body": f"m{n}", "tags": "T"} for n in range(3)], mode="batch")
        producer.send([{"topic": topic, "body": f"n{n}", "tags": "T"} for n in range(4)], mode="batch")
        producer.send([{"topic": topic, "body": "single", "tags": "T"}])
        assert bodies(consumer.received(8)) == ["m0", "m1", "m2", "n0", "n1", "n2", "n3", "single"]
