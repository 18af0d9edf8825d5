"""Our client against a real RocketMQ broker and NameServer; what it writes and reads is checked with the Java client."""

from __future__ import annotations

import asyncio
import pathlib

import pytest

from aerobee.client import (
    ClientConfig,
    Compression,
    ConsumeFrom,
    ConsumerConfig,
    MessageModel,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)
from aerobee.errors import AerobeeError
from aerobee.message import Message, MessageQueue
from tests.interop.java_topics import bodies, make_group, make_topic, numbered
from tests.interop.rocketmq import Cluster, Driver
from tests.waiting import wait_async

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.5)


async def test_java_reads_what_we_send(real: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, real, topic)
    message = Message(
        topic, "grüße 你好".encode(), tag="标签", keys=("k1", "k2"), properties={"colour": "grün"}, flag=7
    )
    async with Producer(real.namesrv, "PG_ours") as producer:
        result = await producer.send(message)
    assert result.status.name == "SEND_OK"
    with driver.push(real.namesrv, topic) as consumer:
        (received,) = consumer.received(1)
    assert (received["body"], received["tags"], received["keys"], received["flag"]) == (
        "grüße 你好",
        "标签",
        "k1 k2",
        7,
    )
    assert received["properties"]["colour"] == "grün"
    assert received["msg_id"] == result.message_id
    assert (received["queue"], received["offset"]) == (result.queue.queue_id, result.queue_offset)


async def test_many_sends_at_once_batches_and_oneway_all_arrive(
    real: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, real, topic)
    async with Producer(real.namesrv, config=ProducerConfig(send_timeout_s=60)) as producer:
        single = await asyncio.gather(*(producer.send(Message(topic, b"s%d" % n)) for n in range(300)))
        batch = await producer.send_batch([Message(topic, b"b%d" % n, keys=(f"key{n}",)) for n in range(100)])
        for n in range(50):
            await producer.send_oneway(Message(topic, b"o%d" % n))
    assert {result.status.name for result in (*single, *batch)} == {"SEND_OK"}
    assert len({result.message_id for result in (*single, *batch)}) == 400
    with driver.push(real.namesrv, topic) as consumer:
        messages = consumer.received(450)
    expected = [f"s{n}" for n in range(300)] + [f"b{n}" for n in range(100)] + [f"o{n}" for n in range(50)]
    assert bodies(messages) == sorted(expected)
    by_position = {(message["queue"], message["offset"]): message["body"] for message in messages}
    assert [by_position[result.queue.queue_id, result.queue_offset] for result in batch] == [
        f"b{n}" for n in range(100)
    ]


@pytest.mark.parametrize("compression", list(Compression))
async def test_java_reads_our_compressed_bodies_and_we_its(
    real: Cluster, driver: Driver, topic: str, compression: Compression
) -> None:
    make_topic(driver, real, topic)
    body = "aerobee 压缩 " * 2_000
    async with Producer(real.namesrv, config=ProducerConfig(compression=compression)) as producer:
        await producer.send(Message(topic, body.encode()))
    with driver.push(real.namesrv, topic) as consumer:
        assert [message["body"] for message in consumer.received(1)] == [body]
    with driver.producer(real.namesrv, compress_over=1024) as java:
        java.send([{"topic": topic, "body": body}])
    received = await receive(real, topic, driver.unique("CG_ours"), 2)
    assert [message.body.decode() for message in received] == [body, body]


async def test_equal_keys_go_to_one_queue_in_order(real: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, real, topic)
    async with Producer(real.namesrv) as producer:
        for n in range(40):
            await producer.send(Message(topic, b"%d" % n), message_group=f"shard{n % 4}")
    with driver.push(real.namesrv, topic, orderly=True) as consumer:
        messages = consumer.received(40)
    for shard in range(4):
        of_shard = [m for m in messages if int(m["body"]) % 4 == shard]
        assert len({m["queue"] for m in of_shard}) == 1
        assert [int(m["body"]) for m in of_shard] == list(range(shard, 40, 4))


async def test_a_first_send_creates_the_topic(real: Cluster, driver: Driver, topic: str) -> None:
    async with Producer(real.namesrv) as producer:
        assert (await producer.send(Message(topic, b"first"))).status.name == "SEND_OK"
    assert f"topicName={topic}" not in driver.admin(real.namesrv, "topicRoute", "-t", topic)
    with driver.push(real.namesrv, topic) as consumer:
        assert bodies(consumer.received(1)) == ["first"]


async def test_a_refused_send_names_code_and_address(real: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, real, topic)
    async with Producer(real.namesrv) as producer:
        with pytest.raises(AerobeeError, match=r"127\.0\.0\.1:\d+"):
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 99))
        assert (await producer.send(Message(topic, b"y"))).status.name == "SEND_OK"


async def receive(
    cluster: Cluster, topic: str, group: str, count: int, expression: str = "*"
) -> list[ReceivedMessage]:
    """`count` messages by `async for`, each acknowledged."""
    received = []
    async with (
        asyncio.timeout(60),
        PushConsumer(cluster.namesrv, group, subscriptions={topic: expression}, config=FIRST) as consumer,
    ):
        async for message in consumer:
            received.append(message)
            message.ack()
            if len(received) == count:
                break
    return received


