"""SimpleConsumer and the popping push consumer over a real cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    PoppedMessage,
    PushConsumer,
    ReceivedMessage,
    Reject,
    RetryLater,
    SimpleConsumerConfig,
    Sql,
)
from aerobee.clock import SystemClock
from aerobee.errors import RemoteError, TopicNotExist, UsageError
from aerobee.message import Message, MessageQueue
from aerobee.remoting.client import checked
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

TOPIC = "orders"
POPS = ConsumerConfig(
    client_rebalance=False, consume_from=ConsumeFrom.FIRST, pop_invisible_s=30, concurrency=4
)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        await cluster.create_topic(TOPIC, queues=4)
        yield cluster


async def send(cluster: LocalCluster, count: int, **fields: object) -> set[bytes]:
    bodies = {b"%d" % number for number in range(count)}
    async with cluster.producer("makers") as producer:
        for body in sorted(bodies):
            await producer.send(Message(TOPIC, body, **fields))  # type: ignore[arg-type]
    return bodies


async def use_pop(cluster: LocalCluster, group: str, share: int = 0) -> None:
    body = b'{"consumerGroup":"%s","mode":"POP","popShareQueueNum":%d,"topic":"%s"}' % (
        group.encode(), share, TOPIC.encode(),
    )  # fmt: skip
    async with cluster.simple_consumer("settings", {TOPIC: "*"}) as any_client:
        remoting = any_client._session.remoting
        for address in cluster.broker_addresses:
            answer = await remoting.invoke(address, RemotingCommand(401, None, body))
            checked(answer, address=address, request="SET_MESSAGE_REQUEST_MODE")


async def test_what_is_received_and_acknowledged_is_done(cluster: LocalCluster) -> None:
    bodies = await send(cluster, 40)
    async with cluster.simple_consumer("readers", {TOPIC: "*"}) as consumer:
        seen: Counter[bytes] = Counter()
        while len(seen) < 40:
            messages = await consumer.receive()
            assert 1 <= len(messages) <= 32
            assert all(isinstance(message, PoppedMessage) for message in messages)
            seen.update(message.body for message in messages)
            await consumer.ack_all(messages[1:])
            await consumer.ack(messages[0])
        assert seen == Counter(bodies)
        await cluster.advance_clock(70)
        assert await consumer.receive(wait_s=0) == []


async def test_what_is_not_acknowledged_comes_to_another_member(cluster: LocalCluster) -> None:
    await send(cluster, 1)
    async with (
        cluster.simple_consumer("readers", {TOPIC: "*"}) as one,
        cluster.simple_consumer("readers", {TOPIC: "*"}) as two,
    ):
        (message,) = await one.receive(invisible_s=20)
        assert await two.receive(wait_s=0) == []
        held = asyncio.create_task(two.receive(wait_s=100))
        await cluster.advance_clock(21)
        (again,) = await held
        assert (again.body, again.topic, again.reconsume_times) == (message.body, TOPIC, 1)
        with pytest.raises(RemoteError, match="was redelivered"):
            await one.ack(message)
        await two.ack(again)


async def test_more_time_can_be_asked_for(cluster: LocalCluster) -> None:
    await send(cluster, 1)
    async with cluster.simple_consumer("readers", {TOPIC: "*"}) as consumer:
        (message,) = await consumer.receive(invisible_s=20)
        await consumer.change_invisible(message, 60)
        await cluster.advance_clock(40)
        assert await consumer.receive(wait_s=0) == []
        await consumer.ack(message)
        with pytest.raises(RemoteError, match="acknowledged"):
            await consumer.change_invisible(message, 10)


async def test_a_message_can_be_given_back_at_once(cluster: LocalCluster) -> None:
    await send(cluster, 1)
    async with cluster.simple_consumer("readers", {TOPIC: "*"}) as consumer:
        (message,) = await consumer.receive()
        await consumer.change_invisible(message, 0, count_try=False)
        (again,) = await consumer.receive(wait_s=10)
        assert again.reconsume_times == 0


async def test_receive_waits_at_all_brokers_and_topics() -> None:
    async with LocalCluster(brokers=2) as cluster:
        for topic in (TOPIC, "more"):
            await cluster.create_topic(topic, queues=2)
        async with (
            cluster.simple_consumer("readers", {TOPIC: "*", "more": "*"}) as consumer,
            cluster.producer("makers") as producer,
        ):
            for number in range(8):
                held = asyncio.create_task(consumer.receive(wait_s=60))
                await asyncio.sleep(0)
                queue = MessageQueue(
                    (TOPIC, "more")[number % 2], cluster.broker_names[number // 4], number // 2 % 2
                )
                await producer.send(Message(queue.topic, b"%d" % number), queue=queue)
                (message,) = await held
                assert message.body == b"%d" % number
                await consumer.ack(message)


async def test_arrived_returns_what_another_broker_sent_late() -> None:
    async with LocalCluster(brokers=2) as cluster:
        await cluster.create_topic(TOPIC, queues=1)
        async with (
            cluster.simple_consumer("late", {TOPIC: "*"}) as consumer,
            cluster.producer("makers") as producer,
        ):
            held = asyncio.create_task(consumer.receive(wait_s=60))
            while consumer.pending_count < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for name in cluster.broker_names:
                await producer.send(Message(TOPIC, name.encode()), queue=MessageQueue(TOPIC, name, 0))
            found = await held
            while len(found) < 2:
                found += consumer.arrived()
                await asyncio.sleep(0.01)
            assert {message.body.decode() for message in found} == set(cluster.broker_names)
            assert consumer.pending_count == 0
            await consumer.ack_all(found)


async def test_tags_and_sql_choose(cluster: LocalCluster) -> None:
    async with cluster.producer("makers") as producer:
        for tag, price in (("a", 1), ("b", 5), ("c", 9)):
            await producer.send(Message(TOPIC, tag.encode(), tag=tag, properties={"price": str(price)}))
    async with cluster.simple_consumer("tags", {TOPIC: "a || c"}) as consumer:
        found = [message for _ in range(2) for message in await consumer.receive(wait_s=0)]
        assert {message.body for message in found} == {b"a", b"c"}
    async with cluster.simple_consumer("sql", {TOPIC: Sql("price > 4")}) as consumer:
        found = [message for _ in range(2) for message in await consumer.receive(wait_s=0)]
        assert {message.body for message in found} == {b"b", b"c"}


async def test_a_dead_letter_is_readable(cluster: LocalCluster) -> None:
    await send(cluster, 1)
    async with cluster.simple_consumer("readers", {TOPIC: "*"}) as consumer:
        (message,) = await consumer.receive()
        await consumer.dead_letter(message, "cannot be parsed")
    async with cluster.pull_consumer("undertaker") as undertaker:
        queue = MessageQueue("%DLQ%readers", cluster.broker_names[0], 0)
        await undertaker.assign([queue])
        await undertaker.seek_to_begin(queue)
        (dead,) = await undertaker.poll(timeout_s=60)
    assert dead.body == b"0"
    assert dead.properties["RETRY_TOPIC"] == TOPIC


@pytest.mark.parametrize("v2", [False, True])
async def test_a_dead_letter_message_names_its_original_topic(v2: bool) -> None:
    async with LocalCluster(broker_config={"enable_retry_topic_v2": v2}) as cluster:
        await cluster.create_topic(TOPIC)
        await send(cluster, 1)
        async with cluster.simple_consumer("readers", {TOPIC: "*"}) as consumer:
            (message,) = await consumer.receive()
            await consumer.change_invisible(message, 0)
            (again,) = await consumer.receive(wait_s=10)
            assert again.reconsume_times == 1
            await consumer.dead_letter(again, "cannot be parsed")
        async with cluster.admin() as admin:
            (dead_letter,) = [each async for each in admin.dead_letters("readers")]
    assert (dead_letter.topic, dead_letter.message_id, dead_letter.tries) == (TOPIC, message.message_id, 2)


async def test_mistakes_are_told(cluster: LocalCluster) -> None:
    with pytest.raises(UsageError, match="at least one topic"):
        cluster.simple_consumer("readers", {})
    with pytest.raises(TopicNotExist):
        async with cluster.simple_consumer("readers", {"nowhere": "*"}):
            pass
    async with cluster.simple_consumer("readers", {TOPIC: "*"}) as consumer:
        for wrong in ({"count_max": 33}, {"topic": "other"}, {"invisible_s": 0}):
            with pytest.raises(UsageError):
                await consumer.receive(**wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="accepts no more calls"):
        await consumer.receive()
    with pytest.raises(UsageError):
        SimpleConsumerConfig(wait_s=1_000)


# --- the push form


async def test_a_push_consumer_pops_when_the_request_mode_says_so(cluster: LocalCluster) -> None:
    await use_pop(cluster, "pushers")
    bodies = await send(cluster, 50)
    seen: Counter[bytes] = Counter()

    def handle(message: ReceivedMessage) -> None:
        assert isinstance(message, PoppedMessage)
        seen[message.body] += 1

    async with cluster.push_consumer("pushers", {TOPIC: "*"}, handle, config=POPS) as consumer:
        async with asyncio.timeout(60):
            while consumer.consumed_count < 50:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert MessageQueue(TOPIC, cluster.broker_names[0], -1) in consumer.owned
        assert cluster.broker().consumers.group("pushers") is not None
    assert seen == Counter(bodies)


class AheadClock(SystemClock):
    """Its wall time is an hour ahead of the brokers'."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


