"""What a peer can make the server do in one go, or keep: bounded, whatever it sends."""

from __future__ import annotations

import struct
import zlib

import pytest

from aerobee.grpc import http2_connection, message_reader
from aerobee.grpc.call import Call, CallStarted, OpenCall, RequestEnded, RequestMessage
from aerobee.grpc.frame_scanner import (
    ACK,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
)
from aerobee.grpc.http2_connection import DEADLINES_AT_ONCE, FRAMES_AT_ONCE, Http2Connection
from aerobee.grpc.limits import MIB, Http2Limits
from aerobee.grpc.message_reader import frame_message, inflate
from aerobee.grpc.status import GrpcStatus
from tests.unit.grpc.raw_peer import RawPeer, frame, settings

pytestmark = pytest.mark.usefixtures("core")


def test_a_read_of_many_frames_is_interpreted_in_several_goes() -> None:
    peer = RawPeer()
    data = b"".join(peer.request() + peer.data(frame_message(b"x"), 2 * n + 1) for n in range(400))
    events = peer.core.receive(data, peer.now)
    assert peer.core.has_more
    assert sum(isinstance(event, CallStarted) for event in events) <= FRAMES_AT_ONCE // 2
    while peer.core.has_more:
        events += peer.core.proceed(peer.now)
    assert sum(isinstance(event, RequestEnded) for event in events) == 400


@pytest.mark.parametrize(
    "data",
    [
        frame(DATA, frame_message(b"") * 3_000, stream=1) * 16,  # messages of no bytes
        b"".join(  # header blocks that say nothing
            frame(HEADERS, b"\x20" * 8_000, flags=0, stream=number)
            + frame(CONTINUATION, b"\x20" * 8_000, flags=0x4, stream=number)
            for number in range(3, 35, 2)
        ),
    ],
)
def test_few_frames_with_much_work_are_interpreted_in_several_goes(data: bytes) -> None:
    peer = RawPeer()
    peer.feed(peer.request())
    goes = 1
    peer.core.receive(data, peer.now)
    while peer.core.has_more:
        peer.core.proceed(peer.now)
        goes += 1
    assert goes >= 3


def test_deadlines_that_pass_together_end_in_several_goes() -> None:
    peer = RawPeer()
    for _ in range(DEADLINES_AT_ONCE + 100):
        peer.open_call(grpc_timeout="1S")
    peer.now += 2.0
    peer.core.tick(peer.now)
    assert len(peer.core.calls) == 100
    assert peer.core.due() <= peer.now
    peer.core.tick(peer.now)
    assert peer.core.is_idle


def blocked_calls(peer: RawPeer, count: int) -> list[Call]:
    """Calls whose responses wait for a window."""
    calls = [peer.open_call() for _ in range(count)]
    for call in calls:
        peer.core.send_message(call, bytes(1_000), peer.now)
    return calls


def test_window_updates_of_one_read_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """9,000 updates of a byte with 9,000 blocked calls were 81 million looks: the event loop stood still for half a minute."""
    peer = RawPeer(first=PREFACE + settings(s4=0))
    blocked_calls(peer, 50)
    looks = 0
    pump = Http2Connection._pump

    def counted(core: Http2Connection, call: OpenCall, now: float) -> None:
        nonlocal looks
        looks += 1
        pump(core, call, now)

    monkeypatch.setattr(Http2Connection, "_pump", counted)
    peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 1)) * 100 + settings(s4=1) * 5)
    if isinstance(peer.core, Http2Connection):
        assert looks == 50
    assert len(peer.frames(DATA)) == 50


