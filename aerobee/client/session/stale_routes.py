"""Refreshes stale routes: after a failed call of any part of a client, its routes are read again in the background.

RocketMQ's client waits for its next refresh (30 s), except for sends. A producer's send and a push consumer's pull
await the new route themselves, because they repeat the request. All other calls (pops, acknowledgements, commits,
locks, heartbeats, ends of transactions) use this module, so that the next call goes to the new master.
"""

from __future__ import annotations

import logging

from aerobee.client.base.tasks import Tasks
from aerobee.client.session.route_cache import RouteCache
from aerobee.clock import Clock
from aerobee.errors import (
    AerobeeError,
    ConnectFailed,
    GoAway,
    InvalidParameter,
    NotLeaderForQueue,
    RemoteError,
    RouteError,
    ServiceNotAvailable,
)
from aerobee.remoting.codes import ResponseCode

log = logging.getLogger(__name__)

# Pause between two refreshes for one address. A broker that stays down must not make a client request routes
# continuously.
PAUSE_FIRST_S, PAUSE_MAX_S = 0.2, 5.0
ADDRESSES_MAX = 1_024  # maximum number of addresses with a separate pause
# Codes of brokers that are no longer master, or have fewer queues than the route. Some of these codes have
# other causes too; then the route is read once without need.
STALE_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,  # a pop at a slave, a pull of a queue that is gone
        ResponseCode.SYSTEM_BUSY,  # a pull at a deposed master
        ResponseCode.SLAVE_NOT_AVAILABLE,  # the end of a transaction at a slave
        ResponseCode.NO_PERMISSION,  # a message that is given back at a slave, a topic whose permission has changed
        ResponseCode.INVALID_PARAMETER,  # a send to a queue that is gone
    }
)


def may_be_stale(error: AerobeeError) -> bool:
    """Whether the call may succeed with another route."""
    return error.route_stale or (isinstance(error, RemoteError) and error.code in STALE_CODES)


def is_not_executed(error: AerobeeError) -> bool:
    """Whether a broker surely did nothing, and another broker of its group may be the master."""
    return isinstance(error, ConnectFailed | ServiceNotAvailable | GoAway | NotLeaderForQueue) or (
        isinstance(error, RemoteError) and error.code == ResponseCode.SLAVE_NOT_AVAILABLE
    )


def is_not_stored(error: AerobeeError) -> bool:
    """Whether a message surely was not stored, and a fresh route may contain a broker or queue that accepts it."""
    return is_not_executed(error) or isinstance(error, InvalidParameter)


class StaleRoutes:
    """The addresses of one client whose routes are in doubt. Belongs to the event loop."""

    def __init__(self, routes: RouteCache, *, clock: Clock, tasks: Tasks) -> None:
        self._routes = routes
        self._clock = clock
        self._tasks = tasks
        self._reading: set[str] = set()
        # By address, for the next failure; empty while all calls succeed.
        self.pauses_s: dict[str, float] = {}

    def failed(self, address: str, error: AerobeeError) -> None:
        """A call to a broker failed. Refreshes the routes that contain its address, unless that happened a moment ago."""
        if address in self._reading or not may_be_stale(error):
            return
        topics = self._routes.topics_at(address)
        if topics:
            self._reading.add(address)
            self._tasks.spawn(self._read(address, topics), f"stale-routes-{address}")

    def answered(self, address: str) -> None:
        """A call to a broker succeeded."""
        self.pauses_s.pop(address, None)

    async def _read(self, address: str, topics: list[str]) -> None:
        try:
            for topic in topics:
                try:
                    await self._routes.refresh(topic)
                except AerobeeError as error:
                    log.debug("route of topic %s is not read again: %s", topic, error)
                    if not isinstance(error, RouteError | RemoteError):
                        break  # no nameserver answers
            if len(self.pauses_s) >= ADDRESSES_MAX:
                self.pauses_s.clear()
            pause_s = self.pauses_s.get(address, PAUSE_FIRST_S)
            self.pauses_s[address] = min(2 * pause_s, PAUSE_MAX_S)
            await self._clock.sleep(pause_s)
        finally:
            self._reading.discard(address)
