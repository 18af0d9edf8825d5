"""A cluster at work and what it exports, and a real Prometheus that scrapes it, for the tests of rules and dashboards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aerobee import Message
from aerobee.broker.assembly.broker import Broker
from aerobee.client import ConsumeFrom, ConsumerConfig, ReceivedMessage, TransactionState, reject
from aerobee.client.base.metering import ClientState, Meters
from aerobee.contrib.prometheus import AerobeeCollector
from aerobee.ha.controller.config import ControllerConfig
from aerobee.ha.controller.controller import Controller
from aerobee.store.files.config import BrokerRole
from aerobee.testing import LocalCluster
from tests.ports import free_port
from tests.waiting import wait_until

METRICS: dict[str, Any] = {
    "metrics_exporter_type": "PROM",
    "metrics_prom_exporter_host": "127.0.0.1",
    "metrics_prom_exporter_port": 0,
    "metrics_lag_interval_millis": 200,
    "recall_message_enable": True,
}
START_TIMEOUT_S = 120.0
# The figures of Spark's lag job, as its file brings them; Spark makes the same rows in tests/spark/test_spark_lag_job.py.
LAG_JOB_ROW = {
    "cluster": "DefaultCluster", "group": "clerks", "state": "OK", "lag": 7, "retry": 1, "dead": 2, "lag_ms": 1_500,
    "consume_rate": 2.5, "produce_rate": 3.5, "drain_s": 4.0, "retention_s": 3_600.0, "unknown_queues": 0,
}  # fmt: skip


def client_metrics() -> str:
    """A page of an application's AerobeeCollector that has each of its metrics."""
    states = {"producer": ClientState(clients=1, in_flight=2, connections=3)}
    numbers = {"orders": 4}
    states["push_consumer"] = ClientState(1, 2, 3, numbers, numbers, numbers, numbers)

    class Client:
        def __init__(self, kind: str) -> None:
            self.kind = kind

        def state(self) -> ClientState:
            return states[self.kind]

    clients = [Client(kind) for kind in states]  # a meter keeps none in memory
    meters, registry = Meters(), CollectorRegistry()
    registry.register(AerobeeCollector(meters))
    for client in clients:
        meter = meters.open(client.kind, "billing", client.state)
        assert meter is not None
        meter.sent("orders", 0.002)
        meter.send_retried("orders")
        meter.send_failed("orders", TimeoutError())
        meter.received("orders", 5)
        meter.handled("orders", 0.01)
        meter.handled("orders", 0.01, error=ValueError())
        meter.retried("orders")
        meter.dead_lettered("orders")
    return generate_latest(registry).decode()


class World:
    """A NameServer, a controller, a master with a slave, and every kind of message on its way."""

    def __init__(self, cluster: LocalCluster, targets: dict[str, str]) -> None:
        self.cluster = cluster
        self.targets = targets  # job -> host:port of /metrics

    async def pages(self) -> str:
        """What all of them export now."""
        async with aiohttp.ClientSession() as session:
            texts = []
            for address in self.targets.values():
                async with session.get(f"http://{address}/metrics") as answer:
                    assert answer.status == 200
                    texts.append(await answer.text())
        return "".join(texts)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """Runs until it is left; messages continue meanwhile."""
    async with AsyncExitStack() as stack:
        path = Path(tempfile.mkdtemp(prefix="aerobee-prometheus-"))
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        prom = {name: value for name, value in METRICS.items() if "prom" in name or "exporter" in name}
        cluster = await stack.enter_async_context(
            LocalCluster(broker_config=METRICS, nameserver_config=prom, store_config={"in_sync_replicas": 1})
        )
        master = cluster.broker()
        slave_config = replace(
            master.config,
            broker_id=1,
            listen_port=0,
            namesrv_addr=cluster.nameserver_address,
        )
        slave_store = replace(
            master.store.config,
            broker_role=BrokerRole.SLAVE,
            ha_listen_port=0,
            store_path_root_dir=str(path / "slave"),
        )
        slave = Broker(slave_config, slave_store, clock=cluster.clock)
        await slave.start()
        stack.push_async_callback(slave.stop)
        slave.replication.become_slave(master.identity.ha_address, master_address=master.address)
        controller = await stack.enter_async_context(
            Controller(
                ControllerConfig(
                    controller_d_leger_group="quorum",
                    controller_d_leger_peers=f"n0-127.0.0.1:{free_port()}",
                    controller_d_leger_self_id="n0",
                    controller_store_path=str(path / "controller"),
                    bind_address="127.0.0.1",
                    **prom,
                )
            )
        )
        await wait_until(lambda: controller.status.is_serving)
        await _work(cluster, stack)
        servers = {
            "aerobee-broker": master.exporter,
            "aerobee-slave": slave.exporter,
            "aerobee-nameserver": cluster.nameserver().export,
            "aerobee-controller": controller.export,
        }
        targets = {}
        for job, server in servers.items():
            assert server is not None
            targets[job] = f"127.0.0.1:{server.address[1]}"
        yield World(cluster, targets)


