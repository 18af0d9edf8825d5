"""Priorities: sent by our client, popped from the highest down."""

from __future__ import annotations

import asyncio

from aerobee.clock import AdvancingClock
from aerobee.message import Message
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.testing import LocalCluster
from tests.integration.pop_requests import pop


async def test_a_pop_of_a_priority_topic_gets_higher_priorities_first() -> None:
    async with asyncio.timeout(20), LocalCluster() as cluster:
        await cluster.create_topic("jobs", 3, attributes="+message.type=PRIORITY")
        async with cluster.producer() as producer:
            for number, priority in enumerate((0, 2, 1, 9, 0, 1, 2)):
                result = await producer.send(
                    Message("jobs", b"%d.%d" % (priority, number), priority=priority)
                )
                assert result.queue.queue_id == min(priority, 2)
        client = RemotingClient(clock=AdvancingClock(), network=AsyncioNetwork())
        try:
            bodies = [
                message.body
                for count in (2, 2, 32)
                for message in await pop(client, cluster.broker(), "jobs", count=count)
            ]
        finally:
            await client.close()
    assert bodies == [b"2.1", b"9.3", b"2.6", b"1.2", b"1.5", b"0.0", b"0.4"]
