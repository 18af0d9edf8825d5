"""Very many gRPC connections at one broker, whose streams then never read: memory is bounded, and others are served.

    python tests/survival/grpc_scale.py [--count 10000] [--limit-mib 256] [--server aerobee]

Each connection opens Telemetry with the settings of a producer. Then each sets the windows of its streams to 0 and pulls
messages of 256 KiB, batch after batch. What must hold:

- A connection with its Telemetry stream costs the broker at most CONNECTION_BYTES_MAX of private memory.
- Responses that wait for windows take pendingReplyBytesMax (--limit-mib) and a batch of memory at most: the broker closes
  the connections that take nothing. A batch is a quarter of that, and the next one begins when the broker has
  closed what is beyond the bound.
- A producer on another connection sends messages before, among and after them.
- The broker gives back the handles.

Starts its own servers on loopback, prints JSON, and ends with status 1 when one of them does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import sys
import time
from pathlib import Path
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench"), str(Path(__file__).resolve().parent)]

import servers  # noqa: E402
from process_figures import look_at  # noqa: E402
from scale import (  # noqa: E402
    PROBE_SENDS,
    SPARE_HANDLES,
    STEP_TIMEOUT_S,
    Caller,
    Fault,
    check_handles,
    make_topics,
    note,
    per_one,
    percentiles_ms,
)
from wire_load import send_request  # noqa: E402

from aerobee.grpc.proto import messages as pb  # noqa: E402
from aerobee.simulation.grpc_calls import SERVICE, CallFailed, GrpcCalls  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

DEFAULT_COUNT = 10_000
DEFAULT_LIMIT_MIB = 256  # the default of pendingReplyBytesMax
CONNECTION_BYTES_MAX = 64 << 10
STREAM_BYTES_MAX = 4 << 10  # of a stream without its response
KEPT_BYTES_MAX = 16 << 20  # by the allocator
STALLED_COUNT, STALLED_BYTES = 8, 32 << 10  # messages of a response, and the body of each
RESPONSE_BYTES = STALLED_COUNT * STALLED_BYTES
BATCHES = 4  # of responses that reach the limit together
OPENED_TOGETHER = 200
CALL_TIMEOUT_S = 60.0
SENT, STALLED = "served", "stalled"  # topics
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
ACK = 1  # a flag of SETTINGS and PING


def frame(kind: int, flags: int, payload: bytes = b"") -> bytes:
    """A frame of stream 0."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + bytes(4) + payload


