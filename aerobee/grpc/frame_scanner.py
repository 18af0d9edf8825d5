"""Cuts a byte stream into HTTP/2 frames and refuses floods, before any frame is interpreted. Core.

Layout of a frame, source RFC 9113:

    uint24 length | uint8 type | uint8 flags | uint32 stream id | payload

Invariants: it buffers at most one frame and checks the length as soon as it is known; a header block has a
bound over all its frames; each kind of frame that costs its sender nothing has a rate limit. `Http2Fault`
ends the connection.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.token_bucket import TokenBucket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS, ACK, PADDED = 0x1, 0x4, 0x1, 0x8
HAS_PRIORITY = 0x20
STREAM_ID_MASK = 2**31 - 1
GOAWAY_BYTES_MIN = 8  # last stream and error code; a text may follow
# Error codes of RFC 9113.
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = (
    0x0,
    0x1,
    0x2,
    0x3,
    0x5,
    0x6,
)
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0x7, 0x8, 0xB
FRAME_HEAD = struct.Struct(">BHBBI")  # length in 24 bits, type, flags, stream
_OF_BLOCKS = frozenset({HEADERS, CONTINUATION})


class Http2Fault(Exception):
    """The peer broke the protocol or a limit: the connection ends with GOAWAY and this error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Http2Violation(Http2Fault):
    """The peer broke the protocol: GOAWAY does not say how, as its text is that of one implementation."""


class Frame(NamedTuple):
    """One whole frame of the peer."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


class FrameScanner:
    """Feed bytes, take whole frames. `is_waiting`: a frame or a header block is incomplete."""

    def __init__(self, limits: Http2Limits, now: float) -> None:
        self._limits = limits
        self._data = b""  # of the last reads
        self._at = 0  # offset of what is not taken yet
        self._has_preface = False
        self._block_bytes = -1  # size of the header block being received; -1: none
        self._resets = TokenBucket(limits.resets, now)
        self._pings = TokenBucket(limits.pings, now)
        self._settings = TokenBucket(limits.settings, now)
        self._empty_frames = TokenBucket(limits.empty_frames, now)
        self._may_fill = False  # whether tokens were taken since the last response

    @property
    def has_preface(self) -> bool:
        """Whether the connection preface is complete."""
        return self._has_preface

    @property
    def is_waiting(self) -> bool:
        """Whether a frame or a header block has begun and is not complete."""
        return self._at < len(self._data) or self._block_bytes >= 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._data) - self._at

    @property
    def next_data_stream(self) -> int:
        """The stream of the next frame if that is DATA and its head is complete, else 0."""
        if self.kept_bytes < HEAD_BYTES:
            return 0
        _, _, kind, _, stream_id = FRAME_HEAD.unpack_from(self._data, self._at)
        return stream_id & STREAM_ID_MASK if kind == DATA else 0

    def feed(self, data: bytes) -> None:
        """Add the bytes of one read."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def take_preface(self) -> bool:
        """Take the connection preface if it is complete; returns whether. Raises Http2Fault at the first byte that differs."""
        if not PREFACE.startswith(self._data[: len(PREFACE)]):
            raise Http2Fault(PROTOCOL_ERROR, "HTTP/2 client preface string missing or corrupt")
        if len(self._data) < len(PREFACE):
            return False
        self._at = len(PREFACE)
        self._has_preface = True
        return True

    def next_frame(self, now: float) -> Frame | None:
        """The next whole frame; None when more bytes are needed. Raises Http2Fault."""
        data, at = self._data, self._at
        left_bytes = len(data) - at - HEAD_BYTES
        if left_bytes < 0:
            self._forget_taken()
            return None
        high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, at)
        length = high << 16 | low
        if length > self._limits.frame_bytes_max:
            raise Http2Fault(
                FRAME_SIZE_ERROR,
                f"a frame has {length} bytes, at most {self._limits.frame_bytes_max} are allowed",
            )
        if kind in _OF_BLOCKS or self._block_bytes >= 0:
            self._check_block(kind, length)
        if left_bytes < length:
            self._forget_taken()
            return None
        at += HEAD_BYTES
        payload = data[at : at + length]
        if kind != HEADERS and (kind != DATA or not length or flags & PADDED):
            self._count(kind, flags, payload, now)
        self._at = at + length
        if kind in _OF_BLOCKS:
            self._block_bytes = -1 if flags & END_HEADERS else max(0, self._block_bytes) + length
        return Frame(kind, flags, stream_id & STREAM_ID_MASK, payload)

    def _forget_taken(self) -> None:
        if self._at:
            self._data, self._at = self._data[self._at :], 0

    def on_response(self) -> None:
        """Note a sent response: it entitles the peer to PING and WINDOW_UPDATE frames again."""
        if self._may_fill:
            self._may_fill = False
            self._pings.fill()
            self._empty_frames.fill()

    def _check_block(self, kind: int, length: int) -> None:
        if self._block_bytes >= 0 and kind != CONTINUATION:
            raise Http2Fault(PROTOCOL_ERROR, "a header block is interrupted by another frame")
        if kind == CONTINUATION and self._block_bytes < 0:
            raise Http2Fault(PROTOCOL_ERROR, "a CONTINUATION frame without a header block")
        if (
            kind in (HEADERS, CONTINUATION)
            and max(0, self._block_bytes) + length > self._limits.header_block_bytes_max
        ):
            raise Http2Fault(
                ENHANCE_YOUR_CALM,
                f"a header block has more than {self._limits.header_block_bytes_max} bytes",
            )

    def _count(self, kind: int, flags: int, payload: bytes, now: float) -> None:
        length = len(payload)
        if kind == RST_STREAM and not self._resets.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many streams are reset")
        if kind == PING and not flags & ACK:
            self._may_fill = True
            if not self._pings.take(now):
                raise Http2Fault(ENHANCE_YOUR_CALM, "too_many_pings")
        if kind == SETTINGS and not self._settings.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many SETTINGS frames")
        if kind == DATA and flags & PADDED and length:
            length = max(0, length - 1 - payload[0])  # padding is no content
        has_effect = kind in (HEADERS, RST_STREAM, SETTINGS, GOAWAY) or (
            (kind == PING and not flags & ACK)
            or (
                kind in (DATA, CONTINUATION)
                and (length or flags & END_STREAM or (kind == CONTINUATION and flags & END_HEADERS))
            )
        )
        if not has_effect:
            self._may_fill = True
            if not self._empty_frames.take(now):
                raise Http2Fault(ENHANCE_YOUR_CALM, "too many frames without effect")

    def count_reset(self, now: float) -> None:
        """Count a stream that was reset because of the peer. Raises Http2Fault above the rate."""
        if not self._resets.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many streams are reset")


def check_goaway(frame: Frame) -> None:
    """Raise Http2Fault for a GOAWAY of a stream, or one without an error code."""
    if frame.stream_id:
        raise Http2Fault(PROTOCOL_ERROR, f"GOAWAY has stream id {frame.stream_id}, must be 0")
    if len(frame.payload) < GOAWAY_BYTES_MIN:
        text = f"GOAWAY has {len(frame.payload)} bytes, at least {GOAWAY_BYTES_MIN} are needed"
        raise Http2Fault(FRAME_SIZE_ERROR, text)
