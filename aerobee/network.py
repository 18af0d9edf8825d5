"""The network as a thing that is passed in.

A shell that listens or connects receives a Network. AsyncioNetwork is the real one; a simulation gives one whose
connections live in memory, lose bytes' timing and break on demand.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from aerobee.host_port import join_address


class NetworkServer(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: ("ip", port), the chosen port if 0 was requested."""
        ...

    def close(self) -> None:
        """Stop accepting; connections that are open stay open."""
        ...


class Network(Protocol):
    """Creates servers and connections of plain asyncio protocols."""

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> NetworkServer:
        """Listen. Raises OSError when the address cannot be bound."""
        ...

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        """Connect; the protocol's connection_made has been called on return. Raises OSError."""
        ...

    async def start_tls(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
    ) -> asyncio.Transport:
        """Upgrade an open transport. Raises OSError or ssl.SSLError."""
        ...


class _AsyncioServer:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.address: tuple[str, int] = server.sockets[0].getsockname()[:2]

    def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """Real sockets: TCP_NODELAY on (asyncio's default), SO_REUSEADDR on, as RocketMQ's."""

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> NetworkServer:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host or None, port, reuse_address=True, backlog=1024)
        return _AsyncioServer(server)

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(factory, host, port)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None and sock.getsockname() == sock.getpeername():
            # Linux lets a socket connect to itself when the requested port is its own source port.
            transport.abort()
            raise ConnectionRefusedError(f"nothing listens at {join_address(host, port)}")

    async def start_tls(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        upgraded = await loop.start_tls(transport, protocol, context, server_side=server_side)
        if upgraded is None:
            raise ConnectionResetError("the connection closed during the TLS handshake")
        return upgraded
