"""A client of HTTP/2 made of raw bytes: frames as hex would show them, answers decoded as far as tests need."""

from __future__ import annotations

import struct
from typing import ClassVar

from hpack import Decoder, Encoder

from aerobee.grpc.call import Call, CallEnded, CallStarted, Event
from aerobee.grpc.core import MakeHttp2
from aerobee.grpc.frame_scanner import DATA, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.message_reader import frame_message

PATH = "/apache.rocketmq.v2.MessagingService/QueryRoute"


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(**values: int) -> bytes:
    """A SETTINGS frame; names are `s` and the identifier."""
    return frame(
        SETTINGS, b"".join(struct.pack(">HI", int(name[1:]), value) for name, value in values.items())
    )


class RawPeer:
    """One connection to the core, at a time that the test moves. `sent` are the frames that came: (type, flags, stream, payload)."""

    make_core: ClassVar[MakeHttp2] = Http2Connection

    def __init__(self, limits: Http2Limits | None = None, first: bytes | None = None) -> None:
        self.now = 1_000.0
        self.core = type(self).make_core(limits or Http2Limits(), self.now)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.sent: list[tuple[int, int, int, bytes]] = []
        self.events: list[Event] = []
        self.next_stream = 1
        self.feed(PREFACE + frame(SETTINGS) if first is None else first)

    def feed(self, data: bytes) -> list[Event]:
        """Give bytes to the core; return the events."""
        found = self.core.receive(data, self.now)
        while self.core.has_more:
            found += self.core.proceed(self.now)
        self.events += found
        self.take()
        return found

    def wait(self, seconds: float) -> list[Event]:
        """Let time pass, with the ticks that the core asks for."""
        end = self.now + seconds
        found: list[Event] = []
        while (due := self.core.due()) <= end and not self.core.is_closed:
            self.now = max(self.now, due)
            found += self.core.tick(self.now)
        self.now = end
        self.events += found
        self.take()
        return found

    def take(self) -> None:
        """Read what the core sent."""
        data = self.core.outgoing()
        while data:
            size = int.from_bytes(data[:3], "big")
            stream = int.from_bytes(data[5:9], "big")
            self.sent.append((data[3], data[4], stream, data[9 : 9 + size]))
            data = data[9 + size :]

    def headers(self, path: str = PATH, **more: str) -> list[tuple[str, str]]:
        """The headers of a gRPC request."""
        extra = [(name.replace("_", "-"), value) for name, value in more.items()]
        return [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "broker"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *extra,
        ]

    def request(self, headers: list[tuple[str, str]] | None = None, *, flags: int = 0x4) -> bytes:
        """The HEADERS frame of the next stream."""
        block = self.encoder.encode(headers or self.headers())
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        return frame(HEADERS, block, flags=flags, stream=stream)

    def data(self, payload: bytes, stream: int = 1, *, ends: bool = True) -> bytes:
        """A DATA frame."""
        return frame(DATA, payload, flags=0x1 if ends else 0, stream=stream)

    def open_call(self, payload: bytes = b"request", **more: str) -> Call:
        """A call with one message, half-closed."""
        stream = self.next_stream
        events = self.feed(self.request(self.headers(**more)) + self.data(frame_message(payload), stream))
        return next(event.call for event in events if isinstance(event, CallStarted))

    # --- what came

    def frames(self, kind: int) -> list[tuple[int, int, bytes]]:
        """(flags, stream, payload) of the frames of one type."""
        return [(flags, stream, payload) for found, flags, stream, payload in self.sent if found == kind]

    def body(self, stream: int = 1) -> bytes:
        """The DATA of a stream."""
        return b"".join(payload for _, found, payload in self.frames(DATA) if found == stream)

    def header_lists(self, stream: int = 1) -> list[dict[str, str]]:
        """Header blocks of a stream, in order; to be called once, for the table moves on."""
        return [
            dict(self.decoder.decode(payload))
            for _, found, payload in self.frames(HEADERS)
            if found == stream
        ]

    def reset_code(self, stream: int = 1) -> int | None:
        """The error code with which the core reset a stream."""
        codes = [
            int.from_bytes(payload, "big") for _, found, payload in self.frames(RST_STREAM) if found == stream
        ]
        return codes[0] if codes else None

    @property
    def goaway(self) -> tuple[int, str] | None:
        """(error code, text) of the core's GOAWAY."""
        found = self.frames(GOAWAY)
        return (int.from_bytes(found[0][2][4:8], "big"), found[0][2][8:].decode()) if found else None

    def ended(self) -> list[str]:
        """Why calls ended before they were answered."""
        return [event.reason for event in self.events if isinstance(event, CallEnded)]
