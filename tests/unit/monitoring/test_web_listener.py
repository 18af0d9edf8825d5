"""The HTTP port against untrusted peers: connections that say nothing, peers that do not read, bytes that are no request."""

from __future__ import annotations

import asyncio
import gzip
import logging
import resource
import socket
from collections.abc import AsyncIterator, Iterator

import aiohttp
import aiohttp.web
import pytest

from aerobee.clock import ManualClock
from aerobee.monitoring import http_server
from aerobee.monitoring.exposition import GAUGE, Family
from aerobee.monitoring.health import Health
from aerobee.monitoring.http_server import HttpServer, takes_gzip
from aerobee.monitoring.web_listener import WebListener
from tests.loops import event_loop_policy  # noqa: F401
from tests.waiting import wait_until

LINES = 200_000  # more than buffers of the kernel hold
BOUND = 8


def large() -> Iterator[Family]:
    yield Family("large", GAUGE, "", ((f'number="{number}"', number) for number in range(LINES)))


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpServer]:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", BOUND)
    server = HttpServer(
        host="127.0.0.1", port=0, health=Health("broker"), families=large, clock=ManualClock()
    )
    await server.start()
    yield server
    await server.stop()


async def connected(
    server: HttpServer, sent: bytes = b""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(sent)
    return reader, writer


def url(server: HttpServer, path: str) -> str:
    host, port = server.address
    return f"http://{host}:{port}/{path}"


@pytest.mark.parametrize(
    "said", [b"GET /met", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["half", "unread"]
)
async def test_connections_that_only_take_room_make_room_for_a_request(
    server: HttpServer, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    idle = [await connected(server, said) for _ in range(BOUND)]
    async with (
        aiohttp.ClientSession() as session,
        session.get(url(server, "livez")) as answer,
    ):
        assert answer.status == 200
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{BOUND} connections are open" in caplog.text
    more = [await connected(server) for _ in range(3 * BOUND)]
    assert server._listener is not None
    runner = server._listener._runner
    assert runner.server is not None
    await wait_until(lambda: len(runner.server.connections) <= BOUND)
    assert len(caplog.records) == 1
    for _, writer in (*idle, *more):
        writer.close()


async def test_of_connections_that_come_at_once_no_more_stay_than_may_be_open(server: HttpServer) -> None:
    peers = [socket.socket() for _ in range(10 * BOUND)]
    for peer in peers:  # all of them wait in the kernel when the loop takes the first
        peer.connect(server.address)
    assert server._listener is not None
    runner = server._listener._runner
    assert runner.server is not None
    await wait_until(lambda: runner.server.connections)
    await wait_until(lambda: len(runner.server.connections) <= BOUND)
    async with (
        aiohttp.ClientSession() as session,
        session.get(url(server, "livez")) as answer,
    ):
        assert answer.status == 200
    for peer in peers:
        peer.close()


async def test_who_opens_most_pushes_out_its_own(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere, _ = other = await asyncio.open_connection(*server.address, local_addr=("127.0.0.2", 0))
    many = [await connected(server) for _ in range(3 * BOUND)]
    assert server._listener is not None
    runner = server._listener._runner
    assert runner.server is not None
    await wait_until(lambda: len(runner.server.connections) <= BOUND)
    assert "the oldest of 127.0.0.1, which has most, is ended" in caplog.text
    other[1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await elsewhere.readline()).startswith(b"HTTP/1.1 200")
    for _, writer in (other, *many):
        writer.close()


async def test_half_of_the_files_that_the_process_may_open_is_a_bound_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (40, 4_096))
    listener = WebListener(aiohttp.web.Application(), connections_max=1_000)
    await listener.start("127.0.0.1", 0)
    peers = [socket.create_connection(listener.address) for _ in range(30)]
    server = listener._runner.server
    assert server is not None
    await wait_until(lambda: len(server.connections) == 20)
    await listener.stop()
    for peer in peers:
        peer.close()


async def test_who_does_not_read_a_page_is_left_in_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_server, "RESPONSE_S", 0.05)
    caplog.set_level(logging.INFO)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, server.address)
    await loop.sock_sendall(peer, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    assert server._listener is not None
    runner = server._listener._runner
    assert runner.server is not None
    await wait_until(lambda: runner.server.requests_count == 1)
    await wait_until(lambda: not runner.server.connections)
    assert not [record for record in caplog.records if record.exc_info]
    peer.close()


async def test_a_peer_that_reads_as_fast_as_it_is_written_to_does_not_hold_the_others(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    seen: list[int] = []

    async def write(response: aiohttp.web.StreamResponse, data: bytes) -> None:
        seen.append(turns)

    monkeypatch.setattr(aiohttp.web.StreamResponse, "write", write)
    _, writer = await connected(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")

    async with asyncio.timeout(60.0):
        while len(seen) < 20:
            turns += 1
            await asyncio.sleep(0)
    assert seen == sorted(set(seen))  # another task ran between any two
    writer.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X%d: a\r\n" % number for number in range(4_000)) + b"\r\n",
        bytes(range(256)) * 4,
        b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["long", "many", "garbage", "length"],
)
async def test_what_is_no_request_is_refused_without_a_traceback(
    server: HttpServer, request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await connected(server, request_bytes)
    assert b" 400 " in (await reader.read(1_000)).splitlines()[0]
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    writer.close()


async def test_an_error_of_ours_is_told(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    server._health = None  # type: ignore[assignment]
    async with (
        aiohttp.ClientSession() as session,
        session.get(url(server, "livez")) as answer,
    ):
        assert answer.status == 500
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("accepted", ["gzip", "identity", "gzip;q=0"])
async def test_a_page_is_whole_however_it_is_asked_for(server: HttpServer, accepted: str) -> None:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(url(server, "metrics"), headers={"Accept-Encoding": accepted}) as answer,
    ):
        body = await answer.read()
        is_packed = answer.headers.get("Content-Encoding") == "gzip"
    assert is_packed == (accepted == "gzip")
    text = (gzip.decompress(body) if is_packed else body).decode()
    assert sum(line.startswith("large{") for line in text.splitlines()) == LINES


async def test_only_the_head_is_sent_when_only_that_is_asked_for(server: HttpServer) -> None:
    reader, writer = await connected(
        server, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    head, end, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert (end, body) == (b"\r\n\r\n", b"")
    writer.close()


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        ("gzip", True),
        ("br, GZIP ;q=0.5", True),
        ("gzip;q=1.0", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("deflate", False),
        ("xgzip", False),
        ("", False),
    ],
)
def test_gzip_is_sent_to_who_takes_it(accepted: str, takes: bool) -> None:
    assert takes_gzip(accepted) == takes
