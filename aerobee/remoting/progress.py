"""Whether a peer sends fast enough to be kept.

A peer that sends a byte now and then is never idle and could keep its connection for ever: a TLS handshake has a time limit, and a frame
in progress has one that grows with its length.
"""

from __future__ import annotations

from aerobee.remoting.connection import Connection
from aerobee.remoting.limits import ConnectionLimits


class Progress:
    """What was seen of one connection, which is looked at every few seconds."""

    __slots__ = ("_begun", "_idle_since", "_made_at", "_seen_at")

    def __init__(self, made_at: float) -> None:
        self._made_at = self._idle_since = made_at
        self._begun: tuple[int, int] | None = None  # the frame that was under way at the last look
        self._seen_at = 0.0  # the first look that found it so

    def idle_s(self, now: float, *, moved: bool) -> float:
        """Seconds without progress; `moved`: there was progress since the last call."""
        if moved:
            self._idle_since = now
        return now - self._idle_since

    def look(self, connection: Connection, limits: ConnectionLimits, now: float) -> str:
        """Return why the peer is too slow, or ""."""
        if connection.shakes_hands:
            late = now - self._made_at > limits.handshake_s
            return f"no TLS handshake in {limits.handshake_s:.0f} s" if late else ""
        found = connection.frame_begun()
        begun, size = found if found is not None else (None, 0)
        if begun is None or begun != self._begun:
            self._begun, self._seen_at = begun, now
            return ""
        allowed_s = limits.frame_s + size / limits.frame_bytes_per_s
        if now - self._seen_at <= allowed_s:
            return ""
        return f"a frame of {size} bytes was not whole after {allowed_s:.0f} s"
