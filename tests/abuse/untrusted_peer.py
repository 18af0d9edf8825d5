"""A peer that sends raw frames to a port, well formed and unfriendly, and what it is measured by."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any

from aerobee.broker.assembly.broker import Broker
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder, encode_frame
from tests.integration.broker_calls import make_broker

ANSWER_WAIT_S = 120.0


class UntrustedPeer:
    """One plain connection. `call()` sends one request and returns its answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._opaques = itertools.count(1)
        self._decoder = FrameDecoder()

    async def __aenter__(self) -> UntrustedPeer:
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", flag: int = 0) -> int:
        opaque = next(self._opaques)
        self.writer.write(encode_frame(RemotingCommand(code, ext, body, opaque=opaque, flag=flag)))
        return opaque

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        """Raises ConnectionError when the other side closes, TimeoutError when it says nothing."""
        return await self.answer(self.send(code, ext, body))

    async def answer(self, opaque: int) -> RemotingCommand:
        """Wait for the answer to one request; answers to others are dropped."""
        async with asyncio.timeout(ANSWER_WAIT_S):
            while True:
                while (command := self._decoder.next_frame()) is not None:
                    if command.is_response and command.opaque == opaque:
                        return command
                data = await self.reader.read(1 << 18)
                if not data:
                    raise ConnectionError("the other side closed the connection")
                self._decoder.feed(data)

    async def send_message(
        self, topic: str, body: bytes = b"x", *, queue: int = 0, properties: str = "", **fields: str
    ) -> RemotingCommand:
        """SEND_MESSAGE_V2. `fields` replace those of the header by their short names."""
        ext = {
            "a": "untrusted", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000",
            "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return await self.call(310, {**ext, **fields}, body)


@contextlib.asynccontextmanager
async def broker_at(path: Path, **config: Any) -> AsyncIterator[Broker]:
    """A broker on a free port; its store is `path`."""
    broker = make_broker(path, **config)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def files_below(path: Path) -> dict[str, int]:
    """Every path below a directory with its size; directories have -1."""
    return {
        str(each.relative_to(path)): -1 if each.is_dir() else each.stat().st_size
        for each in sorted(path.rglob("*"))
    }
