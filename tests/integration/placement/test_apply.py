"""Plans carried out at a real cluster: cut off at each step and resumed, taken back, refused; what consumers get meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aerobee import Message
from aerobee.client import TransactionState
from aerobee.errors import UsageError
from aerobee.message import MessageQueue
from aerobee.placement.apply import DrainTimeout, PlanOutgrown
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.journal import Journal
from aerobee.placement.plan import Plan, TopicChange
from aerobee.placement.steps import State
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.plans import (
    AWAY,
    FREE,
    KEYS,
    NOTHING,
    ORDER,
    Crash,
    Load,
    admin_of,
    applier,
    counts,
    make,
    plan_of,
    settled,
)
from tests.waiting import wait_until


@pytest.fixture
async def cluster(request: pytest.FixtureRequest):
    """Its nameservers forget the topic that a broker no longer has, or keep it for ever as RocketMQ's do unless told otherwise."""
    forgets = {"deleteTopicWithBrokerRegistration": str(getattr(request, "param", True)).lower()}
    async with LocalCluster(brokers=2, nameserver_config={**ORDER, **forgets}) as cluster:
        yield cluster


@pytest.mark.parametrize("cluster", [True, False], ids=["deleted", "kept without permissions"], indirect=True)
async def test_queues_move_under_load_and_nothing_is_lost(cluster, tmp_path: Path):
    await make(cluster, FREE, AWAY)
    async with (
        admin_of(cluster) as admin,
        Load(cluster, "free", by_key=False) as free,
        Load(cluster, "away", by_key=False) as away,
    ):
        plan = plan_of(cluster, FREE, AWAY)
        done = await applier(cluster, admin, plan, tmp_path / "journal").run()
        assert done >= 10
        assert await counts(admin, "free") == settled(broker_a=1, broker_b=3)
        assert await counts(admin, "away") == settled(broker_b=3)
        await free.check()
        await away.check()
        assert await applier(cluster, admin, plan, tmp_path / "journal").left() == []


async def test_keys_keep_their_order_while_their_queues_change_and_change_back(cluster, tmp_path: Path):
    await make(cluster, KEYS)
    async with admin_of(cluster) as admin, Load(cluster, "keys", by_key=True) as load:
        plan = plan_of(cluster, KEYS)
        await applier(cluster, admin, plan, tmp_path / "journal").run()
        assert await counts(admin, "keys") == settled(broker_a=2, broker_b=3)
        assert await admin.order_entry("keys") is None
        count = len(load.acknowledged)
        await wait_until(lambda: len(load.acknowledged) > count + 50, "producers continue")
        await applier(cluster, admin, plan, tmp_path / "journal").run(back=True)
        assert await counts(admin, "keys") == settled(broker_a=4)
        await load.check()


async def test_a_plan_interrupted_at_each_step_resumes_and_reverts(cluster, tmp_path: Path):
    """One run that crashes at every step in turn, until it gets through; then the same on the way back."""
    await make(cluster, FREE, KEYS)
    async with (
        admin_of(cluster) as admin,
        Load(cluster, "free", by_key=False) as free,
        Load(cluster, "keys", by_key=True) as keys,
    ):
        plan = plan_of(cluster, FREE, KEYS)
        for back, wanted in (
            (False, {"free": settled(broker_a=1, broker_b=3), "keys": settled(broker_a=2, broker_b=3)}),
            (True, {"free": settled(broker_a=4), "keys": settled(broker_a=4)}),
        ):
            seen: set[tuple[str, str]] = set()

            def crash(event: str, step: object, reason: str, seen: set[tuple[str, str]] = seen) -> None:
                if event != "wait" and (event, str(step)) not in seen:
                    seen.add((event, str(step)))
                    raise Crash(f"{event} {step}")

            runs, is_through = 0, False
            while not is_through:
                runs += 1
                assert runs < 300, "it never came through"
                try:
                    await applier(cluster, admin, plan, tmp_path / "journal", watch=crash).run(back=back)
                    is_through = True
                except* Crash:
                    is_through = False
            assert len(seen) >= 30
            for topic, states in wanted.items():
                assert await counts(admin, topic) == states
        await free.check()
        await keys.check()


