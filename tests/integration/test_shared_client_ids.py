"""Two consumers of one group under one client id, as containers make them: each message is delivered once, and it is said."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from aerobee.client import ClientConfig, ConsumeFrom, ConsumerConfig
from aerobee.client.session.session import Session
from aerobee.message import Message
from aerobee.ops.diagnosis.doctor import examine
from aerobee.ops.diagnosis.why_facts import gather_group
from aerobee.ops.diagnosis.why_rules import findings
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

TOPIC = "orders"
SAME = ClientConfig(instance="1", client_ip="172.17.0.2")
PUSH = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
SHARED_OUT = ConsumerConfig(consume_from=ConsumeFrom.FIRST, client_rebalance=False)
COUNT = 40


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.create_topic(TOPIC, 4)
        yield cluster


async def send(cluster: LocalCluster) -> None:
    async with cluster.producer() as producer:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"%d" % number))


def queues(consumer: object) -> set[int]:
    return {queue.queue_id for queue in consumer.owned if queue.topic == TOPIC}  # type: ignore[attr-defined]


async def test_only_one_of_them_gets_messages_until_it_leaves(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    seen: tuple[Counter[bytes], Counter[bytes]] = (Counter(), Counter())
    first = cluster.push_consumer(
        "G", [TOPIC], lambda message: seen[0].update([message.body]), config=PUSH, client=SAME
    )
    await cluster.advance_clock(0.01)  # their times of subscription differ
    second = cluster.push_consumer(
        "G", [TOPIC], lambda message: seen[1].update([message.body]), config=PUSH, client=SAME
    )
    async with second:
        with caplog.at_level(logging.WARNING):
            async with first:
                assert first.client_id == second.client_id
                await wait_until(lambda: queues(first) == {0, 1, 2, 3} and queues(second) == set())
                await send(cluster)
                await wait_until(lambda: seen[0].total() == COUNT)
                async with cluster.admin() as admin:
                    said = findings(await gather_group(admin, "G", None), None)
                (why,) = [each for each in said if each.kind == "shared-id"]
                doctor = [
                    each for each in await examine([cluster.nameserver_address]) if each.check == "client ids"
                ]
        assert seen[1].total() == 0
        addresses = why.facts["addresses"]
        assert len(set(addresses)) == 2
        for text in (caplog.text, why.text, doctor[0].detail):
            assert all(address in text for address in addresses)
        assert f"has the client id {second.client_id}" in caplog.text
        await wait_until(lambda: queues(second) == {0, 1, 2, 3})
        await send(cluster)
        await wait_until(lambda: seen[1].total() == COUNT)


async def test_both_get_queues_where_the_broker_shares_them_out(cluster: LocalCluster) -> None:
    seen: Counter[bytes] = Counter()
    first = cluster.push_consumer(
        "G", [TOPIC], lambda message: seen.update([message.body]), config=SHARED_OUT, client=SAME
    )
    await cluster.advance_clock(0.01)
    second = cluster.push_consumer(
        "G", [TOPIC], lambda message: seen.update([message.body]), config=SHARED_OUT, client=SAME
    )
    async with first, second:

        async def are_shared_out() -> bool:
            await cluster.advance_clock(5)
            return len(queues(first)) == len(queues(second)) == 2 and not queues(first) & queues(second)

        await wait_until(are_shared_out)
        await send(cluster)
        await wait_until(lambda: seen.total() == COUNT)
    assert set(seen.values()) == {1}


async def test_clients_that_are_not_named_have_ids_of_their_own() -> None:
    """Containers: one address, process id 1."""
    sessions = [Session("127.0.0.1:9", config=ClientConfig(client_ip="172.17.0.2")) for _ in range(3)]
    for session in sessions:
        await session.start()
    try:
        assert len({session.client_id for session in sessions}) == 3
    finally:
        for session in sessions:
            await session.close()
