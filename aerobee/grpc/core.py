"""The seam of the HTTP/2 cores: http2_connection.py, the reference implementation, and Http2Connection of aerobee_native.

The same bytes at the same times give the same events and the same bytes, which tests/fuzz/http2_differential.py holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aerobee.grpc.call import Call, Event
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.status import GrpcStatus


class Http2Core(Protocol):
    """One connection; times are monotonic seconds. Http2Connection says what each method does.

    A protocol, because native code implements it. `call` of a method is one that an event of this core had.
    """

    @property
    def calls(self) -> Mapping[int, Call]:
        """The open calls by stream id."""
        ...

    @property
    def has_more(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def close_reason(self) -> str: ...
    @property
    def receiving_bytes(self) -> int:
        """Bytes of request messages that are not complete."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that wait for the peer's windows."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Bytes of the peer that are not interpreted yet."""
        ...

    def receive(self, data: bytes, now: float) -> list[Event]: ...
    def proceed(self, now: float) -> list[Event]: ...
    def outgoing(self) -> bytes: ...
    def start_response(self, call: Any, *, may_idle: bool = False) -> None: ...
    def send_message(self, call: Any, data: bytes, now: float) -> bool: ...
    def finish(self, call: Any, status: GrpcStatus, message: str, now: float) -> None: ...
    def cancel(self, call: Any, reason: str) -> None: ...
    def due(self) -> float: ...
    def tick(self, now: float) -> list[Event]: ...
    def go_away(self, now: float) -> None: ...
    def lost(self, now: float, reason: str = ...) -> list[Event]: ...


class Http2Burst(Protocol):
    """What one read did, with the requests that the fast path has served. A protocol, because native code implements it."""

    @property
    def events(self) -> list[Event]: ...
    @property
    def stored_count(self) -> int:
        """Messages that were stored, and whose responses are part of outgoing()."""
        ...

    @property
    def fault(self) -> BaseException | None:
        """The failure of a request after its first byte was written, or of the burst's end: send nothing of outgoing() then."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether the fault is that of the burst's end: what was stored is not recorded completely."""
        ...


class SendingHttp2(Http2Core, Protocol):
    """A core that serves ordinary requests of SendMessage itself.

    A protocol, because native code implements it.
    """

    def serve(
        self, data: bytes, now: float, backend: Any, born_host: bytes, now_ms: int, pick: int
    ) -> Http2Burst:
        """As receive(), and as proceed() without bytes; no event names the calls that were answered here. `backend` is that of the fast path,
        `now_ms` the store's time, `pick` a random number of 32 bits, which chooses queues."""
        ...


class MakeHttp2(Protocol):
    """Makes a core; a protocol, because the classes of both cores are callable so."""

    def __call__(
        self, limits: Http2Limits, now: float, message_bytes_max: Callable[[str], int] | None = None
    ) -> Http2Core: ...


def python_core() -> MakeHttp2:
    """The core in Python, loaded here: a process with the native one has no use for its 2 MiB."""
    from aerobee.grpc.http2_connection import Http2Connection

    return Http2Connection
