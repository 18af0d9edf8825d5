"""Stand-ins that several kinds of tests share: a peer without a network, a socket without one, a config file in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aerobee.caller import REMOTING
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.remoting.peer import Peer


class FakePeer:
    """A Peer that keeps what it gets: frames in `written`, oneway requests in `sent`, calls in `invoked`.

    `answers` are what invoke() returns or raises, by request code. `burst_note` is the slot of the burst hook.
    """

    def __init__(self, host_port: tuple[str, int] = ("10.0.0.1", 43_664)) -> None:
        self.host_port = host_port
        self.address = f"{host_port[0]}:{host_port[1]}"
        self.listener = "default"
        self.principal = ""
        self.protocol = REMOTING
        self.is_open = True
        self.congested = False
        self.burst_note: Any = None
        self.written: list[bytes] = []
        self.sent: list[RemotingCommand] = []
        self.invoked: list[RemotingCommand] = []
        self.answers: dict[int, RemotingCommand | Exception] = {}
        self.failures: list[BaseException | None] = []
        self.close_reason = ""
        self.unsent_bytes = 0
        self._callbacks: list[Callable[[Any], None]] = []

    @property
    def is_behind(self) -> bool:
        return self.congested

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def write_now(self, data: bytes) -> None:
        self.write(data)

    def send(self, command: RemotingCommand) -> None:
        self.write(encode_frame(command))

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        self.invoked.append(command)
        answer = self.answers[command.code]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def on_close(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        if not self.is_open:
            return
        self.is_open, self.close_reason = False, reason
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def abort(self, reason: str = "") -> None:
        self.close(reason)

    def failed(self, error: BaseException | None = None) -> None:
        self.failures.append(error)
        self.close("internal error, see the log")

    def replies(self) -> list[RemotingCommand]:
        """Every reply so far, decoded."""
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.written))
        found = []
        while (command := decoder.next_frame()) is not None:
            found.append(command)
        assert not decoder.unused
        return found


class FakeTransport(asyncio.Transport):
    """A socket whose peer takes everything: what is written stands in `writes`, one entry a call.

    `lose`, where given, is called in the next pass of the loop after close() or abort(), as a connection's
    connection_lost() is.
    """

    def __init__(
        self,
        peer: tuple[str, int] = ("127.0.0.1", 50_000),
        *,
        on_write: Callable[[bytes], None] | None = None,
        lose: Callable[[Exception | None], None] | None = None,
    ) -> None:
        super().__init__({"peername": peer})
        self.writes: list[bytes] = []
        self.is_closed = False
        self._on_write = on_write
        self._lose = lose

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        if self._on_write is not None:
            self._on_write(self.writes[-1])

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._lose is not None:
            asyncio.get_running_loop().call_soon(self._lose, None)

    def abort(self) -> None:
        self.close()


if TYPE_CHECKING:
    _IS_A_PEER: Peer = FakePeer()


class MemoryFile:
    """A config file in memory. `failure` is raised by the next writes."""

    def __init__(self, value: Mapping[str, Any] | None = None) -> None:
        self.value: dict[str, Any] | None = dict(value) if value is not None else None
        self.failure: Exception | None = None
        self.write_count = 0

    def read(self) -> dict[str, Any] | None:
        return self.value

    def write(self, value: Mapping[str, Any]) -> None:
        if self.failure is not None:
            raise self.failure
        self.value = dict(value)
        self.write_count += 1

    def write_soon(self, write: Callable[[], None]) -> None:
        write()

    async def run(self, work: Callable[[], None]) -> None:
        await asyncio.sleep(0)
        work()
