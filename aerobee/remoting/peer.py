"""The peer of a request, as handlers, pending requests and deferred replies see it.

A `Connection` (connection.py) is one; a caller that comes in over another protocol is another. Whoever works on a Peer
never learns which.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aerobee.remoting.command import RemotingCommand


class Peer(Protocol):
    """One client, tool or broker that is connected. Compared by identity; belongs to one event loop.

    `principal`: the user who signed the request being served, "" for none. The gate (access/gate.py) sets it before
    calling the handler; a handler that awaits must read it first, because the peer's next request may have another user.
    """

    principal: str

    @property
    def address(self) -> str:
        """ "ip:port" as seen from here."""
        ...

    @property
    def host_port(self) -> tuple[str, int]:
        """The same, apart."""
        ...

    @property
    def listener(self) -> str:
        """The name of the listener it came in through."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether what is sent can still arrive."""
        ...

    @property
    def congested(self) -> bool:
        """Whether it takes its replies slower than they are made."""
        ...

    def __hash__(self) -> int: ...

    def send(self, command: RemotingCommand) -> None:
        """Queue a reply or a request. Dropped when the peer is gone."""
        ...

    def write(self, data: bytes) -> None:
        """Queue whole encoded frames, as send() does."""
        ...

    def write_now(self, data: bytes) -> None:
        """As write(), but nothing waits for the end of this loop pass. For many replies to as many peers."""
        ...

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Ask the peer, and return its answer whatever its code. Raises ConnectionLost, RequestTimeout."""
        ...

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send the peer a request without a response, without waiting."""
        ...

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Call back once, when the peer disconnects; immediately if it is disconnected already."""
        ...

    def close(self, reason: str = "") -> None:
        """Send what is queued, then part."""
        ...

    def failed(self, error: BaseException | None = None) -> None:
        """Log an internal error (default: the exception being handled) while serving this peer, and close the connection."""
        ...


Reply = RemotingCommand | None  # None: nothing is sent now (oneway, or the reply is held)
Handler = Callable[[Peer, RemotingCommand], Reply | Coroutine[Any, Any, Reply]]
