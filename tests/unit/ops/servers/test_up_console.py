"""The port of the console of `aerobee up`: the usual one, the next, one that was requested, or why there is none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from aerobee.ops.servers import up_console
from aerobee.ops.servers.up_console import HOST, UpConsole, open_console
from aerobee.ops.terminal.failure import PortTaken


def listening(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(1)
    return listener


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The default port, already taken."""
    with listening() as listener:
        port = int(listener.getsockname()[1])
        monkeypatch.setattr(up_console, "PORT", port)
        yield port


async def closed(console: UpConsole | str) -> None:
    assert isinstance(console, UpConsole), console
    await console.close()


async def test_the_next_port_is_taken_when_the_usual_one_is_not_free(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up_console, "PORTS_TRIED", 1_000)
    console = open_console(None)
    assert isinstance(console, UpConsole), console
    assert console.port > taken
    assert console.url == f"http://127.0.0.1:{console.port}/"
    assert console.notice == f"port {taken} is in use"
    await console.close()
    await closed(open_console(console.port))  # free again


def test_no_port_is_free(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_console, "PORTS_TRIED", 1)
    assert (
        open_console(None)
        == f"not started: ports {taken} to {taken} are in use; choose another with --console"
    )


def test_a_port_that_was_asked_for_is_had_or_refused(taken: int) -> None:
    with pytest.raises(
        PortTaken, match=rf"the console cannot listen at 127.0.0.1:{taken}: .* with --console"
    ):
        open_console(taken)


def test_without_aiohttp_it_is_said(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        assert name == "aiohttp"

    monkeypatch.setattr(up_console, "find_spec", nothing)
    for port in (None, taken):
        assert open_console(port) == "not started: it needs aiohttp, pip install 'aerobee[metrics]'"


async def test_a_usual_port_has_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        free = int(stack.enter_context(listening()).getsockname()[1])
    monkeypatch.setattr(up_console, "PORT", free)
    console = open_console(None)
    assert isinstance(console, UpConsole), console
    if console.port == free:  # else another process was faster
        assert console.notice == ""
    await console.close()
