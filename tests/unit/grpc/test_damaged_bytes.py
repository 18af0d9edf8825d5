"""Damaged HTTP/2 and protobuf: the core never raises, never keeps more than its bounds, and ends what is broken."""

from __future__ import annotations

import random
import struct

import pytest

from aerobee.grpc.call import CallStarted, RequestEnded
from aerobee.grpc.core import Http2Core
from aerobee.grpc.frame_scanner import PREFACE, RST_STREAM, SETTINGS
from aerobee.grpc.limits import KIB, Http2Limits, Rate
from aerobee.grpc.message_reader import frame_message
from aerobee.grpc.status import GrpcStatus
from tests.unit.grpc.raw_peer import RawPeer, frame

pytestmark = pytest.mark.usefixtures("core")

ROUNDS = 400
LIMITS = Http2Limits(
    message_bytes_max=64 * KIB,
    receiving_bytes_max=128 * KIB,
    unsent_bytes_max=64 * KIB,
    resets=Rate(1_000_000, 0.0),
    pings=Rate(1_000_000, 0.0),
    settings=Rate(1_000_000, 0.0),
    empty_frames=Rate(1_000_000, 0.0),
)


def conversation(rng: random.Random) -> bytes:
    """Whole frames of a client with several calls."""
    peer = RawPeer(LIMITS)
    data = PREFACE + frame(SETTINGS)
    for _ in range(rng.randint(1, 4)):
        stream = peer.next_stream
        data += peer.request(peer.headers(x_mq_request_id=str(rng.random()), grpc_timeout="3S"))
        body = frame_message(rng.randbytes(rng.randint(0, 3_000)))
        cut = rng.randint(0, len(body))
        data += peer.data(body[:cut], stream, ends=False) + peer.data(body[cut:], stream)
        if rng.random() < 0.2:
            data += frame(RST_STREAM, struct.pack(">I", 8), stream=stream)
        data += frame(
            rng.randint(0, 12), rng.randbytes(rng.randint(0, 12)), flags=rng.randint(0, 255)
        ) * rng.randint(0, 1)
    return data


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The same with some bytes changed, removed, doubled or swapped."""
    found = bytearray(data)
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(found))
        end = min(len(found), at + rng.randint(1, 20))
        kind = rng.randrange(4)
        if kind == 0:
            found[at] = rng.randrange(256)
        elif kind == 1:
            del found[at:end]
        elif kind == 2:
            found[at:at] = found[at:end]
        else:
            found[at:end] = rng.randbytes(end - at)
        if not found:
            return b"\0"
    return bytes(found)


def play(data: bytes, rng: random.Random) -> Http2Core:
    """Feed it in random pieces, answering what comes, with time passing; then lose the connection."""
    now = 0.0
    core = RawPeer.make_core(LIMITS, now)
    started, ended = set(), []
    at = 0
    while at < len(data) and not core.is_closed:
        size = rng.choice((1, 9, 100, 10_000))
        events = core.receive(data[at : at + size], now)
        while core.has_more:
            events += core.proceed(now)
        at += size
        if rng.random() < 0.1:
            now += rng.choice((0.1, 3.0, 31.0))
            events += core.tick(now)
        for event in events:
            if isinstance(event, CallStarted):
                assert event.call not in started
                started.add(event.call)
            if isinstance(event, RequestEnded) and rng.random() < 0.8:
                core.send_message(event.call, rng.randbytes(rng.randint(0, 30_000)), now)
                core.finish(event.call, GrpcStatus.OK, "", now)
            ended.append(event)
        core.outgoing()
        assert 0 <= core.receiving_bytes <= LIMITS.receiving_bytes_max + LIMITS.frame_bytes_max
        assert core.unsent_bytes >= 0
        assert core.kept_bytes <= 10_000 + LIMITS.frame_bytes_max + 9
    core.lost(now)
    assert (core.receiving_bytes, core.unsent_bytes, dict(core.calls)) == (0, 0, {})
    assert all(call.is_over for call in started)
    return core


@pytest.mark.parametrize("seed", range(4))
def test_damaged_bytes_end_calls_or_the_connection(seed: int) -> None:
    rng = random.Random(seed)
    closed_count = 0
    for _ in range(ROUNDS):
        core = play(damaged(conversation(rng), rng), rng)
        closed_count += core.close_reason != "the connection is lost"
    assert 0 < closed_count < ROUNDS, "some are damaged enough, and not all"


def test_random_bytes_are_refused() -> None:
    rng = random.Random(1)
    for _ in range(ROUNDS):
        core = play(PREFACE + rng.randbytes(rng.randint(1, 500)), rng)
        assert core.is_closed
