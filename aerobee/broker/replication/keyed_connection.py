"""Connections of the HA port between brokers with a shared key (haSharedKey): first the key exchange
(ha/stream/key_exchange.py), then the protocol.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import cast

from aerobee.broker.replication.unproven_connections import UnprovenConnections
from aerobee.errors import MalformedFrame
from aerobee.ha.stream.key_exchange import RANDOM_BYTES, KeyExchange
from aerobee.network import Network, NetworkServer

EXCHANGE_TIMEOUT_S = 5.0


class KeyedConnection(asyncio.Protocol):
    """Runs before the protocol of a connection until the peer has proven the key."""

    def __init__(
        self,
        make_inner: Callable[[], asyncio.Protocol],
        key: bytes,
        *,
        is_master: bool,
        unproven: UnprovenConnections | None = None,
    ) -> None:
        """`unproven` counts it until the key is proven."""
        self._make_inner = make_inner
        self._unproven = unproven or UnprovenConnections()
        self._is_master = is_master
        self._exchange = KeyExchange(key, os.urandom(RANDOM_BYTES), is_master=is_master)
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(
            EXCHANGE_TIMEOUT_S, self._refuse, "it shows no key within 5 s"
        )
        self._unproven.add(self._transport)
        first = self._exchange.begin()
        if first:
            self._transport.write(first)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
            return
        transport, exchange = self._transport, self._exchange
        if transport is None or transport.is_closing():
            return
        try:
            answer = exchange.feed(data)
        except MalformedFrame as error:
            self._refuse(str(error))
            return
        if answer:
            transport.write(answer)
        if exchange.is_done:
            self._end_wait()
            inner = self._inner = self._make_inner()
            inner.connection_made(transport)
            if exchange.rest and not transport.is_closing():
                inner.data_received(exchange.rest)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        inner = self._inner
        if inner is None and not self._is_master:
            inner = self._make_inner()  # notify the caller that waits for the connection of its end
        if inner is not None:
            inner.connection_lost(exc)

    def _refuse(self, reason: str) -> None:
        self._end_wait()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._unproven.refused(transport, reason)
            transport.abort()

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._unproven.remove(self._transport)


class KeyedNetwork:
    """A Network whose outgoing connections begin with the key exchange. It does not wrap servers: their caller does."""

    def __init__(self, network: Network, key: bytes) -> None:
        self._network = network
        self._key = key

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> NetworkServer:
        """As Network.create_server."""
        return await self._network.create_server(factory, host, port)

    async def create_connection(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> None:
        """As Network.create_connection; returns before the exchange has ended."""

        def make_inner() -> asyncio.Protocol:
            return cast(asyncio.Protocol, factory())

        await self._network.create_connection(
            lambda: KeyedConnection(make_inner, self._key, is_master=False), host, port
        )

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


def keyed(network: Network, key: str) -> Network:
    """The network without a key."""
    return KeyedNetwork(network, key.encode()) if key else network