class Peer(asyncio.Protocol):
    """A client's connection: writes what was encoded for it, answers SETTINGS and PING, and counts what comes."""

    def __init__(self, number: int) -> None:
        self.is_lost = False
        self.is_reset = False  # the stalled stream has ended
        self.telemetry_bytes = 0
        self.stalled_headers = 0
        self._opening, self._stalling, self._stalled_id = _conversation(number)
        self._transport: asyncio.Transport | None = None
        self._data = b""

    @property
    def is_stalled(self) -> bool:
        """Whether the broker may keep a response for this connection."""
        return not (self.is_lost or self.is_reset)

    def stall(self) -> None:
        """Close the windows of all streams, and pull."""
        self.write(self._stalling)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.is_lost:
            self._transport.write(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write(self._opening)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        at = 0
        while len(data) - at >= 9 and len(data) - at - 9 >= (
            size := int.from_bytes(data[at : at + 3], "big")
        ):
            stream_id = int.from_bytes(data[at + 5 : at + 9], "big")
            self._on_frame(data[at + 3], data[at + 4], stream_id, data[at + 9 : at + 9 + size])
            at += 9 + size
        self._data = data[at:]

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind in (SETTINGS, PING) and not flags & ACK:
            self.write(frame(kind, ACK, payload if kind == PING else b""))
        elif kind == DATA and stream_id != self._stalled_id:
            self.telemetry_bytes += len(payload)
        elif kind == HEADERS and stream_id == self._stalled_id:
            self.stalled_headers += 1
        elif kind == RST_STREAM and stream_id == self._stalled_id:
            self.is_reset = True
        elif kind == DATA and payload:
            raise Fault(f"{len(payload)} bytes of a response came although the stream's window is 0")


def _conversation(number: int) -> tuple[bytes, bytes, int]:
    """What connection `number` writes when it opens and when it stalls, and the stream that stalls."""
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add().name = SENT
    _call(client, number, "Telemetry", pb.TelemetryCommand(settings=settings), is_whole=False)
    opening = client.data_to_send()
    client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    pull = pb.PullMessageRequest(offset=0, batch_size=32)
    pull.group.name = "stalled"
    pull.message_queue.topic.name = STALLED
    pull.message_queue.id = 0
    pull.message_queue.broker.name = "broker-a"
    pull.filter_expression.type, pull.filter_expression.expression = pb.TAG, "*"
    stream_id = _call(client, number, "PullMessage", pull, is_whole=True)
    return opening, client.data_to_send(), stream_id


def _call(client: H2Connection, number: int, name: str, message: Any, *, is_whole: bool) -> int:
    """Begin a call; its stream."""
    stream_id: int = client.get_next_available_stream_id()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"{SERVICE}{name}"),
        (":authority", "broker"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("x-mq-client-id", f"client-{number}"),
        ("x-mq-language", "PYTHON"),
    ]
    body = message.SerializeToString()
    client.send_headers(stream_id, headers)
    client.send_data(stream_id, b"\x00" + struct.pack(">I", len(body)) + body, end_stream=is_whole)
    return stream_id


async def probe(port: int) -> dict[str, float]:
    """What a gRPC producer with one message in flight waits. Raises Fault."""
    loop = asyncio.get_running_loop()
    _, calls = await loop.create_connection(lambda: GrpcCalls("broker"), "127.0.0.1", port)
    request = pb.SendMessageRequest()
    message = request.messages.add()
    message.topic.name, message.body = SENT, b"x" * 128
    message.system_properties.message_id = "A0"
    waits_s = []
    try:
        for _ in range(PROBE_SENDS):
            at = time.perf_counter()
            metadata = {"x-mq-client-id": "probe", "x-mq-language": "PYTHON"}
            (found,) = await calls.call("SendMessage", request.SerializeToString(), metadata, CALL_TIMEOUT_S)
            code = pb.SendMessageResponse.FromString(found).status.code
            if code != pb.OK:
                raise Fault(f"the producer got code {code}")
            waits_s.append(time.perf_counter() - at)
    except CallFailed as failed:
        raise Fault(f"the producer is not served: {failed}") from failed
    finally:
        calls.close()
    return percentiles_ms(waits_s)


async def fill(port: int) -> None:
    """The topics, and what stalled streams pull."""
    await make_topics(port, [SENT, STALLED], 1)
    caller = await Caller().connect(port)
    for _ in range(STALLED_COUNT):
        await caller.call(send_request(STALLED, b"x" * STALLED_BYTES))
    caller.close()


async def open_peers(port: int, count: int) -> list[Peer]:
    """`count` connections whose Telemetry streams were answered. Raises Fault."""
    loop = asyncio.get_running_loop()
    peers: list[Peer] = []
    while len(peers) < count:
        for number in range(len(peers), min(count, len(peers) + OPENED_TOGETHER)):
            _, peer = await loop.create_connection(lambda number=number: Peer(number), "127.0.0.1", port)  # type: ignore[misc]
            peers.append(peer)
        await wait_until(
            lambda: all(peer.telemetry_bytes or peer.is_lost for peer in peers[-OPENED_TOGETHER:]),
            "settings answered",
            timeout_s=STEP_TIMEOUT_S,
        )
    if lost := sum(peer.is_lost for peer in peers):
        raise Fault(f"the broker closed {lost} of {count} connections")
    return peers