async def test_a_push_consumer_gets_what_java_sends(real: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, real, topic)
    with driver.producer(real.namesrv) as producer:
        sent = producer.send(numbered(topic, 60, tags="TagA", keys="k", properties={"colour": "grün"}))
        producer.send(numbered(topic, 20, tags="TagB"), "batch")
    group = driver.unique("CG_ours")
    received = await receive(real, topic, group, 80)
    assert sorted(message.body.decode() for message in received) == sorted(
        [f"m{n}" for n in range(60)] + [f"m{n}" for n in range(20)]
    )
    of_java = {message.message_id: message for message in received}
    for each in sent:
        message = of_java[each["msg_id"]]
        assert (message.queue.queue_id, message.queue_offset) == (each["queue"], each["offset"])
        assert message.offset_message_id == each["offset_msg_id"]
        assert (message.tag, message.keys, message.properties["colour"]) == ("TagA", ("k",), "grün")
    for queue in range(4):
        offsets = [message.queue_offset for message in received if message.queue.queue_id == queue]
        assert offsets == sorted(offsets)
    # What was acknowledged was committed: the next member gets only what is new.
    with driver.producer(real.namesrv) as producer:
        producer.send([{"topic": topic, "body": "new"}])
    assert [message.body for message in await receive(real, topic, group, 1)] == [b"new"]


async def test_tags_are_filtered(real: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, real, topic)
    with driver.producer(real.namesrv) as producer:
        for tag in ("TagA", "TagB", "TagC"):
            producer.send(numbered(topic, 10, tags=tag))
    received = await receive(real, topic, driver.unique("CG_ours"), 20, "TagA || TagC")
    assert {message.tag for message in received} == {"TagA", "TagC"}


async def test_a_failed_message_comes_again_through_the_retry_topic(
    real: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, real, topic)
    group = driver.unique("CG_ours")
    make_group(driver, real, group)
    seen: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"m3" and message.reconsume_times == 0:
            raise RetryLater(delay_level=1)

    async with PushConsumer(real.namesrv, group, subscriptions={topic: "*"}, handler=handle, config=FIRST):
        with driver.producer(real.namesrv) as producer:
            await asyncio.to_thread(producer.send, numbered(topic, 6))
        await wait_async("the second delivery", lambda: (b"m3", 1) in seen)
    assert sorted(seen) == sorted([*((b"m%d" % n, 0) for n in range(6)), (b"m3", 1)])


async def test_our_member_and_a_java_member_share_the_queues(
    real: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, real, topic)
    group = driver.unique("CG_mixed")
    ours: list[bytes] = []
    async with PushConsumer(
        real.namesrv, group, subscriptions={topic: "*"}, handler=lambda m: ours.append(m.body), config=FIRST
    ) as consumer:

        def owned() -> set[tuple[str, int]]:
            return {(q.broker_name, q.queue_id) for q in consumer.owned if q.topic == topic}

        await wait_async("all queues", lambda: len(owned()) == 4)
        java = await asyncio.to_thread(driver.push, real.namesrv, topic, group=group)
        try:
            await wait_async(
                "an even split",
                lambda: (
                    len(owned()) == len(java.queues(topic)) == 2 and len(owned() | java.queues(topic)) == 4
                ),
            )
            with driver.producer(real.namesrv) as producer:
                await asyncio.to_thread(
                    producer.send,
                    [
                        {"topic": topic, "body": f"m{n}", "queue": n % 4, "broker": "broker-a"}
                        for n in range(40)
                    ],
                )
            await wait_async("all messages", lambda: len(ours) + java.call("count") >= 40)
            theirs = [m["body"] for m in await asyncio.to_thread(java.received)]
            assert len(ours) == len(theirs) == 20
            assert sorted([body.decode() for body in ours] + theirs) == sorted(f"m{n}" for n in range(40))
        finally:
            await asyncio.to_thread(java.stop)
        await wait_async("our member to take over", lambda: len(owned()) == 4)


async def test_broadcast_members_get_everything(
    real: Cluster, driver: Driver, topic: str, tmp_path: pathlib.Path
) -> None:
    make_topic(driver, real, topic)
    config = ConsumerConfig(
        model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST, local_offsets_directory=str(tmp_path)
    )
    group = driver.unique("CG_ours")
    first: list[bytes] = []
    second: list[bytes] = []

    def member(name: str, into: list[bytes]) -> PushConsumer:
        return PushConsumer(
            real.namesrv, group, subscriptions={topic: "*"}, handler=lambda m: into.append(m.body), config=config,
            client=ClientConfig(instance=name),
        )  # fmt: skip

    async with member("one", first) as one, member("two", second) as two:
        await wait_async("all queues", lambda: len(one.owned) == len(two.owned) == 4)
        async with Producer(real.namesrv) as producer:
            for n in range(20):
                await producer.send(Message(topic, b"m%d" % n))
        await wait_async("all messages", lambda: len(first) >= 20 and len(second) >= 20)
    assert sorted(first) == sorted(second) == sorted(b"m%d" % n for n in range(20))
