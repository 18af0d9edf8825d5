"""The figures of lag at /metrics against the truth: a filter, POP, broadcast, order, nothing to read, a group that stopped, one that went
back, a bound on topics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from aerobee import Message
from aerobee.broker.exporter.lag_families import OTHER, LagChunks, lag_families
from aerobee.broker.exporter.lag_sampler import Lag
from aerobee.client import ConsumeFrom, ConsumerConfig, MessageModel, ReceivedMessage
from aerobee.clock import SystemClock
from aerobee.monitoring.lag_state import LagState
from aerobee.monitoring.page import PageMaker
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.testing import LocalCluster
from tests.integration.pop_requests import ack_request, pop_request, popped
from tests.waiting import wait_until

METRICS: dict[str, Any] = {
    "metrics_exporter_type": "PROM",
    "metrics_prom_exporter_host": "127.0.0.1",
    "metrics_prom_exporter_port": 0,
    "metrics_lag_interval_millis": 3_600_000,
}

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


async def measured(cluster: LocalCluster, group: str, topic: str) -> Lag | None:
    exporter = cluster.broker().exporter
    assert exporter is not None
    assert exporter._lags is not None
    sample = await exporter._lags.measure()
    return next((lag for lag in sample.lags if (lag.group, lag.topic) == (group, topic)), None)


async def certain(cluster: LocalCluster, group: str, topic: str) -> Lag:
    lag = await measured(cluster, group, topic)
    assert lag is not None
    return lag


async def create_group(cluster: LocalCluster, name: str) -> None:
    async with cluster.admin() as admin:
        await admin.create_group(name)


async def send(cluster: LocalCluster, topic: str, count: int, *, tag: str = "") -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, tag=tag or None))


async def test_lag_behind_a_filter_is_told_raw_and_filtered() -> None:
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("mixed", queues=1)
        await send(cluster, "mixed", 30, tag="b")
        await send(cluster, "mixed", 7, tag="a")
        release = asyncio.Event()

        async def wait(message: ReceivedMessage) -> None:
            await release.wait()

        async with cluster.push_consumer("choosy", subscriptions={"mixed": "a"}, handler=wait, config=FIRST):
            broker = cluster.broker()
            await wait_until(lambda: broker.consumers.subscription("choosy", "mixed"))
            broker.offsets.commit("choosy", "mixed", 0, 0)
            lag = await certain(cluster, "choosy", "mixed")
            assert (lag.messages, lag.wanted) == (37, 7)
            release.set()


async def test_what_pop_has_handed_out_is_lag_until_it_is_acknowledged() -> None:
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("popped", queues=1)
        await send(cluster, "popped", 10)
        broker, client = cluster.broker(), RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
        await create_group(cluster, "poppers")
        reply = await client.invoke(broker.address, pop_request(broker, "popped", "poppers", count=3))
        taken = popped(reply, "popped", "poppers")
        assert len(taken) == 3
        await client.invoke(broker.address, ack_request(taken[0]))
        lag = await certain(cluster, "poppers", "popped")
        assert (lag.messages, lag.in_flight, lag.ready) == (9, 2, 7)
        now_ms = broker.clock.now_ms()
        assert lag.latency_ms is not None
        assert abs(lag.latency_ms - (now_ms - broker.store.store_time("popped", 0, 1))) < 60_000
        for each in taken[1:]:
            await client.invoke(broker.address, ack_request(each))
        lag = await certain(cluster, "poppers", "popped")
        assert (lag.messages, lag.in_flight, lag.ready) == (7, 0, 7)
        await client.close()


async def shown(cluster: LocalCluster, group: str) -> dict[str, float]:
    """The series of lag at /metrics that speak of a group, by name."""
    exporter = cluster.broker().exporter
    assert exporter is not None
    host, port = exporter.address
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/metrics") as answer:
        page = await answer.text()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        if family.name.startswith(
            ("rocketmq_consumer_lag", "rocketmq_consumer_inflight", "aerobee_consumer_")
        )
        for sample in family.samples
        if sample.labels.get("consumer_group") == group
    }


async def test_a_group_that_reads_by_broadcast_has_no_lag_at_a_broker(tmp_path: Path) -> None:
    """Its members keep their offsets themselves: nothing is known here, which is not 0."""
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("news", queues=1)
        await send(cluster, "news", 5)
        seen: list[ReceivedMessage] = []

        async def read(message: ReceivedMessage) -> None:
            seen.append(message)

        config = replace(FIRST, model=MessageModel.BROADCASTING, local_offsets_directory=str(tmp_path))
        async with cluster.push_consumer(
            "listeners", subscriptions={"news": "*"}, handler=read, config=config
        ):
            await wait_until(lambda: len(seen) == 5)
            assert await measured(cluster, "listeners", "news") is None
            assert set(await shown(cluster, "listeners")) == {"aerobee_consumer_members"}
        assert await measured(cluster, "listeners", "news") is None
        assert "rocketmq_consumer_lag_messages" not in await shown(cluster, "listeners")


async def test_lag_of_an_ordered_group_counts_what_waits_behind_its_message() -> None:
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("line", queues=1)
        await send(cluster, "line", 6)
        release, begun = asyncio.Event(), asyncio.Event()
        seen: list[bytes] = []

        async def read(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) == 3:
                begun.set()
                await release.wait()

        broker = cluster.broker()
        config = replace(FIRST, orderly=True, persist_offsets_s=0.05)
        async with cluster.push_consumer(
            "in-order", subscriptions={"line": "*"}, handler=read, config=config
        ):
            await wait_until(begun.is_set)
            await wait_until(lambda: broker.offsets.query("in-order", "line", 0) == 2)
            await cluster.advance_clock(40)
            lag = await certain(cluster, "in-order", "line")
            assert (lag.messages, lag.unknown_queues) == (4, 0)
            assert lag.latency_ms is not None
            age_ms = broker.clock.now_ms() - broker.store.store_time("line", 0, 2)
            assert 40_000 <= lag.latency_ms <= age_ms
            series = await shown(cluster, "in-order")
            assert series["rocketmq_consumer_lag_messages"] == 4
            assert series["rocketmq_consumer_lag_latency"] == lag.latency_ms
            assert series["aerobee_consumer_lock_held_seconds"] >= 40
            assert (
                0
                <= series["aerobee_consumer_lock_age_seconds"]
                <= series["aerobee_consumer_lock_held_seconds"]
            )
            release.set()
            await wait_until(lambda: broker.offsets.query("in-order", "line", 0) == 6)
            lag = await certain(cluster, "in-order", "line")
            assert (lag.messages, lag.latency_ms, lag.states) == (0, 0, (LagState.OK,))
            series = await shown(cluster, "in-order")
            assert series["rocketmq_consumer_lag_messages"] == series["rocketmq_consumer_lag_latency"] == 0
            assert "aerobee_consumer_retention_left_seconds" not in series
        assert seen == [b"%d" % number for number in range(6)]


async def test_a_topic_without_a_message_is_no_lag_and_not_unknown() -> None:
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("quiet", queues=2)

        async def read(message: ReceivedMessage) -> None:
            raise AssertionError("there is none")

        broker = cluster.broker()
        config = replace(FIRST, persist_offsets_s=0.05)
        async with cluster.push_consumer(
            "waiters", subscriptions={"quiet": "*"}, handler=read, config=config
        ):
            await wait_until(lambda: broker.offsets.query("waiters", "quiet", 1) == 0)
            await wait_until(lambda: broker.offsets.query("waiters", "quiet", 0) == 0)
            lag = await certain(cluster, "waiters", "quiet")
            assert (lag.messages, lag.latency_ms, lag.unknown_queues) == (0, 0, 0)
            assert (lag.states, lag.retention_ms, lag.drain_s) == ((LagState.OK,) * 2, None, 0.0)
            series = await shown(cluster, "waiters")
            assert series["rocketmq_consumer_lag_messages"] == series["rocketmq_consumer_lag_latency"] == 0


async def test_states_follow_what_a_group_does() -> None:
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("orders", queues=1)
        await send(cluster, "orders", 8)
        await create_group(cluster, "left")
        broker = cluster.broker()
        assert await measured(cluster, "left", "orders") is None  # it never committed: nothing is known
        broker.offsets.commit("left", "orders", 0, 3)
        lag = await certain(cluster, "left", "orders")
        assert (lag.messages, lag.states) == (5, (LagState.UNKNOWN,))
        for _ in range(13):
            await cluster.advance_clock(10)
            lag = await certain(cluster, "left", "orders")
        assert lag.states == (LagState.STOP,)
        assert lag.drain_s is None
        assert lag.latency_ms is not None
        assert lag.latency_ms >= 130_000
        assert lag.retention_ms is not None
        assert abs(lag.retention_ms + lag.latency_ms - 72 * 3_600_000) < 1_000
        broker.offsets.commit("left", "orders", 0, 1)
        await cluster.advance_clock(10)
        assert (await certain(cluster, "left", "orders")).states == (LagState.REWIND,)
        broker.offsets.commit("left", "orders", 0, 8)
        lag = await certain(cluster, "left", "orders")
        assert (lag.messages, lag.states, lag.drain_s, lag.latency_ms) == (0, (LagState.OK,), 0.0, 0)
        assert lag.retention_ms is None


async def test_topics_beyond_the_bound_are_one_series_for_each_group() -> None:
    async with LocalCluster(broker_config=METRICS) as cluster:
        for topic, count in (("first", 1), ("second", 2), ("third", 4)):
            await cluster.create_topic(topic, queues=1)
            await send(cluster, topic, count)
            cluster.broker().offsets.commit("all", topic, 0, 0)
        await create_group(cluster, "all")
        await certain(cluster, "all", "first")
        exporter = cluster.broker().exporter
        assert exporter is not None
        assert exporter._shown is not None
        assert exporter._lags is not None
        parts = exporter._shown._parts
        chunks, shown = LagChunks(), frozenset({"first"})
        families = lag_families(parts, exporter._lags.sample, chunks, 'a="b"', shown)
        maker = PageMaker()
        list(maker.make(families, 0.0))
        text = b"".join(maker.page.texts()).decode()
        begin = 'rocketmq_consumer_lag_messages{a="b",consumer_group="all",topic='
        assert f'{begin}"first",is_retry="false",is_system="false"}} 1\n' in text
        assert f'{begin}"{OTHER}",is_retry="false",is_system="false"}} 6\n' in text
        assert '"second"' not in text
