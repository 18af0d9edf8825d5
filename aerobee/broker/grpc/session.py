"""One connection that speaks gRPC: moves bytes between it and the HTTP/2 core, and runs the functions that serve its
calls.

What always holds: each call that has started is answered or ended, exactly once; a service whose call has ended is
cancelled; requests whose services wait hold at most HELD_BYTES_MAX, beyond it nothing is read; requests that have come and whose
clients may send more hold at most `receiving_bytes_max`, beyond it their calls end. connections.py bounds all connections together.
The user of a call is proven when it starts, before any byte of its request is kept or parsed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast

from google.protobuf.message import DecodeError

from aerobee.broker.grpc.call_peer import CallPeer
from aerobee.broker.grpc.connections import SHORT_S, GrpcConnections, call_weight
from aerobee.broker.grpc.native_sends import Http2Bursts
from aerobee.broker.grpc.refusal import RpcRefused, status_of
from aerobee.broker.grpc.rpc import (
    CLIENT_ID,
    CLIENT_ID_CHARS_MAX,
    REQUEST_BYTES_MAX,
    RequestReceiver,
    Rpc,
    RpcContext,
)
from aerobee.clock import Clock, Timer
from aerobee.errors import AerobeeError
from aerobee.grpc.call import (
    Call,
    CallAnswered,
    CallEnded,
    CallStarted,
    Event,
    RequestEnded,
    RequestMessage,
    Writable,
)
from aerobee.grpc.core import MakeHttp2
from aerobee.grpc.element_count import has_more_fields
from aerobee.grpc.limits import MIB, Http2Limits
from aerobee.grpc.proto import messages as pb
from aerobee.grpc.status import CallError, GrpcStatus
from aerobee.remoting.connection import Connection

log = logging.getLogger(__name__)

HELD_BYTES_MAX = 32 * MIB
FIELDS_MAX = 20_000  # of a request of more bytes than these; some 10 ms to count, and more than that for each to become an object
COUNTED_BYTES_MIN = 64 * 1024
Prove = Callable[[RpcContext], None]
DEADLINE_SLACK_S = 1e-3  # an event loop's timers may fire that much early


class GrpcSession:
    """Serves the calls of one connection; an OtherProtocol (remoting/other_protocol.py)."""

    def __init__(
        self,
        connection: Connection,
        rpcs: Mapping[str, Rpc],
        *,
        make_http2: MakeHttp2,
        limits: Http2Limits,
        clock: Clock,
        connections: GrpcConnections,
        prove: Prove,
        bursts: Http2Bursts | None = None,
    ) -> None:
        """`rpcs` by path. `prove` raises RpcRefused for a call whose user is not proven. `bursts` serves what it can of each
        read, native_sends.py says what."""
        self._bursts = bursts
        self._connection = connection
        self._rpcs = rpcs
        self._connections = connections
        self._loop_share = connections.loop_share
        self._unread = b""  # came when the iteration's time for all connections was used up
        self._traffic = connections.traffic
        self.prove = prove
        self._clock = clock
        request_bytes_max = functools.partial(_request_bytes_max, rpcs)
        self._http2 = make_http2(limits, clock.monotonic(), request_bytes_max)
        self._kept_bytes_max = limits.receiving_bytes_max
        self._kept_bytes = 0
        self._running: dict[Call, _Running] = {}
        self._call_weight = 0
        self._held_bytes = 0
        self._timer: Timer | None = None
        self._timer_due = math.inf
        self._is_receiving = False
        self._flush_is_due = False
        self._noted_bytes = 0  # of requests, as `connections` knows
        connections.enter(self)

    # --- OtherProtocol

    @property
    def is_busy(self) -> bool:
        return any(running.rpc.unary is not None for running in self._running.values())

    @property
    def is_full(self) -> bool:
        return self._held_bytes > HELD_BYTES_MAX or self._http2.has_more or bool(self._unread)

    @property
    def unsent_bytes(self) -> int:
        return self._http2.unsent_bytes

    def receive(self, data: bytes) -> None:
        self._traffic.received(len(data))
        if self._unread or self._loop_share.is_over:
            if not self._unread:
                self._loop_share.wait(self._proceed)
            self._unread += data
            return
        self._is_receiving = True
        try:
            self._serve(data)
        finally:
            self._is_receiving = False
        self.flush()
        if self._http2.has_more:
            self._loop_share.wait(self._proceed)

    def _proceed(self) -> None:
        """Serve what receive() left, after other connections were served."""
        if not (self._unread or self._http2.has_more):
            return
        data = b""
        if not self._http2.has_more:
            data, self._unread = self._unread, b""
        try:
            self._serve(data)
            self.flush()
        except Exception:
            self._connection.failed()
            return
        if self._unread or self._http2.has_more:
            self._loop_share.wait(self._proceed)
        else:
            self._connection.set_reading()

    def _serve(self, data: bytes) -> None:
        began_s = self._clock.monotonic()
        self._on_events(self._take(data, began_s))
        self._note_bytes()
        took_s = self._clock.monotonic() - began_s
        if took_s >= SHORT_S:
            self._loop_share.used(took_s)

    def _take(self, data: bytes, now: float) -> list[Event]:
        """Give bytes to the core, or none while it has more of them."""
        if self._bursts is not None:
            events, sent_count = self._bursts(self._connection, self._http2, data, now)
            if sent_count:
                self._traffic.calls_answered("SendMessage", pb.Code.Name(pb.OK), sent_count)
            return events
        return self._http2.receive(data, now) if data else self._http2.proceed(now)

    def resume(self) -> None:
        self.flush()

    def go_away(self) -> None:
        self._http2.go_away(self._clock.monotonic())
        for running in list(self._running.values()):
            running.go_away()
        self.flush()

    def lost(self) -> None:
        self._unread = b""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_events(self._http2.lost(self._clock.monotonic()))
        self._connections.leave(self)
        self._note_bytes()

    # --- a Holder (connections.py)

    @property
    def call_weight(self) -> int:
        return self._call_weight

    @property
    def incomplete_bytes(self) -> int:
        return self._http2.receiving_bytes + self._kept_bytes

    def end_newest_call(self, reason: str) -> None:
        call = next(reversed(self._running))
        self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, reason)
        if not call.is_over:  # its client takes no response
            self._http2.cancel(call, reason)
            self._drop_cut_off(call)

    def end_incomplete_calls(self, reason: str) -> None:
        for call, running in list(self._running.items()):
            if not call.is_half_closed and running.rpc.bidirectional is None:
                self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, reason)
        self._note_bytes()

    # --- what running calls use

    def send(self, call: Call, response: Any) -> bool:
        """Send one response; False when the call has to wait before the next."""
        is_taken = self._http2.send_message(call, response.SerializeToString(), self._clock.monotonic())
        if call.is_over:
            self._drop_cut_off(call)
        self.flush_soon()
        return is_taken

    def send_each(self, call: Call, responses: Iterable[Any]) -> None:
        """Send responses without waiting."""
        http2, now = self._http2, self._clock.monotonic()
        for response in responses:
            http2.send_message(call, response.SerializeToString(), now)
        if call.is_over:
            self._drop_cut_off(call)
        self.flush_soon()

    def start_response(self, call: Call, *, may_idle: bool) -> None:
        """Send the response's headers."""
        self._http2.start_response(call, may_idle=may_idle)
        self.flush_soon()

    def finish(self, call: Call, grpc_status: GrpcStatus = GrpcStatus.OK, message: str = "") -> None:
        """End the call."""
        self._http2.finish(call, grpc_status, message, self._clock.monotonic())
        running = self._running.get(call)
        if running is not None:
            running.status = -grpc_status or running.status
            if call.is_over:
                self._drop(running)
        self.flush_soon()

    def release(self, byte_count: int) -> None:
        """A service gave back a request of this size."""
        was_full = self.is_full
        self._held_bytes -= byte_count
        self._note_bytes()
        if was_full and not self.is_full:
            self._connection.set_reading()

    def flush_soon(self) -> None:
        """Send what the core has, with everything that this event loop iteration adds."""
        if not (self._is_receiving or self._flush_is_due):
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what the core has; close when it is closed; set the timer."""
        self._flush_is_due = False
        data = self._http2.outgoing()
        if data:
            self._traffic.sent(len(data))
            self._connection.write(data)
        if self._http2.is_closed:
            if self._connection.is_open:
                self._connections.closed(self._http2.close_reason)
                log.info("%s is disconnected: %s", self._connection.address, self._http2.close_reason)
                self._connection.close(self._http2.close_reason)
            return
        due = self._http2.due()
        if due < self._timer_due or self._timer is None:
            self._arm(due)

    # --- inside

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due != math.inf:
            wait_s = max(0.0, due - self._clock.monotonic()) + DEADLINE_SLACK_S
            self._timer = self._clock.call_later(wait_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._timer_due = math.inf
        self._on_events(self._http2.tick(self._clock.monotonic()))
        self.flush()

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CallStarted):
                self._start(event.call)
                continue
            running = self._running.get(event.call)
            if running is None:
                continue
            if isinstance(event, RequestMessage):
                running.on_message(event.data)
            elif isinstance(event, RequestEnded):
                running.on_half_close()
            elif isinstance(event, Writable):
                running.on_writable()
            elif isinstance(event, CallEnded | CallAnswered):
                running.is_cut_off = isinstance(event, CallEnded)
                self._drop(running)

    def _start(self, call: Call) -> None:
        rpc = self._rpcs.get(call.path)
        if rpc is None:
            service, _, method = call.path[1:].rpartition("/")
            known = any(path.startswith(f"/{service}/") for path in self._rpcs)
            text = (
                f"Method {service}/{method} is unimplemented"
                if known
                else f"Method not found: {service}/{method}"
            )
            self._http2.finish(call, GrpcStatus.UNIMPLEMENTED, text, self._clock.monotonic())
            return
        weight = call_weight(call.metadata)
        refusal = self._connections.admit_call(self, weight, self._connection.address)
        if refusal:
            self._traffic.call_refused(rpc.name, GrpcStatus.RESOURCE_EXHAUSTED.name)
            self._http2.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, refusal, self._clock.monotonic())
            return
        peer = CallPeer(self._connection, self._connection.host_port)
        own = (self._connection.own_host, self._connection.own_port)
        context = RpcContext(call.metadata, peer, call.deadline, own)
        self._running[call] = running = _Running(self, call, rpc, context, weight)
        self._call_weight += weight
        self._connections.call_opened(weight)
        self._traffic.call_started()
        running.start()

    def keep(self, byte_count: int) -> bool:
        """A request of this size waits for its end; False when too much waits. To be given back by forgo() in either case."""
        self._kept_bytes += byte_count
        return self._kept_bytes <= self._kept_bytes_max

    def forgo(self, byte_count: int) -> None:
        """A request that was kept is served, or its call has ended."""
        self._kept_bytes -= byte_count

    def hold(self, byte_count: int) -> None:
        """A service waits and has a request of this size."""
        self._held_bytes += byte_count
        self._note_bytes()

    def refuses(self, byte_count: int) -> str:
        """Why a request of this size is not served now; empty when it is."""
        return self._connections.admit_request(byte_count, self._connection.address)

    def _note_bytes(self) -> None:
        now = self._http2.receiving_bytes + self._kept_bytes + self._held_bytes
        change, self._noted_bytes = now - self._noted_bytes, now
        if change:
            self._connections.change_bytes(change, self._connection.address)

    def _drop_cut_off(self, call: Call) -> None:
        running = self._running.get(call)
        if running is not None:
            running.is_cut_off = True
            self._drop(running)

    def _drop(self, running: _Running) -> None:
        if self._running.pop(running.call, None) is not None:
            self._call_weight -= running.weight
            self._connections.call_closed(running.weight)
            self._traffic.call_ended(running.rpc.name, running.outcome)
            running.over()


class _Running:
    """One call and the task that serves it; it is that task's ResponseStream."""

    # fmt: off
    __slots__ = (
        "_context", "_held_bytes", "_kept_bytes", "_receiver", "_request", "_session", "_task", "_writable", "call", "is_cut_off", "rpc",
        "status", "weight",
    )
    # fmt: on

    def __init__(self, session: GrpcSession, call: Call, rpc: Rpc, context: RpcContext, weight: int) -> None:
        self.call = call
        self.rpc = rpc
        self.weight = weight
        self._session = session
        self._context = context
        self._request: bytes | None = None
        self._receiver: RequestReceiver | None = None
        self._task: asyncio.Task[None] | None = None
        self._held_bytes = 0
        self._kept_bytes = 0
        self._writable: asyncio.Future[None] | None = None
        self.is_cut_off = False
        self.status = 0  # code of the last response that has one; negative: gRPC's status

    # --- the client

    def start(self) -> None:
        """The call has come; its request follows."""
        try:
            self._check_client_id()
            self._session.prove(self._context)
            if self.rpc.bidirectional is not None:
                # The official Python client reopens its stream without settings, which follow minutes later.
                self._session.start_response(self.call, may_idle=True)
                self._receiver = self.rpc.bidirectional(self._context, self)
        except Exception as error:
            self._refuse(error)

    def on_message(self, data: bytes) -> None:
        if self._receiver is not None:
            try:
                self._receiver.receive(self._parse(data))
            except Exception as error:
                self._refuse(error)
        elif self._request is not None:
            self._session.finish(
                self.call, GrpcStatus.UNIMPLEMENTED, "the call takes one request, a second one came"
            )
        elif self.call.is_half_closed:
            self._request = data
        else:
            self._request = data
            self._kept_bytes = len(data)
            if not self._session.keep(len(data)):
                text = "requests that wait for their end take too many bytes on this connection"
                self._session.finish(self.call, GrpcStatus.RESOURCE_EXHAUSTED, text)

    def on_half_close(self) -> None:
        self._forgo()
        if self._receiver is not None:
            self._receiver.half_closed()
        elif self._request is None:
            self._session.finish(self.call, GrpcStatus.UNIMPLEMENTED, "the call has no request")
        else:
            data, self._request = self._request, b""  # a pending call keeps the parts that it needs
            self._serve(data)

    def on_writable(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def go_away(self) -> None:
        """The server is about to stop: a call without an end is ended."""
        if self._receiver is not None:
            self._session.finish(self.call)

    def over(self) -> None:
        """The call has ended, answered or not."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._context.peer.end()
        self._request = None
        self._forgo()
        self._release()

    @property
    def outcome(self) -> str:
        """How the call has ended, for metrics."""
        if self.is_cut_off:
            return GrpcStatus.CANCELLED.name
        return (
            GrpcStatus(-self.status).name if self.status <= 0 else pb.Code.Name(cast("pb.Code", self.status))
        )

    # --- ResponseStream

    @property
    def is_over(self) -> bool:
        return self.call.is_over or self.call.is_finishing

    async def send(self, response: Any) -> None:
        self._note_status(response)
        if not self._session.send(self.call, response) and not self.is_over:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    def push(self, *responses: Any) -> None:
        for response in responses:
            self._note_status(response)
        self._session.send_each(self.call, responses)

    def end(self) -> None:
        self._session.finish(self.call)

    def fail(self, status: GrpcStatus, message: str) -> None:
        self._session.finish(self.call, status, message)

    # --- serving

    def _check_client_id(self) -> None:
        client_id = self._context.metadata.get(CLIENT_ID, "")
        if not client_id.strip():
            raise RpcRefused(pb.CLIENT_ID_REQUIRED, "client id cannot be empty")
        if len(client_id) > CLIENT_ID_CHARS_MAX:
            text = f"client id has {len(client_id)} characters, at most {CLIENT_ID_CHARS_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)

    def _parse(self, data: bytes) -> Any:
        nested = self.rpc.nested
        if nested is not None and len(data) > COUNTED_BYTES_MIN and has_more_fields(data, FIELDS_MAX, nested):
            text = f"the request has more than {FIELDS_MAX} fields, those of its messages included"
            raise CallError(GrpcStatus.RESOURCE_EXHAUSTED, text)
        try:
            return self.rpc.request.FromString(data)
        except DecodeError as error:
            raise CallError(GrpcStatus.INTERNAL, f"the request is no {self.rpc.name}: {error}") from error

    def _serve(self, data: bytes) -> None:
        try:
            if refusal := self._session.refuses(len(data)):
                raise CallError(GrpcStatus.RESOURCE_EXHAUSTED, refusal)
            request = self._parse(data)
            if self.rpc.unary is None:
                assert self.rpc.streaming is not None
                served = self.rpc.streaming(self._context, request, self)
                if served is not None:
                    self._spawn(self._stream(served), len(data))
                return
            response = self.rpc.unary(self._context, request)
            if inspect.isawaitable(response):
                self._spawn(self._answer_when_ready(response), len(data))
            else:
                self._answer(response)
        except Exception as error:
            self._refuse(error)

    def _spawn(self, coroutine: Any, byte_count: int) -> None:
        self._held_bytes = byte_count
        self._session.hold(byte_count)
        self._task = asyncio.get_running_loop().create_task(coroutine, name=f"grpc-{self.rpc.name}")

    async def _answer_when_ready(self, response: Any) -> None:
        try:
            self._answer(await response)
        except Exception as error:
            self._refuse(error)
        finally:
            self._release()

    async def _stream(self, served: Awaitable[None]) -> None:
        try:
            await served
            self._session.finish(self.call)
        except Exception as error:
            self._refuse(error)
        finally:
            self._release()

    def _note_status(self, response: Any) -> None:
        if self.rpc.has_status and response.HasField("status"):
            self.status = response.status.code

    def _answer(self, response: Any) -> None:
        self._note_status(response)
        self._session.send(self.call, response)
        self._session.finish(self.call)

    def _refuse(self, error: Exception) -> None:
        """Answer with the error: as gRPC status for a broken call, else as status of a response."""
        if isinstance(error, CallError):
            self._session.finish(self.call, error.status, error.message)
            return
        if not isinstance(error, RpcRefused | AerobeeError):
            log.exception("%s of %s failed", self.rpc.name, self._context.peer.address, exc_info=error)
        self._answer(self.rpc.refuse(status_of(error)))

    def _forgo(self) -> None:
        kept, self._kept_bytes = self._kept_bytes, 0
        if kept:
            self._session.forgo(kept)

    def _release(self) -> None:
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self._session.release(held)


def _request_bytes_max(rpcs: Mapping[str, Rpc], path: str) -> int:
    rpc = rpcs.get(path)
    return REQUEST_BYTES_MAX if rpc is None else rpc.request_bytes_max
