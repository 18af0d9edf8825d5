"""Ordered consumption in a cluster: order within each queue over failures, rebalance, deaths and restarts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aerobee.client import Blocked, ConsumeFrom, ConsumerConfig, RetryLater, reject
from aerobee.client.base.received import ReceivedMessage
from aerobee.errors import UsageError
from aerobee.message import Message, MessageQueue
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

TOPIC = "orders"


def members(cluster: LocalCluster) -> int:
    group = cluster.broker().consumers.group("G")
    return 0 if group is None else len(group.client_ids())


def config(**fields: Any) -> ConsumerConfig:
    return ConsumerConfig(
        **{
            "consume_from": ConsumeFrom.FIRST,
            "orderly": True,
            "suspend_s": 0.01,
            "rebalance_s": 0.2,
            "persist_offsets_s": 0.2,
            "drain_s": 2.0,
            **fields,
        }
    )


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with asyncio.timeout(120), LocalCluster() as cluster:
        await cluster.create_topic(TOPIC, 4)
        yield cluster


async def fill(cluster: LocalCluster, count: int, first: int = 0) -> None:
    """Message n goes to queue n % 4."""
    async with cluster.producer() as producer:
        queues = await producer.queues(TOPIC)
        for number in range(first, first + count):
            await producer.send(Message(TOPIC, b"%d" % number), queue=queues[number % 4])


class Log:
    """What handlers saw: each start and each end, by queue."""

    def __init__(self) -> None:
        self.begun: dict[int, list[int]] = defaultdict(list)
        self.done: dict[int, list[int]] = defaultdict(list)
        self.running: dict[int, int] = defaultdict(int)
        self.overlaps: list[ReceivedMessage] = []

    def handler(self, pause_s: float = 0.0) -> Callable[[ReceivedMessage], Any]:
        async def handle(message: ReceivedMessage) -> None:
            queue, number = message.queue.queue_id, int(message.body)
            self.begun[queue].append(number)
            self.running[queue] += 1
            if self.running[queue] > 1:
                self.overlaps.append(message)
            try:
                await asyncio.sleep(pause_s)
            finally:
                self.running[queue] -= 1
            self.done[queue].append(number)

        return handle

    def count(self) -> int:
        return sum(len(set(numbers)) for numbers in self.done.values())

    def check(self) -> None:
        """No message is begun while one before it is not done; several deliveries are allowed."""
        assert not self.overlaps
        for queue, begun in self.begun.items():
            reached = queue - 4
            for number in begun:
                assert number <= reached + 4, f"queue {queue}: {number} after {reached}: {begun}"
                reached = max(reached, number)


async def test_each_queue_is_handled_in_order_one_message_at_a_time(cluster: LocalCluster) -> None:
    await fill(cluster, 80)
    log = Log()
    async with cluster.push_consumer("G", {TOPIC: "*"}, log.handler(0.001), config=config()):
        await wait_until(lambda: log.count() == 80)
    log.check()
    assert log.begun == {queue: list(range(queue, 80, 4)) for queue in range(4)}


async def test_a_failing_ordered_message_is_retried_in_place(cluster: LocalCluster) -> None:
    await fill(cluster, 12)
    seen: list[tuple[int, int]] = []

    def handle(message: ReceivedMessage) -> None:
        if message.queue.queue_id == 0:
            seen.append((int(message.body), message.reconsume_times))
            if int(message.body) == 4 and message.reconsume_times < 3:
                raise RetryLater("not yet", after=0.02)

    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config()):
        await wait_until(lambda: (8, 0) in seen)
    assert seen == [(0, 0), (4, 0), (4, 1), (4, 2), (4, 3), (8, 0)]


async def test_a_queue_resumes_after_a_dead_letter_message(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, 12)
    log = Log()
    good = log.handler()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"4":
            raise ValueError("no stock")
        await good(message)

    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config(retry_count_max=2)):
        await wait_until(lambda: log.count() == 11)
    async with cluster.admin() as admin:
        dead_letter = await admin.message_at(MessageQueue("%DLQ%G", cluster.broker_names[0], 0), 0)
    assert dead_letter.body == b"4"
    assert dead_letter.properties["DLQ_ORIGIN_TOPIC"] == TOPIC
    assert dead_letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == dead_letter.message_id
    assert dead_letter.properties["DLQ_TRIES"] == "3"
    assert dead_letter.properties["LAST_ERROR"] == "ValueError: no stock"
    assert dead_letter.properties["DLQ_REASON"].startswith("blocked its ordered queue for")
    assert cluster.broker().store.max_offset("%DLQ%G", 0) == 1


async def test_a_message_may_block_its_queue_only_so_long(cluster: LocalCluster) -> None:
    await fill(cluster, 8)
    log = Log()
    good = log.handler()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"0":
            raise ValueError("no stock")
        await good(message)

    settings = config(retry_count_max=1_000_000, block_max_s=0.1)
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=settings):
        await wait_until(lambda: log.count() == 7)
    assert cluster.broker().store.max_offset("%DLQ%G", 0) == 1


async def test_a_rejected_message_goes_to_the_dead_letters_at_once(cluster: LocalCluster) -> None:
    await fill(cluster, 8)
    seen: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(int(message.body))
        if message.body == b"1":
            reject("customer is gone")

    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config()):
        await wait_until(lambda: 5 in seen)
    async with cluster.admin() as admin:
        dead_letter = await admin.message_at(MessageQueue("%DLQ%G", cluster.broker_names[0], 0), 0)
    assert dead_letter.properties["DLQ_REASON"] == "customer is gone"
    assert dead_letter.properties["DLQ_TRIES"] == "1"
    assert seen.count(1) == 1


async def test_with_the_waiting_policy_nothing_behind_a_failing_message_is_handled(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, 8)
    tries, others = 0, []

    def handle(message: ReceivedMessage) -> None:
        nonlocal tries
        if message.body == b"0":
            tries += 1
            raise ValueError("no stock")
        others.append(int(message.body))

    settings = config(retry_count_max=1, blocked=Blocked.WAIT)
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=settings):
        await wait_until(lambda: tries > 10)
    assert sorted(others) == [1, 2, 3, 5, 6, 7]


async def test_a_failing_batch_is_taken_apart_to_find_the_message(cluster: LocalCluster) -> None:
    await fill(cluster, 32)
    batches: list[list[int]] = []

    def handle(messages: list[ReceivedMessage]) -> None:
        if messages[0].queue.queue_id == 0:
            batches.append([int(message.body) for message in messages])
            if b"8" in [message.body for message in messages]:
                raise ValueError("no stock")

    settings = config(batch_size=4, retry_count_max=1)
    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=settings):
        await wait_until(lambda: 28 in [number for batch in batches for number in batch])
    assert batches == [[0, 4, 8, 12], [0], [4], [8], [8], [12], [16, 20, 24, 28]]
    assert cluster.broker().store.max_offset("%DLQ%G", 0) == 1


async def test_members_that_come_and_go_keep_the_order(cluster: LocalCluster) -> None:
    log = Log()
    await fill(cluster, 400)
    async with cluster.push_consumer("G", {TOPIC: "*"}, log.handler(0.004), config=config()):
        await wait_until(lambda: log.count() >= 40)
        second = cluster.push_consumer("G", {TOPIC: "*"}, log.handler(0.004), config=config())
        async with second:
            await wait_until(lambda: len(second.owned) >= 2)
            assert log.count() < 400
            await wait_until(lambda: log.count() >= 200)
        await wait_until(lambda: log.count() == 400)
    log.check()
    # In good order nothing is delivered twice either.
    assert log.begun == {queue: list(range(queue, 400, 4)) for queue in range(4)}


async def test_a_queue_is_not_given_away_while_a_handler_works_on_it(cluster: LocalCluster) -> None:
    await fill(cluster, 8)
    log = Log()
    release = asyncio.Event()

    async def slow(message: ReceivedMessage) -> None:
        await release.wait()
        await log.handler()(message)

    async with cluster.push_consumer("G", {TOPIC: "*"}, slow, config=config()) as first:
        await wait_until(lambda: len(first.owned) == 5)
        second = cluster.push_consumer("G", {TOPIC: "*"}, log.handler(), config=config())
        async with second:
            await wait_until(lambda: members(cluster) == 2)
            await asyncio.sleep(0.5)
            assert log.count() == 0
            release.set()
            await wait_until(lambda: log.count() == 8)
    log.check()
    assert log.begun == {queue: [queue, queue + 4] for queue in range(4)}


async def test_a_killed_broker_does_not_give_queues_to_another_member_while_their_holder_works(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, 400)
    log = Log()
    async with (
        cluster.push_consumer("G", {TOPIC: "*"}, log.handler(0.003), config=config()) as first,
        cluster.push_consumer("G", {TOPIC: "*"}, log.handler(0.003), config=config()) as second,
    ):
        await wait_until(lambda: len(first.owned) >= 2 and len(second.owned) >= 2 and log.count() > 40)
        await cluster.kill_broker()
        await cluster.start_broker()
        await wait_until(lambda: log.count() == 400)
    log.check()


async def test_a_member_that_falls_silent_stops_before_another_one_takes_its_queues(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, 8)
    log = Log()
    stuck = asyncio.Event()
    ended: list[int] = []

    async def never(message: ReceivedMessage) -> None:
        stuck.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message.queue.queue_id)

    settings = config(lock_lease_s=2.0)
    first = cluster.push_consumer("G", {TOPIC: "*"}, never, config=settings)
    async with first:
        await wait_until(lambda: len(first.owned) == 5 and stuck.is_set())
        # From now on the broker hears nothing of it: no renewal, no heartbeat.
        await first._session.remoting.close()
        async with cluster.push_consumer("G", {TOPIC: "*"}, log.handler(), config=config()) as second:
            await wait_until(lambda: members(cluster) == 1)
            await cluster.advance_clock(5.0, step_s=0.5)
            await wait_until(lambda: log.count() == 8)
            await wait_until(lambda: len(second.owned) == 5)
        assert sorted(ended) == [0, 1, 2, 3]
    log.check()


async def test_ordered_consumption_needs_a_handler(cluster: LocalCluster) -> None:
    with pytest.raises(UsageError, match="needs a handler"):
        cluster.push_consumer("G", {TOPIC: "*"}, config=config())
