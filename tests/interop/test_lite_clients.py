"""Lite topics: our own client at a broker of either product, and what only brokers of ours serve."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aerobee import LiteConsumer, Message, Producer
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import LITE_BIND_TOPIC, TYPE_ATTRIBUTE
from aerobee.testing import LocalCluster
from tests.integration.grpc.through import BOTH, served
from tests.interop.java_topics import make_topic
from tests.interop.rocketmq import Cluster, Driver, Proxy, grpc_scenarios
from tests.interop.test_proxy import plain

LMQS = {"enableLmq": "true", "enableMultiDispatch": "true"}
TOPIC, GROUP = "our_lite", "Gour_lite"
WARM = b"warm"


@pytest.mark.parametrize("product", ["aerobee", "rocketmq"])
def test_our_producer_and_consumer_of_lite_topics(product: str, driver: Driver, tmp_path: Path) -> None:
    """A group begins at the end of a lite topic there, with its first pop: so each gets messages until one of them arrives."""
    cluster = Cluster(product, tmp_path, **LMQS)
    try:
        cluster.start()
        make_topic(driver, cluster, TOPIC, a="+message.type=LITE")
        attributes = ("--attributes", f"+lite.bind.topic={TOPIC}")
        assert "success" in driver.admin(
            cluster.namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", GROUP, *attributes
        )
        found = asyncio.run(exchange(cluster.namesrv))
    finally:
        cluster.stop()
    assert found == {"a": [b"m0", b"m3", b"m6", b"m9"], "b": [b"m1", b"m4", b"m7", b"m10"]}


async def exchange(nameservers: str) -> dict[str, list[bytes]]:
    """Send twelve messages to three lite topics, of which one client subscribes two; returns what it got, in order."""
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    async with (
        Producer(nameservers, "PGour_lite") as producer,
        LiteConsumer(nameservers, GROUP, TOPIC, ["a", "b"]) as consumer,
        asyncio.timeout(240),
    ):

        async def take() -> None:
            for message in await consumer.receive(wait_s=2.0):
                found[message.lite_topic].append(message.body)
                await consumer.ack(message)

        for name, bodies in found.items():
            while not bodies:
                await producer.send(Message(TOPIC, WARM), lite_topic=name)
                await take()
        for number in range(12):
            await producer.send(Message(TOPIC, b"m%d" % number), lite_topic=("a", "b", "gone")[number % 3])
        while sum(body != WARM for bodies in found.values() for body in bodies) < 8:
            await take()
    return {name: [body for body in bodies if body != WARM] for name, bodies in found.items()}


@pytest.mark.parametrize("through", BOTH)
async def test_a_lite_simple_consumer_of_python(through: str, tmp_path: Path) -> None:
    """RocketMQ's proxy 5.5.0 refuses consumers of this kind."""
    async with LocalCluster(broker_config={"enable_lmq": True, "enable_multi_dispatch": True}) as cluster:
        broker = cluster.broker()
        broker.topics.put(TopicConfig("py_litesimple", 4, 4, attributes={TYPE_ATTRIBUTE: "LITE"}))
        attributes = {LITE_BIND_TOPIC: "py_litesimple"}
        broker.groups.put(SubscriptionGroupConfig("Gpy_litesimple", attributes=attributes))
        async with served(cluster, through) as address:
            texts = await asyncio.to_thread(grpc_scenarios, "python", address, "py", tmp_path, "litesimple")
    assert plain(texts["litesimple"]) == "{a: [m0, m3, m6, m9], b: [m1, m10, m4, m7]}"


def test_a_lite_push_consumer_of_python_at_rocketmqs_proxy(driver: Driver, tmp_path: Path) -> None:
    """The outcome that our broker and proxies have (test_proxy.py, test_our_proxy.py, test_grpc.py)."""
    cluster = Cluster("rocketmq", tmp_path / "cluster", **LMQS)
    proxy = Proxy(tmp_path / "proxy", cluster.namesrv)
    try:
        cluster.start()
        make_topic(driver, cluster, "py_lite", a="+message.type=LITE")
        attributes = ("--attributes", "+lite.bind.topic=py_lite")
        assert "success" in driver.admin(
            cluster.namesrv, "updateSubGroup", "-c", "DefaultCluster", "-g", "Gpy_lite", *attributes
        )
        proxy.start()
        texts = grpc_scenarios("python", proxy.address, "py", tmp_path, "lite")
    finally:
        proxy.kill()
        cluster.stop()
    assert plain(texts["lite"]) == "{a: [m0, m3, m6, m9], b: [m1, m10, m4, m7]}"
