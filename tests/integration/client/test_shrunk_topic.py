"""A topic gets fewer queues under its clients: they take the new route, which is never refreshed by time here (RocketMQ 1465)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    TransactionState,
    reject,
)
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.consumer import give_back
from aerobee.contrib.new_topic import create_topic
from aerobee.errors import InvalidParameter, RemoteError
from aerobee.message import Message, MessageQueue
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

NEVER = ClientConfig(route_refresh_s=36_000.0, heartbeat_s=36_000.0)
TOPIC = "orders"
BEFORE, AFTER, COUNT = 8, 2, 12


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.create_topic(TOPIC, BEFORE)
        yield cluster


async def shrink(cluster: LocalCluster, topic: str = TOPIC, queues: int = AFTER) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic(topic, queue_count=queues)


def counts(cluster: LocalCluster, topic: str = TOPIC) -> list[int]:
    return [cluster.broker().store.max_offset(topic, queue_id) for queue_id in range(BEFORE)]


def last(queues: Sequence[MessageQueue], message: Message, argument: object) -> MessageQueue:
    return queues[-1]


async def test_a_bridge_that_creates_its_topic_keeps_one_that_a_sender_has_just_created(
    cluster: LocalCluster,
) -> None:
    """The sender's topic has more queues; between the bridge's look and its request they have got messages."""
    async with cluster.producer() as producer, cluster.admin() as admin:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number))
        assert all(counts(cluster))
        await create_topic(admin, TOPIC, queue_count=AFTER)
        assert [info.read_queue_count for info in await admin.topic_config(TOPIC)] == [BEFORE]
        await admin.create_topic(TOPIC, queue_count=AFTER)  # an operator's request changes it
        assert [info.read_queue_count for info in await admin.topic_config(TOPIC)] == [AFTER]


@pytest.mark.parametrize("kind", ["plain", "key", "selector", "batch", "delayed", "observed"])
async def test_sends_go_to_the_queues_that_are_left(cluster: LocalCluster, kind: str) -> None:
    async with cluster.producer(client=NEVER, trace=kind == "observed") as producer:
        await producer.send(Message(TOPIC, b"the route is known"))
        await shrink(cluster)
        before = sum(counts(cluster))
        for number in range(COUNT):
            message = Message(TOPIC, b"%d" % number)
            if kind == "key":
                result = await producer.send(message, message_group=number)
            elif kind == "selector":
                result = await producer.send(message, selector=last)
            elif kind == "batch":
                (result,) = await producer.send_batch([message])
            elif kind == "delayed":
                result = await producer.send(Message(TOPIC, message.body, deliver_after=0.001))
            else:
                result = await producer.send(message)
            assert result.queue.queue_id < AFTER
    if kind != "delayed":
        assert sum(counts(cluster)[:AFTER]) >= COUNT
        assert sum(counts(cluster)) == before + COUNT


async def test_equal_keys_stay_in_one_queue(cluster: LocalCluster) -> None:
    async with cluster.producer(client=NEVER) as producer:
        await producer.send(Message(TOPIC, b"x"), message_group="k")
        await shrink(cluster)
        results = [await producer.send(Message(TOPIC, b"x"), message_group="k") for _ in range(COUNT)]
    assert len({result.queue for result in results}) == 1


async def test_a_half_message_goes_to_a_queue_that_is_left(cluster: LocalCluster) -> None:
    def no_checks(message: ReceivedMessage) -> TransactionState:
        raise AssertionError("no check is due")

    async with cluster.transaction_producer("PG", checker=no_checks, client=NEVER) as producer:
        await producer.send(Message(TOPIC, b"the route is known"))
        await shrink(cluster)
        for number in range(COUNT):
            async with producer.transaction(Message(TOPIC, b"paid"), message_group=number):
                pass
    assert sum(counts(cluster)[:AFTER]) >= COUNT


async def test_a_queue_that_the_caller_names_is_refused_and_the_route_read(cluster: LocalCluster) -> None:
    gone = MessageQueue(TOPIC, "broker-a", BEFORE - 1)
    async with cluster.producer(client=NEVER) as producer:
        await producer.send(Message(TOPIC, b"x"), queue=gone)
        await shrink(cluster)
        with pytest.raises(InvalidParameter):
            await producer.send(Message(TOPIC, b"x"), queue=gone)
        await wait_until(lambda: known_queues(producer) in (0, AFTER))
        with pytest.raises(InvalidParameter):  # one that never was
            await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-a", 99))


def known_queues(producer: Producer) -> int:
    info = producer._routes.known.get(TOPIC)
    return 0 if info is None else len(info.queues)


async def test_one_try_is_one_try_and_the_next_send_knows_the_route(cluster: LocalCluster) -> None:
    config = ProducerConfig(retry_count_max=0)
    async with cluster.producer(client=NEVER, config=config) as producer:
        await producer.send(Message(TOPIC, b"x"))
        await shrink(cluster, queues=1)
        refused = 0
        for _ in range(COUNT):
            try:
                await producer.send(Message(TOPIC, b"x"))
            except InvalidParameter:
                refused += 1
                await wait_until(lambda: known_queues(producer) in (0, 1))
    assert refused == 1


@pytest.mark.parametrize("kind", ["push", "orderly", "pull"])
async def test_a_consumer_leaves_the_queues_that_are_gone(cluster: LocalCluster, kind: str) -> None:
    seen: set[bytes] = set()

    def owned() -> set[int]:
        queues = consumer.assigned if isinstance(consumer, PullConsumer) else consumer.owned
        return {queue.queue_id for queue in queues if queue.topic == TOPIC}

    if kind == "pull":
        pulls = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
        consumer = cluster.pull_consumer("G", config=pulls, client=NEVER)
    else:
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=kind == "orderly")
        consumer = cluster.push_consumer(
            "G", {TOPIC: "*"}, lambda message: seen.add(message.body), config=config, client=NEVER
        )
    async with consumer, cluster.producer() as producer:
        if kind == "pull":
            await consumer.subscribe(TOPIC)
        await wait_until(lambda: len(owned()) == BEFORE)
        await shrink(cluster)
        # Pending pulls of a queue that is gone end after 15 s or 20 s at the latest.
        async with asyncio.timeout(60):
            while owned() != set(range(AFTER)):
                await cluster.advance_clock(1)
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number))
        async with asyncio.timeout(60):
            while len(seen) < COUNT:
                if kind == "pull":
                    seen.update([message.body for message in await consumer.poll(0.1)])
                await asyncio.sleep(0.001)


async def test_a_message_that_is_not_taken_back_reaches_a_retry_topic_that_was_shrunk(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise RemoteError(1, "no record there")

    monkeypatch.setattr(give_back, "send_back", refuse)
    store = cluster.broker().store

    def handle(message: ReceivedMessage) -> None:
        reject("no use")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_queue_count=BEFORE)
    async with (
        cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config, client=NEVER),
        cluster.producer() as producer,
    ):
        topics = cluster.broker().topics
        await wait_until(lambda: topics.topics["%RETRY%G"].write_queue_nums == BEFORE)
        async with cluster.admin() as admin:
            await admin.create_group("G", retry_queue_count=1)
        await shrink(cluster, "%RETRY%G", 1)
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number))
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == COUNT)


async def test_dead_letters_are_sent_to_a_topic_that_was_shrunk(cluster: LocalCluster) -> None:
    def handle(message: ReceivedMessage) -> None:
        reject("no use")

    store = cluster.broker().store
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with (
        cluster.producer() as producer,
        cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config),
    ):
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number))
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == COUNT)
    await cluster.create_topic("again", BEFORE)
    async with cluster.admin(client=NEVER) as admin:
        dead_letters = [dead_letter async for dead_letter in admin.dead_letters("G")]
        await admin.redrive(dead_letters[0], to="again")
        await shrink(cluster, "again", 1)
        for dead_letter in dead_letters[1:]:
            await admin.redrive(dead_letter, to="again")
    assert sum(counts(cluster, "again")) == COUNT
    assert counts(cluster, "again")[0] >= COUNT - 1