async def _work(cluster: LocalCluster, stack: AsyncExitStack) -> None:
    for topic in ("orders", "mixed", "later"):
        await cluster.create_topic(topic, queues=2)
    async with cluster.admin() as admin:
        await admin.create_group("clerks")
    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST, persist_offsets_s=0.2)
    stop = asyncio.Event()

    async def take(message: ReceivedMessage) -> None: ...

    async def hang(message: ReceivedMessage) -> None:
        await stop.wait()

    async def refuse(message: ReceivedMessage) -> None:
        reject("its amount is negative")

    async def undecided(message: object, argument: object = None) -> TransactionState:
        return TransactionState.UNKNOWN

    consumers = (
        ("clerks", {"orders": "*"}, take, first),
        ("ordered", {"orders": "*"}, take, replace(first, orderly=True)),
        ("slow", {"mixed": "a"}, hang, first),
        ("refusing", {"mixed": "b"}, refuse, first),
    )
    for group, subscriptions, handler, config in consumers:
        await stack.enter_async_context(
            cluster.push_consumer(group, subscriptions=subscriptions, handler=handler, config=config)
        )
    stack.callback(stop.set)
    producer = await stack.enter_async_context(cluster.producer())
    halves = await stack.enter_async_context(cluster.transaction_producer("payers", checker=undecided))

    async def send() -> None:
        while not stop.is_set():
            for tag in "ab":
                await producer.send(Message("mixed", b"x", tag=tag))
                await producer.send(Message("orders", b"x", tag=tag))
            await producer.send(Message("later", b"x", delay_level=1))
            await producer.send(Message("later", b"x", deliver_after=1.5))
            await asyncio.sleep(0.05)

    async with halves.transaction(Message("orders", b"committed")):
        pass
    for key in ("half-1", "half-2", "half-3"):
        await halves.send_in_transaction(Message("orders", b"open", keys=(key,)), executor=undecided)
    task = asyncio.create_task(send())
    broker = cluster.broker()
    await wait_until(lambda: "%DLQ%refusing" in broker.topics.topics, timeout_s=60)
    broker.offsets.commit("slow", "mixed", 0, 0)
    broker.offsets.commit("slow", "mixed", 1, 0)
    stack.push_async_callback(_ended, task, stop)


async def _ended(task: asyncio.Task[None], stop: asyncio.Event) -> None:
    stop.set()
    await task


@asynccontextmanager
async def prometheus(targets: dict[str, str], rules: Path) -> AsyncIterator[str]:
    """A separate Prometheus that scrapes `targets` every second; yields its address. Skips where there is none, and fails in CI."""
    program = shutil.which("prometheus")
    if program is None:
        (pytest.fail if "CI" in os.environ else pytest.skip)("run scripts/setup-prometheus first")
    path = Path(tempfile.mkdtemp(prefix="aerobee-prometheus-"))
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules / "recording.yml"), str(rules / "alerts.yml")],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
        ],
    }
    (path / "prometheus.yml").write_text(json.dumps(config))
    log = (path / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program,
        f"--config.file={path / 'prometheus.yml'}",
        f"--storage.tsdb.path={path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=log,
        stderr=log,
    )
    try:
        async with aiohttp.ClientSession() as session:
            deadline = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/-/ready") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientConnectionError:
                    pass
                assert process.returncode is None, (path / "log").read_text()[-2000:]
                assert time.monotonic() < deadline, (path / "log").read_text()[-2000:]
                await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        log.close()
        shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def serving(page: str) -> AsyncIterator[str]:
    """A page of metrics over HTTP; yields its host:port."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=page)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def asked(address: str, query: str) -> list[Any]:
    """The result of an instant query. Raises AssertionError with what Prometheus says against it."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{address}/api/v1/query", params={"query": query}) as answer,
    ):
        body = await answer.json()
        assert answer.status == 200, f"{query}: {body}"
        result: list[Any] = body["data"]["result"]
        return result


def names_in(pages: str) -> set[str]:
    """The names of all series."""
    return {sample.name for family in text_string_to_metric_families(pages) for sample in family.samples}
