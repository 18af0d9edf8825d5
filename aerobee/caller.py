"""The caller of a service, by whatever protocol: a client, a tool or another broker.

A remoting connection is one (`remoting/peer.py`), a gRPC client another. A service knows its callers by this alone, so a caller
that is no connection needs no frames; a result that comes late is given to the call (`PopCall`, `PendingPull.resume`), not written to
the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

REMOTING, GRPC = "remoting", "grpc"  # as metrics and client lists name them


class Caller(Protocol):
    """Compared by identity; belongs to one event loop.

    `principal`: the user who signed the request being served, "" for none. The access check sets it before the service is called; a
    service that awaits must read it first, because the caller's next request may have another user.
    `protocol`: REMOTING or GRPC.
    """

    principal: str
    protocol: str

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

    def on_close(self, callback: Callable[[Caller], None]) -> None:
        """Call back once, when the caller disconnects; immediately if it is disconnected already."""
        ...

    def close(self, reason: str = "") -> None:
        """Send what is queued, then part."""
        ...

    def failed(self, error: BaseException | None = None) -> None:
        """Log an internal error (default: the exception being handled) while serving this caller, and disconnect it."""
        ...
