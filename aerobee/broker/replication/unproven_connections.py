"""Connections at the HA port that have not shown yet who they are, by key or in a TLS handshake: a bounded number of them.

One in a TLS handshake holds 300 KB. When there are too many the oldest is closed: a slave needs milliseconds only.
"""

from __future__ import annotations

import asyncio

from aerobee.ordered_set import OrderedSet

UNPROVEN_MAX = 64


class UnprovenConnections:
    """Belongs to the event loop."""

    def __init__(self, count_max: int = UNPROVEN_MAX) -> None:
        self._count_max = count_max
        self._transports: OrderedSet[asyncio.Transport] = OrderedSet()

    def add(self, transport: asyncio.Transport) -> None:
        """One more has connected; the oldest goes when that is too many."""
        self._transports.add(transport)
        if len(self._transports) > self._count_max:
            oldest = next(iter(self._transports))
            self._transports.discard(oldest)
            oldest.abort()

    def end(self) -> None:
        """All of them are closed at once: nobody is listened to any more."""
        for transport in list(self._transports):
            transport.abort()

    def remove(self, transport: asyncio.Transport) -> None:
        """It has shown who it is, or is gone."""
        self._transports.discard(transport)
