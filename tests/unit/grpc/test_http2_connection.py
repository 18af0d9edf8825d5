"""The HTTP/2 core by raw bytes: calls, flow control, deadlines, drain."""

from __future__ import annotations

import gzip
import struct

import pytest

from aerobee.grpc.call import CallAnswered, CallEnded, CallStarted, RequestEnded, RequestMessage, Writable
from aerobee.grpc.frame_scanner import GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, WINDOW_UPDATE
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.status import GrpcStatus
from tests.unit.grpc.raw_peer import PATH, RawPeer, frame, settings

pytestmark = pytest.mark.usefixtures("core")


def test_a_call_is_read_and_answered() -> None:
    peer = RawPeer()
    call = peer.open_call(b"hello", x_mq_client_id="c1")
    assert [type(event) for event in peer.events] == [CallStarted, RequestMessage, RequestEnded]
    assert peer.events[1] == RequestMessage(call, b"hello")
    assert (call.path, call.metadata["x-mq-client-id"], call.deadline) == (PATH, "c1", None)
    assert peer.core.send_message(call, b"answer", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.take()
    assert peer.body() == frame_message(b"answer")
    assert [blocks.get(":status") or blocks.get("grpc-status") for blocks in peer.header_lists()] == [
        "200",
        "0",
    ]
    assert peer.core.is_idle


def test_bytes_may_come_one_at_a_time() -> None:
    whole, piecewise = RawPeer(), RawPeer(first=b"")
    data = PREFACE + frame(SETTINGS) + whole.request() + whole.data(frame_message(b"hello"))
    for byte in data:
        piecewise.feed(bytes((byte,)))
    whole.feed(data[len(PREFACE + frame(SETTINGS)) :])
    assert [type(event) for event in piecewise.events] == [type(event) for event in whole.events]
    assert piecewise.goaway is None


def test_a_call_without_messages_has_trailers_alone() -> None:
    peer = RawPeer()
    call = peer.open_call()
    peer.core.finish(call, GrpcStatus.UNIMPLEMENTED, "100 % unknown\n", peer.now)
    peer.take()
    assert peer.header_lists() == [
        {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "12",
            "grpc-message": "100 %25 unknown%0A",
        }
    ]


def test_a_gzip_request_is_inflated() -> None:
    peer = RawPeer()
    packed = gzip.compress(b"hello" * 100)
    data = struct.pack(">BI", 1, len(packed)) + packed
    peer.feed(peer.request(peer.headers(grpc_encoding="gzip")) + peer.data(data))
    assert [event.data for event in peer.events if isinstance(event, RequestMessage)] == [b"hello" * 100]


@pytest.mark.parametrize(
    ("data", "encoding", "status"),
    [
        (struct.pack(">BI", 1, 3) + b"abc", "identity", GrpcStatus.UNIMPLEMENTED),
        (struct.pack(">BI", 1, 3) + b"abc", "gzip", GrpcStatus.INTERNAL),
        (struct.pack(">BI", 2, 3) + b"abc", "identity", GrpcStatus.INTERNAL),
        (struct.pack(">BI", 0, 9) + b"abc", "identity", GrpcStatus.INTERNAL),
        (struct.pack(">BI", 0, 1 << 31), "identity", GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
def test_a_broken_message_ends_its_call_alone(data: bytes, encoding: str, status: GrpcStatus) -> None:
    peer = RawPeer()
    peer.feed(peer.request(peer.headers(grpc_encoding=encoding)) + peer.data(data))
    assert peer.header_lists()[0]["grpc-status"] == str(int(status))
    assert peer.goaway is None
    peer.open_call()
    assert isinstance(peer.events[-1], RequestEnded)


def test_a_gzip_bomb_ends_its_call() -> None:
    peer = RawPeer(Http2Limits(message_bytes_max=10_000))
    packed = gzip.compress(bytes(1 << 20))
    peer.feed(
        peer.request(peer.headers(grpc_encoding="gzip"))
        + peer.data(struct.pack(">BI", 1, len(packed)) + packed)
    )
    assert peer.header_lists()[0]["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))


def test_a_deadline_ends_a_call() -> None:
    peer = RawPeer()
    call = peer.open_call(grpc_timeout="3S")
    assert call.remaining_s(peer.now) == 3.0
    assert peer.wait(2.9) == []
    assert peer.wait(0.2) == [CallEnded(call, "the deadline has passed")]
    assert peer.header_lists()[0]["grpc-status"] == str(int(GrpcStatus.DEADLINE_EXCEEDED))


@pytest.mark.parametrize("text", ["", "3", "S", "123456789S", "-1S", "1.5S", "3s", "٣S"])
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    peer = RawPeer()
    headers = [(name, value.encode()) for name, value in peer.headers(grpc_timeout=text)]
    peer.feed(peer.request(headers))  # type: ignore[arg-type]
    assert peer.header_lists()[0]["grpc-status"] == str(int(GrpcStatus.INTERNAL))


def test_a_cancelled_call_ends() -> None:
    peer = RawPeer()
    call = peer.open_call()
    assert peer.feed(frame(RST_STREAM, struct.pack(">I", 8), stream=1)) == [
        CallEnded(call, "the client cancelled the call")
    ]
    peer.core.send_message(call, b"late", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.take()
    assert peer.body() == b""


def test_a_response_waits_for_the_windows() -> None:
    peer = RawPeer(first=PREFACE + settings(s4=10))
    call = peer.open_call()
    answer = bytes(range(100))
    peer.core.send_message(call, answer, peer.now)
    peer.take()
    assert peer.body() == frame_message(answer)[:10]
    peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 50), stream=1))
    assert peer.body() == frame_message(answer)[:60]
    assert peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 50), stream=1)) == [Writable(call)]
    peer.core.send_message(call, b"more", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    assert peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 50), stream=1)) == [CallAnswered(call)]
    assert peer.body() == frame_message(answer) + frame_message(b"more")
    assert peer.core.is_idle


