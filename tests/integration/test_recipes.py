"""The programs of docs/recipes.md, as their users run them, at a real cluster."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from aiohttp.test_utils import TestClient, TestServer

from aerobee import ConsumeFrom, ConsumerConfig, Message
from aerobee.testing import LocalCluster, ThreadedCluster
from tests.waiting import wait_until

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "recipes"
MESSAGE_ID = re.compile(r"[0-9A-F]{32}")


def recipe(name: str, nameserver: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("AEROBEE_NAMESRV_ADDR", nameserver)
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


async def bodies(cluster: LocalCluster, count: int) -> list[bytes]:
    """What the topic of the web recipes has."""
    found: list[bytes] = []
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with cluster.push_consumer("checker", subscriptions={"web-orders": "*"}, config=config) as consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == count:
                break
    return found


async def test_fastapi_sends_and_consumes_within_its_lifespan(
    aerobee_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = recipe("fastapi_app", aerobee_cluster.nameserver_address, monkeypatch)
    async with (
        module.lifespan(module.app),
        httpx.AsyncClient(transport=httpx.ASGITransport(module.app), base_url="http://web") as client,
    ):
        for number in range(3):
            reply = await client.post("/orders/ada", content=b"order %d" % number)
            assert reply.status_code == 200
            assert MESSAGE_ID.fullmatch(reply.json()["message_id"])
        await wait_until(lambda: len(module.shipped) == 3, "handled", timeout_s=60)
        assert sorted(module.shipped) == ["order 0", "order 1", "order 2"]
        await aerobee_cluster.kill_broker()
        assert (await client.post("/orders/ada", content=b"refused")).status_code == 503
        await aerobee_cluster.start_broker()


async def test_aiohttp_sends_within_its_cleanup_context(
    aerobee_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = recipe("aiohttp_app", aerobee_cluster.nameserver_address, monkeypatch)
    async with TestClient(TestServer(module.make_app())) as client:
        reply = await client.post("/orders", data=b"order 1")
        assert reply.status == 200
        assert MESSAGE_ID.fullmatch((await reply.json())["message_id"])
    assert await bodies(aerobee_cluster, 1) == [b"order 1"]


def test_django_sends_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadedCluster() as cluster:
        module = recipe("django_app", cluster.nameserver_address, monkeypatch)
        from django.test import Client

        reply = Client().generic("POST", "/orders", b"order 1")
        assert reply.status_code == 200
        with cluster.push_consumer(
            "checker",
            subscriptions={"web-orders": "*"},
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
        ) as consumer:
            assert next(iter(consumer)).body == b"order 1"
        module.producer().close()


async def test_a_worker_finishes_its_handlers_at_sigterm(aerobee_cluster: LocalCluster) -> None:
    async with aerobee_cluster.producer() as producer:
        for number in range(8):
            await producer.send(Message("images", b"%d" % number))

    async def worker(work_s: str) -> asyncio.subprocess.Process:
        environ = {
            **os.environ,
            "AEROBEE_NAMESRV_ADDR": aerobee_cluster.nameserver_address,
            "WORK_S": work_s,
        }
        return await asyncio.create_subprocess_exec(
            sys.executable, str(RECIPES / "worker.py"), env=environ, stdout=asyncio.subprocess.PIPE
        )

    first = await worker("1")
    assert first.stdout is not None
    assert (await asyncio.wait_for(first.stdout.readline(), 60)).startswith(b"begin")
    first.send_signal(signal.SIGTERM)
    output, _ = await asyncio.wait_for(first.communicate(), 60)
    assert first.returncode == 0
    finished = sorted(line.split()[1] for line in output.splitlines() if line.startswith(b"done"))
    assert finished

    second = await worker("0")
    assert second.stdout is not None
    rest: list[bytes] = []
    async with asyncio.timeout(60):
        while len(rest) + len(finished) < 8:
            line = await second.stdout.readline()
            if line.startswith(b"done"):
                rest.append(line.split()[1])
    second.terminate()
    await asyncio.wait_for(second.communicate(), 60)
    assert sorted([*finished, *rest]) == [b"%d" % number for number in range(8)]
