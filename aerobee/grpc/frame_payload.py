"""What is in a frame of the peer: its payload, checked. Core. Source: RFC 9113, 6; each function raises Http2Violation."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from aerobee.grpc.frame_scanner import (
    ACK,
    CONTINUATION,
    DATA,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_ID_MASK,
    WINDOW_UPDATE,
    Frame,
    Http2Violation,
)

ALTSVC = 10  # RFC 7838
WINDOW_BYTES_MAX = 2**31 - 1
(
    HEADER_TABLE_SIZE,
    ENABLE_PUSH,
    MAX_CONCURRENT_STREAMS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
) = range(1, 7)
ENABLE_CONNECT_PROTOCOL = 8
_FRAME_BYTES_LIMITS = 16_384, 16_777_215  # that MAX_FRAME_SIZE may name
_PRIORITY_BYTES, _ERROR_CODE_BYTES, _PING_BYTES, _INCREMENT_BYTES, _SETTING_BYTES = 5, 4, 8, 4, 6
SETTING = struct.Struct(">HI")
_OF_STREAMS = frozenset({DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION})
_OF_CONNECTIONS = frozenset({SETTINGS, PING})


def check_stream(frame: Frame) -> None:
    """Refuse a frame on stream 0 that belongs to a call, or the other way round."""
    if frame.kind in (_OF_CONNECTIONS if frame.stream_id else _OF_STREAMS):
        raise Http2Violation(PROTOCOL_ERROR, f"a frame of type {frame.kind} has stream id {frame.stream_id}")


def data_of(frame: Frame) -> bytes:
    """The payload of DATA without padding."""
    if not frame.flags & PADDED:
        return frame.payload
    padding, data = _padded(frame)
    return _unpadded(data, padding, len(frame.payload))


class HeaderFragment(NamedTuple):
    """The part of a header block that HEADERS has, and the stream that a priority in it depends on."""

    data: bytes
    depends_on: int | None


def fragment_of(frame: Frame) -> HeaderFragment:
    """The content of HEADERS."""
    padding, data = _padded(frame)
    if not frame.flags & HAS_PRIORITY:
        return HeaderFragment(_unpadded(data, padding, len(data)), None)
    depends_on = _dependency(frame, data)
    # Padding may reach into the priority, whose bytes are read nevertheless.
    return HeaderFragment(_unpadded(data, padding, len(data))[_PRIORITY_BYTES:], depends_on)


def priority_of(frame: Frame) -> int:
    """The stream that PRIORITY makes this one depend on."""
    if len(frame.payload) != _PRIORITY_BYTES:
        raise _size_violation(frame)
    return _dependency(frame, frame.payload)


def check_dependency(stream_id: int, depends_on: int | None) -> None:
    """Refuse a stream that depends on itself."""
    if depends_on == stream_id:
        raise Http2Violation(PROTOCOL_ERROR, f"stream {stream_id} depends on itself")


def check_reset(frame: Frame) -> None:
    """Check RST_STREAM, whose error code has no effect."""
    if len(frame.payload) != _ERROR_CODE_BYTES:
        raise _size_violation(frame)


def ping_of(frame: Frame) -> bytes:
    """What a PING wants to have back."""
    if len(frame.payload) != _PING_BYTES:
        raise _size_violation(frame)
    return frame.payload


def increment_of(frame: Frame) -> int:
    """By how many bytes WINDOW_UPDATE opens a window."""
    if len(frame.payload) != _INCREMENT_BYTES:
        raise _size_violation(frame)
    increment = int.from_bytes(frame.payload, "big")
    if not 0 < increment <= WINDOW_BYTES_MAX:
        raise Http2Violation(PROTOCOL_ERROR, f"a window is updated by {increment}")
    return increment


def opened(window: int, increment: int) -> int:
    """A window that is opened by `increment` bytes."""
    if window + increment > WINDOW_BYTES_MAX:
        raise Http2Violation(FLOW_CONTROL_ERROR, "a window has more than 2^31 - 1 bytes")
    return window + increment


def settings_of(frame: Frame) -> Mapping[int, int]:
    """The settings that a SETTINGS frame has, the last value of each."""
    if frame.flags & ACK and frame.payload:
        raise Http2Violation(PROTOCOL_ERROR, "an acknowledgement of SETTINGS has settings")
    if len(frame.payload) % _SETTING_BYTES:
        raise _size_violation(frame)
    return dict(SETTING.iter_unpack(frame.payload))


def check_settings(settings: Mapping[int, int]) -> None:
    """Refuse settings with values that are not allowed. The peer's HEADER_TABLE_SIZE has no effect: responses use no table."""
    for name, value in settings.items():
        code = PROTOCOL_ERROR
        if name == INITIAL_WINDOW_SIZE:
            is_valid, code = value <= WINDOW_BYTES_MAX, FLOW_CONTROL_ERROR
        elif name == MAX_FRAME_SIZE:
            is_valid = _FRAME_BYTES_LIMITS[0] <= value <= _FRAME_BYTES_LIMITS[1]
        else:
            is_valid = name not in (ENABLE_PUSH, ENABLE_CONNECT_PROTOCOL) or value <= 1
        if not is_valid:
            raise Http2Violation(code, f"setting {name} has the value {value}")


def check_promise(frame: Frame) -> None:
    """Check PUSH_PROMISE, which a client may not send."""
    padding, data = _padded(frame)
    if len(data) < 4:
        raise _size_violation(frame)
    promised = int.from_bytes(data[:4], "big")
    if promised == 0 or promised % 2:
        raise Http2Violation(PROTOCOL_ERROR, f"stream {promised} cannot be promised")
    _unpadded(data, padding, len(frame.payload))


def check_alternative(frame: Frame) -> None:
    """Check ALTSVC, which has no effect."""
    size = len(frame.payload)
    if size < 2 or int.from_bytes(frame.payload[:2], "big") + 2 > size:
        raise _size_violation(frame)


# What checks a payload that is not used.
CHECKS: Mapping[int, Callable[[Frame], object]] = {
    DATA: data_of,
    HEADERS: fragment_of,
    PRIORITY: priority_of,
    RST_STREAM: check_reset,
    SETTINGS: settings_of,
    PUSH_PROMISE: check_promise,
    PING: ping_of,
    WINDOW_UPDATE: increment_of,
    ALTSVC: check_alternative,
}


def _padded(frame: Frame) -> tuple[int, bytes]:
    """How many bytes of padding a payload says to have, and what follows."""
    if not frame.flags & PADDED:
        return 0, frame.payload
    if not frame.payload:
        raise _size_violation(frame)
    return frame.payload[0], frame.payload[1:]


def _unpadded(data: bytes, padding: int, bytes_max: int) -> bytes:
    """`data` without its padding, which has to be shorter than `bytes_max`."""
    if 0 < padding >= bytes_max:
        raise Http2Violation(PROTOCOL_ERROR, "the padding of a frame is too long")
    return data[: max(0, len(data) - padding)]


def _dependency(frame: Frame, data: bytes) -> int:
    if len(data) < _PRIORITY_BYTES:
        raise _size_violation(frame)
    return int.from_bytes(data[:4], "big") & STREAM_ID_MASK


def _size_violation(frame: Frame) -> Http2Violation:
    return Http2Violation(FRAME_SIZE_ERROR, f"a frame of type {frame.kind} has {len(frame.payload)} bytes")