@pytest.mark.parametrize("after_steps", [0, 4, 9, 14])
async def test_taken_back_from_wherever_it_stopped(cluster, tmp_path: Path, after_steps: int):
    await make(cluster, FREE, AWAY, KEYS)
    async with admin_of(cluster) as admin:
        plan = plan_of(cluster, FREE, AWAY, KEYS)
        left = after_steps

        def crash(event: str, step: object, reason: str) -> None:
            nonlocal left
            if event == "done":
                left -= 1
                if left < 0:
                    raise Crash

        with pytest.raises(BaseExceptionGroup) as crashed:
            await applier(cluster, admin, plan, tmp_path / "journal", watch=crash).run()
        assert crashed.group_contains(Crash)
        await applier(cluster, admin, plan, tmp_path / "journal").run(back=True)
        assert await counts(admin, "free") == settled(broker_a=4)
        assert await counts(admin, "away") == settled(broker_a=2, broker_b=1)
        assert await counts(admin, "keys") == settled(broker_a=4)
        assert await admin.order_entry("keys") is None


async def test_a_plan_that_the_cluster_has_outgrown_touches_nothing(cluster, tmp_path: Path):
    await make(cluster, FREE)
    journal = tmp_path / "journal"
    async with admin_of(cluster) as admin:
        plan = plan_of(cluster, FREE)
        await cluster.create_topic("free", queues=5, brokers=[0])
        with pytest.raises(
            PlanOutgrown, match="5 queues to read and 5 to write at broker-a, the plan knows 4/4"
        ):
            await applier(cluster, admin, plan, journal).run()
        assert await counts(admin, "free") == settled(broker_a=5)
        assert Journal(journal).events() == []
        await cluster.create_topic("free", queues=4, brokers=[0])
        await cluster.create_topic("free", queues=1, brokers=[1])
        with pytest.raises(PlanOutgrown, match="at broker-b, the plan knows 0/0"):
            await applier(cluster, admin, plan, journal).run()
        missing = TopicChange(topic="free", before={"broker-a": 4}, after={"broker-z": 4})
        with pytest.raises(PlanOutgrown, match="broker-z"):
            await applier(cluster, admin, plan_of(cluster, missing), journal).run()
        gone = TopicChange(topic="gone", before={"broker-a": 4}, after={"broker-b": 4})
        with pytest.raises(PlanOutgrown, match="gone is not there"):
            await applier(cluster, admin, plan_of(cluster, gone), journal).run()
        old = Plan(
            made_at_ms=cluster.clock.now_ms() - 25 * 3_600_000, changes=(), before=NOTHING, after=NOTHING
        )
        with pytest.raises(PlanOutgrown, match="25 hours old"):
            await applier(cluster, admin, old, journal).run()
        with pytest.raises(UsageError, match="nothing of this plan was applied"):
            await applier(cluster, admin, plan, journal).run(back=True)


async def test_a_second_run_of_a_running_plan_is_refused(cluster, tmp_path: Path):
    await make(cluster, FREE)
    async with admin_of(cluster) as admin:
        plan = plan_of(cluster, FREE)
        refusals = []

        async def also() -> None:
            with pytest.raises(UsageError, match="another process is applying or reverting"):
                await applier(cluster, admin, plan, tmp_path / "journal").run(back=True)
            refusals.append(1)

        async with asyncio.TaskGroup() as tasks:

            def watch(event: str, step: object, reason: str) -> None:
                if event == "done":
                    tasks.create_task(also())

            done = await applier(cluster, admin, plan, tmp_path / "journal", watch=watch).run()
            assert done >= 5
        assert refusals
        assert await counts(admin, "free") == settled(broker_a=1, broker_b=3)
        await applier(cluster, admin, plan, tmp_path / "journal").run(back=True)
        assert await counts(admin, "free") == settled(broker_a=4)


