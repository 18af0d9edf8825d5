"""Cuts a byte stream into HTTP/2 frames and refuses floods, before any frame is interpreted. Core.

Layout of a frame, source RFC 9113:

    uint24 length | uint8 type | uint8 flags | uint32 stream id | payload

Invariants: it buffers at most one frame and checks the length as soon as it is known; a header block has a
bound over all its frames; each kind of frame that costs its sender nothing has a rate limit. `Http2Fault`
ends the connection.
"""

from __future__ import annotations

from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.token_bucket import TokenBucket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, END_HEADERS, ACK, PADDED = 0x1, 0x4, 0x1, 0x8
STREAM_ID_MASK = 2**31 - 1
GOAWAY_BYTES_MIN = 8  # last stream and error code; a text may follow
# Error codes of RFC 9113.
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FRAME_SIZE_ERROR = 0x0, 0x1, 0x2, 0x6
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 0x7, 0x8, 0xB


class Http2Fault(Exception):
    """The peer broke the protocol or a limit: the connection ends with GOAWAY and this error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameScanner:
    """Feed bytes, take whole frames. `is_waiting`: a frame or a header block is incomplete."""

    def __init__(self, limits: Http2Limits, now: float) -> None:
        self._limits = limits
        self._buffer = bytearray()
        self._has_preface = False
        self._block_bytes = -1  # size of the header block being received; -1: none
        self._resets = TokenBucket(limits.resets, now)
        self._pings = TokenBucket(limits.pings, now)
        self._settings = TokenBucket(limits.settings, now)
        self._empty_frames = TokenBucket(limits.empty_frames, now)

    @property
    def has_preface(self) -> bool:
        """Whether the connection preface is complete."""
        return self._has_preface

    @property
    def is_waiting(self) -> bool:
        """Whether a frame or a header block has begun and is not complete."""
        return bool(self._buffer) or self._block_bytes >= 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer)

    @property
    def next_data_stream(self) -> int:
        """The stream of the next frame if that is DATA and its head is complete, else 0."""
        buffer = self._buffer
        is_data = len(buffer) >= HEAD_BYTES and buffer[3] == DATA
        return int.from_bytes(buffer[5:HEAD_BYTES], "big") & STREAM_ID_MASK if is_data else 0

    def feed(self, data: bytes) -> None:
        """Add the bytes of one read."""
        self._buffer += data

    def take_preface(self) -> bytes:
        """Return the connection preface when it is complete, else b"". Raises Http2Fault at the first byte that differs."""
        if not PREFACE.startswith(bytes(self._buffer[: len(PREFACE)])):
            raise Http2Fault(PROTOCOL_ERROR, "HTTP/2 client preface string missing or corrupt")
        if len(self._buffer) < len(PREFACE):
            return b""
        del self._buffer[: len(PREFACE)]
        self._has_preface = True
        return PREFACE

    def next_frame(self, now: float) -> tuple[int, bytes] | None:
        """The next whole frame, as (type, bytes); None when more bytes are needed. Raises Http2Fault."""
        buffer = self._buffer
        if len(buffer) < HEAD_BYTES:
            return None
        length, kind, flags = int.from_bytes(buffer[:3], "big"), buffer[3], buffer[4]
        if length > self._limits.frame_bytes_max:
            raise Http2Fault(
                FRAME_SIZE_ERROR,
                f"a frame has {length} bytes, at most {self._limits.frame_bytes_max} are allowed",
            )
        self._check_block(kind, length)
        if len(buffer) < HEAD_BYTES + length:
            return None
        self._count(kind, flags, length, now)
        frame = bytes(memoryview(buffer)[: HEAD_BYTES + length])
        del buffer[: HEAD_BYTES + length]
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = -1 if flags & END_HEADERS else max(0, self._block_bytes) + length
        return kind, frame

    def on_response(self) -> None:
        """Note a sent response: it entitles the peer to PING and WINDOW_UPDATE frames again."""
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

    def _count(self, kind: int, flags: int, length: int, now: float) -> None:
        if kind == RST_STREAM and not self._resets.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many streams are reset")
        if kind == PING and not flags & ACK and not self._pings.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too_many_pings")
        if kind == SETTINGS and not self._settings.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many SETTINGS frames")
        if kind == DATA and flags & PADDED and length:
            length = max(0, length - 1 - self._buffer[HEAD_BYTES])  # padding is no content
        has_effect = kind in (HEADERS, RST_STREAM, SETTINGS, GOAWAY) or (
            (kind == PING and not flags & ACK)
            or (
                kind in (DATA, CONTINUATION)
                and (length or flags & END_STREAM or (kind == CONTINUATION and flags & END_HEADERS))
            )
        )
        if not has_effect and not self._empty_frames.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many frames without effect")

    def count_reset(self, now: float) -> None:
        """Count a stream that was reset because of the peer. Raises Http2Fault above the rate."""
        if not self._resets.take(now):
            raise Http2Fault(ENHANCE_YOUR_CALM, "too many streams are reset")


def check_goaway(frame: bytes) -> None:
    """Raise Http2Fault for a GOAWAY of a stream, or one without an error code."""
    stream_id = int.from_bytes(frame[5:HEAD_BYTES], "big") & STREAM_ID_MASK
    if stream_id:
        raise Http2Fault(PROTOCOL_ERROR, f"GOAWAY has stream id {stream_id}, must be 0")
    if len(frame) < HEAD_BYTES + GOAWAY_BYTES_MIN:
        text = f"GOAWAY has {len(frame) - HEAD_BYTES} bytes, at least {GOAWAY_BYTES_MIN} are needed"
        raise Http2Fault(FRAME_SIZE_ERROR, text)
