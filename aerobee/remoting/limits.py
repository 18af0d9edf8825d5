"""Bounds of one connection: frames, unsent bytes, waiting handlers and time."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.remoting.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds of one connection.

    Worst case in memory: one partial frame and the read behind it (`frame_bytes_max` + 256 KiB), requests held by
    waiting handlers (`handler_bytes_max` + one frame), unsent bytes (`write_max_bytes` + one frame). With the
    defaults 16 + 32 + 16 + 64 + 16 = 144 MiB, reached by a hostile peer only; an idle connection has a few KiB.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX  # a frame that announces more closes the connection
    header_bytes_max: int = HEADER_BYTES_MAX  # the same for its header
    write_high_bytes: int = MIB  # above it nothing more is read or served until the peer took half of it
    write_max_bytes: int = (
        64 * MIB
    )  # deferred replies and calls; above it the peer counts as unresponsive, and the connection is closed
    pending_calls_max: int = 65_536  # pending calls to the peer; one more is refused
    handler_tasks_max: int = 256  # concurrently running coroutine handlers; above it reading pauses
    handler_bytes_max: int = 32 * MIB  # bodies that they hold; above it reading pauses
    idle_close_s: float = (
        120.0  # no byte in either direction for so long: closed (serverChannelMaxIdleTimeSeconds)
    )
    handshake_s: float = 10.0  # for a TLS handshake, from the connection's first moment
    frame_s: float = 30.0  # for a frame that has begun, and a second more for each
    frame_bytes_per_s: int = 8_192  # of its length: who is slower than that is closed
