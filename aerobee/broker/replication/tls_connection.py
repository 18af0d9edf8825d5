"""Connections of the HA port under TLS (haTlsCertPath): first the TLS handshake, then the same protocol as without TLS.

The master is the server of the handshake, the slave its client. With haTlsTrustCertPath each asks the other for a certificate that
an authority in that file has signed; names in it are not compared, so the authority is to be the brokers' own. Files are read
again when they change.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from aerobee.broker.replication.keyed_connection import keyed
from aerobee.broker.replication.unproven_connections import UnprovenConnections
from aerobee.errors import ConfigError
from aerobee.network import Network, NetworkServer
from aerobee.remoting.tls import ClientAuth, ClientTls, ServerTls, TlsFiles, TlsMode
from aerobee.store.files.config import StoreConfig

HANDSHAKE_TIMEOUT_S = 5.0


class HaTls:
    """Both sides' settings, from one set of files. Raises ConfigError for files that cannot be used."""

    def __init__(self, config: StoreConfig) -> None:
        self._files = TlsFiles(
            key_path=config.ha_tls_key_path,
            cert_path=config.ha_tls_cert_path,
            trust_cert_path=config.ha_tls_trust_cert_path,
            verify_peer=bool(config.ha_tls_trust_cert_path),
        )
        auth = ClientAuth.REQUIRE if config.ha_tls_trust_cert_path else ClientAuth.NONE
        self._server = ServerTls(self._files, mode=TlsMode.ENFORCING, client_auth=auth, test_mode=False)
        self._client = ClientTls(self._files)
        self._client.context()

    def context(self, *, is_master: bool) -> ssl.SSLContext:
        """For a new connection. Raises ConfigError."""
        return self._server.context() if is_master else self._client.context()


class TlsConnection(asyncio.Protocol):
    """Runs the handshake before a connection's protocol starts, and then decrypts its bytes for the protocol."""

    def __init__(
        self,
        make_inner: Callable[[], asyncio.BaseProtocol],
        network: Network,
        tls: HaTls,
        *,
        is_master: bool,
        unproven: UnprovenConnections | None = None,
    ) -> None:
        """`unproven` counts it until the handshake is through."""
        self._unproven = unproven or UnprovenConnections()
        self._make_inner = make_inner
        self._network = network
        self._tls = tls
        self._is_master = is_master
        self._inner: asyncio.Protocol | None = None
        self._early: list[bytes] = []  # what came with the end of the handshake
        self._handshake: asyncio.Task[None] | None = None
        self._failure: OSError | ConfigError | None = None
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)
        self._unproven.add(plain)
        plain.pause_reading()  # the first byte is the handshake's
        self._handshake = asyncio.get_running_loop().create_task(self._begin(plain), name="ha-tls-handshake")

    async def handshake(self) -> None:
        """Return when it is through. Raises OSError when it fails; cancelled, it ends immediately, with the connection."""
        assert self._handshake is not None  # connection_made() was called
        await self._handshake
        if self._failure is not None:
            raise ConnectionAbortedError(_why(self._failure)) from self._failure

    async def _begin(self, plain: asyncio.Transport) -> None:
        if plain.is_closing():  # sent away before its turn: TLS would keep its buffers for a minute
            self._unproven.remove(plain)
            self._failure = ConnectionResetError("the connection closed before the TLS handshake")
            return
        try:
            context = self._tls.context(is_master=self._is_master)
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                secured = await self._network.start_tls(plain, self, context, server_side=self._is_master)
        except (OSError, ConfigError) as error:  # an ssl.SSLError and a timeout are OSErrors
            self._unproven.refused(plain, _why(error))
            plain.abort()
            self._failure, self._is_lost = error, True
            return
        except asyncio.CancelledError:
            plain.abort()
            raise
        finally:
            self._unproven.remove(plain)
        if self._is_lost:
            self._failure = ConnectionResetError("the connection closed with the TLS handshake")
            return
        inner = self._inner = cast(asyncio.Protocol, self._make_inner())
        inner.connection_made(secured)
        early, self._early = self._early, []
        for data in early:
            if not secured.is_closing():
                inner.data_received(data)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            self._early.append(data)
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if self._inner is not None:
            self._inner.connection_lost(exc)


def _why(error: OSError | ConfigError) -> str:
    """For people: what asyncio raises for the two most frequent has no text."""
    if text := str(error):
        return text
    if isinstance(error, TimeoutError):
        return f"no TLS handshake within {HANDSHAKE_TIMEOUT_S:.0f} s"
    return "the other side closed it within the TLS handshake"


class TlsNetwork:
    """A Network whose outgoing connections begin with a TLS handshake. It does not wrap servers: their caller does."""

    def __init__(self, network: Network, tls: HaTls) -> None:
        self._network = network
        self._tls = tls

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> NetworkServer:
        """As Network.create_server."""
        return await self._network.create_server(factory, host, port)

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        """As Network.create_connection; returns when the handshake has ended. Raises OSError for one that fails, too."""
        made: list[TlsConnection] = []

        def make() -> TlsConnection:
            made.append(TlsConnection(factory, self._network, self._tls, is_master=False))
            return made[-1]

        await self._network.create_connection(make, host, port)
        await made[-1].handshake()

    async def start_tls(
        self,
        transport: asyncio.WriteTransport,
        protocol: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        *,
        server_side: bool,
    ) -> asyncio.Transport:
        """As Network.start_tls."""
        return await self._network.start_tls(transport, protocol, context, server_side=server_side)


def secured(network: Network, config: StoreConfig) -> Network:
    """The network for connections to a master's HA port: under TLS, and then with the key, as the settings say."""
    if config.ha_tls_cert_path:
        network = TlsNetwork(network, HaTls(config))
    return keyed(network, config.ha_shared_key)
