"""One HTTP/2 connection of a gRPC client, as cheap as a load needs it: raw frames, headers in HPACK's table, big windows.

What varies from call to call (x-mq-request-id, grpc-timeout) is sent as a literal, where official clients put the request id
into the table as well. Made without the code under test, except for the classes of its messages.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpack import Encoder

from bench.load.wire import LoadError

SERVICE = "/apache.rocketmq.v2.MessagingService/"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
STREAM_WINDOW_BYTES = 4 << 20
CONNECTION_WINDOW_BYTES = 1 << 30
RECV_BYTES = 256 * 1024
SILENCE_S = 60.0


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """A header that stays out of HPACK's table."""
    return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


@dataclass(slots=True)
class Answer:
    """A call that has ended, or one that has sent messages (`is_over` false)."""

    stream_id: int
    messages: list[bytes] = field(default_factory=list)
    is_over: bool = False


class GrpcWire:
    """A connection. The calls of one flush() leave in one write."""

    def __init__(self, address: tuple[str, int], client_id: str) -> None:
        self._socket = socket.create_connection(address, timeout=SILENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._encoder = Encoder()
        self._fixed = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", f"{address[0]}:{address[1]}"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "grpc-java-netty/1.53.0"),
            ("x-mq-client-id", client_id),
            ("x-mq-client-version", "5.2.0"),
            ("x-mq-language", "JAVA"),
            ("x-mq-protocol", "v2"),
            ("x-mq-namespace", ""),
            ("grpc-accept-encoding", "gzip"),
        ]
        self._blocks: dict[str, bytes] = {}
        self._next_stream = 1
        self._input = b""
        self._open: dict[int, list[bytes]] = {}  # the pieces of a response
        self._answered: list[Answer] = []
        settings = struct.pack(">HIHI", 4, STREAM_WINDOW_BYTES, 2, 0)
        self._output = [
            PREFACE,
            frame(SETTINGS, settings),
            frame(WINDOW_UPDATE, struct.pack(">I", CONNECTION_WINDOW_BYTES)),
        ]

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def prepare(self, *names: str) -> None:
        """Put the headers of these RPCs into the table; what follows refers to them. Before the first call."""
        for name in names:
            headers = [*self._fixed[:2], (":path", SERVICE + name), *self._fixed[2:]]
            block = self._encoder.encode(headers) + self._varying(self._next_stream, 1)
            self._begin(block, b"", END_STREAM)  # without a request: answered with an error
            self.flush()
            self.wait_one()
        for name in names:
            headers = [*self._fixed[:2], (":path", SERVICE + name), *self._fixed[2:]]
            self._blocks[name] = bytes(self._encoder.encode(headers))

    def call(self, name: str, request: bytes, timeout_s: int = 30, *, ends: bool = True) -> int:
        """Begin a call; returns its stream id. It leaves with flush()."""
        block = self._blocks[name] + self._varying(self._next_stream, timeout_s)
        return self._begin(
            block, b"\0" + struct.pack(">I", len(request)) + request, END_STREAM if ends else 0
        )

    def flush(self) -> None:
        """Send the calls that have begun."""
        if self._output:
            self._socket.sendall(b"".join(self._output))
            self._output.clear()

    def wait(self) -> list[Answer]:
        """The calls that have ended or sent messages; waits for at least one. Raises LoadError."""
        while not self._answered:
            data = self._socket.recv(RECV_BYTES)
            if not data:
                raise LoadError("the server closed the connection")
            self._take(data)
        found, self._answered = self._answered, []
        return found

    def wait_one(self) -> Answer:
        """The answer of the only open call, with its messages."""
        messages: list[bytes] = []
        while True:
            for answer in self.wait():
                messages += answer.messages
                if answer.is_over:
                    return Answer(answer.stream_id, messages, is_over=True)

    def unary(self, name: str, request: bytes) -> bytes:
        """The response of one call, while no other is open."""
        self.call(name, request)
        self.flush()
        (response,) = self.wait_one().messages
        return response

    def _varying(self, number: int, timeout_s: int) -> bytes:
        return literal("x-mq-request-id", f"{number:036d}") + literal("grpc-timeout", f"{timeout_s}S")

    def _begin(self, block: bytes, data: bytes, flags: int) -> int:
        stream_id = self._next_stream
        self._next_stream += 2
        self._open[stream_id] = []
        self._output.append(frame(HEADERS, block, END_HEADERS | (0 if data else flags), stream_id))
        if data:
            self._output.append(frame(DATA, data, flags, stream_id))
        return stream_id

    def _take(self, data: bytes) -> None:
        data = self._input + data
        at, size = 0, len(data)
        while size - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            if size - at < 9 + length:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            self._take_frame(kind, flags, stream_id, data[at + 9 : at + 9 + length])
            at += 9 + length
        self._input = data[at:]

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == DATA:
            pieces = self._open.get(stream_id)
            if pieces is not None:
                pieces.append(payload)
                if not flags & END_STREAM:
                    self._answered.append(Answer(stream_id, list(self._messages(stream_id))))
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            if self._open.pop(stream_id, None) is not None:
                self._answered.append(Answer(stream_id, is_over=True))
        elif kind == SETTINGS and not flags & ACK:
            self._output.append(frame(SETTINGS, flags=ACK))
        elif kind == PING and not flags & ACK:
            self._output.append(frame(PING, payload, ACK))
        elif kind == RST_STREAM and stream_id in self._open:
            raise LoadError(f"the server reset stream {stream_id}: {payload.hex()}")
        elif kind == GOAWAY:
            raise LoadError(f"GOAWAY: {payload!r}")

    def _messages(self, stream_id: int) -> Iterator[bytes]:
        """The whole messages that have come on a stream."""
        data = b"".join(self._open[stream_id])
        at = 0
        while len(data) - at >= 5:
            length = int.from_bytes(data[at + 1 : at + 5], "big")
            if len(data) - at < 5 + length:
                break
            yield data[at + 5 : at + 5 + length]
            at += 5 + length
        self._open[stream_id] = [data[at:]] if at < len(data) else []
