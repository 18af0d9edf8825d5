"""Bounds the connections at the HA port whose peer has not yet proven its identity by key or TLS handshake.

One in a TLS handshake holds 300 KB. When there are too many the oldest of the address that has the most is closed: a slave needs
milliseconds only, and who opens connection after connection pushes out its own and no slave's at another address.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from aerobee.log_throttle import LogThrottle
from aerobee.ordered_set import OrderedSet

log = logging.getLogger(__name__)
UNPROVEN_MAX = 64
SLAVES_MAX = 64  # proven connections that are sent the log, which takes its bandwidth once for each; as many that have not begun yet
T = TypeVar("T")


def one_too_many(connections: Iterable[T], host_of: Callable[[T], str]) -> T:
    """Which of too many connections, in the order in which they came, goes: the oldest of the host that has the most."""
    ordered = list(connections)
    counts = Counter(host_of(each) for each in ordered)
    most = max(counts.values())
    return next(each for each in ordered if counts[host_of(each)] == most)


class UnprovenConnections:
    """The unproven connections of one HA port. Belongs to the event loop."""

    def __init__(self, count_max: int = UNPROVEN_MAX) -> None:
        self._count_max = count_max
        self._transports: OrderedSet[asyncio.Transport] = OrderedSet()
        self._throttle = LogThrottle(log, time.monotonic)

    def add(self, transport: asyncio.Transport) -> None:
        """Add a connection. When there are too many, close the oldest one of the address with the most connections."""
        self._transports.add(transport)
        if len(self._transports) > self._count_max:
            oldest = one_too_many(self._transports, _host)
            self._transports.discard(oldest)
            oldest.abort()

    def refused(self, transport: asyncio.Transport, reason: str) -> None:
        """Say that a connection is closed: one line for an address and some seconds, with how many were left out."""
        peer = transport.get_extra_info("peername")
        self._throttle.warn(
            _host(transport), "the connection with %s at the HA port is closed: %s", peer, reason
        )

    def end(self) -> None:
        """Close all of them: no peer is listened to any more."""
        for transport in list(self._transports):
            transport.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """Remove a connection that has proven its identity, or was closed."""
        self._transports.discard(transport)


def _host(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
