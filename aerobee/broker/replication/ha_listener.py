"""The HA port, to which slaves connect. It is not advertised to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.replication.unproven_connections import UnprovenConnections
from aerobee.clock import Clock
from aerobee.host_port import bare_host
from aerobee.network import Network, NetworkServer
from aerobee.remoting.port_retry import PortRetry
from aerobee.store.files.config import StoreConfig

if TYPE_CHECKING:
    from aerobee.broker.replication.tls_connection import HaTls


class HaListener:
    """Bound by open(), before the broker's identity is known; until serve() each connection is closed immediately."""

    def __init__(self, network: Network, config: StoreConfig) -> None:
        """Serves only slaves that prove haSharedKey, and with TLS present a certificate, if `config` requires them.

        Raises ConfigError for TLS files that cannot be used.
        """
        self._network = network
        self._key = config.ha_shared_key.encode()
        self._tls: HaTls | None = None
        if config.ha_tls_cert_path:
            from aerobee.broker.replication.tls_connection import HaTls  # few have TLS here

            self._tls = HaTls(config)
        self._unproven = UnprovenConnections()
        self._make_connection: Callable[[], asyncio.Protocol] = _Closing
        self._server: NetworkServer | None = None
        self._retry: PortRetry | None = None

    @property
    def missing(self) -> str:
        """The port that is not bound yet, and why; empty when it is bound."""
        return self._retry.missing if self._retry is not None else ""

    @property
    def port(self) -> int:
        """The port that is bound; 0 while none is."""
        return 0 if self._server is None else self._server.address[1]

    async def open(self, host: str, port: int) -> None:
        """Bind; port 0 takes any. Raises OSError."""
        self._server = await self._network.create_server(
            lambda: self._make_connection(), bare_host(host), port
        )

    def retry_open(self, clock: Clock, host: str, port: int, error: OSError) -> None:
        """Keep trying to bind after open() failed with `error`. Slaves, which know the address, keep trying too."""
        self._retry = PortRetry(
            clock,
            lambda: self.open(host, port),
            port=port,
            purpose="where slaves connect",
            advice="haListenPort sets another port",
        )
        self._retry.start(error)

    def serve(self, make_connection: Callable[[], asyncio.Protocol]) -> None:
        """Serve connections with these protocols from now on. The protocols limit the number of connections
        themselves.
        """
        key, unproven = self._key, self._unproven
        if key:
            from aerobee.broker.replication.keyed_connection import KeyedConnection

            self._make_connection = lambda: KeyedConnection(
                make_connection, key, is_master=True, unproven=unproven
            )
        else:
            self._make_connection = make_connection
        tls, network, make = self._tls, self._network, self._make_connection
        if tls is not None:
            from aerobee.broker.replication.tls_connection import TlsConnection

            self._make_connection = lambda: TlsConnection(
                make, network, tls, is_master=True, unproven=unproven
            )

    async def close(self) -> None:
        """Accept no more connections; close unauthenticated ones."""
        if self._retry is not None:
            await self._retry.stop()
        self._make_connection = _Closing
        self._unproven.end()
        if self._server is not None:
            self._server.close()
            self._server = None


class _Closing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
