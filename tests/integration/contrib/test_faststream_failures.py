"""What becomes of FastStream's messages when something fails: nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage, StopConsume
from pydantic import BaseModel

from aerobee.client.admin.admin import Admin
from aerobee.contrib.faststream import AerobeeBroker, AerobeeMessage
from aerobee.testing import LocalCluster
from tests.integration.contrib.faststream_scenario import held_count, run_killed_worker, run_verdicts
from tests.waiting import wait_until


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
async def broker(cluster: LocalCluster) -> AsyncIterator[AerobeeBroker]:
    broker = AerobeeBroker(cluster.nameserver_address, queue_count=2)
    yield broker
    await broker.stop()


def dead_letter_count(cluster: LocalCluster, group: str) -> int:
    return cluster.broker().store.max_offset(f"%DLQ%{group}", 0)


async def test_crashing_handler_retries_then_dead_letters(
    cluster: LocalCluster, broker: AerobeeBroker
) -> None:
    tries: list[int] = []

    @broker.subscriber("crash", max_redeliveries=2, retry_delays_s=(0.0, 0.1))
    async def crash(message: AerobeeMessage) -> None:
        tries.append(message.raw_message.reconsume_times)
        raise ValueError("as wanted")

    await broker.start()
    await broker.publish("x", "crash")
    await wait_until(lambda: dead_letter_count(cluster, "crash") == 1)
    assert tries == [0, 1, 2]
    await wait_until(lambda: held_count(broker) == 0)


async def test_poison_message_is_dead_lettered_and_others_pass(
    cluster: LocalCluster, broker: AerobeeBroker
) -> None:
    class Order(BaseModel):
        number: int

    seen: list[int] = []

    @broker.subscriber("orders", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(order: Order) -> None:
        seen.append(order.number)

    await broker.start()
    for body in (b"\xff\x00 no JSON", {"number": "many"}, {"number": 7}):
        await broker.publish(body, "orders")
    await wait_until(lambda: seen == [7] and dead_letter_count(cluster, "orders") == 2)


@pytest.mark.parametrize(
    ("policy", "try_count", "dead_count"),
    [
        (AckPolicy.ACK, 1, 0),
        (AckPolicy.ACK_FIRST, 1, 0),
        (AckPolicy.REJECT_ON_ERROR, 1, 1),
        (AckPolicy.NACK_ON_ERROR, 2, 1),
    ],
)
async def test_policies_decide_what_a_crash_means(
    cluster: LocalCluster, broker: AerobeeBroker, policy: AckPolicy, try_count: int, dead_count: int
) -> None:
    tries: list[str] = []

    @broker.subscriber("policy", ack_policy=policy, max_redeliveries=1, retry_delays_s=0)
    async def crash(text: str) -> None:
        tries.append(text)
        if text == "x":
            raise ValueError("as wanted")

    await broker.start()
    await broker.publish("x", "policy")
    await wait_until(lambda: len(tries) == try_count and dead_letter_count(cluster, "policy") == dead_count)
    await wait_until(lambda: held_count(broker) == 0)
    await broker.publish("last", "policy")
    await wait_until(lambda: "last" in tries)
    assert tries == ["x"] * try_count + ["last"]


async def test_exceptions_of_the_framework_are_verdicts(cluster: LocalCluster, broker: AerobeeBroker) -> None:
    tries: Counter[str] = Counter()

    @broker.subscriber("verdicts")
    async def handle(text: str) -> None:
        tries[text] += 1
        if text == "nack" and tries[text] < 3:
            raise NackMessage(delay=0.0)
        if text == "reject":
            raise RejectMessage(reason="not ours")

    await broker.start()
    await broker.publish("nack", "verdicts")
    await broker.publish("reject", "verdicts")
    await wait_until(lambda: tries["nack"] == 3 and dead_letter_count(cluster, "verdicts") == 1)
    await wait_until(lambda: held_count(broker) == 0)
    assert tries == {"nack": 3, "reject": 1}
    async with Admin(cluster.nameserver_address) as admin:
        (dead,) = [found async for found in admin.dead_letters("verdicts")]
    assert dead.reason == "not ours"


async def test_one_message_of_a_batch_gets_another_verdict(
    cluster: LocalCluster, broker: AerobeeBroker
) -> None:
    """The verdict on the batch is that on the messages without one."""
    seen: Counter[str] = Counter()

    @broker.subscriber("batch", batch=True, max_records=4, batch_timeout_s=60, retry_delays_s=0)
    async def handle(texts: list[str], message: AerobeeMessage) -> None:
        seen.update(texts)
        for text, incoming in zip(texts, message.raw_message, strict=True):
            if text == "bad":
                incoming.reject("unreadable")
            elif text == "good" and seen["again"] == 1:
                incoming.ack()
        if seen["again"] == 1:
            raise ValueError("as wanted")

    await broker.start()
    await broker.publish_batch("good", "bad", "again", "again too", topic="batch", message_group="one queue")
    await wait_until(lambda: seen.total() == 4)
    await broker.publish_batch("good", "more", topic="batch", message_group="one queue")
    await wait_until(lambda: seen.total() == 8 and held_count(broker) == 0)
    assert seen == {"good": 2, "bad": 1, "again": 2, "again too": 2, "more": 1}
    async with Admin(cluster.nameserver_address) as admin:
        (dead,) = [found async for found in admin.dead_letters("batch")]
    assert dead.reason == "unreadable"


async def test_unsettled_message_comes_again_with_its_id(broker: AerobeeBroker) -> None:
    """The duplicate that each at-least-once broker delivers: its id is that of the first delivery."""
    seen: list[tuple[str, int]] = []

    @broker.subscriber("manual", ack_policy=AckPolicy.MANUAL, invisible_s=2)
    async def handle(message: AerobeeMessage) -> None:
        seen.append((message.message_id, message.raw_message.reconsume_times))
        if len(seen) == 2:
            await message.ack()

    await broker.start()
    result = await broker.publish("x", "manual")
    await wait_until(lambda: len(seen) == 2)
    await wait_until(lambda: held_count(broker) == 0)
    assert seen == [(result.message_id, 0), (result.message_id, 1)]


async def test_slow_handler_keeps_its_message(broker: AerobeeBroker) -> None:
    gate, seen = asyncio.Event(), []

    @broker.subscriber("slow", invisible_s=2)
    async def slow(text: str) -> None:
        seen.append(text)
        await gate.wait()

    await broker.start()
    await broker.publish("x", "slow")
    await wait_until(lambda: seen)
    await asyncio.sleep(5)  # more than twice its invisible time
    gate.set()
    await wait_until(lambda: held_count(broker) == 0)
    assert seen == ["x"]


async def test_stop_finishes_what_runs_and_returns_the_rest(cluster: LocalCluster) -> None:
    gate, seen = asyncio.Event(), []

    def broker_of(name: str) -> AerobeeBroker:
        broker = AerobeeBroker(cluster.nameserver_address, queue_count=2)

        @broker.subscriber("stop", invisible_s=300)
        async def handle(number: int) -> None:
            seen.append((name, number))
            await gate.wait()

        return broker

    first, second = broker_of("first"), broker_of("second")
    await first.start()
    for number in range(4):
        await first.publish(number, "stop")
    await wait_until(lambda: held_count(first) == 4 and len(seen) == 1)
    stopping = asyncio.create_task(first.stop())
    await asyncio.sleep(0)
    gate.set()
    await stopping
    begun = len(seen)
    await second.start()
    try:
        await wait_until(lambda: len(seen) == 4)
    finally:
        await second.stop()
    assert begun == 1
    assert sorted(number for _, number in seen) == [0, 1, 2, 3]
    assert dead_letter_count(cluster, "stop") == 0


async def test_stop_gives_no_ordered_message_a_try_without_its_handler(cluster: LocalCluster) -> None:
    """Messages that were pulled before stop() stay behind their queue's handler, while that of another queue is slow."""
    gates, seen, ended = (asyncio.Event(), asyncio.Event()), [], []

    def broker_of(name: str) -> AerobeeBroker:
        broker = AerobeeBroker(cluster.nameserver_address, queue_count=2)

        @broker.subscriber("calm", ordered=True, max_redeliveries=0, max_workers=2)
        async def handle(number: int) -> None:
            seen.append(number)
            if name == "first":
                await gates[len(seen) - 1].wait()
                ended.append(number)

        return broker

    first, second = broker_of("first"), broker_of("second")
    await first.start()
    for number in range(20):
        await first.publish(number, "calm", message_group=str(number))
    (subscriber,) = first.subscribers
    consumer = subscriber._consumer  # type: ignore[attr-defined]
    await wait_until(
        lambda: len(seen) == 2 and sum(pull.process.count for pull in consumer._pulls.values()) == 20
    )
    stopping = asyncio.create_task(first.stop())
    await wait_until(lambda: not subscriber.running)
    gates[1].set()
    await wait_until(lambda: len(ended) == 1)
    gates[0].set()
    await stopping
    assert len(seen) == 2
    await second.start()
    try:
        await wait_until(lambda: len(seen) == 20 or dead_letter_count(cluster, "calm"))
    finally:
        await second.stop()
    assert sorted(seen) == list(range(20))
    assert dead_letter_count(cluster, "calm") == 0


