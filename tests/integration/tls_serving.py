"""A server with TLS, certificates and their authorities."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from aerobee.clock import SystemClock
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.server import Listener, RemotingServer
from aerobee.remoting.tls import ClientTls, ServerTls, client_tls
from tests.integration.certificates import Identity, identity

ECHO = 1
NETWORKS: list[Callable[[], Network]] = [AsyncioNetwork]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(tmp_path_factory.mktemp("authority"), "authority")


def server_keys(own: Identity, **more: str) -> dict[str, str]:
    keys = {"tls.server.certPath": str(own.cert_path), "tls.server.keyPath": str(own.key_path)}
    return keys | {name.replace("_", "."): value for name, value in more.items()}


@asynccontextmanager
async def serving(tls: ServerTls | None) -> AsyncIterator[str]:
    def echo(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.reply(ext=request.ext, body=request.body)

    server = RemotingServer(clock=SystemClock(), network=NETWORKS[-1](), handlers={ECHO: echo}, tls=tls)
    await server.start([Listener("default", "127.0.0.1", 0)])
    try:
        yield "{}:{}".format(*server.address_of())
    finally:
        await server.stop(go_away=False, drain_s=0.05)


async def ask(address: str, tls: ClientTls | None, body: bytes = b"x") -> RemotingCommand:
    caller = RemotingClient(clock=SystemClock(), network=AsyncioNetwork(), tls=tls)
    try:
        return await caller.invoke(address, RemotingCommand(ECHO, {"a": "b"}, body))
    finally:
        await caller.close()


def trusting(authority: Identity, **more: str) -> ClientTls:
    keys = {
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(authority.cert_path),
    }
    found = client_tls(keys | {name.replace("_", "."): value for name, value in more.items()})
    assert found is not None
    return found
