"""What viewers and untrusted peers can hold open at a console, on every event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from aerobee.console import server as console_server
from aerobee.console import tail
from aerobee.console.server import ConsoleServer
from aerobee.testing import LocalCluster
from tests.integration.console_server import console, users_file
from tests.loops import event_loop_policy  # noqa: F401


@pytest.mark.parametrize("path", ["stream", "tail?topic=orders"])
async def test_pages_that_go_while_they_open_are_not_counted_for_ever(
    cluster: LocalCluster,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_server, "STREAMS_MAX", 5)
    monkeypatch.setattr(console_server, "KEEP_ALIVE_S", 0.1)
    async with console(cluster) as server:
        host, port = urlsplit(server.url).netloc.split(":")
        for _ in range(40):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /api/{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            writer.transport.abort()
        async with aiohttp.ClientSession() as session:

            async def status() -> int:
                async with session.get(f"{server.url}api/{path}") as answer:
                    return answer.status

            async with asyncio.timeout(60):
                while await status() != 200:  # noqa: ASYNC110  only asking tells
                    await asyncio.sleep(0.1)


async def logged_in(url: str, name: str) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    async with session.post(f"{url}api/login", json={"name": name, "password": "secret"}) as answer:
        assert answer.status == 200
    return session


async def test_one_viewer_does_not_take_all_streams(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console_server, "STREAMS_MAX", 4)
    async with console(cluster, users_file=users_file(tmp_path)) as server, asyncio.timeout(60):
        vera, otto = await logged_in(server.url, "vera"), await logged_in(server.url, "otto")
        hers = [await vera.get(f"{server.url}api/stream") for _ in range(4)]
        async with vera.get(f"{server.url}api/stream") as answer:
            assert answer.status == 503  # she has all of them
        his = [await otto.get(f"{server.url}api/stream") for _ in range(2)]
        assert [answer.status for answer in (*hers, *his)] == [200] * 6
        for ended in hers[:2]:
            await ended.read()  # to its end
        async with otto.get(f"{server.url}api/stream") as answer:
            assert answer.status == 503
        await vera.close()
        await otto.close()


async def test_one_viewer_does_not_take_all_watched_topics(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "TOPICS_MAX", 3)
    async with console(cluster, users_file=users_file(tmp_path)) as server, asyncio.timeout(60):
        for number in range(5):
            await cluster.create_topic(f"t{number}", queues=1)
        vera, otto = await logged_in(server.url, "vera"), await logged_in(server.url, "otto")

        async def watch(who: aiohttp.ClientSession, topic: str) -> tuple[aiohttp.ClientResponse, str]:
            answer = await who.get(f"{server.url}api/tail?topic={topic}")
            return answer, (await answer.content.readline()).decode()

        hers = [await watch(vera, f"t{number}") for number in range(3)]
        assert "watching" in (await watch(otto, "t3"))[1]
        assert "replaced" in (await hers[0][0].read()).decode()
        assert "the limit of 3 watched topics is reached" in (await watch(vera, "t4"))[1]
        await vera.close()
        await otto.close()


async def test_wrong_passwords_of_one_browser_behind_a_proxy_do_not_lock_out_the_others(
    cluster: LocalCluster,
    tmp_path: Path,
) -> None:
    async def tried(server: ConsoleServer, name: str, password: str, *clients: str) -> str:
        headers = [("X-Forwarded-For", client) for client in clients]
        login = {"name": name, "password": password}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}api/login", json=login, headers=headers) as answer,
        ):
            return str((await answer.json()).get("error", ""))

    users = users_file(tmp_path)
    async with console(cluster, users_file=users, client_header="X-Forwarded-For") as server:
        for _ in range(5):
            assert "wrong name or password" in await tried(server, "vera", "wrong", "9.9.9.9, 10.0.0.1")
        assert "wait a minute" in await tried(server, "vera", "secret", "8.8.8.8, 10.0.0.1")
        assert "wait a minute" in await tried(server, "vera", "secret", "10.0.0.2", "10.0.0.1")
        assert await tried(server, "vera", "secret", "10.0.0.2") == ""
        assert await tried(server, "otto", "secret", "10.0.0.1") == ""
    # A proxy that does not say whose request it is: counted by account.
    async with console(cluster, users_file=users) as server:
        for number in range(40):
            assert "wrong name or password" in await tried(server, f"absent{number}", "wrong")
        for _ in range(5):
            await tried(server, "vera", "wrong", "10.0.0.1")
        assert "wait a minute" in await tried(server, "vera", "secret", "10.0.0.2")
        assert await tried(server, "otto", "secret") == ""
    # Whoever comes straight is counted by address, whatever the header says.
    options: dict[str, Any] = {"client_header": "X-Forwarded-For", "proxy_addresses": ("10.1.1.1",)}
    async with console(cluster, users_file=users, **options) as server:
        for number in range(30):
            assert "wrong name or password" in await tried(
                server, f"absent{number}", "wrong", f"10.0.0.{number}"
            )
        assert "wait a minute" in await tried(server, "otto", "secret", "10.0.0.99")