async def test_queues_that_a_group_has_not_read_are_not_removed(cluster, tmp_path: Path):
    await make(cluster, FREE)
    async with admin_of(cluster) as admin, cluster.producer() as producer:
        await admin.create_group("slow")
        for queue in await producer.queues("free"):
            await producer.send(Message("free", b"x"), queue=queue)
        async with cluster.pull_consumer("slow") as consumer:
            queues = await consumer.queues("free")
            await consumer.assign(queues)
            await consumer.commit(dict.fromkeys(queues, 0))
        config = ApplyConfig(changes_per_minute=1e6, routes_s=0, grace_s=0, poll_s=0.02, drain_s=0.3)
        plan = plan_of(cluster, FREE)
        with pytest.raises(ExceptionGroup) as failed:
            await applier(cluster, admin, plan, tmp_path / "journal", config=config).run()
        assert failed.group_contains(DrainTimeout, match="group slow has 1 messages to read in broker-a:1")
        assert (await counts(admin, "free"))["broker-a"] == State(4, 1)
        ignoring = ApplyConfig(
            changes_per_minute=1e6, routes_s=0, grace_s=0, poll_s=0.02, ignored_groups=frozenset({"slow"})
        )
        await applier(cluster, admin, plan, tmp_path / "journal", config=ignoring).run()
        assert (await counts(admin, "free"))["broker-a"] == State(1, 1)


async def test_a_topic_changed_by_another_client_keeps_its_messages(cluster, tmp_path: Path):
    away = TopicChange(topic="away", before={"broker-a": 2}, after={"broker-b": 2})
    await make(cluster, away)
    waits: list[str] = []
    config = ApplyConfig(changes_per_minute=1e6, routes_s=0, grace_s=3600, poll_s=0.02, drain_s=3600)
    async with admin_of(cluster) as admin, cluster.producer() as producer:
        running = asyncio.create_task(
            applier(
                cluster,
                admin,
                plan_of(cluster, away),
                tmp_path / "journal",
                config=config,
                watch=lambda event, step, reason: waits.append(reason),
            ).run()
        )
        await wait_until(lambda: "for the grace time" in waits)
        await cluster.create_topic("away", queues=8, brokers=[0])
        await producer.send(Message("away", b"x"), queue=MessageQueue("away", "broker-a", 5))
        with pytest.raises(ExceptionGroup) as failed:
            await running
        assert failed.group_contains(PlanOutgrown, match="8 queues to read and 8 to write at broker-a")
        assert (await counts(admin, "away"))["broker-a"] == State(8, 8)
        assert (await admin.ends("away", "broker-a", range(8)))[5] == 1


@pytest.mark.parametrize("left", [0, 1], ids=["all queues", "one queue of two"])
async def test_a_message_that_comes_as_a_removal_is_cut_off_is_shown_again(
    cluster, tmp_path: Path, left: int
):
    change = TopicChange(
        topic="away",
        before={"broker-a": 2},
        after={"broker-b": 2, **({"broker-a": left} if left else {})},
    )
    await make(cluster, change)
    async with admin_of(cluster) as admin, cluster.producer() as producer:
        await admin.create_group("readers")
        async with cluster.pull_consumer("readers") as consumer:
            queues = await consumer.queues("away")
            await consumer.assign(queues)
            await consumer.commit(dict.fromkeys(queues, 0))
        plan, put_state = plan_of(cluster, change), admin.put_state

        async def put(topic: str, address: str, state: State, settings: object) -> None:
            """The moment between the last look and the removal, after which the process ends."""
            now, _ = await admin.state_at(topic, address)
            if state != State(left, left) or now != State(2, left):
                return await put_state(topic, address, state, settings)
            await put_state(topic, address, State(2, 2), settings)
            await producer.send(Message(topic, b"late"), queue=MessageQueue(topic, "broker-a", 1))
            await put_state(topic, address, state, settings)
            raise Crash

        admin.put_state = put  # type: ignore[method-assign,assignment]
        with pytest.raises(BaseExceptionGroup) as failed:
            await applier(cluster, admin, plan, tmp_path / "journal").run()
        assert failed.group_contains(Crash)
        admin.put_state = put_state  # type: ignore[method-assign]
        quick = ApplyConfig(changes_per_minute=1e6, routes_s=0, grace_s=0, poll_s=0.02, drain_s=0.3)
        assert await applier(cluster, admin, plan, tmp_path / "journal").left()
        with pytest.raises(BaseExceptionGroup) as failed:
            await applier(cluster, admin, plan, tmp_path / "journal", config=quick).run()
        assert failed.group_contains(DrainTimeout, match="group readers has 1 messages to read in broker-a:1")
        assert (await counts(admin, "away"))["broker-a"] == State(2, left)
        seen: list[bytes] = []
        async with cluster.push_consumer("readers", {"away": "*"}, lambda m: seen.append(m.body)):
            await wait_until(lambda: seen == [b"late"])
        await applier(cluster, admin, plan, tmp_path / "journal").run()
        assert await counts(admin, "away") == settled(broker_b=2, **({"broker_a": left} if left else {}))


