"""A message that is stored again goes to a queue that its topic has now: retries, dead letters, deliveries of what waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, TransactionState, reject
from aerobee.client.base.received import ReceivedMessage
from aerobee.message import Message, MessageQueue
from aerobee.remoting.client import RemotingClient
from aerobee.testing import LocalCluster
from tests.integration.broker_calls import send_request
from tests.waiting import wait_until

CONFIG = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.2)
MESSAGES = 40


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(store_config={"message_delay_level": "1s 1s 1s 1s"}) as cluster:
        await cluster.create_topic("orders", 4)
        yield cluster


def queue_counts(cluster: LocalCluster, topic: str) -> list[int]:
    """Messages in queue 0, 1, 2, 3 of a topic."""
    store = cluster.broker().store
    return [store.max_offset(topic, queue_id) for queue_id in range(4)]


async def resize(cluster: LocalCluster, topic: str, queues: int) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic(topic, queue_count=queues)


async def test_retries_come_back_when_a_group_gets_more_retry_queues(cluster: LocalCluster) -> None:
    """RocketMQ's broker stores 32 of these 40 in queues that the topic does not have (apache/rocketmq 3953)."""
    seen: Counter[bytes] = Counter()

    def fail_once(message: ReceivedMessage) -> None:
        seen[message.body] += 1
        assert message.reconsume_times

    async with (
        cluster.producer() as producer,
        cluster.push_consumer("G", {"orders": "*"}, fail_once, config=CONFIG),
        cluster.admin() as admin,
    ):
        await admin.create_group("G", retry_queue_count=4)
        for number in range(MESSAGES):
            await producer.send(Message("orders", b"%d" % number))
        await wait_until(lambda: len(seen) == MESSAGES)
        await cluster.advance_clock(60)
        await wait_until(lambda: seen.total() == 2 * MESSAGES, "every message a second time")
        (topic,) = await admin.topic_config("%RETRY%G")
    assert (topic.read_queue_count, topic.write_queue_count) == (4, 4)


async def test_a_heartbeat_grows_the_retry_topic_with_its_group(cluster: LocalCluster) -> None:
    topics = cluster.broker().topics
    async with cluster.push_consumer("G", {"orders": "*"}, lambda message: None), cluster.admin() as admin:
        assert topics.topics["%RETRY%G"].read_queue_nums == 1
        await admin.create_group("G", retry_queue_count=3)
        await cluster.advance_clock(60)
        await wait_until(lambda: topics.topics["%RETRY%G"].read_queue_nums == 3)
        await admin.create_group("G", retry_queue_count=1)
        await cluster.advance_clock(60)
    assert topics.topics["%RETRY%G"].read_queue_nums == 3  # messages may lie in them


async def test_a_retry_topic_made_by_a_send_has_the_queues_of_its_group(cluster: LocalCluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_queue_count=3)
    remoting = RemotingClient(clock=cluster.clock, network=cluster.network)
    try:
        reply = await remoting.invoke(cluster.broker_addresses[0], send_request("%RETRY%G", queue=2))
    finally:
        await remoting.close()
    assert reply.code == 0, reply.remark
    assert cluster.broker().topics.topics["%RETRY%G"].read_queue_nums == 3


@pytest.mark.parametrize("delay", [{"delay_level": 1}, {"deliver_after": 2.0}], ids=["level", "timer"])
async def test_a_delayed_message_reaches_a_topic_that_was_shrunk(
    cluster: LocalCluster, delay: dict[str, float]
) -> None:
    async with cluster.producer() as producer:
        for queue_id in range(4):
            queue = MessageQueue("orders", "broker-a", queue_id)
            await producer.send(Message("orders", b"later", **delay), queue=queue)  # type: ignore[arg-type]
    await resize(cluster, "orders", 2)
    await cluster.advance_clock(10)
    await wait_until(lambda: sum(queue_counts(cluster, "orders")) == 4)
    assert queue_counts(cluster, "orders") == [2, 2, 0, 0]


async def test_a_retry_that_waits_reaches_a_retry_topic_that_was_shrunk(cluster: LocalCluster) -> None:
    seen: Counter[bytes] = Counter()

    def fail_once(message: ReceivedMessage) -> None:
        seen[message.body] += 1
        assert message.reconsume_times

    async with cluster.admin() as admin:
        await admin.create_group("G", retry_queue_count=4)
    async with (
        cluster.producer() as producer,
        cluster.push_consumer("G", {"orders": "*"}, fail_once, config=CONFIG),
    ):
        for number in range(MESSAGES):
            await producer.send(Message("orders", b"%d" % number))
        await wait_until(lambda: cluster.broker().store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == MESSAGES)
        await resize(cluster, "%RETRY%G", 1)
        await cluster.advance_clock(60)
        await wait_until(lambda: seen.total() == 2 * MESSAGES, "every message a second time")


async def test_a_transaction_commits_to_a_topic_that_was_shrunk(cluster: LocalCluster) -> None:
    def no_checks(message: ReceivedMessage) -> TransactionState:
        raise AssertionError("no check is due")

    async with cluster.transaction_producer("PG", checker=no_checks) as producer:
        half = producer.transaction(Message("orders", b"paid"), queue=MessageQueue("orders", "broker-a", 3))
        async with half:
            await resize(cluster, "orders", 2)
    assert queue_counts(cluster, "orders") == [0, 1, 0, 0]


async def test_a_rejected_message_reaches_dead_letters_without_queues(cluster: LocalCluster) -> None:
    def reject_all(message: ReceivedMessage) -> None:
        reject("no such customer")

    topics = cluster.broker().topics
    made = topics.create_dead_letter_topic("G")
    topics.put(type(made)(made.topic_name, 0, 0))
    async with (
        cluster.producer() as producer,
        cluster.push_consumer("G", {"orders": "*"}, reject_all, config=CONFIG),
    ):
        await producer.send(Message("orders", b"a"))
        await wait_until(lambda: cluster.broker().store.max_offset("%DLQ%G", 0) == 1)
    assert topics.topics["%DLQ%G"].read_queue_nums == 1
