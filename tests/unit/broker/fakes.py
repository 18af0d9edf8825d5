"""Stand-ins for what the broker's cores are given: a connection that notes what is sent through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aerobee.remoting.command import RemotingCommand


class FakeConnection:
    """A connection without a network. `sent` are the oneway requests, `answers` the replies of invoke() by code."""

    def __init__(self, address: str = "10.0.0.9:5000") -> None:
        self.address = address
        self.is_open = True
        self.close_reason = ""
        self.sent: list[RemotingCommand] = []
        self.invoked: list[RemotingCommand] = []
        self.answers: dict[int, RemotingCommand | Exception] = {}
        self._callbacks: list[Callable[[Any], None]] = []

    def on_close(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        self.sent.append(command)

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        self.invoked.append(command)
        answer = self.answers[command.code]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self, reason: str = "") -> None:
        if not self.is_open:
            return
        self.is_open, self.close_reason = False, reason
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


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
