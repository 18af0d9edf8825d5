"""What a request can make a server read in Python, counted for every request code: no more than the dialect's bound."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from aerobee.nameserver.server import NameServer
from aerobee.remoting import fastjson
from aerobee.remoting.body_limits import BODY_BYTES_MAX, BROKER_BODIES, NAMESERVER_BODIES, UNLIMITED
from aerobee.remoting.json_header import DIALECT_BYTES_MAX
from tests.abuse.nameserver_settings import SERVER
from tests.abuse.untrusted_peer import UntrustedPeer, broker_at
from tests.loops import event_loop_policy  # noqa: F401

MIB = 1 << 20
NAMES = {
    "topic": "t", "group": "g", "groupName": "g", "consumerGroup": "g", "producerGroup": "g", "clientID": "c", "clientId": "c",
    "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "c", "brokerId": "0", "haServerAddr": "",
    "namespace": "n", "key": "k", "value": "v", "username": "u", "subject": "User:u", "queueId": "0", "offset": "0",
    "timestamp": "0", "isForce": "false", "destGroup": "h", "srcGroup": "g", "perm": "6", "maxNum": "1",
}  # fmt: skip


class Work:
    """Characters that the event loop's thread gave to the reader of the dialect, since the last look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chars = 0
        init = fastjson._Reader.__init__

        def counted(reader: fastjson._Reader, text: str) -> None:
            if threading.current_thread() is threading.main_thread():
                self.chars += len(text)
            init(reader, text)

        monkeypatch.setattr(fastjson._Reader, "__init__", counted)

    def take(self) -> int:
        chars, self.chars = self.chars, 0
        return chars


def bodies(limit: int) -> list[bytes]:
    """In the dialect: up to what is read of it, and up to what a body may have."""
    found = []
    for size in (fastjson.REQUEST_DIALECT_BYTES_MAX, limit):
        found += [
            b"{a:1,b:'" + b"x" * (size - 9) + b"}",
            b"{" + b",".join([b"%d:0" % n for n in range(size // 9)]) + b"}",
            b"[" * (size - 1),
        ]
    return [*found, b"{" * 60 + b'"a":1' + b"}:1" * 60]


async def _ask_all(
    peer: UntrustedPeer, codes: list[int], limits: dict[int, int], work: Work
) -> dict[int, int]:
    worst = dict.fromkeys(codes, 0)
    for code in codes:
        limit = min(limits.get(code, BODY_BYTES_MAX), MIB)
        for body in bodies(MIB if limit == UNLIMITED else limit):
            await peer.call(code, dict(NAMES), body)
            worst[code] = max(worst[code], work.take())
    return worst


async def test_no_request_of_a_broker_is_read_in_python_beyond_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    async with broker_at(tmp_path) as broker, UntrustedPeer(broker.address) as peer:
        assert (await peer.send_message("t")).code == 0
        codes = sorted(code for code in broker.handlers if code not in {10, 310, 320, 324, 325})
        worst = await _ask_all(peer, codes, dict(BROKER_BODIES), work)
    assert len(codes) > 80
    static_topics = 513  # an administrator's
    assert {
        c: n for c, n in worst.items() if n > fastjson.REQUEST_DIALECT_BYTES_MAX and c != static_topics
    } == {}
    assert worst[static_topics] <= 8 * fastjson.REQUEST_DIALECT_BYTES_MAX
    assert sum(n > 0 for n in worst.values()) > 10  # bodies are read


async def test_no_request_of_a_nameserver_is_read_in_python_beyond_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(monkeypatch)
    async with NameServer(SERVER) as server, UntrustedPeer(server.address) as peer:
        worst = await _ask_all(peer, sorted(server.handlers), dict(NAMESERVER_BODIES), work)
    assert {code: n for code, n in worst.items() if n > fastjson.REQUEST_DIALECT_BYTES_MAX} == {}
    assert worst[103] > 0


async def test_no_header_is_read_in_python_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    async with NameServer(SERVER) as server:
        for size in (DIALECT_BYTES_MAX, DIALECT_BYTES_MAX + 1, 200_000, 14_500_000):
            async with UntrustedPeer(server.address) as peer:
                header = b"{code:105,a:" + b"[" * (size - 12)
                peer.writer.write((4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + header)
                try:
                    assert await peer.reader.read() == b""
                except ConnectionResetError:
                    pass  # it was closed before all had come
            assert work.take() <= DIALECT_BYTES_MAX
