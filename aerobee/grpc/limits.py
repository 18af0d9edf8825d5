"""Bounds of one HTTP/2 connection: calls, bytes, frames without effect, and time."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `burst` tokens, of which `per_s` return every second."""

    burst: int
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """Bounds of one connection.

    Worst case in memory: one frame, one header block, the requests being received (`receiving_bytes_max` + one frame), and the
    responses that the peer's windows hold back (`unsent_bytes_end` + one message). An idle connection has some 20 KiB.
    """

    # maximum open calls, as clientPollsMax; one more ends the connection
    concurrent_streams_max: int = 10_000
    frame_bytes_max: int = 16 * KIB  # the smallest limit that RFC 9113 allows
    header_block_bytes_max: int = 16 * KIB  # compressed, over all CONTINUATION frames
    header_list_bytes_max: int = 16 * KIB  # of one request's metadata, decoded
    # HPACK's dynamic table for the peer's headers; responses use no dynamic table
    header_table_bytes_max: int = 4 * KIB
    message_bytes_max: int = 16 * MIB  # of one request message, compressed and decompressed
    receiving_bytes_max: int = (
        32 * MIB
    )  # request messages that are not complete or not taken yet, of all calls
    unsent_bytes_max: int = 8 * MIB  # above it no further response message is taken from a call
    unsent_bytes_end: int = (
        64 * MIB
    )  # responses that did not wait for that: the call that has one more is ended
    stream_window_bytes: int = MIB  # as RocketMQ's proxy announces
    connection_window_bytes: int = 4 * MIB
    preface_s: float = 10.0  # for the connection preface, from the first byte
    frame_s: float = 30.0  # for a frame, or a header block, that has begun
    request_s: float = 30.0  # for the whole request of a call, from its headers
    window_s: float = 60.0  # a response that waits for a window longer ends its call
    window_bytes_per_s: int = 8_192  # and a second more for each of its bytes that the windows let through
    keepalive_s: float = 60.0  # silence after which the peer is sent a PING while calls are open
    keepalive_timeout_s: float = 20.0  # for its acknowledgement
    drain_s: float = 30.0  # from a GOAWAY to the end of the connection
    resets: Rate = Rate(1_000, 100.0)  # RST_STREAM frames of the peer (rapid reset, CVE-2023-44487)
    pings: Rate = Rate(100, 10.0)  # PING frames; each sent response refills the bucket
    settings: Rate = Rate(20, 1.0)  # SETTINGS frames
    empty_frames: Rate = Rate(
        10_000, 1_000.0
    )  # WINDOW_UPDATE, PRIORITY, unknown types, DATA without bytes; each response refills the bucket
