"""Every part of a client finds a new master by itself. Routes and heartbeats are never refreshed by time here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.client import (
    Admin,
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    PoppedMessage,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    SimpleConsumer,
    SimpleConsumerConfig,
    TransactionProducer,
    TransactionState,
)
from aerobee.client.base.received import ReceivedMessage
from aerobee.clock import SystemClock
from aerobee.errors import AerobeeError
from aerobee.message import Message
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from tests.integration.controller_group import SYNC, Group, same
from tests.waiting import wait_until

NEVER = ClientConfig(route_refresh_s=3600.0, heartbeat_s=3600.0)
TOPICS = ("t", "u")
LOST = (AerobeeError,)
SIMPLE = SimpleConsumerConfig(wait_s=1.0)


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    """A master and a slave in sync, with two topics of one queue and a message in each."""
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    async with AsyncExitStack() as stack:
        group = Group(tmp_path, client, stack)
        await group.begin()
        first = await group.start("one", store=SYNC)
        second = await group.start("two", store=SYNC)
        await group.has_master()
        await wait_until(lambda: len(group.members()) == 2, "both in sync")
        async with Admin(group.nameserver.address) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, queue_count=1)
            await admin.set_request_mode("popping", "t", "POP")
        await send(group, b"before")
        await same(first, second)
        await wait_until(lambda: all(set(TOPICS) <= each.topics.topics.keys() for each in (first, second)))
        yield group
        await group.stop()
        await client.close()


async def send(group: Group, body: bytes) -> None:
    async with Producer(group.nameserver.address, "P") as producer:
        for topic in TOPICS:
            await producer.send(Message(topic, body), timeout_s=30)


async def fail_over(group: Group) -> Broker:
    master = await group.has_master()
    await master.kill()
    return await group.has_master(other_than=master)


Receive = Callable[[], Awaitable[set[bytes]]]


async def simple(group: Group, stack: AsyncExitStack, topics: tuple[str, ...]) -> Receive:
    consumer = SimpleConsumer(group.nameserver.address, "G", topics, config=SIMPLE, client=NEVER)
    await stack.enter_async_context(consumer)

    async def receive() -> set[bytes]:
        messages = await consumer.receive()
        await consumer.ack_all(messages)
        return {message.body for message in messages}

    return receive


async def pull(group: Group, stack: AsyncExitStack) -> Receive:
    consumer = PullConsumer(
        group.nameserver.address,
        "G",
        config=PullConsumerConfig(consume_from=ConsumeFrom.FIRST),
        client=NEVER,
    )
    await stack.enter_async_context(consumer)
    await consumer.subscribe("t")

    async def receive() -> set[bytes]:
        messages = await consumer.poll(1.0)
        await consumer.commit()
        return {message.body for message in messages}

    return receive


async def push(group: Group, stack: AsyncExitStack, name: str, config: ConsumerConfig) -> Receive:
    seen: set[bytes] = set()
    consumer = PushConsumer(
        group.nameserver.address,
        name,
        ["t"],
        lambda message: seen.add(message.body),
        config=config,
        client=NEVER,
    )
    await stack.enter_async_context(consumer)

    async def receive() -> set[bytes]:
        await asyncio.sleep(0.01)
        return seen

    return receive


FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
ORDERLY = ConsumerConfig(consume_from=ConsumeFrom.FIRST, orderly=True, lock_lease_s=2.0)
POP = ConsumerConfig(consume_from=ConsumeFrom.FIRST, client_rebalance=False)


@pytest.mark.parametrize("kind", ["simple", "simple, two topics", "pull", "push", "orderly", "pop"])
async def test_a_consumer_receives_from_the_new_master(group: Group, kind: str) -> None:
    async with AsyncExitStack() as stack:
        if kind.startswith("simple"):
            receive = await simple(group, stack, TOPICS if "two" in kind else ("t",))
        elif kind == "pull":
            receive = await pull(group, stack)
        elif kind == "pop":
            receive = await push(group, stack, "popping", POP)
        else:
            receive = await push(group, stack, "G", ORDERLY if kind == "orderly" else FIRST)
        seen: set[bytes] = set()

        async def has(body: bytes) -> bool:
            seen.update(await receive())
            return body in seen

        await wait_until(lambda: has(b"before"), passing=LOST)
        await fail_over(group)
        await send(group, b"after")
        await wait_until(lambda: has(b"after"), "the new master's message", passing=LOST)


async def test_calls_of_a_simple_consumer_reach_the_new_master(group: Group) -> None:
    async with SimpleConsumer(
        group.nameserver.address, "G", ["t", "u"], config=SIMPLE, client=NEVER
    ) as consumer:
        found: dict[str, PoppedMessage] = {}
        while len(found) < 2:
            found |= {message.topic: message for message in await consumer.receive(invisible_s=300)}
        await fail_over(group)
        await consumer.change_invisible(found["t"], 200)
        await consumer.ack(found["t"])
        await consumer.dead_letter(found["u"], "no use")
    master = await group.has_master()
    assert master.store.max_offset("%DLQ%G", 0) == 1


async def test_calls_of_a_producer_reach_the_new_master(group: Group) -> None:
    def no_checks(message: ReceivedMessage) -> TransactionState:
        raise AssertionError("the producer ends it itself")

    config = ProducerConfig(retry_count_max=0)
    async with (
        Producer(group.nameserver.address, "P", client=NEVER, config=config) as producer,
        TransactionProducer(group.nameserver.address, "TP", checker=no_checks, client=NEVER) as transactions,
    ):
        await producer.send_oneway(Message("t", b"one-way before"))
        waiting = transactions.transaction(Message("u", b"paid"))
        async with waiting:
            old = await group.has_master()
            await wait_until(lambda: old.store.max_offset("t", 0) == 2)
            await fail_over(group)
        assert waiting.result is not None
        assert waiting.result.confirmed
        master = await group.has_master()

        async def stored() -> bool:
            await producer.send_oneway(Message("t", b"one-way"))
            return master.store.max_offset("t", 0) > 2

        await wait_until(stored, "a one-way send", passing=LOST)
