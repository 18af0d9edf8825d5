"""Three members of one group join, leave and die while messages flow.

Nothing may be lost. A message may come twice where the protocol allows it: when a queue changed hands, or its owner
died, between the handler and the commit. AEROBEE_MEMBERS_MESSAGES sets how many messages flow (100,000 takes about
a minute); a few thousand by default.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest

from aerobee.client import ConsumeFrom, ConsumerConfig, Producer, PushConsumer
from aerobee.message import Message
from aerobee.testing.local_cluster import LocalCluster

MESSAGES = int(os.environ.get("AEROBEE_MEMBERS_MESSAGES", "4000"))
QUEUES = 6
LIMIT_S = 120 + MESSAGES / 200
CONFIG = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.2, drain_s=5.0)


class Members:
    """The members that are alive, and what they got."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.got: Counter[bytes] = Counter()
        self.alive: list[PushConsumer] = []

    async def join(self) -> PushConsumer:
        consumer = PushConsumer(
            self.cluster.nameserver_address,
            "G",
            subscriptions={"orders": "*"},
            handler=self.handle,
            config=CONFIG,
        )
        await consumer.start()
        self.alive.append(consumer)
        return consumer

    async def handle(self, message) -> None:
        await asyncio.sleep(0)
        self.got[message.body] += 1

    async def leave(self, consumer: PushConsumer) -> None:
        self.alive.remove(consumer)
        await consumer.close()

    async def die(self, consumer: PushConsumer) -> None:
        """As a killed process: connections break, nothing is committed, no broker is notified."""
        self.alive.remove(consumer)
        for connection in tuple(consumer._session.remoting.connections):
            connection.abort("killed")
        await consumer._session.tasks.close()
        consumer._session._known_by.clear()
        await consumer._session.close()

    def each_queue_has_one_owner(self) -> bool:
        owned = [queue for member in self.alive for queue in member.owned if queue.topic == "orders"]
        return len(owned) == QUEUES == len(set(owned))

    async def settle(self) -> None:
        """Wait until each queue has one owner, the shares even."""
        async with asyncio.timeout(60):
            while not (self.each_queue_has_one_owner() and self.shares_are_even()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def shares_are_even(self) -> bool:
        shares = [len([q for q in member.owned if q.topic == "orders"]) for member in self.alive]
        return max(shares) - min(shares) <= 1


@pytest.fixture
async def cluster():
    async with LocalCluster() as running:
        await running.create_topic("orders", queues=QUEUES)
        yield running


async def test_nothing_is_lost_while_members_join_leave_and_die(cluster):
    members = Members(cluster)
    sent = 0

    async def produce() -> None:
        nonlocal sent
        async with Producer(cluster.nameserver_address, "PG") as producer:
            for start in range(0, MESSAGES, 50):
                batch = [Message("orders", b"%d" % n) for n in range(start, min(start + 50, MESSAGES))]
                await producer.send_batch(batch)
                sent += len(batch)
                await asyncio.sleep(0.001)

    async def progress(share: float) -> None:
        while sent < MESSAGES * share:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    async with asyncio.timeout(LIMIT_S):
        producing = asyncio.create_task(produce())
        first = await members.join()
        await members.settle()
        second = await members.join()
        await members.settle()
        await progress(0.2)
        third = await members.join()
        await members.settle()
        await progress(0.4)
        await members.leave(first)
        await members.settle()
        await progress(0.6)
        await members.die(second)
        await members.settle()
        await members.join()
        await members.settle()
        await progress(0.8)
        await members.leave(third)
        await members.settle()
        await producing
        while len(members.got) < MESSAGES:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for member in tuple(members.alive):
        await members.leave(member)

    assert set(members.got) == {b"%d" % n for n in range(MESSAGES)}
    twice = sum(count - 1 for count in members.got.values())
    print(f"{MESSAGES} messages, {twice} deliveries more than needed over 6 changes of membership")
    # What is between handler and commit when a queue changes hands: cached messages of each moved queue at most.
    assert twice <= 6 * QUEUES * CONFIG.cached_count_max