async def test_what_no_plan_may_move_is_refused(cluster, tmp_path: Path):
    await make(cluster, FREE)
    await cluster.create_topic("fifo", queues=4, brokers=[0], attributes="+message.type=FIFO")
    journal = tmp_path / "journal"
    async with admin_of(cluster) as admin:

        async def refused(topic: str, says: str, kind: type[UsageError] = UsageError, **more: object) -> None:
            change = TopicChange(topic=topic, before={"broker-a": 4}, after={"broker-b": 4}, **more)  # type: ignore[arg-type]
            with pytest.raises(kind, match=says):
                await applier(cluster, admin, plan_of(cluster, change), journal).run()
            assert Journal(journal).events() == []

        await refused("SCHEDULE_TOPIC_XXXX", "belongs to the brokers")
        await refused("fifo", "order is promised in topic fifo")
        await admin.put_order("free", "broker-a:4")
        await refused("free", "has an order configuration, but the plan")
        await admin.put_order("free", "broker-a:3")
        await refused("free", "'broker-a:3', its queues are 'broker-a:4'", keeps_keys=True)
        tomorrow = Plan(
            made_at_ms=cluster.clock.now_ms() + 86_400_000, changes=(FREE,), before=NOTHING, after=NOTHING
        )
        with pytest.raises(PlanOutgrown, match="1440 minutes from now"):
            await applier(cluster, admin, tomorrow, journal).run()
        assert await counts(admin, "free") == settled(broker_a=4)


async def test_a_topic_that_fails_stops_no_other(cluster, tmp_path: Path):
    await make(cluster, FREE, AWAY)
    async with admin_of(cluster) as admin, cluster.producer() as producer:
        await admin.create_group("slow")
        for queue in await producer.queues("free"):
            await producer.send(Message("free", b"x"), queue=queue)
        async with cluster.pull_consumer("slow") as consumer:
            queues = await consumer.queues("free")
            await consumer.assign(queues)
            await consumer.commit(dict.fromkeys(queues, 0))
        # "free" has failed long before "away" is through.
        config = ApplyConfig(changes_per_minute=1e6, routes_s=0, grace_s=0.5, poll_s=0.02, drain_s=0.1)
        plan = plan_of(cluster, FREE, AWAY)
        with pytest.raises(ExceptionGroup) as failed:
            await applier(cluster, admin, plan, tmp_path / "journal", config=config).run()
        (failure,) = failed.value.exceptions
        assert isinstance(failure, DrainTimeout)
        assert await counts(admin, "away") == settled(broker_b=3)
        noted = [event for event in Journal(tmp_path / "journal").events() if event["event"] == "failed"]
        assert [(event["topic"], event["reason"]) for event in noted] == [("free", str(failure))]


async def test_an_order_configuration_that_was_there_leads_producers_all_the_time(cluster, tmp_path: Path):
    """RocketMQ's clients go by it whatever permissions are, and so do ours: it is absent while no client may write, and comes back."""
    change = TopicChange(
        topic="keys",
        before={"broker-a": 2, "broker-b": 2},
        after={"broker-a": 1, "broker-b": 3},
        keeps_keys=True,
    )
    await make(cluster, change)
    async with admin_of(cluster) as admin:
        # Not in the sequence in which a route lists brokers: the text assigns keys to queues.
        await admin.put_order("keys", "broker-b:2;broker-a:2")
        async with Load(cluster, "keys", by_key=True) as load:
            plan = plan_of(cluster, change)
            await applier(cluster, admin, plan, tmp_path / "journal").run()
            assert await counts(admin, "keys") == settled(broker_a=1, broker_b=3)
            assert await admin.order_entry("keys") == "broker-a:1;broker-b:3"
            await applier(cluster, admin, plan, tmp_path / "journal").run(back=True)
            assert await counts(admin, "keys") == settled(broker_a=2, broker_b=2)
            assert await admin.order_entry("keys") == "broker-b:2;broker-a:2"
            await load.check()


