"""What is said of slaves whose connections a master closes: whoever is not wanted connects again and again."""

from __future__ import annotations

import logging

from aerobee.clock import Clock
from aerobee.log_throttle import LogThrottle

log = logging.getLogger(__name__)


class EndedSlaves:
    """One line for a host and some seconds, with how many were left out."""

    def __init__(self, clock: Clock) -> None:
        self._throttle = LogThrottle(log, clock.monotonic)

    def say(self, address: str, reason: str) -> None:
        """The connection of the slave at `address` is closed by this broker."""
        host = address.rpartition(":")[0]
        self._throttle.warn(host, "the connection of the slave at %s is closed: %s", address, reason)