def test_large_responses_make_the_sender_wait() -> None:
    peer = RawPeer(Http2Limits(unsent_bytes_max=1_000), PREFACE + settings(s4=0))
    call = peer.open_call()
    assert peer.core.send_message(call, bytes(900), peer.now)
    assert not peer.core.send_message(call, bytes(900), peer.now)
    assert peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 5_000), stream=1)) == [Writable(call)]


def test_a_drained_connection_ends_when_its_calls_have() -> None:
    peer = RawPeer()
    call = peer.open_call()
    peer.core.go_away(peer.now)
    peer.take()
    assert peer.goaway == (0, "the server is shutting down")
    peer.feed(peer.request() + peer.data(frame_message(b""), 3))
    assert peer.reset_code(3) == 7  # REFUSED_STREAM: the client sends it elsewhere
    peer.core.send_message(call, b"answer", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.wait(30.0)
    assert peer.body() == frame_message(b"answer")
    assert peer.core.is_closed


def test_a_peer_that_says_goodbye_gets_its_answers() -> None:
    peer = RawPeer()
    call = peer.open_call()
    peer.feed(frame(GOAWAY, struct.pack(">II", 0, 0)))
    peer.core.send_message(call, b"answer", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.take()
    assert peer.body() == frame_message(b"answer")
    peer.wait(30.0)
    assert peer.core.is_closed


def test_a_silent_peer_is_pinged_while_calls_are_open() -> None:
    peer = RawPeer()
    peer.wait(600.0)
    assert peer.frames(PING) == []
    peer.open_call()
    peer.wait(61.0)
    ((_, _, payload),) = peer.frames(PING)
    peer.feed(frame(PING, payload, flags=1))
    peer.wait(30.0)
    assert not peer.core.is_closed
    peer.wait(60.0)
    assert peer.core.is_closed
    assert peer.goaway == (0, "no answer to a PING within 20 s")


def test_each_headers_frame_may_carry_a_priority() -> None:
    peer = RawPeer()
    block = peer.encoder.encode(peer.headers())
    peer.feed(frame(HEADERS, struct.pack(">IB", 0, 15) + block, flags=0x24, stream=3))
    assert isinstance(peer.events[-1], CallStarted)


@pytest.mark.parametrize(
    ("name", "value", "status"), [(":method", "GET", "405"), ("content-type", "text/plain", "415")]
)
def test_what_is_no_grpc_gets_a_status_of_http(name: str, value: str, status: str) -> None:
    peer = RawPeer()
    peer.feed(peer.request([(key, value if key == name else old) for key, old in peer.headers()], flags=0x5))
    assert peer.header_lists() == [{":status": status}]
    assert peer.events == []


def test_a_request_that_ends_by_trailers_is_answered() -> None:
    peer = RawPeer()
    peer.feed(peer.request() + peer.data(frame_message(b"hello"), ends=False))
    call = next(event.call for event in peer.events if isinstance(event, CallStarted))
    block = peer.encoder.encode([("a-trailer", "x")])
    assert peer.feed(frame(HEADERS, block, flags=0x5, stream=1)) == [RequestEnded(call)]
    peer.core.send_message(call, b"answer", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.take()
    assert peer.body() == frame_message(b"answer")
    assert peer.core.is_idle
    assert peer.reset_code() is None


def test_a_client_may_end_its_request_while_the_answer_waits() -> None:
    peer = RawPeer(first=PREFACE + settings(s4=10))
    peer.feed(peer.request())
    call = next(event.call for event in peer.events if isinstance(event, CallStarted))
    peer.core.send_message(call, b"a long answer", peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.feed(peer.data(b""))
    assert peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 50), stream=1)) == [CallAnswered(call)]
    assert peer.body() == frame_message(b"a long answer")
    assert (peer.core.is_closed, peer.reset_code()) == (False, None)


def test_a_cancelled_call_is_reset_with_its_response() -> None:
    peer = RawPeer(first=PREFACE + settings(s4=0))
    call = peer.open_call()
    peer.core.send_message(call, bytes(100), peer.now)
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    assert not call.is_over
    peer.core.cancel(call, "no room")
    peer.core.cancel(call, "again")
    peer.feed(b"")
    assert peer.reset_code() == 8
    assert peer.ended() == ["no room"]
    assert (call.is_over, peer.core.unsent_bytes) == (True, 0)
