"""`aerobee placement` at brokers of RocketMQ: plans carried out under load, cut off after each step, taken back."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator, Sequence

import pytest

from aerobee.client import Admin
from aerobee.clock import AdvancingClock
from aerobee.placement.apply import ApplyConfig
from aerobee.testing.local_cluster import LocalCluster
from tests.integration.placement.test_apply import (
    AWAY,
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

# RocketMQ's brokers tell nameservers of a changed topic at once; the consumers here ask for their route ten times a second.
CONFIG = ApplyConfig(changes_per_minute=1e6, routes_s=1.0, grace_s=0.5, poll_s=0.1, drain_s=120.0)


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
