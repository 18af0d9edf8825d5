"""The peer of a request, as handlers, pending requests and deferred replies see it: a Caller that speaks remoting.

`Connection` (connection.py) implements it; so do substitutes in tests and simulations. Handlers work with
either. Services take a Caller, which may use another protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aerobee.caller import Caller
from aerobee.remoting.command import RemotingCommand


class Peer(Caller, Protocol):
    """One client, tool or broker that is connected by remoting. A protocol, because Connection is in a higher layer."""

    def send(self, command: RemotingCommand) -> None:
        """Queue a reply or a request. Dropped when the peer is gone."""
        ...

    def write(self, data: bytes) -> None:
        """Queue whole encoded frames, as send() does."""
        ...

    def write_now(self, data: bytes) -> None:
        """As write(), but without delay to the end of this loop iteration. For single replies to many peers."""
        ...

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Send a request to the peer, and return its reply, whatever its code. Raises ConnectionLost, RequestTimeout."""
        ...

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send the peer a request without a response, without waiting."""
        ...

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """As Caller.on_close."""
        ...


Reply = RemotingCommand | None  # None: nothing is sent now (oneway, or the reply is held)
Handler = Callable[[Peer, RemotingCommand], Reply | Coroutine[Any, Any, Reply]]
