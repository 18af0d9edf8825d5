"""A gRPC client's connection: the calls of one client, one response or a stream of them, over bytes.

HTTP/2 is that of the package h2, independent of the broker's, so that neither hides a fault of the other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions

SERVICE = "/apache.rocketmq.v2.MessagingService/"
PREFIX_BYTES = 5  # of a message: whether it is compressed, and its size


class CallFailed(Exception):
    """A call ended without an answer, or with another status of gRPC than OK."""


@dataclass(slots=True)
class _Call:
    answered: asyncio.Future[list[bytes]]
    data: bytearray = field(default_factory=bytearray)
    status: str = ""


class GrpcCalls(asyncio.Protocol):
    """One connection. After `is_closed` every call fails."""

    def __init__(self, authority: str) -> None:
        self.is_closed = False
        self._authority = authority
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self._http2 = h2.connection.H2Connection(config)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}

    async def call(
        self, name: str, request: bytes, metadata: dict[str, str], timeout_s: float
    ) -> list[bytes]:
        """The messages of the response. Raises CallFailed, also when the deadline passes."""
        if self._transport is None or self.is_closed:
            raise CallFailed(f"{name}: the connection is closed")
        stream_id = self._http2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SERVICE + name),
            (":authority", self._authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("grpc-timeout", f"{round(timeout_s * 1000)}m"),
            *metadata.items(),
        ]
        call = self._calls[stream_id] = _Call(asyncio.get_running_loop().create_future())
        try:
            self._http2.send_headers(stream_id, headers)
            message = bytes(1) + len(request).to_bytes(4, "big") + request
            self._http2.send_data(stream_id, message, end_stream=True)
            self._flush()
            async with asyncio.timeout(timeout_s):
                return await call.answered
        except TimeoutError as error:
            self._reset(stream_id)
            raise CallFailed(f"{name}: no answer in {timeout_s} s") from error
        except h2.exceptions.ProtocolError as error:
            self.close()
            raise CallFailed(f"{name}: {error!r}") from error
        except asyncio.CancelledError:
            self._reset(stream_id)
            raise
        finally:
            self._calls.pop(stream_id, None)

    def close(self) -> None:
        """End the connection; pending calls fail."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.close()
        self._fail("the connection was closed")

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._http2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._http2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.close()
            return
        for event in events:
            self._on_event(event)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._fail(f"the connection was lost: {exc!r}")

    # --- inside

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self.is_closed = True  # pending calls are still answered, new ones need another connection
            return
        call = self._calls.get(getattr(event, "stream_id", 0) or 0)
        if isinstance(event, h2.events.DataReceived):
            self._http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        if call is None:
            return
        if isinstance(event, h2.events.DataReceived):
            call.data += event.data
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            said = dict(event.headers).get(b"grpc-status")
            call.status = call.status if said is None else bytes(said).decode()
        elif isinstance(event, h2.events.StreamReset):
            _set_failed(call, f"the stream was reset with code {event.error_code}")
        elif isinstance(event, h2.events.StreamEnded):
            if call.status == "0":
                if not call.answered.done():
                    call.answered.set_result(_messages(bytes(call.data)))
            else:
                _set_failed(call, f"grpc-status {call.status or 'missing'}")

    def _reset(self, stream_id: int) -> None:
        if self.is_closed:
            return
        try:
            self._http2.reset_stream(stream_id, error_code=8)  # CANCEL
        except h2.exceptions.ProtocolError:
            return  # it has ended meanwhile
        self._flush()

    def _flush(self) -> None:
        data = self._http2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _fail(self, text: str) -> None:
        for call in self._calls.values():
            _set_failed(call, text)


def _set_failed(call: _Call, text: str) -> None:
    if not call.answered.done():
        call.answered.set_exception(CallFailed(text))


def _messages(data: bytes) -> list[bytes]:
    """Raises CallFailed for what is no sequence of messages."""
    found, at = [], 0
    while at < len(data):
        if len(data) - at < PREFIX_BYTES:
            raise CallFailed(f"{len(data) - at} bytes at {at} are no message")
        is_compressed, size = data[at], int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
        at += PREFIX_BYTES
        if is_compressed or size > len(data) - at:
            raise CallFailed(f"a message at {at} says {size} bytes of {len(data) - at}")
        found.append(data[at : at + size])
        at += size
    return found
