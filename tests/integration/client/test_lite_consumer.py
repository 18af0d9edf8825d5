"""Lite topics with our own client: Producer.send(lite_topic=...) and LiteConsumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aerobee import LiteConsumer, LiteStart, Message, Producer
from aerobee.errors import RemoteError, UsageError
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import LITE_BIND_TOPIC, LITE_EXCLUSIVE, LITE_MODEL, TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.waiting import wait_until


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    settings = {"enable_lmq": True, "enable_multi_dispatch": True}
    async with LocalCluster(brokers=2, broker_config=settings) as started:
        await started.create_topic("chat", queues=2)
        for index in range(2):
            broker = started.broker(index)
            broker.topics.put(TopicConfig("chat", 2, 2, attributes={TYPE_ATTRIBUTE: "LITE"}))
            broker.groups.put(SubscriptionGroupConfig("readers", attributes={LITE_BIND_TOPIC: "chat"}))
            attributes = {LITE_BIND_TOPIC: "chat", LITE_MODEL: LITE_EXCLUSIVE}
            broker.groups.put(SubscriptionGroupConfig("single", attributes=attributes))
        yield started


def consumer(cluster: LocalCluster, *lite_topics: str, group: str = "readers", **how: Any) -> LiteConsumer:
    return LiteConsumer(
        cluster.nameserver_address, group, "chat", lite_topics, clock=cluster.clock, network=cluster.network, **how
    )  # fmt: skip


async def take(reader: LiteConsumer, count: int) -> list[tuple[str, bytes]]:
    """That many messages, each acknowledged."""
    found: list[tuple[str, bytes]] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            messages = await reader.receive(wait_s=5)
            await reader.ack_all(messages)
            found += [(message.lite_topic, message.body) for message in messages]
    return found


async def test_lite_topics_of_several_brokers_arrive_in_order(cluster: LocalCluster) -> None:
    users = [f"user-{number}" for number in range(8)]
    async with consumer(cluster, *users) as reader, cluster.producer() as producer:
        stored = set()
        for number in range(3):
            for user in users:
                sent = await producer.send(Message("chat", b"%d" % number), lite_topic=user)
                stored.add((user, sent.queue.broker_name))
        assert len(stored) == len(users)  # a lite topic lies at one broker
        assert len({broker for _, broker in stored}) == 2
        await producer.send(Message("chat", b"not subscribed"), lite_topic="other")
        found = await take(reader, 24)
        for user in users:
            assert [body for name, body in found if name == user] == [b"0", b"1", b"2"]


async def test_a_redelivered_message_counts_its_deliveries(cluster: LocalCluster) -> None:
    async with consumer(cluster, "anna") as reader, cluster.producer() as producer:
        await producer.send(Message("chat", b"a"), lite_topic="anna")
        (message,) = await reader.receive(wait_s=10)
        assert (message.topic, message.queue_offset, message.reconsume_times) == ("chat", 0, 0)
        await reader.change_invisible(message, 0)
        (message,) = await reader.receive(wait_s=10)
        assert message.reconsume_times == 1
        await reader.dead_letter(message, "tired of it")
        assert await reader.receive(wait_s=0) == []
        assert sum(cluster.broker(index).store.max_offset("%DLQ%readers", 0) for index in range(2)) == 1


async def test_lite_topics_are_subscribed_and_unsubscribed(cluster: LocalCluster) -> None:
    async with consumer(cluster) as reader, cluster.producer() as producer:
        for number in range(3):
            await producer.send(Message("chat", b"%d" % number), lite_topic="anna")
        await reader.subscribe("anna", start=LiteStart.FIRST)
        assert reader.lite_topics == {"anna"}
        assert [body for _, body in await take(reader, 3)] == [b"0", b"1", b"2"]
        await reader.unsubscribe("anna")
        await producer.send(Message("chat", b"3"), lite_topic="anna")
        assert await reader.receive(wait_s=0) == []
        await reader.subscribe("anna", start=LiteStart.LAST)
        await producer.send(Message("chat", b"4"), lite_topic="anna")
        assert await take(reader, 1) == [("anna", b"4")]


async def test_the_newest_client_of_an_exclusive_group_takes_over(cluster: LocalCluster) -> None:
    lost: list[str] = []
    async with (
        consumer(cluster, "anna", "ben", group="single", on_lost=lost.append) as first,
        consumer(cluster, "anna", group="single") as second,
        cluster.producer() as producer,
    ):
        await wait_until(lambda: bool(lost))
        assert (set(lost), first.lite_topics) == ({"anna"}, {"ben"})
        await producer.send(Message("chat", b"a"), lite_topic="anna")
        assert await take(second, 1) == [("anna", b"a")]


async def test_subscriptions_survive_a_restart_of_the_broker(cluster: LocalCluster) -> None:
    users = [f"user-{number}" for number in range(4)]
    async with consumer(cluster, *users) as reader, cluster.producer() as producer:
        await cluster.stop_broker(1)
        await cluster.start_broker(1)
        await cluster.advance_clock(40)
        lite = cluster.broker(1).services.lite
        await wait_until(lambda: lite.subscriptions.count == 4)
        for user in users:
            await producer.send(Message("chat", b"a"), lite_topic=user)
        assert sorted(await take(reader, 4)) == [(user, b"a") for user in users]
    await wait_until(lambda: lite.subscriptions.count == 0)


async def test_misuse_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(UsageError, match="lite topic 'a b': lite topic can only contain"):
        consumer(cluster, "a b")
    with pytest.raises(UsageError, match="lite topics are a list of names"):
        LiteConsumer(cluster.nameserver_address, "readers", "chat", "anna")
    with pytest.raises(RemoteError, match="lite group unknown is expected to bind topic null"):
        await consumer(cluster, "anna", group="unknown").start()
    async with Producer(
        cluster.nameserver_address, "PG", clock=cluster.clock, network=cluster.network
    ) as producer:
        with pytest.raises(UsageError, match="lite_topic 'a b'"):
            await producer.send(Message("chat", b"a"), lite_topic="a b")
        with pytest.raises(UsageError, match="lite_topic excludes a priority"):
            await producer.send(Message("chat", b"a", priority=1), lite_topic="anna")
        with pytest.raises(UsageError, match="lite_topic excludes queue"):
            await producer.send(Message("chat", b"a"), lite_topic="anna", message_group="g")
