"""The caller of one RPC as a Peer of the broker's services: the reply that they send completes a future.

A service that defers its reply, until a message is durable or until one arrives, keeps the peer and sends the reply to
it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aerobee.caller import GRPC
from aerobee.errors import ConnectionLost
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import decode_frame
from aerobee.remoting.peer import Peer


class CallPeer(Peer):
    """A Peer (remoting/peer.py) for one RPC that the broker's services serve."""

    def __init__(self, connection: Connection, host_port: tuple[str, int]) -> None:
        self._connection = connection
        self._reply: asyncio.Future[RemotingCommand] | None = None
        self._close_callbacks: list[Callable[[Peer], None]] = []
        self._has_ended = False
        self.principal = ""
        self.protocol = GRPC
        self._host_port = host_port

    __hash__ = object.__hash__

    @property
    def host_port(self) -> tuple[str, int]:
        """As Caller."""
        return self._host_port

    @property
    def address(self) -> str:
        """As Caller."""
        return self._connection.address

    @property
    def listener(self) -> str:
        """As Caller."""
        return self._connection.listener

    @property
    def is_open(self) -> bool:
        """As Caller."""
        return not self._has_ended and self._connection.is_open

    @property
    def congested(self) -> bool:
        """As Caller."""
        return self._connection.congested

    def reply(self) -> asyncio.Future[RemotingCommand]:
        """The reply that a service sends, now or later."""
        if self._reply is None:
            self._reply = asyncio.get_running_loop().create_future()
        return self._reply

    def send(self, command: RemotingCommand) -> None:
        reply = self.reply()
        if not reply.done():
            reply.set_result(command)

    def write(self, data: bytes) -> None:
        self.send(decode_frame(data))

    def write_now(self, data: bytes) -> None:
        self.write(data)

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        raise ConnectionLost(
            f"{self.address} is an RPC: it takes no requests", address=self.address, request="", elapsed_s=0.0
        )

    def invoke_oneway(self, command: RemotingCommand) -> None:
        return None

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """As Caller."""
        if self.is_open:
            self._close_callbacks.append(callback)
        else:
            callback(self)

    def close(self, reason: str = "") -> None:
        """As Caller."""
        self.end()

    def failed(self, error: BaseException | None = None) -> None:
        """As Caller."""
        self._connection.failed(error)

    def end(self) -> None:
        """The RPC has ended: what a service still holds for it is dropped."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._reply is not None and not self._reply.done():
            self._reply.cancel()
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            callback(self)
