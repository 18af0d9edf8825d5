"""POP between both products: Java's push consumer in POP mode, our SimpleConsumer at a real broker, stores that go from
one broker to the other while messages are invisible."""

from __future__ import annotations

import asyncio
import pathlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.client import Producer, SimpleConsumer
from aerobee.errors import MalformedFrame, RemoteError
from aerobee.message import Message
from aerobee.remoting import fastjson
from tests.interop.conftest import targets
from tests.interop.java_pops import JavaPops, use_pop
from tests.interop.java_topics import make_group, make_topic, numbered
from tests.interop.rocketmq import Broker, Cluster, Driver, NameServer
from tests.ports import free_broker_port
from tests.waiting import wait_async, wait_for


def test_a_java_push_consumer_pops_and_gets_a_failed_message_again(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    group = driver.unique("CG_pop")
    make_topic(driver, cluster, topic)
    make_group(driver, cluster, group)
    use_pop(driver, cluster.namesrv, topic, group)
    with driver.producer(cluster.namesrv) as producer:
        producer.send(numbered(topic, 30, tags="TagA"))
        with JavaPops(
            driver, namesrv=cluster.namesrv, topic=topic, group=group, fail_once="m7", invisible_ms=10_000
        ) as consumer:
            wait_for("the first round", lambda: len(consumer.received(30)) >= 30)
            producer.send([{"topic": topic, "body": "while polling", "tags": "TagA"}])
            messages = consumer.received(32)
    assert Counter(message["body"] for message in messages) == Counter(
        [*(f"m{number}" for number in range(30)), "m7", "while polling"]
    )
    again = [message for message in messages if message["reconsume_times"] == 1]
    assert [message["body"] for message in again] == ["m7"]
    assert again[0]["topic"] == topic
    assert again[0]["properties"]["1ST_POP_TIME"]


def test_two_java_members_share_one_queue(cluster: Cluster, driver: Driver, topic: str) -> None:
    group = driver.unique("CG_pop")
    make_topic(driver, cluster, topic, queues=1)
    make_group(driver, cluster, group)
    use_pop(driver, cluster.namesrv, topic, group)
    options = {"namesrv": cluster.namesrv, "topic": topic, "group": group, "batch": 1}
    with (
        JavaPops(driver, **options) as one,
        JavaPops(driver, **options) as two,
        driver.producer(cluster.namesrv) as producer,
    ):
        sent = 0

        def both_have_some() -> bool:
            nonlocal sent
            producer.send([{"topic": topic, "body": f"m{number}"} for number in range(sent, sent + 20)])
            sent += 20
            return bool(one.received(0)) and bool(two.received(0))

        wait_for("messages at both members", both_have_some)
        wait_for("all messages", lambda: len(one.received(0)) + len(two.received(0)) >= sent)
        bodies = Counter(message["body"] for consumer in (one, two) for message in consumer.received(0))
    assert bodies == Counter(f"m{number}" for number in range(sent))


async def test_our_simple_consumer_at_a_real_broker(real: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, real, topic)
    make_group(driver, real, "CG_simple")
    async with (
        Producer(real.namesrv) as producer,
        SimpleConsumer(real.namesrv, "CG_simple", subscriptions={topic: "TagA || TagC"}) as consumer,
    ):
        for number in range(20):
            await producer.send(Message(topic, b"m%d" % number, tag="ABC"[number % 3].join(("Tag", ""))))
        wanted = {b"m%d" % number for number in range(20) if number % 3 != 1}
        seen: dict[bytes, Any] = {}
        async with asyncio.timeout(120):
            while set(seen) < wanted:
                for message in await consumer.receive(count_max=5, invisible_s=8, wait_s=5):
                    seen[message.body] = message
        assert set(seen) == wanted
        kept, put_off, *done = seen.values()
        await consumer.ack_all(done[:6])
        for message in done[6:]:
            await consumer.ack(message)
        await consumer.change_invisible(put_off, 1)
        again: dict[bytes, Any] = {}
        async with asyncio.timeout(120):
            while len(again) < 2:
                again |= {message.body: message for message in await consumer.receive(wait_s=5)}
        assert set(again) == {kept.body, put_off.body}
        assert {message.reconsume_times for message in again.values()} == {1}
        assert {message.topic for message in again.values()} == {topic}
        for message in again.values():
            await consumer.ack(message)
        message = again[kept.body]
        message.queue_offset += 1_000
        with pytest.raises(RemoteError):
            await consumer.ack(message)


# --- one store, two products

PAIRS = {
    "aerobee": [("aerobee", "rocketmq"), ("rocketmq", "aerobee")],
    "rocketmq": [("rocketmq", "rocketmq")],
}


@pytest.fixture(scope="module")
def namesrv(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NameServer("rocketmq", tmp_path_factory.mktemp("pop-namesrv"))
    server.start()
    yield server.address
    server.kill()


def popped_offsets(file: pathlib.Path, topic: str, group: str) -> int:
    """The sum of a group's offsets in consumerOffset.json; 0 while it is being replaced."""
    try:
        tree = fastjson.loads_object(file.read_bytes(), "consumerOffset.json")
    except (OSError, MalformedFrame):
        return 0
    return sum(tree["offsetTable"].get(f"{topic}@{group}", {}).values())


@pytest.mark.parametrize(
    ("first", "second"),
    [pair for target in targets() for pair in PAIRS[target]],
    ids=lambda kind: str(kind),
)
async def test_what_is_invisible_at_one_broker_comes_again_at_the_other(
    namesrv: str, tmp_path: pathlib.Path, first: str, second: str
) -> None:
    port = free_broker_port()
    topic, group = "TopicHandover", "CG_handover"
    before = Broker(first, tmp_path / "broker", namesrv, port=port)
    await asyncio.to_thread(before.start)
    try:
        async with Producer(namesrv) as producer:
            for number in range(6):
                await producer.send(Message(topic, b"m%d" % number), queue=None)
        async with SimpleConsumer(namesrv, group, subscriptions={topic: "*"}) as consumer:
            taken = []
            async with asyncio.timeout(120):
                while len(taken) < 6:
                    taken += await consumer.receive(invisible_s=12, wait_s=5)
            await consumer.ack_all(taken[:2])
            await consumer.ack(taken[2])
        left = {message.body for message in taken[3:]}
        offsets = tmp_path / "broker" / "store" / "config" / "consumerOffset.json"
        # RocketMQ finds the offsets of a killed broker only in the file, which is written every second here.
        await wait_async(
            "the offsets are saved", lambda: offsets.exists() and popped_offsets(offsets, topic, group) == 6
        )
    finally:
        await asyncio.to_thread(before.kill)
    after = Broker(second, tmp_path / "broker", namesrv, port=port)
    await asyncio.to_thread(after.start)
    try:
        async with SimpleConsumer(namesrv, group, subscriptions={topic: "*"}) as consumer:
            again: list[Any] = []
            async with asyncio.timeout(120):
                while len(again) < 3:
                    again += await consumer.receive(wait_s=5)
            assert {message.body for message in again} == left
            assert {message.reconsume_times for message in again} == {1}
            await consumer.ack_all(again)
            assert await consumer.receive(wait_s=1) == []
    finally:
        await asyncio.to_thread(after.kill)
