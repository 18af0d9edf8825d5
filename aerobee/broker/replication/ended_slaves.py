"""Throttled log lines about slaves whose connections a master closes: refused slaves reconnect repeatedly."""

from __future__ import annotations

import logging

from aerobee.clock import Clock
from aerobee.log_throttle import LogThrottle

log = logging.getLogger(__name__)


class EndedSlaves:
    """One line per host and some seconds, with the number of omitted ones."""

    def __init__(self, clock: Clock) -> None:
        self._throttle = LogThrottle(log, clock.monotonic)

    def say(self, address: str, reason: str) -> None:
        """The connection of the slave at `address` is closed by this broker."""
        host = address.rpartition(":")[0]
        self._throttle.warn(host, "the connection of the slave at %s is closed: %s", address, reason)
