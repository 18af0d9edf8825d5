"""Each defence of the HTTP/2 core, by raw bytes of a peer that has something bad in mind."""

from __future__ import annotations

import struct

import pytest

from aerobee.grpc.call import CallStarted, RequestEnded
from aerobee.grpc.frame_scanner import (
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.limits import Http2Limits, Rate
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.status import GrpcStatus
from tests.unit.grpc.raw_peer import RawPeer, frame, settings

pytestmark = pytest.mark.usefixtures("core")

SMALL = Http2Limits(resets=Rate(5, 1.0), pings=Rate(5, 1.0), settings=Rate(5, 1.0), empty_frames=Rate(5, 1.0))


def test_rapid_reset_ends_the_connection() -> None:
    peer = RawPeer(SMALL)
    for number in range(6):
        stream = 2 * number + 1
        peer.feed(peer.request() + frame(RST_STREAM, struct.pack(">I", 8), stream=stream))
    assert peer.goaway == (ENHANCE_YOUR_CALM, "too many streams are reset")
    assert peer.core.is_closed


def test_resets_at_the_pace_of_cancelled_calls_are_served() -> None:
    peer = RawPeer(SMALL)
    for number in range(20):
        peer.feed(peer.request() + frame(RST_STREAM, struct.pack(">I", 8), stream=2 * number + 1))
        peer.wait(1.0)
    assert peer.goaway is None


def test_resets_that_a_peer_provokes_count_as_its_own() -> None:
    peer = RawPeer(SMALL)
    for _ in range(6):
        peer.feed(peer.request([(":method", "POST")]))  # malformed: the core resets the stream
    assert peer.goaway == (ENHANCE_YOUR_CALM, "too many streams are reset")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (frame(PING, bytes(8)), "too_many_pings"),
        (frame(SETTINGS), "too many SETTINGS frames"),
        (frame(WINDOW_UPDATE, struct.pack(">I", 1)), "too many frames without effect"),
        (frame(PRIORITY, struct.pack(">IB", 0, 1), stream=1), "too many frames without effect"),
        (frame(DATA, stream=1), "too many frames without effect"),
        (frame(0x77, b"?"), "too many frames without effect"),
    ],
    ids=["ping", "settings", "window", "priority", "empty data", "unknown"],
)
def test_a_flood_ends_the_connection(data: bytes, text: str) -> None:
    peer = RawPeer(SMALL)
    peer.feed(peer.request())
    for _ in range(10):
        peer.feed(data)
    assert peer.goaway == (ENHANCE_YOUR_CALM, text)


def test_pings_that_answer_responses_are_served() -> None:
    peer = RawPeer(SMALL)
    for _ in range(20):
        call = peer.open_call()
        peer.core.send_message(call, b"answer", peer.now)
        peer.core.finish(call, GrpcStatus.OK, "", peer.now)
        peer.feed(frame(PING, bytes(8)))
    assert peer.goaway is None


def test_a_header_block_is_bounded_over_its_continuations() -> None:
    peer = RawPeer(Http2Limits(header_block_bytes_max=1_000))
    peer.feed(frame(HEADERS, bytes(500), stream=1))
    peer.feed(frame(CONTINUATION, bytes(400), stream=1))
    assert peer.goaway is None
    peer.feed(frame(CONTINUATION, bytes(101), stream=1)[:9])  # its head is enough
    assert peer.goaway == (ENHANCE_YOUR_CALM, "a header block has more than 1000 bytes")


def test_continuations_without_bytes_are_a_flood() -> None:
    peer = RawPeer(SMALL)
    peer.feed(frame(HEADERS, b"\x82", stream=1) + frame(CONTINUATION, stream=1) * 10)
    assert peer.goaway == (ENHANCE_YOUR_CALM, "too many frames without effect")


def test_a_stray_continuation_ends_the_connection() -> None:
    peer = RawPeer()
    peer.feed(frame(CONTINUATION, b"\x82", stream=1))
    assert peer.goaway == (PROTOCOL_ERROR, "a CONTINUATION frame without a header block")
    peer = RawPeer()
    peer.feed(frame(HEADERS, b"\x82", stream=1) + frame(PING, bytes(8)))
    assert peer.goaway == (PROTOCOL_ERROR, "a header block is interrupted by another frame")


def test_a_header_block_that_never_ends_is_timed_out() -> None:
    peer = RawPeer()
    peer.feed(frame(HEADERS, b"\x82", stream=1))
    peer.wait(31.0)
    assert peer.goaway == (ENHANCE_YOUR_CALM, "a frame or header block is incomplete for 30 s")


