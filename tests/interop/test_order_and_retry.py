"""Order, retries, dead letters and priorities: Java clients at the broker under test, ours at a real RocketMQ broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from aerobee.client import Admin, ConsumeFrom, ConsumerConfig, Producer, PushConsumer, ReceivedMessage, reject
from aerobee.client.consumer.dead_letter import DeadLetter, DeadLetterFilter
from aerobee.message import Message
from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import Cluster, Driver, by_queue
from tests.waiting import wait_for

ORDERLY = ConsumerConfig(
    consume_from=ConsumeFrom.FIRST, orderly=True, suspend_s=0.05, persist_offsets_s=0.5, rebalance_s=1.0
)


class JavaMember:
    """A Java push consumer of OrderDriver."""

    def __init__(self, driver: Driver, cluster: Cluster, topic: str, group: str, **options: Any) -> None:
        self._driver = driver
        self._name = driver.unique("order-")
        self._topic = topic
        driver.call(
            "order.start", name=self._name, namesrv=cluster.namesrv, topic=topic, group=group, **options
        )

    def received(self, count: int = 0, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._driver.call(
            "order.received", name=self._name, count=count, timeout_ms=int(timeout_s * 1000)
        )
        return found

    def locked(self) -> set[int]:
        found = self._driver.call("order.queues", name=self._name, topic=self._topic, orderly=True)
        return {queue for _, _, queue in found}

    def stop(self) -> None:
        self._driver.call("order.stop", name=self._name)


@contextlib.contextmanager
def member(driver: Driver, cluster: Cluster, topic: str, group: str, **options: Any) -> Iterator[JavaMember]:
    consumer = JavaMember(driver, cluster, topic, group, **options)
    try:
        yield consumer
    finally:
        consumer.stop()


def fill(driver: Driver, cluster: Cluster, topic: str, count: int, first: int = 0) -> None:
    """Message n goes to queue n % 4."""
    messages = [
        {"topic": topic, "body": str(number), "keys": f"k{number}", "shard": number}
        for number in range(first, first + count)
    ]
    with driver.producer(cluster.namesrv) as producer:
        producer.send(messages, mode="selector")


def check_order(messages: list[dict[str, Any]]) -> None:
    """In each queue, nothing comes before what is in front of it came; it may come again."""
    for (_, queue), received in by_queue(messages).items():
        reached = -1
        for message in received:
            assert message["offset"] <= reached + 1, f"queue {queue}: {message['offset']} after {reached}"
            reached = max(reached, message["offset"])


async def dead_letters(namesrv: str, group: str, count: int) -> list[DeadLetter]:
    """The dead letters of a group, once there are `count`."""
    async with Admin(namesrv) as admin, asyncio.timeout(120):
        while True:
            found = [dead_letter async for dead_letter in admin.dead_letters(group)]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.2)


def test_java_orderly_suspends_and_resumes_in_order(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    fill(driver, cluster, topic, 40)
    with member(driver, cluster, topic, f"G_{topic}", orderly=True, fail={"8": 2, "9": 1}) as consumer:
        messages = consumer.received(43)
    assert len(messages) == 43
    check_order(messages)
    assert [m["reconsume_times"] for m in messages if m["body"] == "8"] == [0, 1, 2]


def test_java_orderly_members_hand_over_queues_in_order(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    group = f"G_{topic}"
    fill(driver, cluster, topic, 240)
    with member(driver, cluster, topic, group, orderly=True, pause_ms=40) as first:
        first.received(8)
        with member(driver, cluster, topic, group, orderly=True, pause_ms=1) as second:
            wait_for("a separate queue", second.locked, 120)
            assert second.locked().isdisjoint(first.locked())
            second.received(10)
            wait_for(
                "all messages",
                lambda: len({message["body"] for message in first.received() + second.received()}) == 240,
                50,
            )
            theirs = second.received()
        fill(driver, cluster, topic, 40, first=240)
        late = {str(number) for number in range(240, 280)}
        wait_for("those after it left", lambda: late <= {message["body"] for message in first.received()}, 50)
        ours = first.received()
    for messages in (ours, theirs):
        for received in by_queue(messages).values():
            offsets = [message["offset"] for message in received]
            assert offsets == sorted(offsets)


def test_java_orderly_dead_letters_with_a_reason(cluster: Cluster, driver: Driver, topic: str) -> None:
    make_topic(driver, cluster, topic)
    fill(driver, cluster, topic, 12)
    group = f"G_{topic}"
    with member(driver, cluster, topic, group, orderly=True, fail={"4": 99}, max_reconsume=1) as consumer:
        wait_for("what is behind it", lambda: any(m["body"] == "8" for m in consumer.received()))
        check_order(consumer.received())
    (dead_letter,) = asyncio.run(dead_letters(cluster.namesrv, group, 1))
    assert (dead_letter.topic, dead_letter.message.body) == (topic, b"4")
    if cluster.kind == "aerobee":
        assert dead_letter.reason.endswith("tries failed")
        assert dead_letter.message.properties["DLQ_ORIGIN_TOPIC"] == topic


def test_java_retries_end_with_the_dead_letters_and_a_redrive_brings_them_back(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    fill(driver, cluster, topic, 4)
    group = f"G_{topic}"
    # A Java client looks for a retry topic that is not there at its start again only after 20 s.
    make_topic(driver, cluster, f"%RETRY%{group}", queues=1)
    with member(driver, cluster, topic, group, fail={"1": 2}, level=1, max_reconsume=1) as consumer:
        messages = consumer.received(5)
        assert sorted(message["body"] for message in messages) == ["0", "1", "1", "2", "3"]
        assert [m["reconsume_times"] for m in messages if m["body"] == "1"] == [0, 1]
        (dead_letter,) = asyncio.run(dead_letters(cluster.namesrv, group, 1))
        assert (dead_letter.topic, dead_letter.message.body, dead_letter.tries) == (topic, b"1", 2)
        assert dead_letter.message_id == next(m["msg_id"] for m in messages if m["body"] == "1")
        if cluster.kind == "aerobee":
            assert dead_letter.reason == "2 tries failed"

        async def redrive() -> None:
            async with Admin(cluster.namesrv) as admin:
                async for each in admin.dead_letters(group, DeadLetterFilter(keys=("k1",))):
                    assert not (await admin.redrive(each)).error

        asyncio.run(redrive())
        again = consumer.received(6)[-1]
    assert (again["body"], again["topic"], again["reconsume_times"]) == ("1", topic, 0)
    assert again["msg_id"] == dead_letter.message_id


def test_java_broadcast_members_get_everything_without_retry(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    make_topic(driver, cluster, topic)
    fill(driver, cluster, topic, 8)
    group = f"G_{topic}"
    with (
        member(driver, cluster, topic, group, broadcast=True, fail={"1": 1}) as first,
        member(driver, cluster, topic, group, broadcast=True) as second,
    ):
        for consumer in (first, second):
            assert sorted(int(message["body"]) for message in consumer.received(8)) == list(range(8))
        fill(driver, cluster, topic, 4, first=8)
        for consumer in (first, second):
            assert len(consumer.received(12)) == 12


async def test_our_and_a_java_orderly_member_share_queues_in_order(
    cluster: Cluster, driver: Driver, topic: str
) -> None:
    await asyncio.to_thread(make_topic, driver, cluster, topic)
    group = f"G_{topic}"
    seen: dict[int, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)
        seen[message.queue.queue_id].append(message.queue_offset)

    def joined(java: JavaMember, ours: PushConsumer) -> bool:
        mine = {queue.queue_id for queue in ours.owned if queue.topic == topic}
        return bool(mine) and bool(java.locked()) and mine | java.locked() == {0, 1, 2, 3}

    java = await asyncio.to_thread(JavaMember, driver, cluster, topic, group, orderly=True, pause_ms=10)
    try:
        async with PushConsumer(
            cluster.namesrv, group, subscriptions={topic: "*"}, handler=handle, config=ORDERLY
        ) as ours:
            await asyncio.to_thread(wait_for, "both to have queues", lambda: joined(java, ours), 50)
            await asyncio.to_thread(fill, driver, cluster, topic, 80)
            await asyncio.to_thread(
                wait_for,
                "all messages",
                lambda: sum(map(len, seen.values())) + len(java.received()) >= 80,
                30,
            )
            theirs = await asyncio.to_thread(java.received)
    finally:
        await asyncio.to_thread(java.stop)
    assert seen
    assert theirs
    for offsets in seen.values():
        assert offsets == list(range(20))
    check_order(theirs)
    assert {message["queue"] for message in theirs}.isdisjoint(seen)


async def test_our_orderly_consumer_at_a_real_broker(real: Cluster, driver: Driver, topic: str) -> None:
    await asyncio.to_thread(make_topic, driver, real, topic)
    await asyncio.to_thread(fill, driver, real, topic, 24)
    group = f"G_{topic}"
    seen: dict[int, list[int]] = defaultdict(list)

    def handle(message: ReceivedMessage) -> None:
        number = int(message.body)
        if number == 5 and message.reconsume_times < 2:
            raise ValueError("not yet")
        if number == 6:
            reject("no such customer")
        seen[message.queue.queue_id].append(number)

    async with PushConsumer(real.namesrv, group, subscriptions={topic: "*"}, handler=handle, config=ORDERLY):
        await asyncio.to_thread(wait_for, "23 messages", lambda: sum(map(len, seen.values())) == 23, 40)
    expected = {queue: list(range(queue, 24, 4)) for queue in range(4)}
    expected[2].remove(6)
    assert seen == expected
    (dead_letter,) = await dead_letters(real.namesrv, group, 1)
    assert (dead_letter.topic, dead_letter.message.body) == (topic, b"6")


async def test_dead_letters_of_a_real_broker_are_read_and_sent_again(
    real: Cluster, driver: Driver, topic: str
) -> None:
    await asyncio.to_thread(make_topic, driver, real, topic)
    await asyncio.to_thread(fill, driver, real, topic, 2)
    group = f"G_{topic}"
    healthy = False
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        if not healthy:
            reject("not yet")
        seen.append(message.body)

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.5)
    async with PushConsumer(real.namesrv, group, subscriptions={topic: "*"}, handler=handle, config=config):
        found = await dead_letters(real.namesrv, group, 2)
        assert {(dead_letter.topic, dead_letter.message.body) for dead_letter in found} == {
            (topic, b"0"),
            (topic, b"1"),
        }
        healthy = True
        async with Admin(real.namesrv) as admin:
            for dead_letter in found:
                assert not (await admin.redrive(dead_letter)).error
            (queue_state,) = await admin.dead_letter_queues(group)
            await admin.commit_redriven(queue_state.queue, queue_state.end)
            (queue_state,) = await admin.dead_letter_queues(group)
            assert (queue_state.count, queue_state.waiting) == (2, 0)
            assert await admin.queue_locks(group) is None  # a real broker cannot be asked
        await asyncio.to_thread(wait_for, "both messages", lambda: sorted(seen) == [b"0", b"1"])


@pytest.mark.parametrize(("priority", "queue"), [(0, 0), (2, 2), (99, 3)])
async def test_a_priority_is_the_queue_at_both_products(
    cluster: Cluster, real: Cluster, driver: Driver, topic: str, priority: int, queue: int
) -> None:
    for each in (cluster, real):
        name = driver.unique(topic)
        await asyncio.to_thread(make_topic, driver, each, name)
        async with Producer(each.namesrv) as producer:
            result = await producer.send(Message(name, b"x", priority=priority))
        assert result.queue.queue_id == queue
