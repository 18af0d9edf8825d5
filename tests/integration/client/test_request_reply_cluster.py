"""Request and reply over a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.errors import NoReply, SendFailed, UsageError
from aerobee.message import Message
from aerobee.testing import LocalCluster

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(brokers=2) as cluster:
        yield cluster


def answering(cluster: LocalCluster, replier: Producer) -> PushConsumer:
    async def handle(message: ReceivedMessage) -> None:
        await replier.reply_to(message, b"reply to " + message.body, tag="done")

    return cluster.push_consumer("repliers", {"questions": "*"}, handle, config=FIRST)


async def test_each_of_many_requests_gets_its_own_reply(cluster: LocalCluster) -> None:
    await cluster.create_topic("questions", 2)
    async with (
        cluster.producer("askers") as asker,
        cluster.producer("repliers-out") as replier,
        answering(cluster, replier),
    ):
        replies = await asyncio.gather(
            *(asker.request(Message("questions", b"%d" % number), timeout_s=60) for number in range(50))
        )
        assert [reply.body for reply in replies] == [b"reply to %d" % number for number in range(50)]
        assert {reply.tag for reply in replies} == {"done"}


async def test_a_topic_of_one_broker_is_answered_through_that_broker(cluster: LocalCluster) -> None:
    await cluster.create_topic("questions", 2, brokers=[1])
    async with (
        cluster.producer("askers") as asker,
        cluster.producer("repliers-out") as replier,
        answering(cluster, replier),
    ):
        reply = await asker.request(Message("questions", b"where"), timeout_s=60)
        assert reply.body == b"reply to where"
    stored = [
        broker.store.max_offset("DefaultCluster_REPLY_TOPIC", 0)
        for broker in (cluster.broker(0), cluster.broker(1))
    ]
    assert stored == [0, 1], "the reply went to the broker of the request, and is stored there"


async def test_a_large_reply_is_compressed_and_read(cluster: LocalCluster) -> None:
    await cluster.create_topic("questions", 1)
    body = b"large " * 2000
    async with (
        cluster.producer("askers", config=ProducerConfig(compress_over_bytes=1000)) as asker,
        cluster.producer("repliers-out") as replier,
        answering(cluster, replier),
    ):
        reply = await asker.request(Message("questions", body), timeout_s=60)
        assert reply.body == b"reply to " + body


async def test_an_unanswered_request_times_out(cluster: LocalCluster) -> None:
    await cluster.create_topic("questions", 1)
    async with cluster.producer("askers") as asker:
        with pytest.raises(NoReply, match=r"no reply to request [0-9A-F]{32} of topic questions"):
            await asker.request(Message("questions", b"anybody?"), timeout_s=0.3)


async def test_a_reply_to_a_requester_that_left_fails_and_says_so(cluster: LocalCluster) -> None:
    await cluster.create_topic("questions", 1)
    async with cluster.producer("askers", client=ClientConfig(instance="asker")) as asker:
        with pytest.raises(NoReply):
            await asker.request(Message("questions", b"goodbye"), timeout_s=0.3)
    async with (
        cluster.push_consumer("repliers", {"questions": "*"}, config=FIRST) as consumer,
        cluster.producer("repliers-out") as replier,
    ):
        async for message in consumer:
            with pytest.raises(SendFailed, match="no producer with client id"):
                await replier.reply_to(message, b"too late")
            break


async def test_a_normal_message_gets_no_reply(cluster: LocalCluster) -> None:
    await cluster.create_topic("plain", 1)
    async with (
        cluster.producer() as producer,
        cluster.push_consumer("readers", {"plain": "*"}, config=FIRST) as consumer,
    ):
        await producer.send(Message("plain", b"no question"))
        async for message in consumer:
            with pytest.raises(UsageError, match="was not sent with request"):
                await producer.reply_to(message, b"answer")
            break