def test_a_header_list_that_inflates_is_refused() -> None:
    """One long value in HPACK's table, then a byte for each time that it comes again."""
    peer = RawPeer()
    value = b"a" * 3_000
    literal = b"\x40\x01x" + b"\x7f" + _hpack_integer(len(value) - 127) + value
    peer.feed(frame(HEADERS, literal + b"\xbe" * 1_000, flags=0x4, stream=1))
    assert peer.core.is_closed
    assert peer.goaway is not None


def _hpack_integer(rest: int) -> bytes:
    found = bytearray()
    while rest >= 128:
        found.append(rest % 128 + 128)
        rest //= 128
    return bytes((*found, rest))


def test_a_hpack_table_larger_than_allowed_is_refused() -> None:
    peer = RawPeer()
    peer.feed(frame(HEADERS, b"\x3f" + _hpack_integer(1_000_000 - 31), flags=0x4, stream=1))
    assert peer.core.is_closed


def test_the_peer_cannot_make_us_keep_headers() -> None:
    """HPACK's table for responses stays empty, however large the peer lets it be."""
    peer = RawPeer(first=PREFACE + settings(s1=1 << 30))
    for number in range(1_000):
        call = peer.open_call()
        peer.core.finish(call, GrpcStatus.INTERNAL, f"message {number}", peer.now)
        peer.take()
    blocks = [payload for _, _, payload in peer.frames(HEADERS)]
    assert blocks[0][:1] == b"\x20"  # its size is 0
    assert all(block[0] & 0xE0 != 0x20 and block[0] & 0xC0 != 0x40 for block in blocks[1:])


def test_a_peer_without_a_hpack_table_reads_responses() -> None:
    peer = RawPeer(first=PREFACE + settings(s1=0))
    peer.decoder.max_allowed_table_size = 0
    call = peer.open_call()
    peer.core.send_message(call, b"answer", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.take()
    assert [blocks.get(":status") or blocks.get("grpc-status") for blocks in peer.header_lists()] == [
        "200",
        "0",
    ]


def test_a_frame_larger_than_announced_is_refused_by_its_head() -> None:
    peer = RawPeer()
    peer.feed(frame(DATA, bytes(20_000), stream=1)[:9])
    assert peer.goaway == (FRAME_SIZE_ERROR, "a frame has 20000 bytes, at most 16384 are allowed")


def test_more_streams_than_allowed_end_the_connection() -> None:
    peer = RawPeer(Http2Limits(concurrent_streams_max=3))
    for _ in range(3):
        peer.feed(peer.request())
    assert not peer.core.is_closed
    peer.feed(peer.request())
    assert peer.core.is_closed


def test_streams_that_have_ended_make_room() -> None:
    peer = RawPeer(Http2Limits(concurrent_streams_max=3))
    for _ in range(50):
        call = peer.open_call()
        peer.core.send_message(call, b"", peer.now)
        peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    assert peer.goaway is None
    assert len(peer.core.calls) == 0


def test_a_call_without_a_request_is_ended() -> None:
    peer = RawPeer()
    peer.feed(peer.request())
    peer.wait(31.0)
    assert peer.ended() == ["no whole request within 30 s"]
    assert peer.core.is_idle


def test_a_stream_both_ways_may_be_idle() -> None:
    peer = RawPeer()
    peer.feed(peer.request())
    (started,) = peer.events
    assert isinstance(started, CallStarted)
    peer.core.start_response(started.call, may_idle=True)
    peer.wait(59.0)
    assert peer.ended() == []


def test_a_window_that_never_opens_ends_its_call() -> None:
    peer = RawPeer(first=PREFACE + settings(s4=0))
    call = peer.open_call()
    peer.core.send_message(call, bytes(1_000), peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    for _ in range(3):
        peer.wait(25.0)
        peer.feed(frame(PING, bytes(8)))  # the peer lives
    assert peer.ended() == ["the client opened no window for 60 s"]
    assert peer.reset_code() == 8
    assert (peer.core.unsent_bytes, peer.core.is_idle) == (0, True)


def test_a_window_of_single_bytes_buys_no_time() -> None:
    peer = RawPeer(first=PREFACE + settings(s4=0))
    call = peer.open_call()
    peer.core.send_message(call, bytes(1_000), peer.now)
    for _ in range(100):
        peer.wait(1.0)
        peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 1), stream=1))
    assert peer.ended() == ["the client opened no window for 60 s"]


