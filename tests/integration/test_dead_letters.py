"""Dead letters in a cluster: what they tell, and sending them again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, reject, retry
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.consumer.dead_letter import DeadLetterFilter
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

TOPIC = "orders"
CONFIG = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.2)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with (
        asyncio.timeout(120),
        LocalCluster(store_config={"message_delay_level": "1s 1s 1s"}) as cluster,
    ):
        await cluster.create_topic(TOPIC, 2)
        yield cluster


async def fill(cluster: LocalCluster, *bodies: str) -> dict[str, str]:
    """Send messages; return their ids by body."""
    ids = {}
    async with cluster.producer() as producer:
        for body in bodies:
            result = await producer.send(
                Message(
                    TOPIC, body.encode(), tag="t", keys=(f"k-{body}",), properties={"colour": "red"}, flag=7
                )
            )
            ids[body] = result.message_id
    return ids


async def die(cluster: LocalCluster, count: int, handler: Callable[[ReceivedMessage], None]) -> None:
    """Let a group G consume until it has `count` dead letters."""
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, handler, config=CONFIG):
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == count)


def reject_all(message: ReceivedMessage) -> None:
    reject(f"no such customer {message.body.decode()}")


async def test_a_rejected_message_tells_where_it_came_from_and_why(cluster: LocalCluster) -> None:
    ids = await fill(cluster, "a")
    await die(cluster, 1, reject_all)
    async with cluster.admin() as admin:
        assert await admin.dead_letter_groups() == ("G",)
        (dead_letter,) = [dead_letter async for dead_letter in admin.dead_letters("G")]
    assert (dead_letter.topic, dead_letter.message_id, dead_letter.tries) == (TOPIC, ids["a"], 1)
    assert dead_letter.reason == "no such customer a"
    assert dead_letter.error == "Reject: no such customer a"
    assert dead_letter.message.body == b"a"
    assert dead_letter.message.properties["colour"] == "red"


async def test_a_message_that_fails_too_often_keeps_its_last_error_and_the_number_of_tries(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, "a")
    tries: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if message.reconsume_times:
            assert message.properties["LAST_ERROR"] == f"ValueError: try {message.reconsume_times - 1}"
        raise ValueError(f"try {message.reconsume_times}")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, retry_count_max=2)
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config):
        for count in (1, 2, 3):
            await wait_until(lambda count=count: len(tries) == count)  # type: ignore[misc]
            if count < 3:
                await wait_until(lambda count=count: store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == count)  # type: ignore[misc]
                await cluster.advance_clock(1.5)
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == 1)
    async with cluster.admin() as admin:
        (dead_letter,) = [dead_letter async for dead_letter in admin.dead_letters("G")]
    assert tries == [0, 1, 2]
    assert (dead_letter.topic, dead_letter.tries) == (TOPIC, 3)
    assert (dead_letter.reason, dead_letter.error) == ("3 tries failed", "ValueError: try 2")


async def test_a_handler_chooses_when_its_message_comes_back(cluster: LocalCluster) -> None:
    await fill(cluster, "a")
    seen: list[tuple[int, int]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.reconsume_times, cluster.clock.now_ms()))
        if message.reconsume_times < 2:
            retry("later", after=0.4)

    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=CONFIG):
        await wait_until(lambda: len(seen) == 3)
    assert [tries for tries, _ in seen] == [0, 1, 2]
    assert all(second - sooner >= 400 for (_, sooner), (_, second) in pairwise(seen))
    # The timer has kept the time: no level was used.
    assert cluster.broker().store.max_offset("rmq_sys_wheel_timer", 0) == 2


async def test_without_a_timer_a_message_comes_back_after_the_next_longer_level() -> None:
    levels = {"message_delay_level": "1s 5s", "timer_wheel_enable": False}
    async with asyncio.timeout(60), LocalCluster(store_config=levels) as cluster:
        await cluster.create_topic(TOPIC, 1)
        await fill(cluster, "a")
        seen: list[int] = []

        def handle(message: ReceivedMessage) -> None:
            seen.append(message.reconsume_times)
            if not message.reconsume_times:
                retry("later", after=0.5)

        store = cluster.broker().store
        async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=CONFIG):
            await wait_until(lambda: store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1)
            await cluster.advance_clock(1.1)
            await wait_until(lambda: len(seen) >= 2)
        assert seen == [0, 1]
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", 1) == 0, "the level of 5 s was not used"


async def test_a_message_of_the_loop_is_rejected_too(cluster: LocalCluster) -> None:
    await fill(cluster, "a")
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, config=CONFIG) as consumer:
        async for message in consumer:
            message.reject("no stock")
            break
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == 1)
    async with cluster.admin() as admin:
        (dead_letter,) = [dead_letter async for dead_letter in admin.dead_letters("G")]
    assert dead_letter.reason == "no stock"


async def test_a_handler_that_hangs_is_cancelled_and_its_message_comes_back(cluster: LocalCluster) -> None:
    await fill(cluster, "a", "b", "c")
    cancelled: list[bytes] = []
    done: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"b" and not message.reconsume_times:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise
        done.append(message.body)

    logging.getLogger("aerobee.client.consumer.consumption").setLevel(logging.CRITICAL)
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, consume_timeout_s=2.0, concurrency=3)
    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config) as consumer:
        await wait_until(lambda: sorted(done) == [b"a", b"c"])
        await cluster.advance_clock(3.0, step_s=0.25)
        await wait_until(lambda: store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1)
        await cluster.advance_clock(1.1)
        await wait_until(lambda: b"b" in done)
        # The worker that was cancelled continues.
        await fill(cluster, "d")
        await wait_until(lambda: consumer.consumed_count == 4)
    logging.getLogger("aerobee.client.consumer.consumption").setLevel(logging.NOTSET)
    assert cancelled == [b"b"]


async def test_redrive_returns_a_message_to_its_group_with_its_id(cluster: LocalCluster) -> None:
    ids = await fill(cluster, "a", "b")
    await die(cluster, 2, reject_all)
    others: list[bytes] = []
    seen: list[ReceivedMessage] = []
    async with (
        cluster.push_consumer(
            "Other", {TOPIC: "*"}, lambda message: others.append(message.body), config=CONFIG
        ),
        cluster.push_consumer("G", {TOPIC: "*"}, seen.append, config=CONFIG),
        cluster.admin() as admin,
    ):
        await wait_until(lambda: len(others) == 2)
        async for dead_letter in admin.dead_letters("G", DeadLetterFilter(keys=("k-b",))):
            redriven = await admin.redrive(dead_letter)
            assert (redriven.target, redriven.error) == ("%RETRY%G", "")
        await wait_until(lambda: len(seen) == 1)
    (message,) = seen
    assert (message.topic, message.body, message.message_id, message.reconsume_times) == (
        TOPIC,
        b"b",
        ids["b"],
        0,
    )
    assert (message.tag, message.keys, message.flag) == ("t", ("k-b",), 7)
    assert message.properties["colour"] == "red"
    assert message.properties["REDRIVE_COUNT"] == "1"
    assert not [name for name in message.properties if name.startswith("DLQ_")]
    assert others == [b"a", b"b"] or sorted(others) == [b"a", b"b"]


async def test_redrive_to_a_topic_reaches_every_group(cluster: LocalCluster) -> None:
    await fill(cluster, "a")
    await die(cluster, 1, reject_all)
    await cluster.create_topic("repaired", 1)
    async with cluster.admin() as admin:
        (dead_letter,) = [dead_letter async for dead_letter in admin.dead_letters("G")]
        redriven = await admin.redrive(dead_letter, to="repaired")
        assert redriven.result is not None
        missing = await admin.redrive(dead_letter, to="NoSuchTopic")
    assert redriven.result.queue.topic == "repaired"
    assert "NoSuchTopic" in missing.error
    assert cluster.broker().store.max_offset("repaired", 0) == 1


async def test_what_was_redriven_does_not_wait_any_more(cluster: LocalCluster) -> None:
    await fill(cluster, "a", "b", "c")
    await die(cluster, 3, reject_all)
    async with cluster.admin() as admin:
        (queue_state,) = await admin.dead_letter_queues("G")
        assert (queue_state.count, queue_state.waiting) == (3, 3)
        await admin.commit_redriven(queue_state.queue, queue_state.begin + 2)
        (queue_state,) = await admin.dead_letter_queues("G")
        assert (queue_state.count, queue_state.waiting) == (3, 1)
        waiting = [dead_letter async for dead_letter in admin.dead_letters("G", only_waiting=True)]
    assert len(waiting) == 1


async def test_redrive_reaches_an_ordered_group_that_holds_locks(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, "a")
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=True)
    healthy = False
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        if not healthy:
            reject("not yet")
        seen.append(message.body)

    store = cluster.broker().store
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config), cluster.admin() as admin:
        await wait_until(lambda: store.max_offset("%DLQ%G", 0) == 1)
        healthy = True
        async for dead_letter in admin.dead_letters("G"):
            assert not (await admin.redrive(dead_letter)).error
        await wait_until(lambda: seen == [b"a"])
        locks = await admin.queue_locks("G")
    assert locks is not None
    assert sorted((lock.queue.topic, lock.queue.queue_id) for lock in locks) == [
        ("%RETRY%G", 0), (TOPIC, 0), (TOPIC, 1),
    ]  # fmt: skip
    assert {lock.lease_ms for lock in locks} == {32_000}


async def test_retries_are_named_by_their_origin_and_the_last_by_where_it_went(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = (await fill(cluster, "a")).values()
    origins: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        if not message.reconsume_times:
            origins.append(
                f"{TOPIC} {message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"
            )
        raise ValueError("bank is closed")

    store = cluster.broker().store
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.2, retry_count_max=1)
    with caplog.at_level(logging.INFO, logger="aerobee.client"):
        async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config):
            await wait_until(lambda: store.max_offset("%DLQ%G", 0) == 1)
            await wait_until(lambda: "is dead-lettered" in caplog.text)
    failures = [record.getMessage() for record in caplog.records if "failed for" in record.getMessage()]
    assert len(failures) == 2
    assert all(f"({origins[0]}" in failure for failure in failures), failures
    assert "retry 1" in failures[1]
    (death,) = [each.getMessage() for each in caplog.records if "is dead-lettered" in each.getMessage()]
    assert f"({origins[0]}, retry 1" in death
    assert "2 tries failed (ValueError: bank is closed)" in death
    assert f"%DLQ%G: `aerobee dlq show G --id {message_id}`" in death
