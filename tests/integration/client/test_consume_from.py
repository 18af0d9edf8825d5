"""Where a new group begins. The broker of these tests keeps RocketMQ's rule for new queues."""

from __future__ import annotations

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
)
from aerobee.message import Message, MessageQueue
from tests.waiting import wait_until


async def fill(broker, *bodies, topic="orders"):
    async with Producer(broker.address, "PG") as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


@pytest.mark.parametrize("began", [ConsumeFrom.LAST, ConsumeFrom.TIMESTAMP])
async def test_new_group_of_a_young_topic_does_not_get_what_was_there(broker, began):
    await fill(broker, b"old", b"old", b"old", b"old")
    broker.offset_by_time = lambda _timestamp: 1
    seen = []
    async with PushConsumer(
        broker.address,
        "G",
        subscriptions={"orders": "*"},
        handler=lambda message: seen.append(message.body),
        config=ConsumerConfig(consume_from=began),
    ) as consumer:
        await wait_until(lambda: len(broker.parked) == 5 and len(consumer.owned) == 5)
        await fill(broker, b"new")
        await wait_until(lambda: seen)
    assert seen == [b"new"]


async def test_pull_consumer_that_starts_at_the_last_gets_nothing_old(broker):
    await fill(broker, b"old", b"old", b"old", b"old")
    config = PullConsumerConfig(consume_from=ConsumeFrom.LAST)
    async with PullConsumer(broker.address, "G", config=config) as consumer:
        await consumer.subscribe("orders")
        assert {consumer.position(queue) for queue in consumer.assigned} == {1}
        assert await consumer.poll(timeout_s=0.2) == []


async def test_where_a_group_begins_is_committed_before_anything_is_consumed(broker):
    """Else a member that dies immediately leaves no offset, and the next one begins behind unhandled messages."""
    await fill(broker, b"old", b"old", b"old", b"old")
    async with PushConsumer(
        broker.address, "G", subscriptions={"orders": "*"}, handler=lambda _message: None
    ):
        await wait_until(lambda: len(broker.parked) == 5)
        assert [broker.offsets["G", "orders", number] for number in range(4)] == [1, 1, 1, 1]


async def test_a_topic_created_after_the_start_is_read_from_the_start(broker):
    asked = []
    broker.offset_by_time = lambda timestamp: asked.append(timestamp) or 0
    seen = []
    async with PushConsumer(
        broker.address, "G", subscriptions={"later": "*"}, handler=lambda message: seen.append(message.body)
    ) as consumer:
        broker.topics["later"] = 1
        await fill(broker, b"first", topic="later")
        await consumer._session.routes.refresh("later")
        await wait_until(lambda: seen)
    assert seen == [b"first"]
    assert asked


async def test_a_group_that_never_committed_has_no_committed_offset(broker):
    await fill(broker, b"old", b"old", b"old", b"old")
    async with PullConsumer(broker.address, "G") as consumer:
        assert await consumer.committed(MessageQueue("orders", "broker-a", 0)) is None
