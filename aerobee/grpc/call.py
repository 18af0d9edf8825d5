"""One gRPC call: its HTTP/2 stream, its state, and the events that its service receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aerobee.grpc.message_reader import MessageReader


class Call(Protocol):
    """One call, as its service sees it: `path` is "/package.Service/Method", `metadata` the request's headers by lower-case name, the
    last value of each, without those that only the transport reads. `started` and `deadline` are monotonic seconds; without a
    deadline the client waits for ever.

    A protocol, because native code implements it (Call of aerobee_native).
    """

    @property
    def stream_id(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...
    @property
    def started(self) -> float: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def is_half_closed(self) -> bool:
        """Whether the client sends no more messages."""
        ...

    @property
    def is_finishing(self) -> bool:
        """Whether the call's status is decided: no more messages are sent."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be sent."""
        ...

    def remaining_s(self, now: float) -> float | None:
        """Seconds until the deadline; None when there is none."""
        ...


@dataclass(slots=True, eq=False)
class OpenCall:
    """A Call of http2_connection.py, with its state there and that of its HTTP/2 stream, which http2_engine.py keeps.

    `unsent`: framed bytes that wait for the peer's flow-control windows. `is_finishing`: trailers follow them.
    """

    stream_id: int
    path: str
    metadata: Mapping[str, str]
    started: float
    deadline: float | None
    encoding: str  # grpc-encoding
    message_bytes_max: int
    length: int | None  # content-length of the request
    send_window: int  # bytes that the peer allows
    receive_window_max: int  # the most that this side allows, and what is left of it
    receive_window: int
    taken_bytes: int = 0  # that no WINDOW_UPDATE has given back yet
    received_bytes: int = 0
    reader: MessageReader | None = None  # where a message comes in several frames, or compressed
    may_idle: bool = False  # it may stay open without the end of its request: a stream both ways
    is_half_closed: bool = False  # the client sends no more messages
    is_responding: bool = False  # response headers were sent
    is_finishing: bool = False
    is_over: bool = False  # nothing more can be sent
    trailers: bytes = b""  # their header block
    unsent: list[bytes | memoryview] = field(
        default_factory=list
    )  # not a deque, whose first block takes 600 bytes
    unsent_bytes: int = 0
    blocked_since: float | None = None  # time since which `unsent` waits for a window

    @property
    def kept_bytes(self) -> int:
        """Bytes of the request that wait for the rest of their message."""
        return 0 if self.reader is None else self.reader.kept_bytes

    def remaining_s(self, now: float) -> float | None:
        """Seconds until the deadline; None when there is none."""
        return None if self.deadline is None else self.deadline - now


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins; its messages follow."""

    call: Call


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """One request message, decompressed."""

    call: Call
    data: bytes


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The client sends no more messages of this call."""

    call: Call


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call has ended before its response was complete: the client cancelled it, its deadline passed, or the connection ended.

    Earlier effects of the call may have to be reverted; `reason` is for logs.
    """

    call: Call
    reason: str


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """A finished call has sent the rest of its response, which had waited for the peer's windows."""

    call: Call


@dataclass(frozen=True, slots=True)
class Writable:
    """The unsent bytes of the call are sent: send_message() may be called again."""

    call: Call


Event = CallStarted | RequestMessage | RequestEnded | CallEnded | CallAnswered | Writable
