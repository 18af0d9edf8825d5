"""Topics, loads and plans of queue placement for the tests that apply plans."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from aerobee import Message
from aerobee.client import ClientConfig, ConsumeFrom, ConsumerConfig
from aerobee.errors import AerobeeError
from aerobee.placement.apply import Applier
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.cluster import PlacementAdmin
from aerobee.placement.journal import Journal
from aerobee.placement.plan import Forecast, Plan, TopicChange
from aerobee.placement.steps import ABSENT, State
from aerobee.testing.local_cluster import LocalCluster
from tests.waiting import wait_until

QUICK = ApplyConfig(changes_per_minute=1e6, routes_s=0.2, grace_s=0.05, poll_s=0.02, drain_s=60.0)
ORDER = {"orderMessageEnable": "true"}
FAST_ROUTES = ClientConfig(route_refresh_s=0.1)
NOTHING = Forecast(imbalance={}, broken_goals={}, loads={})


class Crash(Exception):
    """Ends an apply as kill -9 would, as far as the cluster can tell."""


def plan_of(cluster: LocalCluster, *changes: TopicChange) -> Plan:
    return Plan(made_at_ms=cluster.clock.now_ms(), changes=changes, before=NOTHING, after=NOTHING)


def applier(cluster, admin, plan, path, *, config=QUICK, watch=lambda event, step, reason: None):
    return Applier(admin, plan, Journal(path), clock=cluster.clock, config=config, watch=watch)


def admin_of(cluster: LocalCluster) -> PlacementAdmin:
    return PlacementAdmin(cluster.nameserver_address, clock=cluster.clock, network=cluster.network)


async def counts(admin: PlacementAdmin, topic: str) -> dict[str, State]:
    states, _, remnants = await admin.states(topic, await admin.master_addresses())
    assert not remnants or not await admin.nameservers_forget()
    return {name: state for name, state in states.items() if state != ABSENT}


def settled(**count: int) -> dict[str, State]:
    return {name.replace("_", "-"): State(each, each) for name, each in count.items()}


FREE = TopicChange(topic="free", before={"broker-a": 4}, after={"broker-a": 1, "broker-b": 3})
AWAY = TopicChange(topic="away", before={"broker-a": 2, "broker-b": 1}, after={"broker-b": 3})
KEYS = TopicChange(
    topic="keys", before={"broker-a": 4}, after={"broker-a": 2, "broker-b": 3}, keeps_keys=True
)


async def make(cluster: LocalCluster, *changes: TopicChange) -> None:
    for change in changes:
        for name, count in change.before.items():
            index = cluster.broker_names.index(name)
            await cluster.create_topic(change.topic, queues=count, brokers=[index])


class Load:
    """Producers and consumers of a topic: what was acknowledged, what came, and in which order by key."""

    def __init__(self, cluster: LocalCluster, topic: str, *, by_key: bool) -> None:
        self._cluster = cluster
        self._topic = topic
        self._by_key = by_key
        self.acknowledged: set[bytes] = set()
        self.came: Counter[bytes] = Counter()
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self._ended = False

    async def __aenter__(self) -> Load:
        self._consumer = self._cluster.push_consumer(
            f"{self._topic}-group", {self._topic: "*"}, self._take,
            config=ConsumerConfig(consume_from=ConsumeFrom.LAST, orderly=self._by_key, rebalance_s=0.2, persist_offsets_s=0.1),
            client=FAST_ROUTES,
        )  # fmt: skip
        async with self._cluster.admin() as admin:
            await admin.create_group(f"{self._topic}-group")
        async with self._cluster.pull_consumer(f"{self._topic}-group") as consumer:
            queues = await consumer.queues(self._topic)
            await consumer.assign(queues)
            await consumer.commit(dict.fromkeys(queues, 0))
        await self._consumer.start()
        self._producer = self._cluster.producer(f"{self._topic}-producers", client=FAST_ROUTES)
        await self._producer.start()
        self._sending = asyncio.create_task(self._send())
        await wait_until(lambda: sum(self.came.values()) >= 30)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._ended = True
        await self._sending
        await self._producer.close()
        await self._consumer.close()

    async def _take(self, message: object) -> None:
        self.came[message.body] += 1  # type: ignore[attr-defined]
        key, _, number = message.body.decode().partition(":")  # type: ignore[attr-defined]
        self.by_key[key].append(int(number))

    async def _send(self) -> None:
        number = 0
        while not self._ended:
            key = f"key-{number % 20}"
            body = f"{key}:{number}".encode()
            try:
                # One that was refused is sent again, as a producer that keeps order does.
                await self._producer.send(
                    Message(self._topic, body), **({"message_group": key} if self._by_key else {})
                )
            except AerobeeError:
                await asyncio.sleep(0.02)
                continue
            self.acknowledged.add(body)
            number += 1
            await asyncio.sleep(0.002)

    async def stop_sending(self) -> None:
        self._ended = True
        await self._sending

    async def check(self) -> None:
        """Everything acknowledged came; with keys, each key's numbers in their order, where repeats do not count."""
        await self.stop_sending()
        await wait_until(lambda: self.acknowledged <= set(self.came), "all acknowledged messages")
        if self._by_key:
            for key, numbers in self.by_key.items():
                first_seen = list(dict.fromkeys(numbers))
                assert first_seen == sorted(first_seen), f"{key} came out of order: {numbers}"
