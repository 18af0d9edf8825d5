"""Bounds on pending calls to the quorum, per connection, per host and in total. Core.

All calls of a controller share the inbox of its Raft member (raft/inbox.py). Without shares one client takes it whole,
and brokers are answered SYSTEM_BUSY. The total for all peers leaves space for elections that the controller itself
starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from aerobee.errors import QuorumBusy
from aerobee.ha.raft.inbox import CALLS_MAX
from aerobee.remoting.peer import Peer

OF_PEER_MAX = 64  # a broker has one or two under way
OF_HOST_MAX = CALLS_MAX // 2
OF_ALL_MAX = CALLS_MAX * 3 // 4
K = TypeVar("K")


class CallShares:
    """Pending calls, by connection and by host. Belongs to the event loop."""

    def __init__(self) -> None:
        self._of_peer: Counter[Peer] = Counter()
        self._of_host: Counter[str] = Counter()
        self._count = 0

    @contextmanager
    def share(self, peer: Peer) -> Iterator[None]:
        """Count one pending call of a peer within the block. Raises QuorumBusy, and counts nothing, when one of the
        bounds is reached.
        """
        host = peer.host_port[0]
        for whose, count, count_max in (
            ("this connection", self._of_peer[peer], OF_PEER_MAX),
            (f"host {host}", self._of_host[host], OF_HOST_MAX),
            ("all connections", self._count, OF_ALL_MAX),
        ):
            if count >= count_max:
                raise QuorumBusy(
                    f"{count} calls of {whose} wait for the controllers, the maximum: try again after they have been answered"
                )
        self._of_peer[peer] += 1
        self._of_host[host] += 1
        self._count += 1
        try:
            yield
        finally:
            _take_off(self._of_peer, peer)
            _take_off(self._of_host, host)
            self._count -= 1


def _take_off(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