async def test_the_last_request_of_a_run_that_was_cut_off_may_arrive_late(cluster, tmp_path: Path):
    """A broker may carry it out when the next run has looked already: that is no foreign change."""
    await make(cluster, FREE)
    async with admin_of(cluster) as admin:
        plan, put_state, late = plan_of(cluster, FREE), admin.put_state, [State(3, 3)]

        async def put(topic: str, address: str, state: State, settings: object) -> None:
            await put_state(topic, address, state, settings)
            if state == State(3, 0) and late:
                await put_state(topic, address, late.pop(), settings)

        def crash(event: str, step: object, reason: str) -> None:
            if event == "done" and "to write" in str(step):
                raise Crash

        with pytest.raises(BaseExceptionGroup) as crashed:
            await applier(cluster, admin, plan, tmp_path / "journal", watch=crash).run()
        assert crashed.group_contains(Crash)
        admin.put_state = put  # type: ignore[method-assign,assignment]
        await applier(cluster, admin, plan, tmp_path / "journal").run(back=True)
        assert not late
        assert await counts(admin, "free") == settled(broker_a=4)


@pytest.mark.parametrize("kind", ["timer", "level", "transaction"])
async def test_queues_into_which_something_will_come_are_not_removed(cluster, tmp_path: Path, kind: str):
    """No client may write to them any more, but what was sent before still arrives: it has to be seen by consumers."""
    away = TopicChange(topic="away", before={"broker-a": 1}, after={"broker-b": 1})
    await make(cluster, away)
    seen: list[bytes] = []
    waited: list[str] = []
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(admin_of(cluster))
        producer = await stack.enter_async_context(
            cluster.transaction_producer("deciders", checker=lambda message: TransactionState.UNKNOWN)
        )
        if kind == "timer":
            await producer.send(Message("away", b"late", properties={"TIMER_DELAY_MS": "2000"}))
        elif kind == "level":
            await producer.send(Message("away", b"late", delay_level=2))
        else:
            opened = await producer.send_in_transaction(
                Message("away", b"late"), executor=lambda message, argument: TransactionState.UNKNOWN
            )
        config = ApplyConfig(changes_per_minute=1e6, routes_s=0, grace_s=0, poll_s=0.05, drain_s=60)

        def watch(event: str, step: object, reason: str) -> None:
            if event == "wait":
                waited.append(reason)

        async def decide() -> None:
            await wait_until(lambda: any("transactions" in reason for reason in waited))
            await admin.resolve_transaction(opened.transaction_id, "commit")

        async with cluster.push_consumer("readers", {"away": "*"}, lambda m: seen.append(m.body)):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(
                    applier(
                        cluster,
                        admin,
                        plan_of(cluster, away),
                        tmp_path / "journal",
                        config=config,
                        watch=watch,
                    ).run()
                )
                if kind == "transaction":
                    tasks.create_task(decide())
            await wait_until(lambda: seen == [b"late"])
        assert any(
            {"timer": "timer messages", "level": "SCHEDULE_TOPIC_XXXX", "transaction": "are open"}[kind]
            in reason
            for reason in waited
        ), waited
        assert await counts(admin, "away") == settled(broker_b=1)


async def test_keys_are_not_moved_where_routes_carry_no_order_configuration(tmp_path: Path):
    async with LocalCluster(brokers=2) as cluster:
        await make(cluster, KEYS)
        async with admin_of(cluster) as admin:
            with pytest.raises(UsageError, match="orderMessageEnable=true"):
                await applier(cluster, admin, plan_of(cluster, KEYS), tmp_path / "journal").run()
            assert await counts(admin, "keys") == settled(broker_a=4)
