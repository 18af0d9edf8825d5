"""The package h2 as http2_connection.py uses it: open streams are counted, closed ones forgotten, and headers left to request_headers.py.

Core.
"""

from __future__ import annotations

from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from aerobee.grpc.header_encoder import HeaderEncoder
from aerobee.grpc.limits import Http2Limits

FIRST_WINDOW_BYTES = 65_535  # of every connection
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