async def test_members_whose_clock_is_ahead_handle_popped_messages(cluster: LocalCluster) -> None:
    await use_pop(cluster, "pushers")
    bodies = await send(cluster, 10)
    seen: set[bytes] = set()
    async with PushConsumer(
        cluster.nameserver_addresses,
        "pushers",
        {TOPIC: "*"},
        lambda message: seen.add(message.body),
        config=POPS,
        clock=AheadClock(),
    ):
        await wait_until(lambda: len(seen) >= len(bodies))
    assert seen == bodies


async def test_without_a_request_mode_it_pulls(cluster: LocalCluster) -> None:
    bodies = await send(cluster, 10)
    seen: Counter[bytes] = Counter()
    async with cluster.push_consumer(
        "pullers", {TOPIC: "*"}, lambda message: seen.update([message.body]), config=POPS
    ) as consumer:
        async with asyncio.timeout(60):
            while len(seen) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert {queue.queue_id for queue in consumer.owned if queue.topic == TOPIC} == {0, 1, 2, 3}
    assert seen == Counter(bodies)


async def test_a_popped_message_that_fails_comes_again_and_ends_dead(cluster: LocalCluster) -> None:
    await use_pop(cluster, "pushers")
    await send(cluster, 1)
    tries: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise RetryLater("not now", after=1)
        if message.reconsume_times == 1:
            raise ValueError("a fault")
        raise Reject("no use")

    async with cluster.push_consumer("pushers", {TOPIC: "*"}, handle, config=POPS):
        async with asyncio.timeout(60):
            while len(tries) < 3:
                await cluster.advance_clock(1)
                await asyncio.sleep(0.01)
            while cluster.broker().store.max_offset("%DLQ%pushers", 0) == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert tries == [0, 1, 2]


