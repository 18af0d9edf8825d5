"""Plans carried out at clusters that others change meanwhile, and what a broker keeps besides a topic's queues."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee import Message
from aerobee.client import SimpleConsumerConfig
from aerobee.errors import NoPermission
from aerobee.message import MessageQueue
from aerobee.placement.apply import DrainTimeout, PlanOutgrown
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.cluster import PlacementAdmin
from aerobee.placement.plan import TopicChange
from aerobee.placement.steps import State
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.leaving import LEAVES
from tests.integration.placement.plans import (
    AWAY,
    FAST_ROUTES,
    FREE,
    KEYS,
    ORDER,
    Crash,
    admin_of,
    applier,
    counts,
    make,
    plan_of,
    settled,
)
from tests.waiting import wait_until

ONE_BY_ONE = ApplyConfig(parallel=1, changes_per_minute=1e6, routes_s=0, grace_s=0, poll_s=0.02, drain_s=60)
IMPATIENT = ApplyConfig(changes_per_minute=1e6, routes_s=0, grace_s=0, poll_s=0.02, drain_s=0.3)


@pytest.fixture
async def cluster():
    async with LocalCluster(
        brokers=2, nameserver_config={**ORDER, "deleteTopicWithBrokerRegistration": "true"}
    ) as cluster:
        yield cluster


async def has_read_nothing(cluster: LocalCluster, admin: PlacementAdmin, group: str, topic: str) -> None:
    await admin.create_group(group)
    async with cluster.pull_consumer(group) as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        await consumer.commit(dict.fromkeys(queues, 0))


async def enlarge(cluster: LocalCluster, topic: str) -> None:
    """What another operator does: eight queues at broker-a, and a message in one that no plan knows."""
    await cluster.create_topic(topic, queues=8, brokers=[0])
    async with cluster.producer() as producer:
        await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 6))


async def test_queues_created_between_look_and_change_stay(cluster, tmp_path: Path):
    await make(cluster, FREE)
    async with admin_of(cluster) as admin:
        await has_read_nothing(cluster, admin, "readers", "free")
        seed = admin.seed

        async def seeded(*arguments: object) -> None:
            await seed(*arguments)  # type: ignore[arg-type]
            await enlarge(cluster, "free")

        admin.seed = seeded  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as failed:
            await applier(cluster, admin, plan_of(cluster, FREE), tmp_path / "journal").run()
        assert failed.group_contains(PlanOutgrown, match="8 queues to read and 8 to write at broker-a")
        assert (await counts(admin, "free"))["broker-a"] == State(8, 8)


async def test_queues_created_while_keys_catch_up_stay(cluster, tmp_path: Path):
    change = TopicChange(
        topic="keys",
        before={"broker-a": 2, "broker-b": 2},
        after={"broker-a": 1, "broker-b": 3},
        keeps_keys=True,
    )
    await make(cluster, change)
    async with admin_of(cluster) as admin:
        await has_read_nothing(cluster, admin, "readers", "keys")
        put_order, texts = admin.put_order, []

        async def put(topic: str, text: str) -> None:
            await put_order(topic, text)
            texts.append(text)
            if len(texts) == 2:  # the final one: all queues are read to their end
                await enlarge(cluster, topic)

        admin.put_order = put  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as failed:
            await applier(
                cluster, admin, plan_of(cluster, change), tmp_path / "journal", config=ONE_BY_ONE
            ).run()
        assert failed.group_contains(PlanOutgrown, match="8 queues to read and 8 to write at broker-a")
        assert (await counts(admin, "keys"))["broker-a"] == State(8, 8)


async def test_a_topic_that_is_changed_before_its_turn_comes_is_not_touched(cluster, tmp_path: Path):
    await make(cluster, FREE, AWAY)
    async with admin_of(cluster) as admin:
        seed = admin.seed

        async def seeded(topic: str, *arguments: object) -> None:
            await seed(topic, *arguments)  # type: ignore[arg-type]
            if topic == "free":
                await cluster.create_topic("away", queues=8, brokers=[0])

        admin.seed = seeded  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as failed:
            await applier(
                cluster, admin, plan_of(cluster, FREE, AWAY), tmp_path / "journal", config=ONE_BY_ONE
            ).run()
        assert failed.group_contains(PlanOutgrown, match="topic away has 8 queues")
        assert await counts(admin, "away") == settled(broker_a=8, broker_b=1)
        assert await counts(admin, "free") == settled(broker_a=1, broker_b=3)


async def test_a_broker_that_gets_a_topic_gets_all_its_settings(cluster, tmp_path: Path):
    """What is acknowledged there is as safe as before, and is kept as long."""
    attributes = "+ack.level=flushed,+reserve.time=360000000,+message.type=NORMAL"
    await cluster.create_topic("safe", queues=4, brokers=[0], attributes=attributes)
    change = TopicChange(topic="safe", before={"broker-a": 4}, after={"broker-a": 2, "broker-b": 2})
    async with admin_of(cluster) as admin:
        await applier(cluster, admin, plan_of(cluster, change), tmp_path / "journal").run()
        masters = await admin.master_addresses()
        infos = [await admin.topic_config_at("safe", masters[name]) for name in ("broker-a", "broker-b")]
        assert [(info.ack, info.message_type) for info in infos] == [("flushed", "NORMAL")] * 2
        states, settings, _ = await admin.states("safe", {"broker-b": masters["broker-b"]})
        assert states == settled(broker_b=2)
        assert settings is not None
        assert settings.attributes["reserve.time"] == "360000000"


async def test_messages_that_a_pop_group_gets_again_hold_their_broker(cluster, tmp_path: Path):
    """They are in a separate topic, which is only read where their topic is, and is deleted with it."""
    await make(cluster, LEAVES)
    sent = {b"0", b"1", b"2"}
    async with (
        admin_of(cluster) as admin,
        cluster.producer() as producer,
        cluster.simple_consumer(
            "poppers", {"away": "*"}, config=SimpleConsumerConfig(wait_s=0.5), client=FAST_ROUTES
        ) as consumer,
    ):
        await admin.create_group("poppers")
        for body in sent:
            await producer.send(Message("away", body))
        taken: list[bytes] = []
        while len(taken) < len(sent):
            for message in await consumer.receive():
                taken.append(message.body)
                await consumer.change_invisible(message, 1.0)

        async def come_again() -> bool:
            await cluster.advance_clock(1)
            return not await admin.invisible_messages("poppers", "away")

        await wait_until(come_again, "what was taken is offered again", timeout_s=60)
        plan = plan_of(cluster, LEAVES)
        with pytest.raises(ExceptionGroup) as failed:
            await applier(cluster, admin, plan, tmp_path / "journal", config=IMPATIENT).run()
        assert failed.group_contains(DrainTimeout, match="group poppers gets 3 messages of broker-a again")
        again: set[bytes] = set()
        async with asyncio.timeout(60):
            while again != sent:
                for message in await consumer.receive():
                    again.add(message.body)
                    await consumer.ack(message)
        await applier(cluster, admin, plan, tmp_path / "journal").run()
        assert await counts(admin, "away") == settled(broker_b=1)


async def test_a_broker_that_refuses_to_tell_what_is_handed_out_keeps_its_queues(
    cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A refusal is not "nothing": what is handed out comes again where its topic is, or never."""
    await make(cluster, LEAVES)
    async with (
        admin_of(cluster) as admin,
        cluster.producer() as producer,
        cluster.simple_consumer(
            "poppers", {"away": "*"}, config=SimpleConsumerConfig(wait_s=0.5), client=FAST_ROUTES
        ) as consumer,
    ):
        await admin.create_group("poppers")
        await producer.send(Message("away", b"x"))
        while not (taken := await consumer.receive()):
            pass
        call = admin._call

        async def refuse(address: str, code: RequestCode, *rest: object) -> RemotingCommand:
            if code == RequestCode.AEROBEE_LIST_POPS:
                raise NoPermission(ResponseCode.NO_PERMISSION, "not for you")
            return await call(address, code, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(admin, "_call", refuse)
        with pytest.raises(ExceptionGroup) as failed:
            await applier(
                cluster, admin, plan_of(cluster, LEAVES), tmp_path / "journal", config=IMPATIENT
            ).run()
        assert failed.group_contains(NoPermission)
        states, _, _ = await admin.states("away", await admin.master_addresses())
        assert states["broker-a"].read == 1
        await consumer.ack(taken[0])


async def test_what_a_run_that_was_cut_off_had_asked_for_is_waited_for(cluster, tmp_path: Path):
    """The way back would find nothing to do otherwise, and leave what the broker makes a moment later."""
    await make(cluster, FREE, KEYS)
    async with admin_of(cluster) as admin:
        plan, put_state = plan_of(cluster, FREE, KEYS), admin.put_state
        waiting = asyncio.Event()
        late: list[asyncio.Task[None]] = []

        async def at_a_slow_broker(*request: object) -> None:
            await waiting.wait()
            await put_state(*request)  # type: ignore[arg-type]

        async def put(topic: str, *rest: object) -> None:
            if topic != "keys" or late:
                await put_state(topic, *rest)  # type: ignore[arg-type]
            else:
                late.append(asyncio.create_task(at_a_slow_broker(topic, *rest)))
                await asyncio.shield(late[0])

        def crash(event: str, step: object, reason: str) -> None:
            if event == "done":
                raise Crash

        admin.put_state = put  # type: ignore[method-assign,assignment]
        with pytest.raises(BaseExceptionGroup) as crashed:
            await applier(cluster, admin, plan, tmp_path / "journal", watch=crash).run()
        assert crashed.group_contains(Crash)
        admin.put_state = put_state  # type: ignore[method-assign]
        clock, sleeps = cluster.clock, []

        class Sleeping:
            """Its first sleep lasts until the late request is through."""

            def __getattr__(self, name: str) -> object:
                return getattr(clock, name)

            async def sleep(self, seconds: float) -> None:
                if not sleeps:
                    waiting.set()
                    await late[0]
                sleeps.append(seconds)
                await clock.sleep(seconds)

        back = applier(cluster, admin, plan, tmp_path / "journal")
        back._clock = Sleeping()
        await back.run(back=True)
        waiting.set()
        await late[0]
        assert await counts(admin, "free") == settled(broker_a=4)
        assert await counts(admin, "keys") == settled(broker_a=4)


async def test_an_offset_behind_the_end_has_read_nothing(cluster):
    """RocketMQ's brokers keep the offsets of a topic that was deleted and recreated."""
    await make(cluster, LEAVES)
    async with admin_of(cluster) as admin, cluster.producer() as producer:
        await has_read_nothing(cluster, admin, "readers", "away")
        await producer.send(Message("away", b"x"))
        assert "1 messages" in await admin.unread("away", "broker-a", range(1), frozenset())
        cluster.broker(0).offsets.commit("readers", "away", 0, 100)
        assert "1 messages" in await admin.unread("away", "broker-a", range(1), frozenset())
