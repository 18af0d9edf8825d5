"""The HA port: where slaves connect. It is no listener of clients, and no address that clients are told concerns it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aerobee.network import Network, NetworkServer


class HaListener:
    """Bound by open(), before it is known who this broker is; until serve() each connection is closed at once."""

    def __init__(self, network: Network, key: str = "") -> None:
        """With a `key` only slaves are served that show it (haSharedKey)."""
        self._network = network
        self._key = key.encode()
        self._make_connection: Callable[[], asyncio.Protocol] = _Closing
        self._server: NetworkServer | None = None

    @property
    def port(self) -> int:
        """The port that is bound; 0 while none is."""
        return 0 if self._server is None else self._server.address[1]

    async def open(self, host: str, port: int) -> None:
        """Bind; port 0 takes any. Raises OSError."""
        self._server = await self._network.create_server(lambda: self._make_connection(), host, port)

    def serve(self, make_connection: Callable[[], asyncio.Protocol]) -> None:
        """Give connections to these protocols from now on. They bound themselves."""
        key = self._key
        if key:
            from aerobee.broker.replication.keyed_connection import KeyedConnection

            self._make_connection = lambda: KeyedConnection(make_connection, key, is_master=True)
        else:
            self._make_connection = make_connection

    def close(self) -> None:
        """Take no more connections."""
        self._make_connection = _Closing
        if self._server is not None:
            self._server.close()
            self._server = None


class _Closing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
