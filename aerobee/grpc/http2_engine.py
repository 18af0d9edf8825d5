"""What frames of the peer do to a connection, and the frames of this side. Core. Source: RFC 9113, RFC 7541.

It keeps the states of streams and windows; http2_connection.py knows what they mean for calls. Each open stream is one of
`calls`. A violation of the protocol raises Http2Violation.

`tests/fuzz/http2_reference.py` is the same over the package h2, and holds this to it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from aerobee.grpc.call import OpenCall
from aerobee.grpc.frame_payload import (
    ALTSVC,
    CHECKS,
    ENABLE_CONNECT_PROTOCOL,
    ENABLE_PUSH,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    SETTING,
    check_alternative,
    check_dependency,
    check_promise,
    check_reset,
    check_settings,
    check_stream,
    data_of,
    fragment_of,
    increment_of,
    opened,
    ping_of,
    priority_of,
    settings_of,
)
from aerobee.grpc.frame_scanner import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEAD,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_UPDATE,
    Frame,
    Http2Violation,
)
from aerobee.grpc.header_decoder import HeaderBlockMalformed, HeaderDecoder, HeaderListTooLarge
from aerobee.grpc.header_encoder import NO_TABLE
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.request_headers import LENGTH, PSEUDO_HEADER, STATUS, HeaderField, are_trailers

FIRST_WINDOW_BYTES = 65_535  # of every connection and stream
FIRST_FRAME_BYTES = 16_384
CLOSED_STREAMS_MAX = 1_024  # remembered, so that late frames of them are recognised
CONTINUATIONS_MAX = 63  # of one header block
CANCELLED = "the client cancelled the call"
_LENGTH_DIGITS_MAX = 4_300  # int() takes no more
_GIVEN_BACK_MIN = 1_024  # bytes for which a window that is used up is opened again
_KIND = attrgetter("kind")
_UINT32 = struct.Struct(">I")


class StreamEvents(Protocol):
    """What the engine reports. A protocol, because http2_connection.py, which implements it, lies above."""

    def on_request(
        self, stream_id: int, fields: Sequence[HeaderField], *, ends: bool, length: int | None, now: float
    ) -> None:
        """The headers of a new stream; `length` is its content-length. It is open from here on if it is one of `calls` then."""
        ...

    def on_data(self, call: OpenCall, data: bytes, now: float) -> None:
        """Bytes of a request."""
        ...

    def on_half_close(self, call: OpenCall, now: float) -> None:
        """The request ends."""
        ...

    def on_window(self, call: OpenCall, now: float) -> None:
        """The window of one stream is larger."""
        ...

    def on_windows(self) -> None:
        """The windows of all streams may be larger."""
        ...

    def on_reset(self, call: OpenCall) -> None:
        """The peer has reset a stream."""
        ...

    def on_broken(self, call: OpenCall, reason: str, now: float) -> None:
        """A stream was reset because of what the peer sent. Raises Http2Fault above the rate of resets."""
        ...


@dataclass(slots=True)
class _Block:
    """A header block that is not complete."""

    stream_id: int
    flags: int
    depends_on: int | None
    data: bytes
    continuation_count: int = 0


class Http2Engine:
    """The streams of one connection. `send_window`: bytes that the peer allows on all of them together; `stream_window`: on a new one."""

    def __init__(self, limits: Http2Limits, calls: dict[int, OpenCall], events: StreamEvents) -> None:
        self.send_window = self.stream_window = FIRST_WINDOW_BYTES
        self.highest_stream_id = 0
        self._limits = limits
        self._calls = calls
        self._events = events
        self._decoder = HeaderDecoder(limits.header_table_bytes_max, limits.header_list_bytes_max)
        self._out = bytearray()
        self._frame_bytes_max = FIRST_FRAME_BYTES  # that the peer takes
        self._receive_window = self._receive_window_max = limits.connection_window_bytes
        self._taken_bytes = 0
        self._closed: deque[tuple[int, bool]] = deque(
            maxlen=CLOSED_STREAMS_MAX
        )  # stream id, whether by a reset
        self._has_begun = False  # the peer has opened a stream
        self._has_written_block = False
        self._block: _Block | None = None
        self._is_promising = False  # PUSH_PROMISE came without the end of its block
        settings = (
            (HEADER_TABLE_SIZE, limits.header_table_bytes_max),
            (ENABLE_PUSH, 0),
            (INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (MAX_FRAME_SIZE, limits.frame_bytes_max),
            (ENABLE_CONNECT_PROTOCOL, 0),
            (MAX_CONCURRENT_STREAMS, limits.concurrent_streams_max),
            (MAX_HEADER_LIST_SIZE, limits.header_list_bytes_max),
        )
        self._write(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in settings))
        self._write_window(0, limits.connection_window_bytes - FIRST_WINDOW_BYTES)

    # --- frames of this side

    def take_output(self) -> bytes:
        """The bytes to send to the peer now."""
        found = bytes(self._out)
        self._out.clear()
        return found

    def room(self, call: OpenCall) -> int:
        """How many bytes one DATA frame of a call may have now; 0 or less: none."""
        return min(self.send_window, call.send_window, self._frame_bytes_max)

    def calls_with_window(self) -> list[OpenCall]:
        """Calls with unsent messages whose own windows are open."""
        return [call for call in self._calls.values() if call.send_window > 0 and call.unsent]

    def write_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Write a header block that fits into one frame."""
        if not self._has_written_block:
            self._has_written_block = True
            block = NO_TABLE + block
        self._write(HEADERS, END_HEADERS | END_STREAM if end_stream else END_HEADERS, stream_id, block)

    def write_data(self, call: OpenCall, data: bytes | memoryview) -> None:
        """Write DATA that the windows and the peer's frame size allow."""
        size = len(data)
        call.send_window -= size
        self.send_window -= size
        self._write(DATA, 0, call.stream_id, data)

    def reset(self, stream_id: int, code: int) -> None:
        """Write RST_STREAM."""
        self._write(RST_STREAM, 0, stream_id, _UINT32.pack(code))

    def close(self, stream_id: int, *, is_reset: bool) -> None:
        """A stream has ended: remember how."""
        self._closed.append((stream_id, is_reset))

    def ping(self, data: bytes) -> None:
        """Write PING."""
        self._write(PING, 0, 0, data)

    def end(self, code: int) -> None:
        """Write GOAWAY for a violation."""
        self._write(GOAWAY, 0, 0, _UINT32.pack(self.highest_stream_id) + _UINT32.pack(code))

    def _write(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        size = len(payload)
        self._out += FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)
        self._out += payload

    def _write_window(self, stream_id: int, increment: int) -> None:
        self._write(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(increment))

    # --- frames of the peer

    def take(self, frame: Frame, now: float) -> None:
        """What a frame does, GOAWAY excepted. Raises Http2Violation, and Http2Fault of StreamEvents."""
        check_stream(frame)
        kind, flags, stream_id, payload = frame
        if self._is_promising:
            # Its payload is checked first: a wrong size has another error code.
            if kind in CHECKS:
                CHECKS[kind](frame)
            raise Http2Violation(PROTOCOL_ERROR, "a header block is interrupted by another frame")
        if kind == DATA:
            self._on_data(frame, now)
        elif kind == HEADERS:
            if flags == END_HEADERS:
                self._on_headers(stream_id, flags, None, payload, now)
            else:
                self._on_headers_frame(frame, now)
        elif kind == WINDOW_UPDATE:
            self._on_window_update(frame, now)
        elif kind == CONTINUATION:
            self._on_continuation(frame, now)
        elif kind == PRIORITY:
            check_dependency(stream_id, priority_of(frame))
        elif kind == RST_STREAM:
            self._on_reset(frame)
        elif kind == SETTINGS:
            self._on_settings(frame)
        elif kind == PING:
            data = ping_of(frame)
            if not flags & ACK:
                self._write(PING, ACK, 0, data)
        elif kind == PUSH_PROMISE:
            check_promise(frame)
            if flags & END_HEADERS:
                raise Http2Violation(PROTOCOL_ERROR, "a client cannot promise a stream")
            self._is_promising = True
        elif kind == ALTSVC:
            check_alternative(frame)
            self._has_begun = True

    def _was_opened(self, stream_id: int) -> bool:
        """Whether a stream that the peer names is open; False for one that has ended. Refuses one that was never opened."""
        if stream_id in self._calls:
            return True
        if stream_id % 2 == 0 or stream_id > self.highest_stream_id:
            raise Http2Violation(PROTOCOL_ERROR, f"stream {stream_id} was never opened")
        return False

    def _check_begun(self) -> None:
        if not self._has_begun:
            raise Http2Violation(PROTOCOL_ERROR, "the first frames are not of a connection")

    # --- header blocks

    def _on_headers_frame(self, frame: Frame, now: float) -> None:
        data, depends_on = fragment_of(frame)
        if frame.flags & END_HEADERS:
            self._on_headers(frame.stream_id, frame.flags, depends_on, data, now)
        else:
            self._block = _Block(frame.stream_id, frame.flags, depends_on, data)

    def _on_continuation(self, frame: Frame, now: float) -> None:
        block, self._block = self._block, None
        if block is None or block.stream_id != frame.stream_id:
            raise Http2Violation(PROTOCOL_ERROR, "a header block is continued on another stream")
        block.data += frame.payload
        block.continuation_count += 1
        if block.continuation_count > CONTINUATIONS_MAX:
            raise Http2Violation(PROTOCOL_ERROR, "a header block has too many frames")
        if frame.flags & END_HEADERS:
            self._on_headers(block.stream_id, block.flags, block.depends_on, block.data, now)
        else:
            self._block = block

    def _on_headers(
        self, stream_id: int, flags: int, depends_on: int | None, block: bytes, now: float
    ) -> None:
        call = self._calls.get(stream_id)
        if call is None and len(self._calls) >= self._limits.concurrent_streams_max:
            text = f"more than {self._limits.concurrent_streams_max} calls are open"
            raise Http2Violation(PROTOCOL_ERROR, text)
        try:
            fields = self._decoder.decode(block)
        except HeaderListTooLarge:
            raise Http2Violation(ENHANCE_YOUR_CALM, "a header list is too large") from None
        except HeaderBlockMalformed:
            raise Http2Violation(PROTOCOL_ERROR, "a header block is malformed") from None
        self._has_begun = True
        ends = bool(flags & END_STREAM)
        if call is not None:
            self._on_trailers(call, fields, depends_on, ends=ends, now=now)
            return
        if stream_id % 2 == 0:
            raise Http2Violation(PROTOCOL_ERROR, f"stream {stream_id} is not of a client")
        if stream_id <= self.highest_stream_id:
            self._on_headers_of_closed(stream_id)
            return
        self.highest_stream_id = stream_id
        length = None
        if max(map(_KIND, fields), default=LENGTH) >= LENGTH:
            check_informational(fields)
            length = content_length(fields)
        check_dependency(stream_id, depends_on)
        self._events.on_request(stream_id, fields, ends=ends, length=length, now=now)

    def _on_headers_of_closed(self, stream_id: int) -> None:
        is_reset = next((is_reset for closed, is_reset in self._closed if closed == stream_id), None)
        if is_reset is None:
            raise Http2Violation(PROTOCOL_ERROR, f"stream {stream_id} is below an earlier one")
        if not is_reset:
            raise Http2Violation(STREAM_CLOSED, f"stream {stream_id} has ended")
        self.reset(stream_id, STREAM_CLOSED)

    def _on_trailers(
        self, call: OpenCall, fields: list[HeaderField], depends_on: int | None, *, ends: bool, now: float
    ) -> None:
        check_informational(fields)
        if call.is_half_closed:
            self.reset(call.stream_id, STREAM_CLOSED)
            self._events.on_broken(call, CANCELLED, now)
            return
        call.is_half_closed = ends
        call.length = content_length(fields)
        if not ends:
            raise Http2Violation(PROTOCOL_ERROR, "trailers do not end their stream")
        check_dependency(call.stream_id, depends_on)
        if not are_trailers(fields):
            self.reset(call.stream_id, PROTOCOL_ERROR)
            self._events.on_broken(call, "the trailers of the request are malformed", now)
            return
        self._events.on_half_close(call, now)

    # --- data and windows

    def _on_data(self, frame: Frame, now: float) -> None:
        data = data_of(frame)
        self._check_begun()
        counted = len(frame.payload)
        self._receive_window -= counted
        if self._receive_window < 0:
            raise _window_exceeded()
        call = self._calls.get(frame.stream_id)
        if call is None or call.is_half_closed:
            self._was_opened(frame.stream_id)
            self._give_back(counted)
            self.reset(frame.stream_id, STREAM_CLOSED)
            if call is not None:
                self._events.on_broken(call, CANCELLED, now)
            return
        call.receive_window -= counted
        if call.receive_window < 0:
            raise _window_exceeded()
        call.received_bytes += len(data)
        ends = call.is_half_closed = bool(frame.flags & END_STREAM)
        if call.length is not None and (
            call.length < call.received_bytes or (ends and call.length != call.received_bytes)
        ):
            text = "a request has not as many bytes as its content-length"
            raise Http2Violation(PROTOCOL_ERROR, text)
        if counted:
            self._give_back(counted)
            self._give_back_to(call, counted)
        if call.is_finishing:
            return
        self._events.on_data(call, data, now)
        if ends:
            self._events.on_half_close(call, now)

    def _give_back(self, counted: int) -> None:
        """Open the connection's window again."""
        self._taken_bytes += counted
        window, most, taken = self._receive_window, self._receive_window_max, self._taken_bytes
        if is_due(window, most, taken):
            self._taken_bytes = 0
            increment = min(taken, most - window)
            self._receive_window += increment
            if increment:
                self._write_window(0, increment)

    def _give_back_to(self, call: OpenCall, counted: int) -> None:
        call.taken_bytes += counted
        window, most, taken = call.receive_window, call.receive_window_max, call.taken_bytes
        if is_due(window, most, taken):
            call.taken_bytes = 0
            increment = min(taken, most - window)
            call.receive_window += increment
            if increment:
                self._write_window(call.stream_id, increment)

    def _on_window_update(self, frame: Frame, now: float) -> None:
        increment = increment_of(frame)
        if not frame.stream_id:
            was_used_up = self.send_window <= 0
            self.send_window = opened(self.send_window, increment)
            if was_used_up:  # otherwise no stream waits for it
                self._events.on_windows()
            return
        if not self._was_opened(frame.stream_id):
            return
        call = self._calls[frame.stream_id]
        try:
            call.send_window = opened(call.send_window, increment)
        except Http2Violation:
            self.reset(call.stream_id, FLOW_CONTROL_ERROR)
            self._events.on_broken(call, CANCELLED, now)
            return
        self._events.on_window(call, now)

    def _on_settings(self, frame: Frame) -> None:
        settings = settings_of(frame)
        if frame.flags & ACK:
            return
        check_settings(settings)
        for name, value in settings.items():
            if name == INITIAL_WINDOW_SIZE:
                increment, self.stream_window = value - self.stream_window, value
                for call in self._calls.values():
                    call.send_window = opened(call.send_window, increment)
            elif name == MAX_FRAME_SIZE:
                self._frame_bytes_max = value
        self._write(SETTINGS, ACK, 0, b"")
        self._events.on_windows()

    def _on_reset(self, frame: Frame) -> None:
        check_reset(frame)
        self._check_begun()
        call = self._calls.get(frame.stream_id)
        if call is not None:
            self._events.on_reset(call)


