"""Pieces that go out in one write: the bytes and their order, however many of them the system takes in one call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from aerobee.broker.replication.gathered_write import PARTS_MAX, write_parts
from tests.fakes import FakeTransport
from tests.waiting import wait_until

PARTS = [b"head", memoryview(bytes(range(256)) * 4096), b"", b"head of the next", memoryview(b"x" * 300_000)]
WHOLE = b"".join(PARTS)


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        left.setblocking(False)
        right.setblocking(False)
        yield left, right


async def test_a_peer_that_reads_slowly_gets_every_byte_in_order() -> None:
    loop = asyncio.get_running_loop()
    with connected() as (left, right):
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=left)
        write_parts(transport, PARTS)
        unsent = transport.get_write_buffer_size()
        assert 0 < unsent < len(WHOLE), "the system took a part of it, the transport has the rest"
        write_parts(transport, [b"behind", b" them"])
        assert transport.get_write_buffer_size() == unsent + 11
        taken = bytearray()
        while len(taken) < len(WHOLE) + 11:
            taken += await loop.sock_recv(right, 1 << 20)
        assert taken == WHOLE + b"behind them"
        await wait_until(lambda: transport.get_write_buffer_size() == 0)
        write_parts(transport, [b"all", b" at once"])
        assert transport.get_write_buffer_size() == 0
        assert await loop.sock_recv(right, 100) == b"all at once"
        transport.close()


async def test_where_there_is_no_plain_socket_the_transport_gets_the_bytes() -> None:
    transport = FakeTransport()
    write_parts(transport, [b"a", memoryview(b"bc")])
    assert transport.writes == [b"abc"]


class _Encrypted(FakeTransport):
    """Says that it has a socket and encrypts."""

    def __init__(self, plain: socket.socket) -> None:
        super().__init__()
        self._plain = plain

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self._plain, "sslcontext": self}.get(name, default)


def test_nothing_goes_past_encryption() -> None:
    with connected() as (left, right):
        transport = _Encrypted(left)
        write_parts(transport, [b"secret"])
        assert transport.writes == [b"secret"]
        with pytest.raises(BlockingIOError):
            right.recv(10)


async def test_more_parts_than_the_system_takes_are_joined() -> None:
    with connected() as (left, right):
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=left)
        write_parts(transport, [b"ab"] * (PARTS_MAX + 1))
        assert right.recv(1 << 16) == b"ab" * (PARTS_MAX + 1)
        transport.close()


async def test_a_peer_that_has_gone_is_the_transports_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    class Lost(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set_result(exc)

    with connected() as (left, right):
        transport, _ = await asyncio.get_running_loop().create_connection(Lost, sock=left)
        transport.pause_reading()
        right.close()
        write_parts(cast(asyncio.WriteTransport, transport), [b"for", b" nobody"])
        assert isinstance(await lost, (BrokenPipeError, ConnectionResetError))
        monkeypatch.setattr(os, "writev", lambda *_: pytest.fail("its descriptor may be another's by now"))
        write_parts(transport, [b"more"])