def test_incomplete_requests_are_bounded_over_all_calls() -> None:
    peer = RawPeer(Http2Limits(receiving_bytes_max=20_000))
    head = frame_message(bytes(15_000))[:10_000]
    for number in range(3):
        peer.feed(peer.request() + peer.data(head, 2 * number + 1, ends=False))
    assert peer.ended() == ["requests of more than 20000 bytes are incomplete on this connection"]
    assert peer.core.receiving_bytes == 20_000
    peer.feed(frame(RST_STREAM, struct.pack(">I", 8), stream=1))
    assert peer.core.receiving_bytes == 10_000


@pytest.mark.parametrize("first", [b"PRI * HTTP/1", b"PROXY TCP4", b"POST / HTTP/1.1\r\n"])
def test_another_preface_is_refused(first: bytes) -> None:
    peer = RawPeer(first=first)
    assert peer.goaway == (PROTOCOL_ERROR, "HTTP/2 client preface string missing or corrupt")


def test_a_preface_that_does_not_come_is_timed_out() -> None:
    peer = RawPeer(first=PREFACE[:5])
    peer.wait(11.0)
    assert peer.goaway == (PROTOCOL_ERROR, "no connection preface within 10 s")


@pytest.mark.parametrize(
    "headers",
    [
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("Upper", "x")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("connection", "close")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("te", "gzip")],
        [(":method", "POST"), (":scheme", "http"), (":path", "")],
        [(":method", "POST"), (":scheme", "http"), ("a", "b"), (":path", "/a")],
        [(":method", "POST"), (":method", "POST"), (":scheme", "http"), (":path", "/a")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":status", "200")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("with space", "x")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("colon:inside", "x")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("\xe4", "x")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("x", "two\nlines")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("x", "two\rlines")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("x", "nul\0")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("host", "a"), ("host", "a")],
        [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a"), ("host", "b")],
    ],
)
def test_a_malformed_request_is_reset_alone(headers: list[tuple[str, str]]) -> None:
    peer = RawPeer()
    peer.feed(peer.request(headers))
    assert peer.reset_code() == PROTOCOL_ERROR
    assert not any(isinstance(event, CallStarted) for event in peer.events)
    peer.open_call()
    assert peer.goaway is None


def test_headers_that_http_allows_are_served() -> None:
    peer = RawPeer()
    call = peer.open_call(host="broker", empty="", quoted='"two words"\x7f', padded="\t a b ")
    assert dict(call.metadata) == {
        "host": "broker",
        "empty": "",
        "quoted": '"two words"\x7f',
        "padded": "a b",
    }


@pytest.mark.parametrize(
    "field",
    [
        (":path", "/a"),
        (":status", "200"),
        ("Upper", "x"),
        ("x", "two\nlines"),
        ("connection", "close"),
        ("te", "gzip"),
    ],
)
def test_a_request_with_malformed_trailers_is_reset_alone(field: tuple[str, str]) -> None:
    """Pseudo-headers in trailers passed for trailers: RFC 9113, 8.1."""
    peer = RawPeer()
    peer.feed(peer.request() + peer.data(frame_message(b"request"), ends=False))
    peer.feed(frame(HEADERS, bytes(peer.encoder.encode([("a", "b"), field])), flags=0x5, stream=1))
    assert peer.reset_code() == PROTOCOL_ERROR
    assert peer.ended() == ["the trailers of the request are malformed"]
    assert not any(isinstance(event, RequestEnded) for event in peer.events)
    assert peer.goaway is None


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (frame(GOAWAY, bytes(8), stream=1), PROTOCOL_ERROR, "GOAWAY has stream id 1, must be 0"),
        (frame(GOAWAY, bytes(7)), FRAME_SIZE_ERROR, "GOAWAY has 7 bytes, at least 8 are needed"),
    ],
)
def test_a_malformed_goaway_ends_the_connection(data: bytes, code: int, text: str) -> None:
    peer = RawPeer()
    peer.open_call()
    peer.feed(data)
    assert peer.goaway == (code, text)


def test_memory_of_ended_calls_is_given_back() -> None:
    peer = RawPeer()
    for _ in range(5_000):
        call = peer.open_call(grpc_timeout="3S")
        peer.core.finish(call, GrpcStatus.OK, "", peer.now)
        peer.sent.clear()
    if isinstance(peer.core, Http2Connection):
        assert len(peer.core._deadlines) < 3_000
        assert len(peer.core._engine._closed) <= 1_024
    else:
        assert peer.core.kept_bytes == 0
