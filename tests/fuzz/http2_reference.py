"""The Python core of gRPC over the package h2, which interprets the frames in place of http2_engine.py.

h2 was written by others from the same RFCs: http2_differential.py holds aerobee's engines, Python's and the native one, to it. Open
streams are counted, closed ones forgotten, and errors in a request's headers end its call and not the connection.
"""

from __future__ import annotations

from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.events import (
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs

from aerobee.grpc.call import OpenCall
from aerobee.grpc.frame_scanner import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    INTERNAL_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    Frame,
    Http2Violation,
)
from aerobee.grpc.header_encoder import NO_TABLE
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.http2_engine import CLOSED_STREAMS_MAX, FIRST_WINDOW_BYTES, Http2Engine
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.request_headers import HeaderField, are_trailers, make_field

_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,  # request_headers.py
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)


class Http2Reference(Http2Connection):
    """The core with h2 in it."""

    def _make_engine(self) -> Http2Engine:
        return H2Engine(self._limits, self.calls, self)

    def count_reset(self, now: float) -> None:
        """Count a stream that h2 has reset. Raises Http2Fault."""
        self._scanner.count_reset(now)


class _Streams(H2Connection):
    """h2's connection with a counter of open streams in place of h2's iteration over all streams."""

    MAX_CLOSED_STREAMS = CLOSED_STREAMS_MAX

    @property
    def open_inbound_streams(self) -> int:
        return len(self.streams)

    def write(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        """Append a frame that needs no check."""
        size = len(payload)
        self._data_to_send += FRAME_HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)
        self._data_to_send += payload

    def forget(self, stream_id: int) -> None:
        """Drop the state of a closed stream except how it was closed."""
        stream = self.streams.get(stream_id)
        if stream is not None and stream.closed:
            del self.streams[stream_id]
            self._closed_streams[stream_id] = stream.closed_by


def _make_streams(limits: Http2Limits) -> _Streams:
    made = _Streams(_CONFIG)
    made.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.concurrent_streams_max,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            SettingCodes.MAX_FRAME_SIZE: limits.frame_bytes_max,
            SettingCodes.HEADER_TABLE_SIZE: limits.header_table_bytes_max,
        },
    )
    made.decoder.max_header_list_size = limits.header_list_bytes_max
    made.decoder.max_allowed_table_size = limits.header_table_bytes_max
    made.max_inbound_frame_size = limits.frame_bytes_max
    made.initiate_connection()
    made.increment_flow_control_window(limits.connection_window_bytes - FIRST_WINDOW_BYTES)
    made.receive_data(PREFACE)  # http2_connection.py has taken it
    return made


class H2Engine(Http2Engine):
    """The engine by h2: its own streams, windows and settings."""

    def __init__(self, limits: Http2Limits, calls: dict[int, OpenCall], core: Http2Reference) -> None:
        self._h2 = _make_streams(limits)
        self._calls = calls
        self._core = core
        self._has_written_block = False
        self._without_data = 0  # the last stream, if its headers ended it
        self.stream_window = 0  # h2 has it

    @property
    def send_window(self) -> int:  # type: ignore[override]
        return int(self._h2.outbound_flow_control_window)

    @property
    def highest_stream_id(self) -> int:  # type: ignore[override]
        return max(0, self._h2.highest_inbound_stream_id)

    def take_output(self) -> bytes:
        return bytes(self._h2.data_to_send())

    def room(self, call: OpenCall) -> int:
        return min(self._h2.local_flow_control_window(call.stream_id), self._h2.max_outbound_frame_size)

    def calls_with_window(self) -> list[OpenCall]:
        return [call for call in self._calls.values() if call.unsent]  # h2 knows the windows

    def write_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        self._h2.state_machine.process_input(ConnectionInputs.SEND_HEADERS)
        state = self._h2.streams[stream_id].state_machine
        state.process_input(StreamInputs.SEND_HEADERS)
        if end_stream:
            state.process_input(StreamInputs.SEND_END_STREAM)
        if not self._has_written_block:
            self._has_written_block = True
            block = NO_TABLE + block
        flags = END_HEADERS | END_STREAM if end_stream else END_HEADERS
        self._h2.write(HEADERS, flags, stream_id, block)

    def write_data(self, call: OpenCall, data: bytes | memoryview) -> None:
        self._h2.state_machine.process_input(ConnectionInputs.SEND_DATA)
        stream = self._h2.streams[call.stream_id]
        stream.state_machine.process_input(StreamInputs.SEND_DATA)
        stream.outbound_flow_control_window -= len(data)
        self._h2.outbound_flow_control_window -= len(data)
        self._h2.write(DATA, 0, call.stream_id, data)

    def reset(self, stream_id: int, code: int) -> None:
        self._h2.reset_stream(stream_id, code)

    def close(self, stream_id: int, *, is_reset: bool) -> None:
        self._h2.forget(stream_id)

    def ping(self, data: bytes) -> None:
        self._h2.ping(data)

    def end(self, code: int) -> None:
        """h2 has written GOAWAY."""

    def take(self, frame: Frame, now: float) -> None:
        size = len(frame.payload)
        head = FRAME_HEAD.pack(size >> 16, size & 0xFFFF, frame.kind, frame.flags, frame.stream_id)
        try:
            events = self._h2.receive_data(head + frame.payload)
        except ProtocolError as error:
            raise Http2Violation(INTERNAL_ERROR, str(error) or type(error).__name__) from error
        for event in events:
            self._on_event(event, now)

    def _on_event(self, event: Any, now: float) -> None:
        if isinstance(event, RequestReceived):
            ends = event.stream_ended is not None
            self._without_data = event.stream_id if ends else 0
            self._core.on_request(event.stream_id, _fields(event), ends=ends, length=None, now=now)
        elif isinstance(event, RemoteSettingsChanged) or (
            isinstance(event, WindowUpdated) and not event.stream_id
        ):
            self._core.on_windows()
        elif isinstance(event, StreamReset):
            call = self._calls.get(event.stream_id)
            if not event.remote_reset:  # h2 has reset a stream because of an invalid frame
                self._core.count_reset(now)
            if call is not None:
                self._core.on_reset(call)
        elif isinstance(event, DataReceived | TrailersReceived | StreamEnded | WindowUpdated):
            self._on_stream_event(event, now)

    def _on_stream_event(self, event: Any, now: float) -> None:
        stream_id = event.stream_id
        if isinstance(event, DataReceived) and event.flow_controlled_length:
            self._h2.acknowledge_received_data(event.flow_controlled_length, stream_id)
        call = self._calls.get(stream_id)
        if call is None:
            return
        if isinstance(event, DataReceived):
            call.is_half_closed = event.stream_ended is not None
            if not call.is_finishing:
                self._core.on_data(call, event.data or b"", now)
        elif isinstance(event, TrailersReceived):
            if not are_trailers(_fields(event)):
                self._h2.reset_stream(stream_id, PROTOCOL_ERROR)
                self._core.on_broken(call, "the trailers of the request are malformed", now)
        elif isinstance(event, StreamEnded):
            if stream_id != self._without_data:  # on_request() has reported that
                call.is_half_closed = True
                self._core.on_half_close(call, now)
        else:
            self._core.on_window(call, now)


def _fields(event: Any) -> list[HeaderField]:
    return [make_field(bytes(name), bytes(value)) for name, value in event.headers]
