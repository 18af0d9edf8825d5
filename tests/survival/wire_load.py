"""Many raw connections to a broker, cheaper than a client: frames made once, replies read for code and opaque only."""

from __future__ import annotations

import asyncio
import collections
import json
import multiprocessing
import re
import struct
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from aerobee.remoting.codes import RequestCode

CODE = re.compile(rb'"code":(-?\d+)')


def request(code: int, ext: dict[str, str], body: bytes = b"", opaque: int = 1) -> bytes:
    """One encoded request with a JSON header."""
    header = json.dumps(
        {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 479}
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def send_request(topic: str, body: bytes, queue_id: int = 0) -> bytes:
    """SEND_MESSAGE with long names, which costs a broker more than what clients send today: easier to overload."""
    ext = {
        "producerGroup": "load", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": str(queue_id), "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
        "properties": "UNIQ_KEY\u00017F00000100000000000000000000000A\u0002WAIT\u0001true\u0002",
        "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    return request(RequestCode.SEND_MESSAGE, ext, body)


def pull_request(topic: str, queue_id: int, offset: int, *, hold_s: float, group: str = "load") -> bytes:
    """PULL_MESSAGE that may be parked for `hold_s`."""
    suspend, has_subscription = 2, 4
    ext = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(suspend | has_subscription), "commitOffset": "0",
        "suspendTimeoutMillis": str(int(hold_s * 1000)), "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, ext)


class WirePeer(asyncio.Protocol):
    """One connection. `on_reply(peer, code, frame)` is called with each reply."""

    def __init__(self, on_reply: Callable[[WirePeer, int, bytes], None] | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_lost = False
        self._on_reply = on_reply
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.is_lost:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            found = CODE.search(data, at, end)
            if self._on_reply is not None:
                self._on_reply(self, int(found[1]) if found else 0, data[at:end])
            at = end
        self._data = data[at:]


async def connect(
    port: int, on_reply: Callable[[WirePeer, int, bytes], None] | None = None, *, at_once: int = 1
) -> list[WirePeer]:
    """Open `at_once` connections to a port of this machine."""
    loop = asyncio.get_running_loop()
    peers: list[WirePeer] = []
    for _ in range(at_once):
        _, peer = await loop.create_connection(lambda: WirePeer(on_reply), "127.0.0.1", port)
        peers.append(peer)
    return peers


class Senders:
    """Connections that each keep `in_flight` sends outstanding until stopped. Counts replies by code."""

    def __init__(self, port: int, topic: str, *, connections: int, in_flight: int, body_bytes: int) -> None:
        self.codes: collections.Counter[int] = collections.Counter()
        self.refusal = b""
        self._port = port
        self._frame = send_request(topic, b"x" * body_bytes)
        self._connections = connections
        self._in_flight = in_flight
        self._peers: list[WirePeer] = []
        self._running = False
        self._started = 0.0

    async def start(self) -> None:
        self._peers = await connect(self._port, self._answered, at_once=self._connections)
        self._running = True
        self._started = time.monotonic()
        for peer in self._peers:
            peer.send(self._frame * self._in_flight)

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        self.codes[code] += 1
        if code == 2 and not self.refusal:
            self.refusal = frame
        if self._running:
            peer.send(self._frame)

    def rate(self) -> float:
        """Messages a second that were stored, since the start."""
        return self.codes[0] / (time.monotonic() - self._started)

    async def stop(self) -> None:
        self._running = False
        for peer in self._peers:
            if peer.transport is not None:
                peer.transport.abort()
        await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class SenderReport:
    """What the senders of one process saw. `rate`: messages stored a second."""

    codes: dict[int, int]
    rate: float
    refusal: bytes


async def send_elsewhere(
    port: int, topic: str, *, connections: int, in_flight: int, body_bytes: int, seconds: float
) -> SenderReport:
    """Senders in a separate process, so that their work delays no measurement here."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return await loop.run_in_executor(
            pool, _send_here, port, topic, connections, in_flight, body_bytes, seconds
        )


def _send_here(
    port: int, topic: str, connections: int, in_flight: int, body_bytes: int, seconds: float
) -> SenderReport:
    async def run() -> SenderReport:
        senders = Senders(port, topic, connections=connections, in_flight=in_flight, body_bytes=body_bytes)
        await senders.start()
        await asyncio.sleep(seconds)
        report = SenderReport(dict(senders.codes), senders.rate(), senders.refusal)
        await senders.stop()
        return report

    return asyncio.run(run())
