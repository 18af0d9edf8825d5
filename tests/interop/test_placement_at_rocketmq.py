"""`aerobee placement` at brokers of RocketMQ: plans carried out under load, cut off after each step, taken back."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from aerobee.client import Admin, SimpleConsumerConfig
from aerobee.clock import AdvancingClock
from aerobee.message import Message, MessageQueue
from aerobee.placement.apply_config import ApplyConfig
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.leaving import LEAVES
from tests.integration.placement.plans import (
    AWAY,
    FAST_ROUTES,
    FREE,
    KEYS,
    Crash,
    Load,
    admin_of,
    applier,
    counts,
    make,
    plan_of,
    settled,
)
from tests.interop.rocketmq import Broker, NameServer, routed_brokers
from tests.waiting import wait_until

# RocketMQ's brokers notify nameservers of a changed topic immediately; the consumers here ask for their route ten times a second.
INVISIBLE_S = 10.0  # the least that SimpleConsumer asks for
CONFIG = ApplyConfig(changes_per_minute=1e6, routes_s=1.0, grace_s=0.5, poll_s=0.1, drain_s=120.0)
# Between RocketMQ's timer, revive log and retry topic a record is nowhere for a moment, which a busy machine makes longer.
PATIENT = replace(CONFIG, grace_s=3.0)


class AtRocketMQ(LocalCluster):
    """The clients of a LocalCluster, at servers of RocketMQ."""

    def __init__(self, nameserver: NameServer, brokers: list[Broker]) -> None:
        super().__init__(brokers=0, clock=AdvancingClock())
        self._address = nameserver.address
        self._servers = brokers

    @property
    def nameserver_address(self) -> str:
        return self._address

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(each.broker_name for each in self._servers)

    async def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        perm: int = 6,
        attributes: str = "",
        brokers: Sequence[int] | None = None,
    ) -> None:
        async with Admin(self._address) as admin:
            for index in brokers or range(len(self._servers)):
                broker = self._servers[index]
                await admin.create_topic(name, queue_count=queues, broker=broker.address)
                # It tells its nameserver after it has answered.
                await wait_until(
                    lambda broker=broker: broker.broker_name in routed_brokers(self._address, name)
                )


@pytest.fixture(params=["true", "false"], ids=["deleted", "kept without permissions"])
async def cluster(
    request: pytest.FixtureRequest, peers: None, tmp_path: pathlib.Path
) -> AsyncIterator[AtRocketMQ]:
    nameserver = NameServer(
        "rocketmq", tmp_path, orderMessageEnable="true", deleteTopicWithBrokerRegistration=request.param
    )
    brokers = [
        # Without it a change of one topic is registered as all that a broker has, and nameservers that forget forget the others.
        Broker(
            "rocketmq", tmp_path / name, nameserver.address, brokerName=name, enableSingleTopicRegister="true"
        )
        for name in ("broker-a", "broker-b")
    ]
    try:
        nameserver.start()
        for broker in brokers:
            broker.start()
        yield AtRocketMQ(nameserver, brokers)
    finally:
        for server in (*brokers, nameserver):
            server.kill()


async def test_plans_are_carried_out_cut_off_and_taken_back_at_brokers_of_rocketmq(
    cluster: AtRocketMQ, tmp_path: pathlib.Path
):
    await make(cluster, FREE, AWAY, KEYS)
    async with (
        admin_of(cluster) as admin,
        Load(cluster, "free", by_key=False) as free,
        Load(cluster, "away", by_key=False) as away,
        Load(cluster, "keys", by_key=True) as keys,
    ):
        plan, journal = plan_of(cluster, FREE, AWAY, KEYS), tmp_path / "journal"
        for back, wanted in (
            (
                False,
                {
                    "free": settled(broker_a=1, broker_b=3),
                    "away": settled(broker_b=3),
                    "keys": settled(broker_a=2, broker_b=3),
                },
            ),
            (
                True,
                {
                    "free": settled(broker_a=4),
                    "away": settled(broker_a=2, broker_b=1),
                    "keys": settled(broker_a=4),
                },
            ),
        ):
            seen: set[str] = set()

            def crash(event: str, step: object, reason: str, seen: set[str] = seen) -> None:
                if event == "done" and str(step) not in seen:
                    seen.add(str(step))
                    if len(seen) % 4 == 0:
                        raise Crash

            is_through = False
            while not is_through:
                try:
                    await applier(cluster, admin, plan, journal, config=CONFIG, watch=crash).run(back=back)
                    is_through = True
                except* Crash:
                    is_through = False
            assert len(seen) >= 20
            for topic, states in wanted.items():
                assert await counts(admin, topic) == states
            assert await admin.order_entry("keys") is None
        for load in (free, away, keys):
            await load.check()


async def test_what_pop_has_handed_out_holds_a_broker_that_does_not_tell(
    cluster: AtRocketMQ, tmp_path: pathlib.Path
):
    """RocketMQ's broker counts messages as consumed when POP has handed them out. What is not acknowledged comes again there, or never."""
    await make(cluster, LEAVES)
    sent = {b"0", b"1", b"2"}
    config = SimpleConsumerConfig(wait_s=1.0, invisible_s=INVISIBLE_S)
    async with (
        admin_of(cluster) as admin,
        cluster.producer() as producer,
        cluster.simple_consumer("poppers", {"away": "*"}, config=config, client=FAST_ROUTES) as consumer,
    ):
        await admin.create_group("poppers")
        for body in sent:
            await producer.send(Message("away", body), queue=MessageQueue("away", "broker-a", 0))
        taken: set[bytes] = set()
        async with asyncio.timeout(60):
            while taken != sent:
                taken |= {message.body for message in await consumer.receive()}
        seen: list[str] = []
        running = asyncio.create_task(
            applier(
                cluster, admin, plan_of(cluster, LEAVES), tmp_path / "journal", config=PATIENT,
                watch=lambda event, step, reason: seen.append(reason),
            ).run()
        )  # fmt: skip
        again: set[bytes] = set()
        async with asyncio.timeout(120):
            while again != sent:
                for message in await consumer.receive():
                    again.add(message.body)
                    await consumer.ack(message)
        assert not running.done(), "it has waited for them"
        done, _ = await asyncio.wait([running], timeout=120)
        assert done, f"it still waits: {seen[-3:]}"
        await running
        assert any("records of POP are not settled at broker-a" in reason for reason in seen)
        assert await counts(admin, "away") == settled(broker_b=1)
