"""One line when a broker or a nameserver is lost, one when it is back, whoever of a client notices it first.

Pulls, heartbeats, commits and locks then fail simultaneously, and each of them would log its error repeatedly. Their
errors are debug lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from aerobee.errors import AerobeeError, ConnectFailed, ConnectionLost, TransportError

log = logging.getLogger(__name__)

PEERS_MAX = 1_024  # remembered at a time; above it all entries are dropped


class LostPeers:
    """The addresses of one client that do not answer. `lost` may be read: empty as long as all is well."""

    def __init__(self, *, monotonic: Callable[[], float], name_of: Callable[[str], str]) -> None:
        """`name_of` says what is at an address: "broker broker-a", "nameserver"."""
        self.lost: dict[str, float] = {}  # address -> since when, by the monotonic clock
        self._monotonic = monotonic
        self._name_of = name_of

    def trouble(self, by: logging.Logger, error: AerobeeError, text: str, *args: object) -> None:
        """A call failed with `error`. Says that its peer is lost, once; for every other error a warning of `by`."""
        address = error.address if isinstance(error, TransportError) else ""
        if not address:
            # A lost broker takes routes along: what follows from that is no news.
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
        """Whether an error follows from what has been said already."""
        return bool(self.lost) and error.route_stale

    def answered(self, address: str) -> None:
        """A call was answered, with whatever code."""
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
