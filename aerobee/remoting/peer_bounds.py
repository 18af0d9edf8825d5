"""Refusals of a peer that reaches a bound of a server, with a throttled warning in the log.

The refusal is a RemoteError to that peer with the key of the setting; no other peer is affected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.errors import RemoteError
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.codes import ResponseCode


class PeerBounds:
    """The bounds in force of one server. Belongs to its event loop."""

    def __init__(
        self, limit: Callable[[str], int], *, log: logging.Logger, monotonic: Callable[[], float]
    ) -> None:
        """`limit` gives the value in force of a setting by its key."""
        self.limit = limit
        self._throttle = LogThrottle(log, monotonic)

    @property
    def reached_count(self) -> int:
        """Number of refusals because of a bound."""
        return self._throttle.count

    def require(self, key: str, count: int, what: str, address: str = "") -> None:
        """Raise RemoteError when `count` is above the bound: `what` names the bounded objects."""
        limit = self.limit(key)
        if count > limit:
            raise self.reached(key, f"{what}: {count} are too many, at most {limit} are allowed", address)

    def reached(self, key: str, text: str, address: str = "") -> RemoteError:
        """Return the refusal of a request that would exceed the bound, and log a throttled warning."""
        asker = f", asked by {address}" if address else ""
        self._throttle.warn(key, "%s (%s)%s", text, key, asker)
        return RemoteError(ResponseCode.SYSTEM_ERROR, f"{text} ({key})")