@pytest.mark.parametrize("ordered", [False, True])
async def test_handler_beyond_graceful_timeout_is_cancelled(cluster: LocalCluster, ordered: bool) -> None:
    seen: list[str] = []

    def broker_of(name: str) -> AerobeeBroker:
        broker = AerobeeBroker(cluster.nameserver_address, queue_count=1, graceful_timeout=0.1)

        @broker.subscriber("hang", ordered=ordered)
        async def handle(_: str) -> None:
            seen.append(name)
            if name == "first":
                await asyncio.sleep(3600)

        return broker

    first, second = broker_of("first"), broker_of("second")
    await first.start()
    await first.publish("x", "hang")
    await wait_until(lambda: seen)
    await first.stop()
    await second.start()
    try:
        await wait_until(lambda: len(seen) == 2)
    finally:
        await second.stop()
    assert seen == ["first", "second"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_stop_consume_stops_one_subscriber(cluster: LocalCluster, ordered: bool) -> None:
    broker, seen = AerobeeBroker(cluster.nameserver_address, queue_count=1), []

    @broker.subscriber("enough", ordered=ordered, retry_delays_s=0)
    async def handle(text: str) -> None:
        seen.append(text)
        raise StopConsume

    @broker.subscriber("more")
    async def other(text: str) -> None:
        seen.append(text)

    await broker.start()
    try:
        await broker.publish("x", "enough")
        await wait_until(lambda: seen == ["x"])
        await broker.publish("y", "enough")
        await broker.publish("z", "more")
        await wait_until(lambda: "z" in seen)
        assert seen == ["x", "z"]
    finally:
        await broker.stop()


@pytest.mark.parametrize("ordered", [False, True])
async def test_killed_broker_loses_no_message(
    cluster: LocalCluster, broker: AerobeeBroker, ordered: bool
) -> None:
    gate, seen = asyncio.Event(), []

    @broker.subscriber("kill", ordered=ordered, max_workers=4)
    async def handle(number: int) -> None:
        await gate.wait()
        seen.append(number)

    await broker.start()
    for number in range(20):
        await broker.publish(number, "kill", message_group="one")
    await cluster.kill_broker()
    gate.set()
    await cluster.start_broker()
    await wait_until(lambda: set(seen) == set(range(20)))
    await broker.publish(20, "kill", message_group="one")
    await wait_until(lambda: 20 in seen)


async def test_joining_process_gets_queues_and_keeps_the_order(cluster: LocalCluster) -> None:
    """Rebalancing: two ordered members share the queues, and each group of messages keeps its order."""
    seen: dict[str, list[int]] = {f"g{index}": [] for index in range(8)}
    workers: set[str] = set()

    def broker_of(name: str) -> AerobeeBroker:
        broker = AerobeeBroker(cluster.nameserver_address, queue_count=4)

        @broker.subscriber("rebalance", ordered=True, max_workers=4, prefetch_count=2)
        async def handle(number: int, message: AerobeeMessage) -> None:
            await asyncio.sleep(0.005)
            workers.add(name)
            numbers = seen[message.raw_message.message_group]
            if number not in numbers:
                numbers.append(number)

        return broker

    first, second = broker_of("first"), broker_of("second")
    await first.start()
    try:
        for number in range(20):
            for group in seen:
                await first.publish(number, "rebalance", message_group=group)
        await wait_until(lambda: "first" in workers)
        await second.start()
        number = 20
        while "second" not in workers:
            for group in seen:
                await first.publish(number, "rebalance", message_group=group)
            number += 1
        await second.stop()
        await wait_until(lambda: all(len(numbers) == number for numbers in seen.values()))
    finally:
        await first.stop()
        await second.stop()
    assert all(numbers == list(range(number)) for numbers in seen.values())


async def test_popping_members_share_messages_without_rebalancing(cluster: LocalCluster) -> None:
    seen: Counter[int] = Counter()
    workers: set[str] = set()

    def broker_of(name: str) -> AerobeeBroker:
        broker = AerobeeBroker(cluster.nameserver_address, queue_count=1)

        @broker.subscriber("share", prefetch_count=1)
        async def handle(number: int) -> None:
            await asyncio.sleep(0.005)
            workers.add(name)
            seen[number] += 1

        return broker

    first, second = broker_of("first"), broker_of("second")
    await first.start()
    await second.start()
    number = 0
    try:
        while len(workers) < 2:
            await first.publish(number, "share")
            number += 1
        await first.stop()
        await second.publish(number, "share")
        await wait_until(lambda: len(seen) == number + 1)
    finally:
        await first.stop()
        await second.stop()
    assert set(seen.values()) == {1}


async def test_reply_to_a_client_that_is_gone_consumes_the_request(
    cluster: LocalCluster, broker: AerobeeBroker
) -> None:
    gate, seen = asyncio.Event(), []

    @broker.subscriber("gone", retry_delays_s=0)
    async def answer(text: str) -> str:
        seen.append(text)
        await gate.wait()
        return text

    await broker.start()
    client = AerobeeBroker(cluster.nameserver_address)
    await client.connect()
    with pytest.raises(TimeoutError):
        await client.request("x", "gone", timeout=0.5)
    await wait_until(lambda: seen)
    await client.stop()
    gate.set()
    await wait_until(lambda: held_count(broker) == 0)
    assert seen == ["x"]


@pytest.mark.slow
async def test_killed_worker_loses_no_message(cluster: LocalCluster, tmp_path: Path) -> None:
    await run_killed_worker(tmp_path, cluster.nameserver_address, "messages")


async def test_verdicts_of_handlers(cluster: LocalCluster) -> None:
    await run_verdicts(cluster.nameserver_address, "scenario")


@pytest.mark.parametrize("topic", ["no-such-topic", "not a name"])
async def test_reply_to_a_topic_that_does_not_exist_creates_none(topic: str) -> None:
    calls: list[bytes] = []
    async with LocalCluster(broker_config={"autoCreateTopicEnable": False}) as cluster:
        broker = AerobeeBroker(cluster.nameserver_address, queue_count=2)

        @broker.subscriber("questions", retry_delays_s=0.0, max_redeliveries=2)
        async def answer(body: bytes) -> bytes:
            calls.append(body)
            return b"42"

        async with broker:
            await broker.start()
            await broker.publish(b"?", "questions", reply_to=topic)
            await broker.publish(b"last", "questions")
            await wait_until(lambda: b"last" in calls and held_count(broker) == 0)
            assert sorted(calls) == [b"?", b"last"]
            async with Admin(cluster.nameserver_address) as admin:
                assert topic not in await admin.topics()
