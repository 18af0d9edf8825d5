"""Removes the memberships of closed connections in slices. Core.

One connection may be a member of a thousand groups, and hundreds of connections may close in one event loop iteration.
The first slice is removed immediately, which is nearly always all; the rest follows in the next iterations.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

LEAVING_AT_ONCE = 2_000  # maximum memberships removed per event loop iteration: about 5 ms


class ClosedPeers:
    """Closed connections with memberships left to remove. Belongs to the event loop."""

    def __init__(
        self, leave_one: Callable[[Peer], bool], call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """`leave_one` removes one membership of a peer, and returns False when the peer has none left. When it raises,
        the membership counts as removed, too.
        """
        self._leave_one = leave_one
        self._call_soon = call_soon
        self._peers: deque[Peer] = deque()
        self._left = 0  # memberships that may still be removed in this iteration
        self._is_due = False

    def add(self, peer: Peer) -> None:
        """A connection has closed."""
        self._peers.append(peer)
        if not self._is_due:
            self._left = LEAVING_AT_ONCE
            self._arm()
        self._work()

    def _arm(self) -> None:
        self._is_due = True
        self._call_soon(self._next)

    def _next(self) -> None:
        self._left = LEAVING_AT_ONCE
        try:
            self._work()
        finally:
            self._is_due = False
            if self._peers:
                self._arm()

    def _work(self) -> None:
        while self._peers and self._left:
            peer = self._peers[0]
            try:
                is_left = self._leave_one(peer)
            except Exception:
                # A failing membership must not prevent the removal of the others, also of other connections.
                log.exception(
                    "a membership of %s, which is closed, was not taken off completely", peer.address
                )
                is_left = True
            if is_left:
                self._left -= 1
            else:
                self._peers.popleft()
