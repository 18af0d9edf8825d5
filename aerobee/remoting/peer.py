"""Who asks: what handlers, held requests and replies that wait know of the other side.

A `Connection` (connection.py) is one; a caller that comes in over another protocol is another. Whoever works on a Peer
never learns which.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aerobee.remoting.command import RemotingCommand


class Peer(Protocol):
    """One client, tool or broker that is connected. Compared by identity; belongs to one event loop.

    `principal`: who signed the request that is being served, "" for nobody in particular. The gate (access/gate.py) sets it before
    the handler is called; one that awaits asks first, for the peer's next request may be another's.
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
        """Tell the peer something that has no answer. Returns at once."""
        ...

    def on_close(self, callback: Callable[[Peer], None]) -> None:
        """Call back once, when the peer is gone; at once when it is gone already."""
        ...

    def close(self, reason: str = "") -> None:
        """Send what is queued, then part."""
        ...

    def failed(self, error: BaseException | None = None) -> None:
        """A fault of ours while this peer was served, that of the handler one is in when none is given: logged, closed."""
        ...


Reply = RemotingCommand | None  # None: nothing is sent now (oneway, or the reply is held)
Handler = Callable[[Peer, RemotingCommand], Reply | Coroutine[Any, Any, Reply]]
