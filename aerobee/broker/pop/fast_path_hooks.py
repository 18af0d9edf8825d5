"""Fast path hooks of POP: serve ordinary requests before the handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aerobee.broker.fastpath.request import FallBackToHandler
from aerobee.broker.pop.ack_calls import AckCalls
from aerobee.broker.pop.pop_calls import PopCalls
from aerobee.remoting.peer import Peer


class PopFastPath:
    """fastpath.pop.PopHooks. While POP is not served, it leaves all requests to the handlers, which refuse them."""

    def __init__(self, *, pops: PopCalls, acks: AckCalls, is_served: Callable[[], bool]) -> None:
        self._pop, self._ack = pops.pop_fast, acks.ack_fast
        self._is_served = is_served

    def pop(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """POP_MESSAGE."""
        if not self._is_served():
            raise FallBackToHandler
        return self._pop(peer, opaque, fields)

    def ack(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """ACK_MESSAGE."""
        if not self._is_served():
            raise FallBackToHandler
        return self._ack(peer, opaque, fields)