async def stall(peers: list[Peer], limit_bytes: int, pid: int) -> int:
    """Let each pull with closed windows; the most memory that the broker had after a batch."""
    size = max(1, limit_bytes // BATCHES // RESPONSE_BYTES)
    most = 0
    for first in range(0, len(peers), size):
        batch = peers[first : first + size]
        for peer in batch:
            peer.stall()
        begun = peers[: first + size]
        await wait_until(
            lambda batch=batch: all(peer.stalled_headers or not peer.is_stalled for peer in batch),  # type: ignore[misc]
            "responses that wait for a window",
            timeout_s=STEP_TIMEOUT_S,
        )
        most = max(most, look_at(pid).anonymous_bytes)
        await wait_until(
            lambda begun=begun: sum(peer.is_stalled for peer in begun) * RESPONSE_BYTES <= limit_bytes,  # type: ignore[misc]
            "connections beyond pendingReplyBytesMax closed",
            timeout_s=STEP_TIMEOUT_S,
        )
    return most


async def connections(server: servers.Server, count: int, limit_bytes: int) -> dict[str, Any]:
    """Raises Fault; returns figures."""
    pid = server.pids[-1]
    await fill(server.port)
    alone = await probe(server.port)
    before = look_at(pid)
    peers = await open_peers(server.port, count)
    try:
        opened = look_at(pid)
        among_them = await probe(server.port)
        each = per_one(opened, before, count)
        if each > CONNECTION_BYTES_MAX:
            raise Fault(f"a connection takes {each} bytes, more than {CONNECTION_BYTES_MAX}")
        most = await stall(peers, limit_bytes, pid)
        among_stalled = await probe(server.port)
        stalled = sum(peer.is_stalled for peer in peers)
        grown = most - opened.anonymous_bytes
        allowed = limit_bytes + limit_bytes // BATCHES + count * STREAM_BYTES_MAX + KEPT_BYTES_MAX
        if grown > allowed:
            raise Fault(f"streams that do not read took {grown >> 20} MiB, more than {allowed >> 20}")
    finally:
        for peer in peers:
            peer.abort()
    await wait_until(
        lambda: look_at(pid).handles <= before.handles + SPARE_HANDLES // 8,
        "handles given back",
        timeout_s=STEP_TIMEOUT_S,
    )
    return {
        "server": server.name,
        "connections": count,
        "bytes_per_connection": each,
        "limit_mib": limit_bytes >> 20,
        "requested_mib": count * RESPONSE_BYTES >> 20,
        "grown_mib": round(grown / 2**20, 1),
        "stalled_at_the_end": stalled,
        "closed": count - stalled,
        "send_ms_alone": alone,
        "send_ms_among_them": among_them,
        "send_ms_among_stalled": among_stalled,
        "send_ms_afterwards": await probe(server.port),
        "broker_mib_after": round(look_at(pid).anonymous_bytes / 2**20, 1),
    }


def run(server_name: str, *, count: int, limit_mib: int) -> dict[str, Any]:
    """With its own servers. Raises Fault, ServerFailed."""
    check_handles(count)
    extra = {
        "pendingReplyBytesMax": str(limit_mib << 20),
        "serverConnectionsMax": str(count + SPARE_HANDLES),  # half of the handles by default
    }
    with getattr(servers, server_name.replace("-", "_"))(extra=extra) as server:
        return asyncio.run(connections(server, count, limit_mib << 20))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="number of connections")
    parser.add_argument("--limit-mib", type=int, default=DEFAULT_LIMIT_MIB, help="pendingReplyBytesMax, MiB")
    parser.add_argument("--server", default="aerobee", choices=("aerobee", "aerobee-python"))
    options = parser.parse_args()
    try:
        figures = run(options.server, count=options.count, limit_mib=options.limit_mib)
    except (Fault, servers.ServerFailed) as fault:
        note(f"FAULT: {fault}")
        sys.exit(1)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
