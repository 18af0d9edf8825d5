"""Charts of the console: from its memory, and from a Prometheus server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from aerobee import Message
from aerobee.clock import SystemClock
from aerobee.console import snapshot as console_snapshot
from aerobee.console.config import ConsoleConfig
from aerobee.console.prometheus import DOCUMENT_BYTES_MAX, Prometheus, PrometheusFailed, quoted
from aerobee.errors import ConfigError
from aerobee.testing import LocalCluster
from tests.integration.console_server import console
from tests.waiting import wait_until


async def charts(session: aiohttp.ClientSession, url: str, **query: str) -> dict[str, Any]:
    async with session.get(f"{url}api/charts", params=query) as answer:
        document: dict[str, Any] = await answer.json()
        assert answer.status == 200, document
        return document


def lines_of(document: dict[str, Any]) -> dict[str, list[float | None]]:
    """Title and name of each line -> its values."""
    return {
        f"{chart['title']}: {line['name']}": line["values"]
        for chart in document["charts"]
        for line in chart["lines"]
    }


async def test_charts_show_rates_lag_latency_and_connections(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_snapshot, "RATE_S", 0.1)
    async with cluster.producer() as producer, cluster.admin() as admin:
        await admin.create_group("clerks")
        for _ in range(20):
            await producer.send(Message("orders", b"x"))
        queues = await producer.queues("orders")
    for queue in queues:
        cluster.broker().offsets.commit("clerks", "orders", queue.queue_id, 0)
    async with console(cluster) as server, aiohttp.ClientSession() as session, cluster.producer() as producer:
        wanted = {
            "cluster": {"Messages: In", "Lag: Lag", "Lag time: Oldest unconsumed message", "Disk: Used"},
            "broker": {"Messages: In", "Latency of sends: Send p50", "Latency of sends: Send p99"},
            "topic": {"Messages: In", "Messages: Out", "Lag: Lag"},
            "group": {"Messages: In", "Messages: Out", "Lag: Lag", "Lag time: Oldest unconsumed message"},
        }
        names = {
            "cluster": "",
            "broker": cluster.broker().address,
            "topic": "orders",
            "group": "clerks",
        }
        for of, lines in wanted.items():
            found: dict[str, list[float | None]] = {}

            async def are_there(of: str = of, lines: set[str] = lines) -> bool:
                nonlocal found
                await producer.send(Message("orders", b"x"))
                found = lines_of(await charts(session, server.url, of=of, name=names[of], range="1m"))
                rates = found.get("Messages: In", [])
                return lines <= set(found) and any(each for each in rates)

            await wait_until(are_there, f"the charts of the {of}", timeout_s=120)
            assert all(len(values) == 15 for values in found.values())
        lag = lines_of(await charts(session, server.url, of="group", name="clerks"))["Lag: Lag"]
        assert len(lag) == 150
        assert max(each for each in lag if each is not None) >= 20
        connections = lines_of(await charts(session, server.url))["Connections: Connections"]
        assert max(each for each in connections if each is not None) >= 1


async def test_a_range_beyond_the_memory_names_the_option(cluster: LocalCluster) -> None:
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        document = await charts(session, server.url, range="1d")
        assert "--prometheus" in document["trouble"]
        assert [each["name"] for each in document["ranges"] if each["is_available"]] == ["1m", "10m", "1h"]
        for query in ({"range": "2y"}, {"of": "planet"}, {"of": "topic"}):
            async with session.get(f"{server.url}api/charts", params=query) as answer:
                assert answer.status == 400


async def test_charts_cost_the_brokers_nothing(cluster: LocalCluster) -> None:
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        await charts(session, server.url)
        invoke, requests = server._admin._session.invoke, 0

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal requests
            requests += 1
            return await invoke(*arguments, **options)

        await server.snapshot.stop()
        server._admin._session.invoke = counted  # type: ignore[method-assign]
        for _ in range(50):
            await charts(session, server.url, of="topic", name="orders")
        assert requests == 0


async def test_an_unwatched_console_continues_to_record(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_snapshot, "WATCHED_S", 0.0)
    monkeypatch.setattr(console_snapshot, "IDLE_S", 0.01)
    async with console(cluster) as server, aiohttp.ClientSession() as session:
        assert server.snapshot.number == 0  # no page was opened yet
        await charts(session, server.url)
        number = server.snapshot.number
        await wait_until(lambda: server.snapshot.number > number + 3, timeout_s=60)


class FakePrometheus:
    """Replies with one series, or as the test says."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.reply: bytes | None = None
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.queries.append(request.query["query"])
        if self.reply is not None:
            return web.Response(body=self.reply, status=self.status)
        begin, step = float(request.query["start"]), float(request.query["step"])
        values = [[begin, "1"], [begin + step, "NaN"], [begin + 2 * step, "2.5"]]
        result = [{"metric": {}, "values": values}]
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": result}})


@asynccontextmanager
async def fake_prometheus() -> AsyncIterator[tuple[FakePrometheus, str]]:
    fake = FakePrometheus()
    app = web.Application()
    app.router.add_get("/api/v1/query_range", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield fake, f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


async def test_a_day_comes_from_prometheus_once_for_all_pages(cluster: LocalCluster) -> None:
    async with (
        fake_prometheus() as (fake, url),
        console(cluster, prometheus_url=url) as server,
        aiohttp.ClientSession() as session,
    ):
        document = await charts(session, server.url, of="topic", name='or"ders\\', range="1d")
        assert document["trouble"] == ""
        values = lines_of(document)["Messages: In"]
        assert (len(values), values[:4]) == (180, [1.0, None, 2.5, None])
        assert 'topic="or\\"ders\\\\"' in fake.queries[0]
        assert 'cluster=~"DefaultCluster"' in fake.queries[0]
        asked = len(fake.queries)
        for _ in range(5):
            await charts(session, server.url, of="topic", name='or"ders\\', range="1d")
        assert len(fake.queries) in (asked, 2 * asked)  # the window of 480 s may have ended meanwhile
        fake.status, fake.reply = 422, b"{}"
        document = await charts(session, server.url, range="30d")
        assert "status 422" in document["trouble"]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"[", "another format than JSON"),
        (b"[]", "refused the query"),
        (b'{"status": "error"}', "refused the query"),
        (b'{"status": "success"}', "another format than Prometheus's"),
        (b'{"status": "success", "data": {"result": [{"values": [["x", "1"]]}]}}', "another format"),
        (b'{"status": "success", "data": {"result": [{"values": [[1e999, "1"]]}]}}', "another format"),
        (b" " * (DOCUMENT_BYTES_MAX + 1), "more than"),
    ],
)
async def test_unusable_replies_of_prometheus_are_named(reply: bytes, said: str) -> None:
    async with fake_prometheus() as (fake, url):
        fake.reply = reply
        server = Prometheus(url, SystemClock())
        try:
            with pytest.raises(PrometheusFailed, match=said):
                await server.range("up", 1_000, 10, 5)
        finally:
            await server.close()


async def test_an_unreachable_prometheus_is_named() -> None:
    server = Prometheus("http://127.0.0.1:1", SystemClock())
    try:
        with pytest.raises(PrometheusFailed, match="is unreachable"):
            await server.range("up", 1_000, 10, 5)
    finally:
        await server.close()


def test_label_values_stay_inside_their_quotes() -> None:
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


def test_prometheus_takes_an_http_url() -> None:
    with pytest.raises(ConfigError, match="--prometheus"):
        ConsoleConfig(nameserver="x:1", prometheus_url="file:///etc/passwd")
