"""Logs one line when a client loses a broker or NameServer and one line when it answers again, whichever part of the
client notices first.

Pulls, heartbeats, commits and locks then fail together, and each would log its error repeatedly; these errors are debug
lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.errors import AerobeeError, ConnectFailed, ConnectionLost, TransportError

log = logging.getLogger(__name__)

PEERS_MAX = 1_024  # maximum number of remembered addresses; at the limit all entries are dropped


class LostPeers:
    """The addresses of one client that do not answer. Callers may read `lost`; it is empty while every peer answers."""

    def __init__(self, *, monotonic: Callable[[], float], name_of: Callable[[str], str]) -> None:
        """`name_of` says what is at an address: "broker broker-a", "nameserver"."""
        self.lost: dict[str, float] = {}  # address -> since when, by the monotonic clock
        self._monotonic = monotonic
        self._name_of = name_of

    def trouble(self, by: logging.Logger, error: AerobeeError, text: str, *args: object) -> None:
        """A call failed with `error`. Logs the loss of its peer once; logs any other error as a warning of `by`."""
        address = error.address if isinstance(error, TransportError) else ""
        if not address:
            # Routes disappear with a lost broker: the resulting errors are not logged again.
            by.log(logging.DEBUG if self.explains(error) else logging.WARNING, text, *args)
            return
        by.debug(text, *args)
        if address in self.lost:
            return
        if len(self.lost) >= PEERS_MAX:
            self.lost.clear()
        self.lost[address] = self._monotonic()
        log.warning("%s at %s is lost: %s; trying again", self._name_of(address), address, _why(error))

    def explains(self, error: AerobeeError) -> bool:
        """Whether an error follows from a loss that has been logged already."""
        return bool(self.lost) and error.route_stale

    def answered(self, address: str) -> None:
        """A peer answered a call, with any response code."""
        since = self.lost.pop(address, None)
        if since is not None:
            seconds = self._monotonic() - since
            log.warning("%s at %s is back after %.1f s", self._name_of(address), address, seconds)


def _why(error: AerobeeError) -> str:
    if isinstance(error, ConnectFailed):
        return "no server listens there, or it is unreachable"
    if isinstance(error, ConnectionLost):
        return "the connection ended"
    return "it does not answer in time"
