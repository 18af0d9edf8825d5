"""The collector of client metrics: what its samples say after sends, handler calls, failures and dead letters."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.client import (
    ConsumeFrom,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    ReceivedMessage,
    Reject,
    RetryLater,
    SimpleConsumerConfig,
)
from aerobee.client.base.metering import METERS
from aerobee.errors import SendFailed
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.waiting import wait_until

pytest.importorskip("prometheus_client", reason="needs the extra prometheus")

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from aerobee.contrib.prometheus import AerobeeCollector

FIRST = ConsumeFrom.FIRST


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    METERS.disable()
    registry = CollectorRegistry()
    registry.register(AerobeeCollector())
    yield registry
    METERS.disable()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """A sample; 0 when there is none."""
    return registry.get_sample_value(f"aerobee_client_{name}", labels) or 0.0


async def test_sends_of_every_kind_are_counted(registry: CollectorRegistry) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 2)
        async with cluster.producer("g") as producer:
            for _ in range(3):
                await producer.send(Message("t", b"plain"))
            await producer.send(Message("t", b"ordered"), message_group="a")
            await producer.send_batch([Message("t", b"one"), Message("t", b"two")])
            await producer.send_oneway(Message("t", b"oneway"))
            labels = {"client": "producer", "group": "g"}
            assert value(registry, "sent_messages_total", **labels, topic="t") == 7
            assert value(registry, "send_seconds_count", **labels, topic="t") == 5
            assert value(registry, "open", **labels) == 1
            assert value(registry, "connections", **labels) >= 1
            assert value(registry, "in_flight", **labels) == 0
        async with cluster.producer("g", config=ProducerConfig(linger_ms=1)) as lingering:
            await asyncio.gather(*(lingering.send(Message("t", b"lingers")) for _ in range(5)))
    assert value(registry, "sent_messages_total", **labels, topic="t") == 12
    assert value(registry, "send_seconds_count", **labels, topic="t") == 10
    assert value(registry, "open", **labels) == 0
    buckets = [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "aerobee_client_send_seconds_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 10


async def test_failed_sends_count_their_error_and_retries(registry: CollectorRegistry) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer("g") as producer:
            await producer.queues("t")
            await cluster.stop_broker()
            with pytest.raises(SendFailed):
                await producer.send(Message("t", b"lost"), timeout_s=0.5)
    labels = {"client": "producer", "group": "g", "topic": "t"}
    assert value(registry, "send_failures_total", **labels, error="SendFailed") == 1
    assert value(registry, "send_retries_total", **labels) >= 1
    assert value(registry, "sent_messages_total", **labels) == 0


@pytest.mark.parametrize("kind", ["concurrent", "orderly", "pop"])
async def test_handler_calls_failures_and_dead_letters(registry: CollectorRegistry, kind: str) -> None:
    seen: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"poison":
            raise Reject("never")

    config = ConsumerConfig(
        consume_from=FIRST, orderly=kind == "orderly", client_rebalance=kind != "pop", pull_hold_s=0.2
    )
    labels = {"client": "push_consumer", "group": "readers"}
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            for body in (b"a", b"poison", b"b"):
                await producer.send(Message("t", body))
        async with cluster.push_consumer("readers", ["t"], handle, config=config):
            await wait_until(lambda: value(registry, "dead_letters_total", **labels, topic="t") == 1)
            await wait_until(lambda: value(registry, "consumed_messages_total", **labels, topic="t") == 2)
            assert value(registry, "handler_seconds_count", **labels, topic="t") == 3
            assert value(registry, "handler_failures_total", **labels, topic="t", error="Reject") == 1
            assert value(registry, "received_messages_total", **labels, topic="t") == 3
            if kind != "pop":
                await wait_until(lambda: value(registry, "queues", **labels, topic="t") == 1)
                await wait_until(lambda: value(registry, "lag_messages", **labels, topic="t") == 0)
            assert value(registry, "open", **labels) == 1


async def test_lag_and_buffered_messages_of_a_blocked_handler(registry: CollectorRegistry) -> None:
    release = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await release.wait()
        raise RetryLater("not yet")

    labels = {"client": "push_consumer", "group": "readers"}
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send_batch([Message("t", b"x" * 100) for _ in range(5)])
        config = ConsumerConfig(consume_from=FIRST, concurrency=2)
        async with cluster.push_consumer("readers", ["t"], handle, config=config):
            await wait_until(lambda: value(registry, "in_flight", **labels) == 2)
            assert value(registry, "lag_messages", **labels, topic="t") == 5
            assert value(registry, "buffered_messages", **labels, topic="t") == 5
            assert value(registry, "buffered_bytes", **labels, topic="t") > 500
            release.set()
            await wait_until(lambda: value(registry, "retried_messages_total", **labels, topic="t") == 5)


async def test_pull_and_simple_consumers_are_counted(registry: CollectorRegistry) -> None:
    async with LocalCluster() as cluster:
        await cluster.create_topic("t", 1)
        async with cluster.producer() as producer:
            await producer.send_batch([Message("t", b"x") for _ in range(4)])
        config = PullConsumerConfig(consume_from=FIRST)
        async with cluster.pull_consumer("pullers", config=config) as consumer:
            await consumer.subscribe("t")
            while (
                value(registry, "consumed_messages_total", client="pull_consumer", group="pullers", topic="t")
                < 4
            ):
                await consumer.poll(1.0)
            assert value(registry, "lag_messages", client="pull_consumer", group="pullers", topic="t") == 0
        labels = {"client": "simple_consumer", "group": "simple", "topic": "t"}
        async with cluster.simple_consumer(
            "simple", ["t"], config=SimpleConsumerConfig(from_begin=True)
        ) as simple:
            taken: list[ReceivedMessage] = []
            while len(taken) < 4:
                taken += await simple.receive(wait_s=1.0)
            await simple.ack(taken[0])
            await simple.ack_all(taken[1:2])
            await simple.change_invisible(taken[2], 30)
            await simple.dead_letter(taken[3], "no")
    assert value(registry, "received_messages_total", **labels) == 4
    assert value(registry, "consumed_messages_total", **labels) == 2
    assert value(registry, "retried_messages_total", **labels) == 1
    assert value(registry, "dead_letters_total", **labels) == 1


async def test_scrape_in_another_thread_reads_the_same(registry: CollectorRegistry) -> None:
    async with LocalCluster() as cluster, cluster.producer("g") as producer:
        await cluster.create_topic("t", 1)
        await producer.send(Message("t", b"x"))
        server, thread = start_http_server(0, "127.0.0.1", registry)
        try:
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=60).read().decode())
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = found["aerobee_client_sent_messages"].samples
    assert (sample.labels, sample.value) == ({"client": "producer", "group": "g", "topic": "t"}, 1.0)


def test_each_metric_is_in_the_documentation(registry: CollectorRegistry) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(aerobee_client_\w+)`", page))
    families = set(re.findall(r"^# TYPE (\S+)", generate_latest(registry).decode(), re.MULTILINE))
    assert named == families
