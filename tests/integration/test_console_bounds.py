"""What viewers and strangers can hold open at a console, on every event loop."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import aiohttp
import pytest

from aerobee.console import server as console_server
from aerobee.testing import LocalCluster
from tests.integration.test_console import cluster, console  # noqa: F401  cluster is a fixture
from tests.loops import event_loop_policy  # noqa: F401


@pytest.mark.parametrize("path", ["stream", "tail?topic=orders"])
async def test_pages_that_go_while_they_open_are_not_counted_for_ever(
    cluster: LocalCluster,  # noqa: F811
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
