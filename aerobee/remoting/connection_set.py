"""The open connections of one server or client. Closes idle connections, and all connections at the end.

One sweep serves them all, no timer for each. A connection is closed between `idle_close_s` and a quarter more after its
last byte in either direction; a connection that does not react to the close is aborted by the next sweep. Another sweep
looks for peers that send too slowly to be served: a peer that sends a byte now and then is never idle and could keep
its connection for ever, so a TLS handshake has a time limit, and a frame in progress has one that grows with its
length. Source: IdleStateHandler with serverChannelMaxIdleTimeSeconds (RocketMQ), which has nothing like the second.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee.clock import Clock, Timer
from aerobee.ordered_set import OrderedSet
from aerobee.remoting.connection import Connection
from aerobee.remoting.limits import ConnectionLimits

_LOG = logging.getLogger("aerobee.remoting")
SWEEPS_PER_IDLE_TIME = 4
LOOK_S_MAX = 5.0  # interval of the check for slow peers
LOOKED_AT_ONCE = 2_000  # connections that a check visits without yielding to the event loop
CLOSE_WAIT_S = 0.5  # time for connections to close before they are aborted


class Progress:
    """Progress of one connection between two checks, a few seconds apart."""

    __slots__ = ("_begun", "_idle_since", "_made_at", "_seen_at")

    def __init__(self, made_at: float) -> None:
        self._made_at = self._idle_since = made_at
        self._begun: tuple[int, int] | None = None  # the incomplete frame at the last check
        self._seen_at = 0.0  # time of the first check that found it incomplete

    def idle_s(self, now: float, *, moved: bool) -> float:
        """Seconds without progress; `moved`: there was progress since the last call."""
        if moved:
            self._idle_since = now
        return now - self._idle_since

    def look(self, connection: Connection, limits: ConnectionLimits, now: float) -> str:
        """Return the reason why the peer is too slow, or ""."""
        if connection.shakes_hands:
            late = now - self._made_at > limits.handshake_s
            return f"no whole TLS handshake or PROXY header in {limits.handshake_s:.0f} s" if late else ""
        found = connection.frame_begun()
        begun, size = found if found is not None else (None, 0)
        if begun is None or begun != self._begun:
            self._begun, self._seen_at = begun, now
            return ""
        allowed_s = limits.frame_s + size / limits.frame_bytes_per_s
        if now - self._seen_at <= allowed_s:
            return ""
        return f"a frame of {size} bytes was not whole after {allowed_s:.0f} s"


class ConnectionSet:
    """`connections` holds the open ones; `made` and `lost` are the callbacks of their Endpoint."""

    def __init__(self, clock: Clock, limits: ConnectionLimits) -> None:
        self.connections: OrderedSet[Connection] = OrderedSet()
        self.too_slow_count = 0
        self._limits = limits
        self._look_s = min(limits.handshake_s / 2, limits.frame_s / 2, LOOK_S_MAX)
        self._look_timer: Timer | None = None
        self._progress: dict[Connection, Progress] = {}
        self._clock = clock
        self._idle_close_s = limits.idle_close_s
        self._timer: Timer | None = None
        self._closing: set[Connection] = set()
        self._all_lost: asyncio.Event | None = None

    def made(self, connection: Connection) -> None:
        self.connections.add(connection)
        self._progress[connection] = Progress(self._clock.monotonic())

    def lost(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._closing.discard(connection)
        self._progress.pop(connection, None)
        if not self.connections and self._all_lost is not None:
            self._all_lost.set()

    def start_sweeping(self) -> None:
        """Close idle connections from now on; starting twice is the same as once."""
        if self._timer is None:
            self._timer = self._clock.call_later(self._idle_close_s / SWEEPS_PER_IDLE_TIME, self._sweep)
        if self._look_timer is None:
            self._look_timer = self._clock.call_later(self._look_s, self._look, [])

    def stop_sweeping(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def close_all(self, reason: str) -> None:
        """Close every connection and wait until all are gone; abort those that take longer than CLOSE_WAIT_S."""
        for connection in list(self.connections):
            connection.close(reason)
        if not self.connections:
            return
        self._all_lost = asyncio.Event()
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self._all_lost.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort(reason)
            await self._all_lost.wait()
        finally:
            self._all_lost = None

    def _sweep(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        for connection in list(self.connections):
            if connection in self._closing:
                connection.abort("it did not close")
            elif not connection.is_open:
                self._closing.add(connection)
            elif (
                idle_s := self._progress[connection].idle_s(now, moved=connection.take_moved())
            ) >= self._idle_close_s:
                self._closing.add(connection)
                connection.close(f"nothing moved for {idle_s:.0f} s")
        self.start_sweeping()

    def _look(self, left: list[Connection]) -> None:
        """Close peers that are too slow, some thousand connections at a time; `left`: remaining connections
        of this round.
        """
        now = self._clock.monotonic()
        left = left or list(self.connections)
        for connection in left[-LOOKED_AT_ONCE:]:
            progress = self._progress.get(connection)
            if connection.is_open and progress is not None:
                reason = progress.look(connection, self._limits, now)
                if reason:
                    self.too_slow_count += 1
                    _LOG.warning("%s is disconnected: %s", connection.address, reason)
                    connection.abort(reason)
        del left[-LOOKED_AT_ONCE:]
        self._look_timer = self._clock.call_later(0.0 if left else self._look_s, self._look, left)
