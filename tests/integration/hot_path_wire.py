"""A connection that sends frames to each backend of the fast path."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aerobee.broker.fastpath.choice import NATIVE, PYTHON, choose_backend
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder
from aerobee.testing.local_cluster import LocalCluster

BACKENDS = [PYTHON] + ([NATIVE] if choose_backend().name == NATIVE else [])
HOT, SLOW = (",", ":"), (", ", ": ")
TOPIC = "orders"


class Wire:
    """A raw connection that writes headers in one of both forms."""

    def __init__(self, cluster: LocalCluster, separators: tuple[str, str]) -> None:
        self.cluster = cluster
        self.separators = separators
        self.opaque = 100
        self.decoder = FrameDecoder()

    async def open(self) -> None:
        host, _, port = self.cluster.broker_addresses[0].partition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))

    def frame(self, code: int, ext: dict[str, Any], body: bytes = b"", *, oneway: bool = False) -> bytes:
        self.opaque += 1
        fields = {
            "code": code, "extFields": ext, "flag": 2 if oneway else 0, "language": "JAVA", "opaque": self.opaque,
            "serializeTypeCurrentRPC": "JSON", "version": 513,
        }  # fmt: skip
        header = json.dumps(fields, separators=self.separators).encode()
        return (
            (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body
        )

    async def replies(self, count: int) -> list[RemotingCommand]:
        found: list[RemotingCommand] = []
        while len(found) < count:
            data = await asyncio.wait_for(self.reader.read(1 << 16), 10)
            assert data, "the broker closed the connection"
            self.decoder.feed(data)
            while (reply := self.decoder.next_frame()) is not None:
                found.append(reply)
        return found
