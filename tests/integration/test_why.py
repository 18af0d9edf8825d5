"""`aerobee why` against a real cluster, one reason after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    ReceivedMessage,
    RetryLater,
    TransactionState,
)
from aerobee.message import Message, MessageQueue
from aerobee.ops.diagnosis.why_facts import gather_group, gather_message
from aerobee.ops.diagnosis.why_rules import Finding, findings
from aerobee.remoting.client import RemotingClient
from aerobee.testing import LocalCluster
from tests.integration.pop_requests import pop_request, popped

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.05)


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", 1)
        yield cluster


async def why(
    cluster: LocalCluster, group: str = "billing", message_id: str | None = None, topic: str | None = None
) -> list[Finding]:
    async with cluster.admin() as admin:
        facts = await gather_group(admin, group, topic)
        message = await gather_message(admin, facts, message_id, topic) if message_id else None
    return findings(facts, message)


async def why_until(
    cluster: LocalCluster, kind: str, message_id: str | None = None, topic: str | None = None
) -> list[Finding]:
    """Ask until the answer is of this kind: offsets and traces arrive a moment later."""
    found: list[Finding] = []
    try:
        async with asyncio.timeout(60):
            while not found or found[0].kind != kind:
                await asyncio.sleep(0.05)
                found = await why(cluster, message_id=message_id, topic=topic)
    except TimeoutError:
        raise AssertionError(f"no {kind}, but {found}") from None
    return found


def kinds(found: list[Finding]) -> list[str]:
    return [each.kind for each in found]


async def send(cluster: LocalCluster, tag: str | None = None, count: int = 1, **fields: int) -> str:
    async with cluster.producer(trace=True) as producer:
        for _ in range(count):
            result = await producer.send(Message("orders", b"body", tag=tag, **fields))
    return result.message_id


async def consume_all(cluster: LocalCluster, expression: str = "*", *, trace: bool = False) -> None:
    """Let a member of the group consume all messages and leave."""
    handler: Callable[[ReceivedMessage], None] = lambda message: None  # noqa: E731
    async with cluster.push_consumer(
        "billing", {"orders": expression}, handler, config=FIRST, trace=trace
    ) as consumer:
        await settled(cluster, consumer)


async def settled(cluster: LocalCluster, consumer: object) -> None:
    offsets = cluster.broker().offsets
    end = cluster.broker().store.max_offset("orders", 0)
    async with asyncio.timeout(60):
        while offsets.query("billing", "orders", 0) != end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_group_without_consumers_is_unknown(cluster: LocalCluster) -> None:
    assert kinds(await why(cluster, "absent")) == ["no-group"]


async def test_a_message_that_was_never_sent(cluster: LocalCluster) -> None:
    await send(cluster)
    await consume_all(cluster)
    found = await why(cluster, message_id="00" * 16)
    assert found[0].kind == "never-stored"
    assert "was ever stored in orders" in found[0].text


async def test_lag_without_online_consumers(cluster: LocalCluster) -> None:
    await send(cluster)
    await consume_all(cluster)
    message_id = await send(cluster, count=3)
    found = await why(cluster, message_id=message_id)
    assert kinds(found) == ["behind", "no-members", "lag"]
    assert found[0].facts["before"] == 2
    assert "2 messages before it" in found[0].text
    assert found[2].facts["lag"] == 3


async def test_up_to_date(cluster: LocalCluster) -> None:
    await send(cluster)
    async with cluster.push_consumer(
        "billing", {"orders": "*"}, lambda message: None, config=FIRST
    ) as consumer:
        await settled(cluster, consumer)
        assert kinds(await why(cluster)) == ["well"]


async def test_left_out_by_tag_and_by_expression(cluster: LocalCluster) -> None:
    message_id = await send(cluster, tag="refund")
    async with cluster.push_consumer(
        "billing", {"orders": "paid || shipped"}, lambda message: None, config=FIRST
    ):
        found = await why_until(cluster, "filtered", message_id)
    assert "its tag is refund, the group subscribes to paid || shipped" in found[0].text
    cluster.broker().live.replace(enable_property_filter=True)
    async with cluster.push_consumer(
        "billing", {"orders": "sql:price > 5"}, lambda message: None, config=FIRST
    ):
        found = await why_until(cluster, "filtered", message_id)
    assert "price > 5 is not true of its properties; it has no price" in found[0].text


async def test_members_that_differ_are_named(cluster: LocalCluster) -> None:
    await send(cluster)
    async with (
        cluster.push_consumer(
            "billing",
            {"orders": "a"},
            lambda message: None,
            config=FIRST,
            client=ClientConfig(instance="one"),
        ),
        cluster.push_consumer(
            "billing",
            {"orders": "b"},
            lambda message: None,
            config=FIRST,
            client=ClientConfig(instance="two"),
        ),
    ):
        found = [each for each in await why(cluster) if each.kind == "conflict"]
    assert found
    assert {found[0].facts["expression"], found[0].facts["other_expression"]} == {"a", "b"}


async def test_consumed_and_consumed_again(cluster: LocalCluster) -> None:
    message_id = await send(cluster)
    await consume_all(cluster, trace=True)
    found = await why_until(cluster, "consumed", message_id)
    assert "the message was consumed by 127.0.0.1" in found[0].text
    async with cluster.admin() as admin:
        await admin.reset_offsets("billing", "orders", timestamp_ms=0)
    await consume_all(cluster, trace=True)
    found = await why_until(cluster, "consumed-again", message_id)
    assert len(found[0].facts["consumptions"]) == 2


async def test_passed_without_a_trace(cluster: LocalCluster) -> None:
    message_id = await send(cluster)
    await consume_all(cluster)
    found = await why(cluster, message_id=message_id)
    assert found[0].kind == "passed"
    assert "only a trace shows" in found[0].text


async def test_in_work_at_a_member(cluster: LocalCluster) -> None:
    message_id = await send(cluster)
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await release.wait()

    async with cluster.push_consumer(
        "billing", {"orders": "*"}, handle, config=FIRST, client=ClientConfig(instance="slow")
    ) as consumer:
        found = await why_until(cluster, "in-progress", message_id)
        release.set()
    assert consumer.client_id in found[0].text


async def test_retry_and_dead_letter(cluster: LocalCluster) -> None:
    message_id = await send(cluster)

    def handle(message: ReceivedMessage) -> None:
        raise RetryLater("no stock", delay_level=18 if message.reconsume_times == 0 else -1)

    async with cluster.push_consumer("billing", {"orders": "*"}, handle, config=FIRST):
        found = await why_until(cluster, "retry", message_id)
        assert (found[0].facts["tries"], found[0].facts["tries_max"]) == (1, 16)
        assert "retry 1 of 16 is due at" in found[0].text
        await cluster.advance_clock(2 * 3600 + 1, step_s=600)
        found = await why_until(cluster, "dead-letter", message_id)
    assert "the message has been in the dead-letter queue since" in found[0].text
    assert "dead-letters" in kinds(found)


async def test_delayed(cluster: LocalCluster) -> None:
    message_id = await send(cluster, delay_level=18)
    found = await why(cluster, message_id=message_id, topic="orders")
    assert found[0].kind == "delayed"
    assert found[0].facts["for"] == "orders"


async def test_a_send_that_was_repeated(cluster: LocalCluster) -> None:
    async with cluster.producer() as producer:
        first = await producer.send(Message("orders", b"body"))
        fixed = type("Fixed", (), {"next_id": lambda self, now_ms: first.message_id})()
        producer._ids = fixed
        await producer.send(Message("orders", b"body"))
    found = await why(cluster, message_id=first.message_id, topic="orders")
    assert "stored-twice" in kinds(found)


async def test_a_half_message_without_decision(cluster: LocalCluster) -> None:
    async with cluster.transaction_producer(
        "makers", checker=lambda message: TransactionState.UNKNOWN
    ) as producer:
        result = await producer.send_in_transaction(
            Message("orders", b"body"), executor=lambda message, argument: TransactionState.UNKNOWN
        )
        found = await why(cluster, message_id=result.send.message_id, topic="orders")
    assert found[0].kind == "undecided"
    assert "half message of producer group makers" in found[0].text


async def test_a_lock_of_a_member_that_is_gone(cluster: LocalCluster) -> None:
    await send(cluster)
    handler: Callable[[ReceivedMessage], None] = lambda message: None  # noqa: E731
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=True, persist_offsets_s=0.05)
    async with cluster.push_consumer("billing", {"orders": "*"}, handler, config=config) as consumer:
        await settled(cluster, consumer)
    broker = cluster.broker()
    queue = MessageQueue("orders", cluster.broker_names[0], 0)
    broker.locks.lock("billing", "1.2.3.4@vanished", (queue,))
    await send(cluster)
    found = [each for each in await why(cluster) if each.kind == "lock"]
    assert found
    assert "by 1.2.3.4@vanished, which is not online" in found[0].text


async def test_a_group_at_work_that_has_committed_nothing_yet(cluster: LocalCluster) -> None:
    first, second = await send(cluster), await send(cluster)
    may_end = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await may_end.wait()

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=True)
    async with cluster.push_consumer("billing", {"orders": "*"}, handle, config=config) as consumer:
        found = await why_until(cluster, "in-progress", first)
        assert "has pulled the message but not committed it (stored" in found[0].text
        found = await why_until(cluster, "in-progress", second)
        assert "has pulled the message but not committed it, nor 1 message before it" in found[0].text
        (lock,) = [each for each in found if each.kind == "lock"]
        assert f"by {consumer.client_id};" in lock.text
        assert "has been locked for" in lock.text
        (lag,) = [each for each in await why(cluster) if each.kind == "lag"]
        assert lag.facts["lag"] == 2
        may_end.set()
        found = await why_until(cluster, "passed", first)  # the member says so before it commits
        assert "group's offset in that queue" in found[0].text


async def test_a_lock_left_by_a_member_that_never_committed(cluster: LocalCluster) -> None:
    message_id = await send(cluster)
    queue = MessageQueue("orders", cluster.broker_names[0], 0)
    cluster.broker().locks.lock("billing", "1.2.3.4@vanished", (queue,))
    found = await why(cluster, message_id=message_id)
    assert found[0].kind == "no-offset"
    assert "by 1.2.3.4@vanished, which is not online" in found[-1].text


async def test_handed_out_by_pop_and_invisible(cluster: LocalCluster) -> None:
    message_id = await send(cluster)
    client = RemotingClient(clock=cluster.clock, network=cluster.network)
    try:
        broker = cluster.broker()
        reply = await client.invoke(
            broker.address, pop_request(broker, "orders", "billing", invisible_ms=60_000)
        )
        assert len(popped(reply, "orders", "billing")) == 1
        found = await why(cluster, message_id=message_id, topic="orders")
    finally:
        await client.close()
    assert found[0].kind == "invisible"
    assert "delivered by POP to 127.0.0.1" in found[0].text
    assert found[0].facts["until"] > cluster.clock.now_ms()


async def test_a_timer_message_waits_for_its_time(cluster: LocalCluster) -> None:
    async with cluster.producer() as producer:
        due_ms = cluster.clock.now_ms() + 3_600_000
        result = await producer.send(
            Message("orders", b"later", properties={"TIMER_DELIVER_MS": str(due_ms)})
        )
    found = await why(cluster, message_id=result.message_id, topic="orders")
    assert found[0].kind == "delayed"
    assert abs(found[0].facts["due"] - due_ms) <= 1000
