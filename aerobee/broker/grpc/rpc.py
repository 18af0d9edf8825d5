"""Definition of an RPC: its name, its message classes, and the function that serves it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aerobee.broker.grpc.call_peer import CallPeer
from aerobee.broker.grpc.renewal_table import Client
from aerobee.grpc.element_count import Nested
from aerobee.grpc.limits import MIB
from aerobee.grpc.proto import messages as pb
from aerobee.grpc.status import GrpcStatus

SERVICE = "apache.rocketmq.v2.MessagingService"
CLIENT_ID, AUTHORIZATION, DATE_TIME = "x-mq-client-id", "authorization", "x-mq-date-time"
CLIENT_VERSION, LANGUAGE = "x-mq-client-version", "x-mq-language"
CLIENT_ID_CHARS_MAX = 255
REQUEST_BYTES_MAX = 2 * MIB  # 1,000 acknowledgements take half of it


@dataclass(slots=True)
class RpcContext:
    """Caller and deadline of an RPC. `deadline` in monotonic seconds, None without one.

    `own_host_port` is the address at which the connection was accepted.
    """

    metadata: Mapping[str, str]
    peer: CallPeer
    deadline: float | None
    own_host_port: tuple[str, int]

    @property
    def client_id(self) -> str:
        """The id that the client gives itself; not empty while a service runs."""
        return self.metadata.get(CLIENT_ID, "")

    @property
    def client(self) -> Client:
        """The client: an id is that of its user alone, known once the user was checked."""
        return self.client_id, self.peer.principal


class ResponseStream(Protocol):
    """The responses of a call, for a service that sends several.

    A protocol, because session.py, which sends them, lies above.
    """

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be sent."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether the call ended before all of its response was sent."""
        ...

    async def send(self, response: Any) -> None:
        """Send one response; returns when the next one may be sent. Does nothing after the call has ended."""
        ...

    def push(self, *responses: Any) -> None:
        """Send responses, in this order, without waiting for the peer."""
        ...

    def end(self) -> None:
        """End the call with status OK."""
        ...

    def fail(self, status: GrpcStatus, message: str) -> None:
        """End the call with another status of gRPC."""
        ...


class RequestReceiver(Protocol):
    """Receives the requests of a bidirectional call.

    A protocol, because telemetry.py, which receives them, lies above.
    """

    def receive(self, request: Any) -> None:
        """One request."""
        ...

    def half_closed(self) -> None:
        """The client sends no more."""
        ...

    def ended(self) -> None:
        """The call has ended, for whatever reason. Called once."""
        ...


Unary = Callable[[RpcContext, Any], Any | Awaitable[Any]]  # returns the response
# The call awaits an awaitable result, and then ends. With None the service ends the call later itself, and
# needs no task until then.
Streaming = Callable[[RpcContext, Any, ResponseStream], Awaitable[None] | None]
Bidirectional = Callable[[RpcContext, ResponseStream], RequestReceiver]


@dataclass(frozen=True, slots=True)
class Rpc:
    """One RPC; exactly one of `unary`, `streaming` and `bidirectional` serves it.

    `refuse` makes the response that says why an RPC is refused; `request_bytes_max` bounds one request, compressed and decompressed.
    `nested` names the parts of a request whose fields are counted before it is parsed; None where the bytes bound them.
    """

    name: str
    request: type[Any]
    refuse: Callable[[pb.Status], Any]
    unary: Unary | None = None
    streaming: Streaming | None = None
    bidirectional: Bidirectional | None = None
    request_bytes_max: int = REQUEST_BYTES_MAX
    nested: Nested | None = None
    service: str = SERVICE
    has_status: bool = True  # of its responses

    @property
    def path(self) -> str:
        """ "/package.Service/Method"."""
        return f"/{self.service}/{self.name}"


def unary(
    name: str,
    serve: Unary,
    *,
    request_bytes_max: int = REQUEST_BYTES_MAX,
    nested: Nested | None = None,
) -> Rpc:
    """An RPC with one response."""
    request, response = getattr(pb, f"{name}Request"), getattr(pb, f"{name}Response")
    return Rpc(
        name,
        request,
        lambda status: response(status=status),
        unary=serve,
        request_bytes_max=request_bytes_max,
        nested=nested,
    )


def streaming(name: str, serve: Streaming) -> Rpc:
    """An RPC whose responses are a stream."""
    response = getattr(pb, f"{name}Response")
    return Rpc(name, getattr(pb, f"{name}Request"), lambda status: response(status=status), streaming=serve)


def bidirectional(name: str, request: type[Any], serve: Bidirectional) -> Rpc:
    """An RPC with a stream each way, of one class of messages."""
    return Rpc(name, request, lambda status: request(status=status), bidirectional=serve)
