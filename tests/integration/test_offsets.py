"""Moving groups: plans, members online or not, both ways in which brokers reset, copies."""

from __future__ import annotations

import asyncio

import pytest

from aerobee import Message, MessageQueue
from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    OffsetTarget,
    Producer,
    PullConsumerConfig,
    Sql,
)
from aerobee.errors import UsageError
from aerobee.testing.local_cluster import LocalCluster
from tests.waiting import wait_until

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


async def fill(cluster, queues=2, each=5):
    await cluster.create_topic("orders", queues=queues)
    async with Producer(cluster.nameserver_address, "PG") as producer:
        for queue in await producer.queues("orders"):
            for number in range(each):
                await producer.send(Message("orders", b"%d" % number), queue=queue)


async def consume_all(cluster, group, count):
    seen = []
    async with cluster.push_consumer(group, {"orders": "*"}, lambda m: seen.append(m), config=FIRST):
        await wait_until(lambda: len(seen) >= count)
    return seen


async def anyway(value):
    return value


def target_offsets(moves):
    return [(move.queue.queue_id, move.before, move.after) for move in moves]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (OffsetTarget.earliest(), [(0, 5, 0), (1, 5, 0)]),
        (OffsetTarget.latest(), [(0, 5, 5), (1, 5, 5)]),
        (OffsetTarget.offset(3), [(0, 5, 3), (1, 5, 3)]),
        (OffsetTarget.offset(99), [(0, 5, 5), (1, 5, 5)]),
        (OffsetTarget.relative(-2), [(0, 5, 3), (1, 5, 3)]),
        (OffsetTarget.relative(-99), [(0, 5, 0), (1, 5, 0)]),
        (OffsetTarget.time(0), [(0, 5, 0), (1, 5, 0)]),
        (OffsetTarget.time(1 << 45), [(0, 5, 5), (1, 5, 5)]),
    ],
)
async def test_a_plan_says_where_each_queue_goes_and_changes_nothing(target, expected):
    async with LocalCluster() as cluster, cluster.admin() as admin:
        await fill(cluster)
        await consume_all(cluster, "G", 10)
        plan = await admin.plan_offsets("G", "orders", target)
        assert target_offsets(plan) == expected
        assert [move.before for move in await admin.offsets("G", "orders")] == [5, 5]
        done = await admin.move_offsets("G", plan)
        assert [move.after for move in done] == [after for _, _, after in expected]
        assert [move.before for move in await admin.offsets("G", "orders")] == [
            after for _, _, after in expected
        ]


async def test_one_queue_is_moved_and_nothing_forward_when_that_is_asked_for():
    async with LocalCluster() as cluster, cluster.admin() as admin:
        await fill(cluster)
        await consume_all(cluster, "G", 10)
        first = MessageQueue("orders", "broker-a", 0)
        back = await admin.plan_offsets("G", "orders", OffsetTarget.offset(2), queues=[first])
        assert target_offsets(await admin.move_offsets("G", back)) == [(0, 5, 2)]
        plan = await admin.plan_offsets("G", "orders", OffsetTarget.offset(4), may_skip=False)
        assert target_offsets(plan) == [(0, 2, 2), (1, 5, 4)]
        assert plan[0].note
        with pytest.raises(UsageError):
            await admin.plan_offsets(
                "G", "orders", OffsetTarget.latest(), queues=[MessageQueue("orders", "broker-a", 9)]
            )


@pytest.mark.parametrize("server_side", [True, False])
async def test_online_members_continue_at_the_reset_offset(server_side):
    """True: the next pull is answered with the new offset. False: the broker pushes RESET_CONSUMER_CLIENT_OFFSET."""
    async with (
        LocalCluster(broker_config={"use_server_side_reset_offset": server_side}) as cluster,
        cluster.admin() as admin,
    ):
        await fill(cluster, queues=1)
        seen = []
        async with cluster.push_consumer(
            "G", {"orders": "*"}, lambda m: seen.append(m.queue_offset), config=FIRST
        ):
            await wait_until(lambda: len(seen) == 5)
            await admin.move_offsets("G", await admin.plan_offsets("G", "orders", OffsetTarget.offset(3)))
            await wait_until(lambda: len(seen) == 7)
            assert seen == [0, 1, 2, 3, 4, 3, 4]
        assert [move.before for move in await admin.offsets("G", "orders")] == [5]