def test_a_window_that_no_call_waits_for_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of 13 bytes had each call looked at that waits for the window of a stream: 10,000 took 2.5 ms."""
    peer = RawPeer(first=PREFACE + settings(s4=0))
    blocked_calls(peer, 50)
    looks = []
    pump = Http2Connection._pump

    def counted(core: Http2Connection, call: OpenCall, now: float) -> None:
        looks.append(call.stream_id)
        pump(core, call, now)

    monkeypatch.setattr(Http2Connection, "_pump", counted)
    for _ in range(10):
        peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 1)))
    assert (looks, peer.frames(DATA)) == ([], [])
    peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 1_000_000), stream=99))
    assert len(peer.frames(DATA)) == 1


def test_a_large_response_is_cut_into_frames_without_copies_of_its_rest() -> None:
    """Each frame copied what was left: 63 MB took 27 s."""
    peer = RawPeer(first=PREFACE + settings(s4=MIB))
    call = peer.open_call()
    data = bytes(range(256)) * 1_000
    peer.core.send_message(call, data, peer.now)
    peer.take()
    if isinstance(call, OpenCall):
        (rest,) = call.unsent
        assert isinstance(rest, memoryview)
        assert len(rest.obj) == len(data) + 5
    peer.core.finish(call, GrpcStatus.OK, "", peer.now)
    peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", MIB)))
    assert peer.body() == frame_message(data)


@pytest.mark.parametrize(
    "data", [frame(DATA, b"\2\0\0", flags=PADDED, stream=1), frame(PING, bytes(8), flags=ACK)]
)
def test_padding_and_acknowledgements_are_frames_without_effect(data: bytes) -> None:
    peer = RawPeer()
    peer.feed(peer.request())
    peer.feed(data * 10_001)
    assert peer.goaway == (ENHANCE_YOUR_CALM, "too many frames without effect")


def test_a_call_whose_request_does_not_end_is_ended() -> None:
    peer = RawPeer()
    peer.feed(peer.request() + peer.data(frame_message(b"request"), ends=False))
    peer.wait(31.0)
    assert peer.ended() == ["no whole request within 30 s"]


def test_responses_that_a_client_does_not_take_are_bounded() -> None:
    peer = RawPeer(Http2Limits(unsent_bytes_max=1_000, unsent_bytes_end=9_000), PREFACE + settings(s4=0))
    first, second = peer.open_call(), peer.open_call()
    for _ in range(8):
        peer.core.send_message(first, bytes(1_000), peer.now)
    assert not first.is_over
    peer.core.send_message(second, bytes(1_000), peer.now)
    assert second.is_over
    peer.feed(b"")
    assert peer.ended() == ["the client takes its responses too slowly"]
    assert peer.reset_code(second.stream_id) == 8
    assert peer.core.unsent_bytes == 8 * 1_005


def test_the_bound_of_a_request_is_that_of_its_path() -> None:
    peer = RawPeer(first=b"")
    peer.core = RawPeer.make_core(Http2Limits(), peer.now, lambda path: 10)
    peer.feed(PREFACE + frame(SETTINGS))
    peer.feed(peer.request() + peer.data(frame_message(bytes(11))))
    assert peer.ended() == ["a request message has 11 bytes, at most 10 are allowed"]


def test_a_window_that_opens_and_closes_often_costs_the_same_each_time(
    core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of one open call, which no pass could drop, were passed through at each further one."""
    if core != "python":
        pytest.skip("counts what the Python core does")
    passes = []
    heapify = http2_connection.heapq.heapify
    monkeypatch.setattr(
        http2_connection.heapq, "heapify", lambda entries: (passes.append(len(entries)), heapify(entries))
    )
    peer = RawPeer(first=PREFACE + settings(s4=0))
    call = peer.open_call()
    for _ in range(5_000):
        peer.now += 1e-4
        peer.core.send_message(call, b"x", peer.now)  # blocked
        peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 6), stream=1))
    assert peer.core.unsent_bytes == 0
    assert len(passes) < 10


def test_entries_of_open_calls_are_not_passed_through_at_each_new_one() -> None:
    """Once the entries of one open call were many, each further entry had the native core pass through all of them."""
    peer = RawPeer(first=PREFACE + settings(s4=0))
    call = peer.open_call()
    for _ in range(3_000):
        peer.now += 1e-4
        peer.core.send_message(call, b"x", peer.now)
        peer.feed(frame(WINDOW_UPDATE, struct.pack(">I", 6), stream=1))
    ended = peer.open_call(grpc_timeout="1S")
    peer.core.finish(ended, GrpcStatus.OK, "", peer.now)
    peer.open_call()
    assert ended.deadline is not None
    assert peer.core.due() <= ended.deadline  # no pass has dropped the entry of the call that has ended


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_nothing_is_inflated_for_a_call_that_is_not_admitted(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and compressed data in one read were inflated before the user of the call was proven."""
    inflated = []

    def noted(data: bytes, encoding: str, bytes_max: int) -> bytes:
        inflated.append(encoding)
        return inflate(data, encoding, bytes_max)

    monkeypatch.setattr(message_reader, "inflate", noted)
    peer = RawPeer()
    packed = zlib.compress(bytes(MIB), wbits=31 if encoding == "gzip" else 15)
    message = struct.pack(">BI", 1, len(packed)) + packed
    read = b"".join(
        peer.request(peer.headers(grpc_encoding=encoding)) + peer.data(message, stream) for stream in (1, 3)
    )
    (refused,) = peer.core.receive(read, peer.now)
    assert isinstance(refused, CallStarted)
    assert peer.core.has_more
    peer.core.finish(refused.call, GrpcStatus.UNAUTHENTICATED, "no", peer.now)
    (admitted,) = peer.core.proceed(peer.now)
    assert isinstance(admitted, CallStarted)
    assert not inflated
    request, ended = peer.core.proceed(peer.now)
    assert isinstance(request, RequestMessage)
    assert isinstance(ended, RequestEnded)
    assert (len(request.data), request.call.stream_id, inflated) == (MIB, 3, [encoding])
    assert not peer.core.has_more
