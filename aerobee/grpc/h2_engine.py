"""The package h2 as http2_connection.py uses it: open streams are counted, closed ones forgotten, headers of requests left to
request_headers.py, and frames of responses written without h2's objects, which take a sixth of the cost of a send. Core.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs

from aerobee.grpc.frame_scanner import DATA, END_HEADERS, END_STREAM, HEADERS
from aerobee.grpc.header_encoder import HeaderEncoder
from aerobee.grpc.limits import Http2Limits

FIRST_WINDOW_BYTES = 65_535  # of every connection
_HEAD = struct.Struct(">BHBBI")  # length in 24 bits, type, flags, stream
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,  # request_headers.py
    normalize_inbound_headers=False,
    validate_outbound_headers=False,  # http2_connection.py builds them
    normalize_outbound_headers=False,
)


class H2Engine(H2Connection):
    """h2's connection with a counter of open streams in place of h2's iteration over all streams."""

    MAX_CLOSED_STREAMS = 1_024  # closed streams, so that late frames of them are recognised

    @property
    def open_inbound_streams(self) -> int:
        return len(self.streams)

    def forget(self, stream_id: int) -> None:
        """Drop the state of a closed stream except how it was closed."""
        stream = self.streams.get(stream_id)
        if stream is not None and stream.closed:
            del self.streams[stream_id]
            self._closed_streams[stream_id] = stream.closed_by

    def write_headers(
        self, stream_id: int, headers: Sequence[tuple[str, str]], *, end_stream: bool = False
    ) -> None:
        """As send_headers(), for headers that need no check and fit into one frame."""
        self.state_machine.process_input(ConnectionInputs.SEND_HEADERS)
        state = self.streams[stream_id].state_machine
        state.process_input(StreamInputs.SEND_HEADERS)
        if end_stream:
            state.process_input(StreamInputs.SEND_END_STREAM)
        flags = END_HEADERS | END_STREAM if end_stream else END_HEADERS
        self._write(HEADERS, flags, stream_id, self.encoder.encode(headers))

    def write_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """As send_data(), for bytes that the windows and the peer's frame size allow."""
        self.state_machine.process_input(ConnectionInputs.SEND_DATA)
        stream = self.streams[stream_id]
        stream.state_machine.process_input(StreamInputs.SEND_DATA)
        stream.outbound_flow_control_window -= len(data)
        self.outbound_flow_control_window -= len(data)
        self._write(DATA, 0, stream_id, data)

    def _write(self, kind: int, flags: int, stream_id: int, payload: bytes | memoryview) -> None:
        size = len(payload)
        assert size <= self.max_outbound_frame_size
        self._data_to_send += _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)
        self._data_to_send += payload


def make_h2(limits: Http2Limits) -> H2Engine:
    """The server's end of a new connection, which has announced its settings and its window."""
    made = H2Engine(_CONFIG)
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
    made.encoder = cast(Any, HeaderEncoder())
    made.decoder.max_header_list_size = limits.header_list_bytes_max
    made.decoder.max_allowed_table_size = limits.header_table_bytes_max
    made.max_inbound_frame_size = limits.frame_bytes_max
    made.initiate_connection()
    made.increment_flow_control_window(limits.connection_window_bytes - FIRST_WINDOW_BYTES)
    return made
