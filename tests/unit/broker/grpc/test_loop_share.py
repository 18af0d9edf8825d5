"""The event loop's time that gRPC connections have together in one iteration: the others wait, and none is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aerobee.broker.grpc.connections import LOOP_SHARE_S, GrpcConnections, SharedBounds
from aerobee.broker.grpc.session import GrpcSession
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.clock import ManualClock
from aerobee.grpc.frame_scanner import HEADERS, PREFACE, SETTINGS
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.limits import Http2Limits
from tests.unit.grpc.raw_peer import frame
from tests.waiting import wait_until

SESSION_COUNT = 40
GO_S = LOOP_SHARE_S / 2  # of each core's go, by the clock below


class SlowCore(Http2Connection):
    """Each go takes GO_S."""

    clock: ManualClock

    def proceed(self, now: float) -> list[Any]:
        self.clock.advance(GO_S)
        return super().proceed(now)


class Link:
    """What a session uses of its connection."""

    address, host_port, own_host, own_port, is_open = "10.0.0.2:1", ("10.0.0.2", 1), "10.0.0.1", 2, True

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_reading = True

    def write(self, data: bytes) -> None:
        self.written += data

    def set_reading(self) -> None:
        self.is_reading = True

    def close(self, reason: str) -> None:
        self.is_open = False


def made(clock: ManualClock, connections: GrpcConnections) -> tuple[GrpcSession, Link]:
    link = Link()
    core = type("Core", (SlowCore,), {"clock": clock})
    session = GrpcSession(
        cast(Any, link),
        {},
        make_http2=core,
        limits=Http2Limits(),
        clock=clock,
        connections=connections,
        prove=lambda context: None,
    )
    return session, link


async def test_many_connections_with_large_header_blocks_leave_the_event_loop_to_others() -> None:
    """40 connections with 6 KB of metadata each took 0.9 s of one iteration: each had its own 20 ms."""
    clock = ManualClock()
    bounds = SharedBounds(calls_max=lambda: 1, request_bytes_max=lambda: 1, reached=lambda *_: None)
    connections = GrpcConnections(bounds, GrpcTraffic())
    sessions = [made(clock, connections) for _ in range(SESSION_COUNT)]
    block = frame(HEADERS, b"\x20" * 15_000, flags=0x4, stream=1)  # changes the table's size again and again
    began_s = clock.monotonic()
    for session, link in sessions:
        session.receive(PREFACE + frame(SETTINGS) + block)
        link.is_reading = not session.is_full
    assert clock.monotonic() - began_s <= LOOP_SHARE_S + GO_S
    assert sum(not link.is_reading for _, link in sessions) >= SESSION_COUNT - 3
    for _ in range(SESSION_COUNT):
        began_s = clock.monotonic()
        await asyncio.sleep(0)
        assert clock.monotonic() - began_s <= LOOP_SHARE_S + GO_S
    assert all(link.is_reading and not session.is_full for session, link in sessions)
    assert all(link.written.startswith(b"\0\0\x2a\x04") for _, link in sessions), "each was served"
    for session, _ in sessions:
        session.lost()


async def test_bytes_that_wait_are_served_in_their_order_and_dropped_with_their_connection() -> None:
    clock = ManualClock()
    bounds = SharedBounds(calls_max=lambda: 1, request_bytes_max=lambda: 1, reached=lambda *_: None)
    connections = GrpcConnections(bounds, GrpcTraffic())
    (first, link), (second, _) = made(clock, connections), made(clock, connections)
    connections.loop_share.used(LOOP_SHARE_S)
    for byte in PREFACE + frame(SETTINGS):
        first.receive(bytes((byte,)))
    second.receive(PREFACE)
    second.lost()
    assert first.is_full
    assert not second.is_full
    await wait_until(lambda: not first.is_full)
    assert link.is_open, "the preface was whole"
    first.lost()
