"""Bounds the replies that peers have not read, over all connections: disconnects peers that read nothing.

ConnectionLimits bound each connection, but many connections together could take any amount of memory, and the
broker refuses sends while the unread replies exceed `pendingReplyBytesMax`: peers that never read would block
all producers until their connections are closed as idle. So the broker disconnects peers that read nothing,
those with the most unread bytes first, until half the bound is free:

    bytes of all connections           disconnected
    above half the bound               who has taken nothing for STALLED_LOOKS looks
    above the bound                    who has taken nothing since the last look

A peer that reads, however slowly, stays. RocketMQ has no such bound; its channels hold what they are given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from aerobee.remoting.connection import Connection

STALLED_LOOKS = 3

_LOG = logging.getLogger(__name__)


class UnreadReplies:
    """`connections` returns the open ones; look() is called about once a second."""

    def __init__(self, connections: Callable[[], Iterable[Connection]], *, limit_bytes: int) -> None:
        self._connections = connections
        self.limit_bytes = limit_bytes
        self._stalled: dict[
            Connection, tuple[int, int]
        ] = {}  # (unsent bytes, looks since they last decreased)

    def set_limit(self, limit_bytes: int) -> None:
        """Set the bound from the next look() on."""
        self.limit_bytes = limit_bytes

    def look(self) -> int:
        """Disconnect peers by the rule above; return the unread bytes of the other peers."""
        total = 0
        stalled: dict[Connection, tuple[int, int]] = {}
        for connection in self._connections():
            unsent = connection.unsent_bytes
            if not unsent:
                continue
            total += unsent
            if connection.is_behind:
                before, looks = self._stalled.get(connection, (unsent + 1, -1))
                stalled[connection] = (unsent, looks + 1 if unsent >= before else 0)
        self._stalled = stalled
        if total > self.limit_bytes // 2:
            total -= self._disconnect(total)
        return total

    def _disconnect(self, total: int) -> int:
        """Disconnect a peer; return the number of discarded bytes."""
        looks_min = 1 if total > self.limit_bytes else STALLED_LOOKS
        excess, freed, count = total - self.limit_bytes // 2, 0, 0
        chosen = [(unsent, peer) for peer, (unsent, looks) in self._stalled.items() if looks >= looks_min]
        for unsent, connection in sorted(chosen, key=lambda each: each[0], reverse=True):
            if freed >= excess:
                break
            connection.abort(f"the peer reads nothing, {unsent} bytes waited for it")
            del self._stalled[connection]
            freed += unsent
            count += 1
        if count:
            _LOG.warning(
                "%d bytes of replies wait for peers that do not read them (pendingReplyBytesMax: %d): "
                "%d connections with %d of them are closed",
                total,
                self.limit_bytes,
                count,
                freed,
            )
        return freed
