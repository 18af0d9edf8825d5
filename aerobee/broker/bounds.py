"""What peers may ask of one broker and occupy in it, and what happens at a bound.

Every bound is a key of BrokerConfig, looked up where it is used, so that an operator moves it while the broker runs. A
bound that is reached is a RemoteError to the peer that reached it, with the key's name, and a warning in the log now and
then; nobody else notices.
"""

from __future__ import annotations

import logging

from aerobee.broker.config import BrokerConfig, LiveConfig
from aerobee.clock import Clock
from aerobee.config import fields_by_key
from aerobee.errors import RemoteError
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.codes import ResponseCode

log = logging.getLogger(__name__)
_FIELDS = {key: field.name for key, field in fields_by_key(BrokerConfig).items()}


class Bounds:
    """The bounds in force. Belongs to the event loop."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        self._live = live
        self._throttle = LogThrottle(log, clock.monotonic)

    @property
    def reached_count(self) -> int:
        """How often a peer was refused something because of a bound."""
        return self._throttle.count

    def limit(self, key: str) -> int:
        return int(getattr(self._live.value, _FIELDS[key]))

    def require(self, key: str, count: int, what: str, address: str = "") -> None:
        """Raise RemoteError when `count` is above the bound: `what` says of whom or of what there are so many."""
        limit = self.limit(key)
        if count > limit:
            raise self.reached(key, f"{what}: {count} are too many, at most {limit} are allowed", address)

    def reached(self, key: str, text: str, address: str = "") -> RemoteError:
        """The refusal of what would pass the bound; the operator is told now and then."""
        asker = f", asked by {address}" if address else ""
        self._throttle.warn(key, "%s (%s)%s", text, key, asker)
        return RemoteError(ResponseCode.SYSTEM_ERROR, f"{text} ({key})")
