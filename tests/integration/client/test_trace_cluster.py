"""Trace over a real cluster: what producers and consumers record is read back as one time line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, PullConsumerConfig, ReceivedMessage, RetryLater
from aerobee.client.base.observer import ConsumeEnded, SendEnded
from aerobee.client.base.results import SendResult
from aerobee.client.base.trace_record import TracedType, TraceEvent, TraceKind
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.producer.producer import Producer
from aerobee.client.tracing.trace import EVENTS_MAX, Tracer
from aerobee.clock import ManualClock
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


async def traced(cluster: LocalCluster, wanted: str) -> tuple[TraceEvent, ...]:
    async with cluster.admin() as admin:
        return await admin.trace(wanted)


async def test_the_way_of_a_message_is_read_back(cluster: LocalCluster) -> None:
    done = asyncio.Event()

    def handle(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            raise RetryLater("not now", delay_level=1)
        done.set()

    async with cluster.producer("makers", trace=True) as producer:
        result = await producer.send(Message("traced", b"body", tag="t", keys=("k1", "k2")))
    async with cluster.push_consumer("readers", {"traced": "*"}, handle, config=FIRST, trace=True):
        async with asyncio.timeout(60):
            await done.wait()
    events = await traced(cluster, result.message_id)
    assert [event.kind for event in events] == [
        TraceKind.PUB,
        TraceKind.SUB_BEFORE,
        TraceKind.SUB_AFTER,
        TraceKind.SUB_BEFORE,
        TraceKind.SUB_AFTER,
    ]
    sent, first, failed, second, consumed = events
    assert (sent.topic, sent.group, sent.tags, sent.keys, sent.body_bytes) == (
        "traced",
        "makers",
        "t",
        "k1 k2",
        4,
    )
    assert sent.store_host == cluster.broker_addresses[0]
    assert (first.retry_times, second.retry_times) == (0, 1)
    assert (failed.success, consumed.success) == (False, True)
    assert failed.request_id == first.request_id != second.request_id
    assert {event.group for event in events[1:]} == {"readers"}
    assert await traced(cluster, "k2") == events, "a key finds the same"


async def test_batches_delays_polls_and_streams_are_traced(cluster: LocalCluster) -> None:
    async with cluster.producer("makers", trace=True) as producer:
        batch = await producer.send_batch([Message("traced", b"%d" % number) for number in range(3)])
        delayed = await producer.send(Message("traced", b"later", delay_level=18))
    async with cluster.pull_consumer(
        "pollers", config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST), trace=True
    ) as poller:
        await poller.subscribe("traced")
        polled: list[ReceivedMessage] = []
        async with asyncio.timeout(60):
            while len(polled) < 3:
                polled += await poller.poll()
    async with (
        asyncio.timeout(60),
        cluster.push_consumer("streams", {"traced": "*"}, config=FIRST, trace=True) as consumer,
    ):
        count = 0
        async for message in consumer:
            message.ack()
            count += 1
            if count == 3:
                break
    for result in batch:
        kinds = [(event.kind, event.group) for event in await traced(cluster, result.message_id)]
        assert kinds[0] == (TraceKind.PUB, "makers")
        assert sorted(kinds[1:], key=str) == [
            (TraceKind.SUB_AFTER, "pollers"),
            (TraceKind.SUB_AFTER, "streams"),
            (TraceKind.SUB_BEFORE, "pollers"),
            (TraceKind.SUB_BEFORE, "streams"),
        ]
    (event,) = await traced(cluster, delayed.message_id)
    assert event.message_type == TracedType.DELAY


async def test_a_broker_that_wants_no_trace_gets_none() -> None:
    async with LocalCluster(broker_config={"trace_on": False}) as cluster:
        async with cluster.producer("makers", trace=True) as producer:
            result = await producer.send(Message("traced", b"body"))
        assert await traced(cluster, result.message_id) == ()
        assert "RMQ_SYS_TRACE_TOPIC" not in cluster.broker().topics.topics


async def test_a_failing_observer_changes_nothing(cluster: LocalCluster) -> None:
    class Broken:
        def sending(self, message: Message) -> tuple[Message, SendEnded]:
            raise RuntimeError("observer of sends")

        def consuming(self, group: str, messages: Sequence[ReceivedMessage]) -> ConsumeEnded:
            def ended(error: BaseException | None) -> None:
                raise RuntimeError("observer of handlers")

            return ended

    received = asyncio.Event()
    async with Producer(cluster.nameserver_address, observers=[Broken()], clock=cluster.clock) as producer:
        await producer.send(Message("observed", b"body"))
    async with (
        asyncio.timeout(60),
        PushConsumer(
            cluster.nameserver_address,
            "readers",
            subscriptions={"observed": "*"},
            handler=lambda message: received.set(),
            config=FIRST,
            observers=[Broken()],
            clock=cluster.clock,
        ) as consumer,
    ):
        await received.wait()
        await wait_until(lambda: consumer.consumed_count == 1)


class _Sender:
    """Stands in for the trace producer."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, message: Message) -> SendResult:
        self.messages.append(message)
        result: Any = None
        return result


async def test_more_records_than_may_wait_are_dropped_and_large_ones_are_split() -> None:
    sender = _Sender()
    tracer = Tracer(sender, group="makers", clock=ManualClock())
    for number in range(EVENTS_MAX + 5):
        tracer.record(
            TraceEvent(kind=TraceKind.RECALL, message_id=f"{number:032X}", topic="t" * 100, time_ms=1)
        )
    await tracer.close()
    assert tracer.dropped_count == 5
    assert len(sender.messages) > 1
    assert all(len(message.body) <= 128_000 for message in sender.messages)
    assert all(sum(map(len, message.keys)) <= 16_000 for message in sender.messages)
    assert sum(message.body.count(b"\x02") for message in sender.messages) == EVENTS_MAX
