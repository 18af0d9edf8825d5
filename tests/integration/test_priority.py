"""Priorities: sent by our client, popped from the highest down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aerobee.clock import AdvancingClock
from aerobee.message import Message
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster
from tests.integration.pop_requests import ack, pop
from tests.waiting import wait_until


async def test_a_pop_of_a_priority_topic_gets_higher_priorities_first() -> None:
    async with asyncio.timeout(60), LocalCluster() as cluster:
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


@contextlib.asynccontextmanager
async def jobs_cluster(
    queues: int, **config: object
) -> AsyncIterator[tuple[LocalCluster, RemotingClient, Callable[..., Awaitable[None]]]]:
    """A cluster with the PRIORITY topic `jobs`, a client, and what changes the broker's settings."""
    client = RemotingClient(clock=AdvancingClock(), network=AsyncioNetwork())
    async with asyncio.timeout(120), LocalCluster(broker_config=config) as cluster:
        await cluster.create_topic("jobs", queues, attributes="+message.type=PRIORITY")

        async def change(**values: str) -> None:
            text = "".join(f"{key}={value}\n" for key, value in values.items())
            reply = await client.invoke(cluster.broker().address, RemotingCommand(25, body=text.encode()))
            assert (reply.code, reply.remark) == (0, None)

        try:
            yield cluster, client, change
        finally:
            await client.close()


async def send_priorities(cluster: LocalCluster, *priorities: int) -> None:
    async with cluster.producer() as producer:
        for priority in priorities:
            await producer.send(Message("jobs", b"%d" % priority, priority=priority))


async def test_the_order_of_priorities_can_be_turned_around_at_run_time() -> None:
    async with jobs_cluster(3) as (cluster, client, change):
        await send_priorities(cluster, 1, 0, 2)
        for group, ascending, expected in (
            ("one", "false", [b"0", b"1", b"2"]),
            ("two", "true", [b"2", b"1", b"0"]),
        ):
            await change(priorityOrderAsc=ascending)
            got = await pop(client, cluster.broker(), "jobs", group, count=3)
            assert [message.body for message in got] == expected


async def test_a_message_that_comes_again_keeps_its_priority_where_that_is_set() -> None:
    async with jobs_cluster(3, pop_from_retry_probability=100) as (cluster, client, change):
        broker, retry = cluster.broker(), "%RETRY%group_jobs"
        clock = cluster.clock
        assert isinstance(clock, AdvancingClock)

        async def again(*priorities: int) -> None:
            """Pop everything and let its time run out."""
            await send_priorities(cluster, *priorities)
            before = sum(
                queue.max_offset for (topic, _), queue in broker.store.queues.items() if topic == retry
            )
            assert len(await pop(client, broker, "jobs", invisible_ms=1_000)) == len(priorities)
            clock.advance(3)
            await wait_until(
                lambda: (
                    sum(
                        queue.max_offset
                        for (topic, _), queue in broker.store.queues.items()
                        if topic == retry
                    )
                    == before + len(priorities)
                ),
                "the copies in the retry topic",
            )

        await again(0, 2)
        assert broker.store.max_offset(retry, 0) == 2, "all in queue 0 unless it is set"
        await change(useSeparateRetryQueue="true", popFromRetryProbabilityForPriority="100")
        assert len(await pop(client, broker, "jobs")) == 2
        await again(0, 2, 1)
        assert [broker.store.max_offset(retry, queue) for queue in range(3)] == [3, 1, 1]
        await send_priorities(cluster, 2)
        got = await pop(client, broker, "jobs", count=4)
        # The retry topic first, as popFromRetryProbabilityForPriority says, and there by priority too.
        assert [(message.body, message.record.reconsume_times) for message in got] == [
            (b"2", 1), (b"1", 1), (b"0", 1), (b"2", 0),
        ]  # fmt: skip
        # Queues that are added later have theirs in the retry topic as well.
        await cluster.create_topic("jobs", 6, attributes="")
        await again(5)
        assert broker.store.max_offset(retry, 5) == 1
        (message,) = await pop(client, broker, "jobs")
        assert (message.body, message.record.queue_id) == (b"5", 5)
        assert await ack(client, broker, message) == 0


async def test_a_waiting_pop_gets_what_comes_again_in_a_queue_that_was_added_since() -> None:
    async with jobs_cluster(1, use_separate_retry_queue=True) as (cluster, client, _):
        broker = cluster.broker()
        clock = cluster.clock
        assert isinstance(clock, AdvancingClock)
        assert await pop(client, broker, "jobs") == []
        first = asyncio.create_task(pop(client, broker, "jobs", poll_ms=300_000))
        await asyncio.sleep(0)
        await client.invoke(broker.address, RemotingCommand(28))
        await cluster.create_topic("jobs", 4, attributes="")
        second = asyncio.create_task(pop(client, broker, "jobs", poll_ms=300_000))
        await asyncio.sleep(0)
        await client.invoke(broker.address, RemotingCommand(28))
        await send_priorities(cluster, 3)
        done, _ = await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        assert [message.body for task in done for message in task.result()] == [b"3"]
        await send_priorities(cluster, 2)
        await asyncio.wait((first, second))


async def test_a_new_group_from_the_end_gets_a_young_queue_whole_unless_that_is_off() -> None:
    async with jobs_cluster(1) as (cluster, client, change):
        await send_priorities(cluster, 0, 1, 2)
        broker = cluster.broker()
        assert len(await pop(client, broker, "jobs", "one", init_mode=1)) == 3
        await change(initPopOffsetByCheckMsgInMem="false")
        assert len(await pop(client, broker, "jobs", "two", init_mode=1)) == 1
        # A notification and a peek set no offset of a new group.
        ask = {"consumerGroup": "three", "topic": "jobs", "queueId": "-1", "pollTime": "0"}
        await client.invoke(broker.address, RemotingCommand(200_054, ask))
        await client.invoke(broker.address, RemotingCommand(200_052, {**ask, "maxMsgNums": "1"}))
        assert len(await pop(client, broker, "jobs", "three", init_mode=1)) == 1