async def test_shares_of_the_next_members_are_popped_too(cluster: LocalCluster) -> None:
    await use_pop(cluster, "sharers", share=1)
    async with (
        cluster.push_consumer("sharers", {TOPIC: "*"}, lambda _: None, config=POPS) as one,
        cluster.push_consumer("sharers", {TOPIC: "*"}, lambda _: None, config=POPS) as two,
        cluster.push_consumer("sharers", {TOPIC: "*"}, lambda _: None, config=POPS) as three,
        cluster.push_consumer("sharers", {TOPIC: "*"}, lambda _: None, config=POPS) as four,
    ):
        members = (one, two, three, four)

        def owned(consumer: object) -> set[int]:
            return {queue.queue_id for queue in consumer.owned if queue.topic == TOPIC}  # type: ignore[attr-defined]

        async with asyncio.timeout(60):
            while [len(owned(member)) for member in members] != [2] * 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert set.union(*(owned(member) for member in members)) == {0, 1, 2, 3}


async def test_pops_of_a_new_group_that_begins_at_the_last_bring_nothing_old(cluster: LocalCluster) -> None:
    await send(cluster, 8)
    config = SimpleConsumerConfig(from_begin=False)
    async with cluster.simple_consumer("late", {TOPIC: "*"}, config=config) as consumer:
        assert await consumer.receive(wait_s=0.2) == []
        async with cluster.producer("makers") as producer:
            await producer.send(Message(TOPIC, b"new"))
        assert [message.body for message in await consumer.receive(wait_s=5)] == [b"new"]


async def test_popping_push_consumer_that_begins_at_the_last_gets_nothing_old(cluster: LocalCluster) -> None:
    await send(cluster, 8)
    await use_pop(cluster, "late-push")
    seen: list[bytes] = []
    config = ConsumerConfig(client_rebalance=False, consume_from=ConsumeFrom.LAST, concurrency=4)
    async with (
        cluster.push_consumer(
            "late-push", {TOPIC: "*"}, handler=lambda message: seen.append(message.body), config=config
        ),
        cluster.producer("makers") as producer,
        asyncio.timeout(60),
    ):
        await producer.send(Message(TOPIC, b"new"))
        while not seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert seen == [b"new"]