async def test_what_is_shown_after_a_pushed_reset_is_what_the_members_committed():
    async with (
        LocalCluster(broker_config={"use_server_side_reset_offset": False}) as cluster,
        cluster.admin() as admin,
    ):
        await fill(cluster)
        await consume_all(cluster, "G", 10)
        async with cluster.push_consumer("G", {"orders": "*"}, lambda _: None, config=FIRST):
            plan = await admin.plan_offsets("G", "orders", OffsetTarget.offset(2))
            done = await admin.move_offsets("G", plan)
            assert target_offsets(done) == [(0, 5, 2), (1, 5, 2)]
            assert [move.note for move in done] == ["", ""]


async def test_a_member_that_is_at_the_end_again_is_not_taken_for_one_that_did_not_follow():
    async with LocalCluster() as cluster, cluster.admin() as admin:
        await fill(cluster, queues=1)
        await consume_all(cluster, "G", 5)
        plan = await admin.plan_offsets("G", "orders", OffsetTarget.offset(2))
        committed = admin._committed
        admin._committed = lambda group, queue: anyway(5)  # as if it had consumed everything in no time
        (move,) = await admin.move_offsets("G", plan)
        admin._committed = committed
        assert (move.after, move.note) == (2, "members have gone on to 5 already")
        assert [move.before for move in await admin.offsets("G", "orders")] == [2]


async def test_members_that_do_not_follow_a_pushed_reset_are_told_of(monkeypatch):
    monkeypatch.setattr("aerobee.client.admin.offsets.FOLLOW_WAIT_S", 0.1)
    async with (
        LocalCluster(broker_config={"use_server_side_reset_offset": False}) as cluster,
        cluster.admin() as admin,
    ):
        await fill(cluster, queues=1)
        await consume_all(cluster, "G", 5)
        await cluster.create_topic("other")
        async with cluster.push_consumer("G", {"other": "*"}, lambda _: None):
            plan = await admin.plan_offsets("G", "orders", OffsetTarget.offset(2))
            (move,) = await admin.move_offsets("G", plan)
    assert move.after == 5
    assert "not committed" in move.note


async def test_a_member_that_starts_after_a_reset_begins_there_at_once():
    async with LocalCluster() as cluster, cluster.admin() as admin:
        await fill(cluster, queues=1)
        await consume_all(cluster, "G", 5)
        await admin.move_offsets("G", await admin.plan_offsets("G", "orders", OffsetTarget.offset(4)))
        assert [message.queue_offset for message in await consume_all(cluster, "G", 1)] == [4]
        assert [move.before for move in await admin.offsets("G", "orders")] == [5]


async def test_a_group_gets_the_offsets_of_another_one():
    async with LocalCluster() as cluster, cluster.admin() as admin:
        await fill(cluster)
        await consume_all(cluster, "G", 10)
        await admin.create_group("H")
        plan = await admin.plan_clone("G", "H", "orders")
        assert target_offsets(plan) == [(0, None, 5), (1, None, 5)]
        assert plan[0].distance == 5
        await admin.move_offsets("H", plan)
        assert [move.before for move in await admin.offsets("H", "orders")] == [5, 5]


async def test_members_that_differ_are_named_to_the_admin():
    async with LocalCluster() as cluster, cluster.admin() as admin:
        await fill(cluster)
        async with (
            cluster.push_consumer("G", {"orders": "A"}, print) as first,
            cluster.push_consumer("G", {"orders": "B"}, print) as second,
        ):
            found = (await admin.consumer_connections("G")).conflicts
            assert {(c.client_id, c.expression) for c in found} | {
                (c.other_client_id, c.other_expression) for c in found
            } == {(first.client_id, "A"), (second.client_id, "B")}


async def test_sql92_pulls_are_held_and_woken_by_what_matches():
    async with LocalCluster(broker_config={"enable_property_filter": True}) as cluster:
        await cluster.create_topic("orders", queues=1)
        config = PullConsumerConfig(consume_from=ConsumeFrom.FIRST)
        async with (
            cluster.pull_consumer("G", config=config) as consumer,
            Producer(cluster.nameserver_address, "PG") as producer,
        ):
            await consumer.subscribe("orders", Sql("price > 5"))
            polled = asyncio.create_task(consumer.poll(5))
            await wait_until(lambda: cluster.broker().pending_pulls.count == 1)
            await producer.send(Message("orders", b"cheap", properties={"price": "1"}))
            await producer.send(Message("orders", b"dear", properties={"price": "9"}))
            assert [message.body for message in await polled] == [b"dear"]
