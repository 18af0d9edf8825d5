"""Bounds on requests and resources of peers at one broker, and the behaviour at a bound.

Every bound is a key of BrokerConfig, looked up where it is used, so that an operator moves it while the broker runs.
"""

from __future__ import annotations

import logging

from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.clock import Clock
from aerobee.config import fields_by_key
from aerobee.remoting.peer_bounds import PeerBounds

log = logging.getLogger(__name__)
_FIELDS = {key: field.name for key, field in fields_by_key(BrokerConfig).items()}


class Bounds(PeerBounds):
    """The bounds in force. Belongs to the event loop."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        super().__init__(
            lambda key: int(getattr(live.value, _FIELDS[key])), log=log, monotonic=clock.monotonic
        )
