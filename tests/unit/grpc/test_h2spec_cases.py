"""Cases of h2spec that its own requests cannot reach, for they are none of gRPC (scripts/check-h2spec)."""

from __future__ import annotations

import struct

import pytest

from aerobee.grpc.call import CallEnded, RequestEnded
from aerobee.grpc.frame_scanner import DATA, GOAWAY, HEADERS, PRIORITY, RST_STREAM, WINDOW_UPDATE
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.status import GrpcStatus
from tests.unit.grpc.raw_peer import RawPeer, frame

pytestmark = pytest.mark.usefixtures("core")
END_STREAM, END_HEADERS = 1, 4
PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 1, 3


def opened(**more: str) -> RawPeer:
    """A peer with an open call on stream 1."""
    peer = RawPeer()
    peer.feed(frame(HEADERS, bytes(peer.encoder.encode(peer.headers(**more))), flags=END_HEADERS, stream=1))
    return peer


@pytest.mark.parametrize(
    "more",
    [
        frame(WINDOW_UPDATE, struct.pack(">I", 1), stream=1),
        frame(PRIORITY, struct.pack(">IB", 0, 1), stream=1),
    ],
    ids=["window", "priority"],
)
def test_a_half_closed_call_takes_frames_without_data(more: bytes) -> None:
    peer = opened()
    peer.feed(frame(DATA, frame_message(b"request"), flags=END_STREAM, stream=1))
    (ended,) = [event for event in peer.events if isinstance(event, RequestEnded)]
    peer.feed(more)
    peer.core.finish(ended.call, GrpcStatus.OK, "", peer.now)
    peer.take()
    assert [(kind, stream) for kind, _, stream, _ in peer.sent if stream] == [(HEADERS, 1)]


def test_a_stream_window_beyond_its_bound_resets_the_stream() -> None:
    peer = opened()
    peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 2**31 - 1), stream=1))
    assert peer.sent[-1] == (RST_STREAM, 0, 1, struct.pack(">I", FLOW_CONTROL_ERROR))
    assert not peer.core.is_closed


@pytest.mark.parametrize("length", ["3", "100"])
def test_a_request_of_another_length_than_it_says_ends_the_connection(length: str) -> None:
    peer = opened(content_length=length)
    peer.feed(frame(DATA, frame_message(b"request"), flags=END_STREAM, stream=1))
    assert peer.core.is_closed
    assert isinstance(peer.events[-1], CallEnded)
    assert peer.sent[-1][0] == GOAWAY
    assert peer.sent[-1][3][4:8] == struct.pack(">I", PROTOCOL_ERROR)


def test_trailers_that_do_not_end_their_stream_end_the_connection() -> None:
    peer = opened()
    block = bytes(peer.encoder.encode([("a", "b")]))
    peer.feed(frame(HEADERS, block, flags=END_HEADERS, stream=1))
    assert peer.core.is_closed
    assert peer.sent[-1][0] == GOAWAY
