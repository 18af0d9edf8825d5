"""A server with handlers of tests, and clients that call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aerobee.clock import SystemClock
from aerobee.errors import (
    remote_error,
)
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.server import Listener, RemotingServer

ECHO, FAIL, REFUSE, WAIT, PARK, CALL_BACK, BIG, BROKEN = 1, 2, 3, 4, 5, 6, 7, 8
BIG_BODY = bytes(256 * 1024)
NETWORKS: list[Callable[[], Network]] = [AsyncioNetwork]


class Harness:
    """A server with one handler of each kind, and what it saw."""

    def __init__(self, **options: object) -> None:
        self.seen: list[RemotingCommand] = []
        self.parked: list[tuple[Connection, RemotingCommand]] = []
        self.release = asyncio.Event()
        self.running = 0
        self.big_served = 0
        handlers = {
            ECHO: self.echo,
            FAIL: self.fail,
            REFUSE: self.refuse,
            WAIT: self.wait,
            PARK: self.park,
            CALL_BACK: self.call_back,
            BIG: self.big,
            BROKEN: lambda connection, request: request.reply(body=bytes(17 << 20)),
        }
        options.setdefault("clock", SystemClock())
        self.server = RemotingServer(network=NETWORKS[-1](), handlers=handlers, **options)  # type: ignore[arg-type]

    def echo(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request)
        return request.reply(ext=request.ext, body=request.body)

    def fail(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request)
        raise ZeroDivisionError("a fault")

    def refuse(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise remote_error(17, "no such topic")

    async def wait(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.running += 1
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        return request.reply(body=request.body)

    def park(self, connection: Connection, request: RemotingCommand) -> None:
        self.parked.append((connection, request))

    async def call_back(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        answer = await connection.invoke(RemotingCommand(40, {"n": "1"}), timeout_s=60)
        return request.reply(ext=answer.ext, body=answer.body)

    def big(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.big_served += 1
        return request.reply(body=BIG_BODY)

    @property
    def address(self) -> str:
        host, port = self.server.address_of()
        return f"{host}:{port}"


@asynccontextmanager
async def serving(**options: object) -> AsyncIterator[Harness]:
    harness = Harness(**options)
    await harness.server.start([Listener("default", "127.0.0.1", 0)])
    try:
        yield harness
    finally:
        await harness.server.stop(go_away=False, drain_s=0.05)


@asynccontextmanager
async def client(**options: object) -> AsyncIterator[RemotingClient]:
    options.setdefault("clock", SystemClock())
    made = RemotingClient(network=AsyncioNetwork(), **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.close()


def request(code: int, opaque: int, body: bytes = b"", **options: object) -> bytes:
    return encode_frame(RemotingCommand(code, {"k": "v"}, body, opaque=opaque, **options))  # type: ignore[arg-type]
