"""/metrics and the health pages of a broker, asked over HTTP, held against what was really sent and consumed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from aerobee import Message
from aerobee.client import ConsumeFrom, ConsumerConfig, ReceivedMessage, TransactionState
from aerobee.clock import SystemClock
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.message import MessageQueue
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.route_table import BrokerIdentity, Registration
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.testing import LocalCluster
from tests.ports import free_port
from tests.waiting import wait_until

METRICS = {
    "metrics_exporter_type": "PROM",
    "metrics_prom_exporter_host": "127.0.0.1",
    "metrics_prom_exporter_port": 0,
    "metrics_lag_interval_millis": 100,
    "metrics_label": "zone:a",
}
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
Labels = dict[str, str]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(broker_config=METRICS) as started:
        yield started


async def ask(cluster: LocalCluster, path: str) -> tuple[int, str]:
    exporter = cluster.broker().exporter
    assert exporter is not None
    host, port = exporter.address
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, await answer.text()


async def numbers(cluster: LocalCluster) -> list[tuple[str, Labels, float]]:
    status, page = await ask(cluster, "/metrics")
    assert status == 200
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def of(found: list[tuple[str, Labels, float]], name: str, **labels: str) -> list[float]:
    return [
        value
        for each, has, value in found
        if each == name and all(has.get(key) == wanted for key, wanted in labels.items())
    ]


async def once(
    cluster: LocalCluster, name: str, wanted: list[float], **labels: str
) -> list[tuple[str, Labels, float]]:
    """The first page on which a family has these numbers: a page may be made before it is requested."""
    found: list[tuple[str, Labels, float]] = []

    async def is_there() -> bool:
        nonlocal found
        found = await numbers(cluster)
        return of(found, name, **labels) == wanted

    await wait_until(is_there)
    return found


async def test_what_was_sent_and_consumed_is_counted(cluster: LocalCluster) -> None:
    await cluster.create_topic("paid", queues=1)
    async with cluster.producer() as producer:
        for number in range(5):
            await producer.send(Message("paid", b"%d" % number))

    async def take(message: ReceivedMessage) -> None: ...

    async with cluster.push_consumer("clerks", subscriptions={"paid": "*"}, handler=take, config=FIRST):

        async def consumed() -> bool:
            found = await numbers(cluster)
            return of(found, "rocketmq_messages_out_total", topic="paid", consumer_group="clerks") == [5.0]

        deadline = time.monotonic() + 60
        while not await consumed():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        found = await numbers(cluster)
    (name,) = cluster.broker_names
    common = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": name, "zone": "a"}
    assert of(found, "rocketmq_messages_in_total", topic="paid", message_type="normal", **common) == [5.0]
    assert of(found, "rocketmq_throughput_in_total", topic="paid", is_system="false")[0] > 5
    assert of(found, "rocketmq_consumer_connections", consumer_group="clerks", language="python") == [1.0]
    assert of(found, "aerobee_consumer_members", consumer_group="clerks") == [1.0]
    assert of(found, "aerobee_put_latency_seconds_count") == [5.0]
    assert of(found, "aerobee_role", role="master") == [1.0]
    assert of(found, "rocketmq_storage_size")[0] > 500
    buckets = of(found, "aerobee_put_latency_seconds_bucket")
    assert buckets == sorted(buckets)
    assert buckets[-1] == 5.0


async def test_lag_is_the_truth_in_messages_and_in_time(cluster: LocalCluster) -> None:
    """Three of eight are committed by a group that then is not connected any more; one queue it never committed."""
    await cluster.create_topic("late", queues=2)
    broker = cluster.broker()
    async with cluster.producer() as producer:
        queues = await producer.queues("late")
        results = [await producer.send(Message("late", b"x"), queue=queues[0]) for _ in range(8)]
        await producer.send(Message("late", b"x"), queue=queues[1])
    async with cluster.admin() as admin:
        await admin.create_group("slow")
    async with cluster.pull_consumer("slow") as consumer:
        await consumer.assign([queues[0]])
        await consumer.commit({queues[0]: 3})

    async def lag() -> list[float]:
        return of(
            await numbers(cluster), "rocketmq_consumer_lag_messages", consumer_group="slow", topic="late"
        )

    deadline = time.monotonic() + 60
    while await lag() != [5.0]:
        assert time.monotonic() < deadline, await lag()
        await asyncio.sleep(0.05)
    stored_ms = broker.store.store_time("late", queues[0].queue_id, 3)
    before = time.time() * 1000 - stored_ms
    await broker.exporter._lags.measure()  # type: ignore[union-attr]
    after = time.time() * 1000 - stored_ms
    found = await numbers(cluster)
    (latency,) = of(found, "rocketmq_consumer_lag_latency", consumer_group="slow", topic="late")
    assert before - 1 <= latency <= after + 1_000
    assert of(found, "rocketmq_consumer_ready_messages", consumer_group="slow", topic="late") == [5.0]
    assert of(found, "rocketmq_consumer_inflight_messages", consumer_group="slow", topic="late") == [0.0]
    assert of(found, "aerobee_consumer_unknown_queues", consumer_group="slow", topic="late") == [1.0]
    assert of(found, "aerobee_consumer_members", consumer_group="slow") == [0.0]
    (left,) = of(found, "aerobee_consumer_retention_left_seconds", consumer_group="slow", topic="late")
    assert left == pytest.approx(72 * 3600 - latency / 1000, abs=2)
    assert len(results) == 8


async def test_a_deleted_topic_leaves_no_series(cluster: LocalCluster) -> None:
    await cluster.create_topic("gone", queues=1)
    async with cluster.producer() as producer:
        await producer.send(Message("gone", b"x"))
    assert of(await numbers(cluster), "rocketmq_messages_in_total", topic="gone") == [1.0]
    async with cluster.admin() as admin:
        await admin.delete_topic("gone")
    assert of(await numbers(cluster), "rocketmq_messages_in_total", topic="gone") == []


async def test_locks_of_topics_that_are_not_there_have_no_series(cluster: LocalCluster) -> None:
    await cluster.create_topic("line")
    broker = cluster.broker()
    for topic in ("line", "none"):
        queues = [MessageQueue(topic, broker.identity.name, number) for number in range(10)]
        assert broker.locks.lock("in-order", "a", queues) == queues
    found = await numbers(cluster)
    held = [labels["topic"] for name, labels, _ in found if name == "aerobee_consumer_lock_held_seconds"]
    assert held == ["line"] * 10
    assert [value for name, _, value in found if name == "aerobee_consumer_locks"] == [20]


async def test_health_says_why_a_broker_is_not_ready(cluster: LocalCluster) -> None:
    for path in ("/livez", "/readyz", "/startupz"):
        assert (await ask(cluster, path))[0] == 200
    exporter = cluster.broker().exporter
    assert exporter is not None
    exporter.health.check("store", lambda: "the disk is full")
    status, text = await ask(cluster, "/readyz")
    assert status == 503
    assert "the disk is full" in text
    assert (await ask(cluster, "/livez"))[0] == 200
    assert (await ask(cluster, "/nowhere"))[0] == 404


async def test_topics_beyond_the_bound_are_summed() -> None:
    async with LocalCluster(broker_config={**METRICS, "metrics_topics_max": 2}) as cluster:
        async with cluster.producer() as producer:
            for name in ("one", "two", "three", "four"):
                await cluster.create_topic(name, queues=1)
                await producer.send(Message(name, b"x"))
        found = await numbers(cluster)
    assert of(found, "rocketmq_messages_in_total", topic="one") == [1.0]
    assert of(found, "rocketmq_messages_in_total", topic="other") == [2.0]
    assert of(found, "rocketmq_messages_in_total", topic="four") == []


async def test_what_changes_between_two_pages_is_shown_and_what_is_deleted_is_gone() -> None:
    async with LocalCluster(broker_config={**METRICS, "metrics_topics_max": 2}) as cluster:
        names = ("one", "two", "three", "four")
        stats = cluster.broker().stats
        async with cluster.producer() as producer:
            for name in names:
                await cluster.create_topic(name, queues=1)
                await producer.send(Message(name, b"x"))
                stats.group_get("readers", name, 1, 10)
            await numbers(cluster)
            await producer.send(Message("two", b"x"))
            await producer.send(Message("four", b"x"))
            stats.group_get("readers", "one", 1, 10)
        found = await numbers(cluster)
        topics = ("one", "two", "other")
        assert [of(found, "rocketmq_messages_in_total", topic=name) for name in topics] == [[1], [2], [3]]
        assert [of(found, "rocketmq_message_size_count", topic=name) for name in topics] == [[1], [2], [3]]
        assert [of(found, "rocketmq_messages_out_total", topic=name) for name in topics] == [[2], [1], [2]]
        async with cluster.admin() as admin:
            await admin.delete_topic("one")  # now the third of them is shown by itself
            await admin.delete_topic("four")
        found = await numbers(cluster)
        assert not any("one" in has.values() or "four" in has.values() for _, has, _ in found)
        topics = ("two", "three", "other")
        for name, wanted in (
            ("rocketmq_messages_in_total", [[2], [1], []]),
            ("rocketmq_messages_out_total", [[1], [1], []]),
        ):
            assert [of(found, name, topic=topic) for topic in topics] == wanted, name


async def test_a_topic_that_comes_or_gets_another_type_changes_only_its_own_labels(
    cluster: LocalCluster,
) -> None:
    await cluster.create_topic("first", queues=1)
    exporter, stats = cluster.broker().exporter, cluster.broker().stats
    assert exporter is not None
    assert exporter._shown is not None
    stats.topic_put("first", 1, 10)
    stats.group_get("readers", "first", 1, 10)
    await numbers(cluster)
    layouts = {key: each for key, each in exporter._shown._layouts.items() if "group" in key[0]}
    await cluster.create_topic("second", queues=1)
    found = await numbers(cluster)
    assert of(found, "rocketmq_messages_in_total", topic="first", message_type="normal") == [1]
    assert of(found, "rocketmq_messages_out_total", topic="first") == [1]
    assert layouts
    for key, layout in layouts.items():
        assert exporter._shown._layouts[key] is layout
    topics = cluster.broker().topics
    topics.put(replace(topics.topics["first"], attributes={"message.type": "FIFO"}))
    found = await numbers(cluster)
    assert of(found, "rocketmq_messages_in_total", topic="first", message_type="fifo") == [1]


async def test_a_hundred_who_ask_at_once_get_the_same_page(cluster: LocalCluster) -> None:
    exporter = cluster.broker().exporter
    assert exporter is not None
    made = 0
    families = exporter.export.http._families

    def counted() -> Any:
        nonlocal made
        made += 1
        return families()

    exporter.export.http._families = counted
    host, port = exporter.address
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> int:
            async with session.get(f"http://{host}:{port}/metrics") as answer:
                await answer.read()
                return answer.status

        assert set(await asyncio.gather(*(one() for _ in range(100)))) == {200}
    assert made < 100
    await wait_until(lambda: exporter.export.http._making is None)


async def test_a_nameserver_shows_who_is_registered() -> None:
    config = NameServerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        metrics_exporter_type="PROM",
        metrics_prom_exporter_host="127.0.0.1",
        metrics_prom_exporter_port=0,
    )
    async with NameServer(config) as nameserver:
        assert nameserver.export is not None
        host, port = nameserver.export.address

        async def page(path: str) -> tuple[int, str]:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://{host}:{port}{path}") as answer,
            ):
                return answer.status, await answer.text()

        assert (await page("/readyz"))[0] == 200
        identity = BrokerIdentity("Cluster", "broker-a", "127.0.0.1:10911", 0)
        nameserver.table.register(
            Registration(identity=identity),
            now_ms=time.time_ns() // 1_000_000,
        )
        status, text = await page("/metrics")
    assert status == 200
    found = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert of(found, "aerobee_nameserver_brokers") == [1.0]
    assert of(found, "aerobee_nameserver_has_master", broker="broker-a", cluster="Cluster") == [1.0]
    assert 0 <= of(found, "aerobee_nameserver_broker_silent_seconds", address="127.0.0.1:10911")[0] < 60


async def test_a_controller_shows_the_quorum_and_its_groups(tmp_path: Path) -> None:
    config = ControllerConfig(
        controller_d_leger_group="quorum",
        controller_d_leger_peers=f"n0-127.0.0.1:{free_port()}",
        controller_d_leger_self_id="n0",
        controller_store_path=str(tmp_path),
        bind_address="127.0.0.1",
        metrics_exporter_type="PROM",
        metrics_prom_exporter_host="127.0.0.1",
        metrics_prom_exporter_port=0,
    )
    async with Controller(config) as controller:
        assert controller.export is not None
        await wait_until(lambda: controller.status.is_serving)
        host, port = controller.export.address
        async with aiohttp.ClientSession(f"http://{host}:{port}") as session:
            async with session.get("/readyz") as answer:
                assert answer.status == 200
            async with session.get("/metrics") as answer:
                text = await answer.text()
    found = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert of(found, "aerobee_controller_is_leader", controller_group="quorum", controller_id="n0") == [1.0]
    assert of(found, "aerobee_controller_voters") == [1.0]


@pytest.mark.parametrize("fast_path", ["python", "native"])
async def test_requests_and_sizes_are_counted_under_rocketmqs_names(
    fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_FAST_PATH", fast_path)
    async with LocalCluster(broker_config=METRICS) as cluster:
        await cluster.create_topic("parcels", queues=1)
        sizes = (10, 3_000, 700_000)
        async with cluster.producer() as producer:
            for size in sizes:
                await producer.send(Message("parcels", random.randbytes(size)))
            await producer.send_batch([Message("parcels", random.randbytes(size)) for size in (10, 2_000)])
        client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
        refused = await client.invoke(cluster.broker().address, RemotingCommand(RequestCode.PULL_MESSAGE, {}))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        await client.close()
        parcels = {"topic": "parcels", "message_type": "normal", "is_system": "false", "node_type": "broker"}
        found = await once(cluster, "rocketmq_message_size_count", [5.0], **parcels)
    (total,) = of(found, "rocketmq_throughput_in_total", **parcels)
    assert of(found, "rocketmq_message_size_sum", **parcels) == [total]
    for end, within in (("1024.0", 2), ("4096.0", 4), ("524288.0", 4), ("1048576.0", 5), ("4194304.0", 5)):
        assert of(found, "rocketmq_message_size_bucket", le=end, **parcels) == [within], end
    sends = {"protocol_type": "remoting", "is_long_polling": "false", "result": "success"}
    for code, times in (("send_message_v2", 3), ("send_batch_message", 1)):
        labels = {**sends, "request_code": code, "response_code": "success"}
        assert of(found, "rocketmq_rpc_latency_count", **labels) == [times]
        (sum_ms,) = of(found, "rocketmq_rpc_latency_sum", **labels)
        assert 0 < sum_ms < 60_000
        assert of(found, "rocketmq_rpc_latency_bucket", le="+Inf", **labels) == [times]
        assert len(of(found, "rocketmq_rpc_latency_bucket", **labels)) == 10
    pulls = {**sends, "request_code": "pull_message", "response_code": "system_error"}
    assert of(found, "rocketmq_rpc_latency_count", **pulls) == [1.0]
    for processor in ("send", "async_put", "pull", "lite_pull", "ack", "admin", "reply", "consumer_manager"):
        assert of(found, "rocketmq_processor_watermark", processor=processor) == [0.0]


@pytest.mark.parametrize("fast_path", ["python", "native"])
async def test_answers_that_wait_are_counted_when_they_leave(
    fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEROBEE_FAST_PATH", fast_path)
    async with LocalCluster(broker_config=METRICS, store_config={"flush_disk_type": "SYNC_FLUSH"}) as cluster:
        await cluster.create_topic("late", queues=1)

        async def take(message: ReceivedMessage) -> None: ...

        async with cluster.push_consumer("waiters", subscriptions={"late": "*"}, handler=take, config=FIRST):
            await wait_until(lambda: cluster.broker().pending_pulls.count > 0, "a pull waits")
            async with cluster.producer() as producer:
                await producer.send(Message("late", b"x"))

            async def counted() -> bool:
                found = await numbers(cluster)
                waited = {
                    "request_code": "pull_message",
                    "is_long_polling": "true",
                    "response_code": "success",
                }
                sent = {"request_code": "send_message_v2", "is_long_polling": "false"}
                return (
                    sum(of(found, "rocketmq_rpc_latency_count", **waited)) >= 1
                    and sum(of(found, "rocketmq_rpc_latency_count", **sent)) == 1
                )

            deadline = time.monotonic() + 60
            while not await counted():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)


async def asked(cluster: LocalCluster, request: RemotingCommand) -> int:
    """The code that the broker answers."""
    client = RemotingClient(clock=SystemClock(), network=AsyncioNetwork())
    try:
        return (await client.invoke(cluster.broker().address, request, timeout_s=60.0)).code
    finally:
        await client.close()


async def test_rare_things_are_counted_in_rocketmqs_buckets(cluster: LocalCluster) -> None:
    topic = {
        "topic": "made",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "defaultTopic": "TBW102",
    }
    for wrong in ({}, {"perm": "9"}):
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext={**topic, **wrong})
        assert (await asked(cluster, request) == ResponseCode.SUCCESS) is (not wrong)
    group = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "g"}')
    assert await asked(cluster, group) == ResponseCode.SUCCESS

    def never(*_: object) -> TransactionState:
        raise AssertionError("not requested")

    payers = cluster.transaction_producer("payers", checker=never)
    async with cluster.producer() as producer, payers:
        for after_s in (50, 300, 4_000):
            await producer.send(Message("made", b"later", deliver_after=after_s))
        async with payers.transaction(Message("made", b"paid")):
            pass

    found = await once(cluster, "rocketmq_timer_dequeue_lag", [3])
    snapshot = {
        has["timer_bound_s"]: n for name, has, n in found if name == "rocketmq_timer_message_snapshot"
    }
    bounds = (5, 60, 300, 900, 3600, 14400, 28800, 86400)
    assert list(snapshot) == [str(bound) for bound in bounds]
    assert (sum(snapshot.values()), snapshot["14400"], snapshot["86400"]) == (3, 1, 0)
    assert of(found, "rocketmq_timer_enqueue_latency") == [0]
    found = await once(cluster, "rocketmq_finish_message_latency_count", [1])
    assert of(found, "rocketmq_finish_message_latency_bucket", le="86400.0") == [1]
    made = "rocketmq_topic_create_execution_time"
    for status, times in (("success", 1), ("failure", 1)):
        assert of(found, f"{made}_count", invocation_status=status, is_system="false") == [times]
    assert sorted(float(has["le"]) for name, has, _ in found if name == f"{made}_bucket") == sorted(
        2 * [10, 100, 1000, 3000, 5000, float("inf")]
    )
    assert of(found, "rocketmq_consumer_group_create_execution_time_count", invocation_status="success") == [
        1
    ]
    delays = {
        has["le"]: value for name, has, value in found if name == "rocketmq_delay_message_latency_bucket"
    }
    assert [delays[end] for end in ("60.0", "600.0", "3600.0", "43200.0", "+Inf")] == [1, 2, 2, 3, 3]
    assert 50 + 300 + 4_000 - 60 <= of(found, "rocketmq_delay_message_latency_sum")[0] <= 50 + 300 + 4_000


@pytest.mark.parametrize("is_buffered", [False, True])
async def test_what_pops_write_is_counted(is_buffered: bool) -> None:
    config = {**METRICS, "enable_pop_buffer_merge": is_buffered}
    async with LocalCluster(broker_config=config) as cluster:
        await cluster.create_topic("popped", queues=1)
        async with (
            cluster.producer() as producer,
            cluster.simple_consumer("poppers", {"popped": "*"}) as poppers,
        ):
            await producer.send(Message("popped", b"x"))
            (message,) = await poppers.receive(count_max=1, wait_s=10.0, invisible_s=60.0)
            # The check point is written, or it is in memory until its message is acknowledged.
            written, kept = ([0.0], [1.0]) if is_buffered else ([1.0], [])
            found = await once(cluster, "rocketmq_pop_revive_in_message_total", written)
            found = await once(cluster, "rocketmq_pop_checkpoint_buffer_size", kept)
            for name in ("lag", "latency"):
                assert len(of(found, f"rocketmq_pop_revive_{name}")) == 8
            ids = {has["queue_id"] for name, has, _ in found if name == "rocketmq_pop_revive_latency"}
            assert ids == set(map(str, range(8)))
            assert of(found, "rocketmq_pop_offset_buffer_size") == kept
            await poppers.ack(message)
