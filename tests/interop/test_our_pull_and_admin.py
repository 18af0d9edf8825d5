"""Our pull consumer and admin client against a real RocketMQ broker and NameServer."""

from __future__ import annotations

import asyncio

import pytest

from aerobee.client import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
)
from aerobee.client.base.received import ReceivedMessage
from aerobee.errors import AerobeeError, ConsumerNotOnline, QueryNotFound, TopicNotExist
from aerobee.message import Message, MessageQueue
from tests.interop.java_topics import numbered
from tests.interop.rocketmq import Cluster, Driver
from tests.waiting import wait_for, wait_until

BY_HAND = PullConsumerConfig(auto_commit=False, consume_from=ConsumeFrom.FIRST)


async def poll(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    received: list[ReceivedMessage] = []
    async with asyncio.timeout(120):
        while len(received) < count:
            received += await consumer.poll()
    return received


async def test_subscribed_pull_polls_commits_and_continues(real: Cluster, driver: Driver, topic: str) -> None:
    group = driver.unique("LG_ours")
    async with Admin(real.namesrv) as admin, Producer(real.namesrv) as producer:
        await admin.create_topic(topic, queue_count=4)
        await asyncio.to_thread(wait_for, "the route", lambda: asyncio.run(_exists(real, topic)))
        for n in range(20):
            await producer.send(Message(topic, b"m%d" % n))
        async with PullConsumer(real.namesrv, group, config=BY_HAND) as consumer:
            await consumer.subscribe(topic)
            received = await poll(consumer, 20)
            assert sorted(message.body for message in received) == sorted(b"m%d" % n for n in range(20))
            await consumer.commit()
            ends = {queue: await consumer.end_offset(queue) for queue in consumer.assigned}
            assert {queue: await consumer.committed(queue) for queue in consumer.assigned} == ends
        await producer.send(Message(topic, b"next"))
        async with PullConsumer(real.namesrv, group, config=BY_HAND) as consumer:
            await consumer.subscribe(topic)
            assert [message.body for message in await poll(consumer, 1)] == [b"next"]
        progress = await admin.consumer_progress(group, topic)
        assert progress.lag == 1
        assert sum(queue.consumer_offset for queue in progress.queues) == 20


async def _exists(real: Cluster, topic: str) -> bool:
    async with Admin(real.namesrv) as admin:
        return await admin.topic_exists(topic)


async def test_assigned_pull_seeks_to_offsets_and_times(real: Cluster, driver: Driver, topic: str) -> None:
    with driver.producer(real.namesrv) as java:
        java.send(numbered(topic, 1))  # creates the topic
        java.send(numbered(topic, 10, queue=1, broker="broker-a"))
    queue = MessageQueue(topic, "broker-a", 1)
    async with PullConsumer(real.namesrv, driver.unique("LG_ours"), config=BY_HAND) as consumer:
        assert len(await consumer.queues(topic)) == 4
        await consumer.assign([queue])
        await consumer.seek_to_begin(queue)
        end = await consumer.end_offset(queue)
        received = await poll(consumer, end)
        assert [message.queue_offset for message in received] == list(range(end))
        last = end - 3
        await consumer.seek(queue, last)
        assert [message.queue_offset for message in await poll(consumer, 3)] == [last, last + 1, last + 2]
        moment = received[5].store_timestamp
        first = next(message.queue_offset for message in received if message.store_timestamp >= moment)
        assert await consumer.offset_for_time(queue, moment) == first
        await consumer.seek_to_time(queue, moment)
        assert (await poll(consumer, 1))[0].queue_offset == first
        await consumer.seek_to_end(queue)
        with driver.producer(real.namesrv) as java:
            await asyncio.to_thread(
                java.send, [{"topic": topic, "body": "end", "queue": 1, "broker": "broker-a"}]
            )
        assert [message.body for message in await poll(consumer, 1)] == [b"end"]


async def test_admin_creates_lists_describes_and_deletes_topics(real: Cluster, topic: str) -> None:
    async with Admin(real.namesrv) as admin:
        addresses = await admin.create_topic(topic, queue_count=3, attributes={"message.type": "NORMAL"})
        assert addresses == (real.broker.address,)
        await asyncio.to_thread(wait_for, "the route", lambda: asyncio.run(_exists(real, topic)))
        assert topic in await admin.topics()
        (config,) = await admin.topic_config(topic)
        assert (config.read_queue_count, config.write_queue_count, config.perm) == (3, 3, 6)
        assert [stats.max_offset for stats in await admin.topic_stats(topic)] in ([0, 0, 0], [])
        assert {"TBW102", "DefaultCluster", "broker-a"} <= set(await admin.system_topics())
        await admin.delete_topic(topic)
        assert not await admin.topic_exists(topic)
        with pytest.raises(TopicNotExist):
            await admin.topic_route(topic)


async def test_admin_sees_brokers_settings_and_counters(real: Cluster) -> None:
    async with Admin(real.namesrv) as admin:
        (broker,) = await admin.brokers()
        assert (broker.cluster, broker.broker_name, broker.broker_id) == ("DefaultCluster", "broker-a", 0)
        assert (await admin.broker_runtime(broker.address))["brokerVersionDesc"] == "V5_5_0"
        assert (await admin.broker_config(broker.address))["brokerName"] == "broker-a"
        await admin.update_broker_config(broker.address, {"defaultQueryMaxNum": "33"})
        assert (await admin.broker_config(broker.address))["defaultQueryMaxNum"] == "33"
        assert await admin.wipe_write_perm("broker-a") > 0
        assert await admin.add_write_perm("broker-a") > 0
        await admin.kv_put("interop", "k", "v")
        assert await admin.kv_get("interop", "k") == "v"
        await admin.kv_delete("interop", "k")
        with pytest.raises(QueryNotFound):
            await admin.kv_get("interop", "k")


async def test_admin_finds_messages_by_every_id_and_key(real: Cluster, driver: Driver, topic: str) -> None:
    async with Admin(real.namesrv) as admin, Producer(real.namesrv) as producer:
        await admin.create_topic(topic, queue_count=4)
        await asyncio.to_thread(wait_for, "the route", lambda: asyncio.run(_exists(real, topic)))
        sent = [await producer.send(Message(topic, b"m%d" % n, keys=(f"key{n}", "all"))) for n in range(5)]

        async def indexed() -> bool:
            return len(await admin.messages_by_key(topic, "all")) == 5

        await wait_until(indexed, "the index", passing=(QueryNotFound,))
        assert [message.body for message in await admin.messages_by_key(topic, "key3")] == [b"m3"]
        assert (await admin.message(sent[2].offset_message_id)).body == b"m2"
        assert (await admin.message(sent[2].message_id, topic)).body == b"m2"
        assert [m.body for m in await admin.messages_by_unique_key(topic, sent[4].message_id)] == [b"m4"]
        assert (await admin.message_at(sent[1].queue, sent[1].queue_offset)).body == b"m1"


async def test_admin_manages_groups_and_resets_their_offsets(
    real: Cluster, driver: Driver, topic: str
) -> None:
    group = driver.unique("CG_admin")
    async with Admin(real.namesrv) as admin:
        assert await admin.create_group(group, retry_count_max=3) == (real.broker.address,)
        (info,) = [info for info in await admin.groups() if info.name == group]
        assert info.retry_count_max == 3
        with pytest.raises(ConsumerNotOnline):
            await admin.consumer_connections(group)
        with driver.producer(real.namesrv, group="PG_seen") as java:
            await asyncio.to_thread(java.send, numbered(topic, 12))
            seen: list[bytes] = []
            async with PushConsumer(
                real.namesrv,
                group,
                subscriptions={topic: "*"},
                handler=lambda m: seen.append(m.body),
                config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
            ) as consumer:
                await asyncio.to_thread(wait_for, "all messages", lambda: len(seen) == 12)
                connections = await admin.consumer_connections(group)
                assert [each.client_id for each in connections.connections] == [consumer.client_id]
                assert {each.topic for each in connections.subscriptions} == {topic, f"%RETRY%{group}"}
                producers = await admin.producer_connections("PG_seen", topic)
                assert [each.language for each in producers] == ["JAVA"]
                running = await admin.running_info(group, consumer.client_id)
                assert running is not None

        # A member commits one-way: the broker may still be at it when the member has left.
        async def caught_up() -> bool:
            return (await admin.consumer_progress(group, topic)).lag == 0

        await wait_until(caught_up, "the commit", passing=(QueryNotFound,))
        assert group in await admin.topic_groups(topic)
        offsets = await admin.reset_offsets(group, topic, timestamp_ms=0)
        assert set(offsets.values()) == {0}
        assert (await admin.consumer_progress(group, topic)).lag == 12
        await admin.delete_group(group, clean_offsets=True)
        with pytest.raises(AerobeeError):
            await admin.consumer_connections(group)