def is_due(window: int, window_max: int, taken_bytes: int) -> bool:
    """Whether taken bytes are given back now: half a window together, and earlier when nothing is left."""
    return taken_bytes >= window_max // 2 or (
        window == 0 and taken_bytes > min(_GIVEN_BACK_MIN, window_max // 4)
    )


def check_informational(fields: Sequence[HeaderField]) -> None:
    """Refuse responses of HTTP/1 that precede the real one: no client sends them."""
    for field in fields:
        if field.kind == STATUS:
            if field.value[:1] == b"1":
                raise Http2Violation(PROTOCOL_ERROR, "a request is an informational response")
            return
        if field.kind != PSEUDO_HEADER and field.name[:1] != b":":
            return


def content_length(fields: Sequence[HeaderField]) -> int | None:
    """The header content-length: digits, and the same in each."""
    found: int | None = None
    for field in fields:
        if field.kind != LENGTH:
            continue
        digits = field.value
        if not (digits.isdigit() and len(digits) <= _LENGTH_DIGITS_MAX) or found not in (None, int(digits)):
            raise Http2Violation(PROTOCOL_ERROR, "a content-length is no number, or there are several")
        found = int(digits)
    return found


def _window_exceeded() -> Http2Violation:
    return Http2Violation(FLOW_CONTROL_ERROR, "the peer sends more than the window allows")
