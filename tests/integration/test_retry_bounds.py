"""How often a message comes again is the group's retryMaxTimes, for every kind of consumer; -1 is for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, RetryLater, SimpleConsumerConfig
from aerobee.client.base.received import ReceivedMessage
from aerobee.client.consumer import group_retries
from aerobee.errors import RemoteError
from aerobee.message import Message
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster
from tests.integration.broker_calls import send_request
from tests.waiting import wait_until

TOPIC = "orders"
FIRST = ConsumeFrom.FIRST
PUSH = ConsumerConfig(consume_from=FIRST)
ORDERLY = ConsumerConfig(consume_from=FIRST, orderly=True, suspend_s=0.001)
POP = ConsumerConfig(consume_from=FIRST, client_rebalance=False, pop_invisible_s=5)
KINDS = {"push": PUSH, "orderly": ORDERLY, "pop": POP}
MANY = 20  # more than the 16 that is the default everywhere


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(store_config={"message_delay_level": "1s 1s 1s"}) as cluster:
        await cluster.create_topic(TOPIC, 1)
        async with cluster.producer() as producer:
            await producer.send(Message(TOPIC, b"a"))
        yield cluster


def dead_count(cluster: LocalCluster) -> int:
    return cluster.broker().store.max_offset("%DLQ%G", 0)


async def fail_until(cluster: LocalCluster, config: ConsumerConfig, done: int) -> list[int]:
    """Fail each time; returns the tries that were seen when there are `done` of them or a dead letter."""
    tries: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        raise RetryLater("not yet", after=1.0 if not config.orderly else 0.001)

    async with cluster.push_consumer("G", {TOPIC: "*"}, handle, config=config):
        async with asyncio.timeout(60):
            while len(tries) < done and not dead_count(cluster):
                await cluster.advance_clock(0.5)
                await asyncio.sleep(0.002)
        await asyncio.sleep(0)
    return tries


@pytest.mark.parametrize("kind", KINDS)
async def test_the_groups_bound_counts(cluster: LocalCluster, kind: str) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=1)
        if kind == "pop":
            await admin.set_request_mode("G", TOPIC, "POP")
    assert await fail_until(cluster, KINDS[kind], 10) == [0, 1]
    assert dead_count(cluster) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_group_without_a_bound_retries_for_ever(cluster: LocalCluster, kind: str) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=-1)
        if kind == "pop":
            await admin.set_request_mode("G", TOPIC, "POP")
    tries = await fail_until(cluster, KINDS[kind], MANY)
    assert tries == list(range(len(tries)))
    assert len(tries) >= MANY
    assert dead_count(cluster) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_the_consumers_own_bound_goes_before_the_groups(cluster: LocalCluster, kind: str) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=-1)
        if kind == "pop":
            await admin.set_request_mode("G", TOPIC, "POP")
    config = KINDS[kind]
    fields = {name: getattr(config, name) for name in config.__slots__} | {"retry_count_max": 0}
    assert await fail_until(cluster, ConsumerConfig(**fields), 10) == [0]


async def received(cluster: LocalCluster, config: SimpleConsumerConfig, count: int) -> list[int]:
    """The tries of a message that is never acknowledged, until there are `count` of them or a dead letter."""
    tries: list[int] = []
    async with cluster.simple_consumer("G", {TOPIC: "*"}, config=config) as consumer, asyncio.timeout(60):
        while len(tries) < count and not dead_count(cluster):
            for message in await consumer.receive(invisible_s=10, wait_s=0):
                tries.append(message.reconsume_times)
                await consumer.change_invisible(message, 0)
            await cluster.advance_clock(2)
    return tries


async def test_a_simple_consumer_gives_up_after_the_groups_bound(cluster: LocalCluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=2)
    assert await received(cluster, SimpleConsumerConfig(), 10) == [0, 1, 2]
    async with cluster.admin() as admin:
        (dead_letter,) = [dead_letter async for dead_letter in admin.dead_letters("G")]
    assert (dead_letter.topic, dead_letter.tries, dead_letter.reason) == (
        TOPIC,
        3,
        "not acknowledged in 3 deliveries",
    )


async def test_a_simple_consumer_never_gives_up_without_a_bound(cluster: LocalCluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=-1)
    tries = await received(cluster, SimpleConsumerConfig(), MANY)
    assert (len(tries), tries[-1], dead_count(cluster)) == (MANY, MANY - 1, 0)


async def test_a_simple_consumers_own_bound_goes_first(cluster: LocalCluster) -> None:
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=-1)
    assert await received(cluster, SimpleConsumerConfig(retry_count_max=0), 10) == [0]


@pytest.mark.parametrize(("group_bound", "requested", "dead"), [(-1, "", 0), (-1, "-1", 0), (0, "-1", 1)])
async def test_a_request_without_a_bound_leaves_it_to_the_group(
    cluster: LocalCluster, group_bound: int, requested: str, dead: int
) -> None:
    """CONSUMER_SEND_MSG_BACK and a send to the retry topic (apache/rocketmq 7842)."""
    async with cluster.admin() as admin:
        await admin.create_group("G", retry_count_max=group_bound)
    back = {"offset": "0", "group": "G", "delayLevel": "0", "originTopic": TOPIC, "unitMode": "false"}
    again = send_request("%RETRY%G")
    assert again.ext is not None
    again.ext["j"] = "1"
    if requested:
        back["maxReconsumeTimes"] = again.ext["l"] = requested
    remoting = RemotingClient(clock=cluster.clock, network=cluster.network)
    try:
        for request in (RemotingCommand(36, back), again):
            reply = await remoting.invoke(cluster.broker_addresses[0], request)
            assert reply.code == 0, reply.remark
    finally:
        await remoting.close()
    await wait_until(lambda: dead_count(cluster) == 2 * dead)


async def test_a_broker_that_does_not_say_leaves_the_default(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without permission to read the group, or a RocketMQ 4 broker."""
    asked: list[str] = []
    async with cluster.simple_consumer("G", {TOPIC: "*"}) as consumer:

        async def refuse(address: str, command: RemotingCommand) -> RemotingCommand:
            if command.code == 352:
                asked.append(address)
            raise RemoteError(16, "no permission")

        retries = group_retries.GroupRetries(consumer._session, "G")
        monkeypatch.setattr(consumer._session, "invoke", refuse)
        bounds = await asyncio.gather(*(retries.bound("broker-a", TOPIC) for _ in range(5)))
        assert (bounds, await retries.requested("broker-a", TOPIC)) == ([16] * 5, None)
        assert len(asked) == 1
        await cluster.advance_clock(31)
        await retries.bound("broker-a", TOPIC)
        assert len(asked) == 2
