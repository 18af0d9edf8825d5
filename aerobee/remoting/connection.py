"""One connection of the remoting protocol: frames both ways, calls from either side, back-pressure.

An asyncio.Protocol, not a stream: a read of many frames costs one wake-up, its replies leave in one write, and a
handler that is a plain function costs no task and no future. Follows NettyRemotingAbstract (RocketMQ).

What always holds:
- A oneway request is never answered. A response completes at most one call. A closed connection fails each pending
  call once, with ConnectionLost.
- Nothing is read while the peer does not take its replies (`write_high_bytes`) or while handlers that wait hold too
  much (`handler_tasks_max`, `handler_bytes_max`). Requests that were read already wait in the decoder.
- Bytes that break the protocol close this connection and disturb nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from aerobee.errors import (
    AerobeeError,
    ConfigError,
    ConnectionLost,
    RemoteError,
    RequestTimeout,
    TransportError,
    WireError,
)
from aerobee.remoting.codes import ResponseCode, request_name
from aerobee.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from aerobee.remoting.frame import FRAME_BYTES_MAX, FrameDecoder, encode_frame
from aerobee.remoting.loop_watch import HELD_LIMIT_S, LoopWatch, Watched
from aerobee.remoting.peer import Handler, Reply
from aerobee.remoting.pending_calls import PendingCalls
from aerobee.remoting.tls import FIRST_BYTE, ServerTls, TlsMode, TlsPump

MIB = 1024 * 1024
GO_AWAY_VERSION = 475  # clients above it (5.3.2 and later) know GO_AWAY and repeat the request elsewhere
OPAQUE_MASK = 0x7FFFFFFF

_LOG = logging.getLogger("aerobee.remoting")
opaques = itertools.count(1)  # next(opaques) & OPAQUE_MASK is what next_opaque() returns

# burst(connection, buffer, position) -> position of the first byte that was not used
Burst = Callable[["Connection", bytes | bytearray, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What one connection may cost.

    Worst case in memory: one partial frame and the read behind it (`frame_bytes_max` + 256 KiB), requests held by
    waiting handlers (`handler_bytes_max` + one frame), unsent bytes (`write_max_bytes` + one frame). With the
    defaults 16 + 32 + 16 + 64 + 16 = 144 MiB, reached by a hostile peer only; an idle connection has a few KiB.
    """

    frame_bytes_max: int = FRAME_BYTES_MAX  # a frame that announces more closes the connection
    write_high_bytes: int = MIB  # above it nothing more is read or served until the peer took half of it
    write_max_bytes: int = (
        64 * MIB
    )  # held replies and calls beyond it: the peer is dead, the connection is closed
    pending_calls_max: int = 65_536  # calls of ours that wait for an answer; one more is refused
    handler_tasks_max: int = 256  # handlers that are coroutines, running at once; then reading pauses
    handler_bytes_max: int = 32 * MIB  # bodies which they hold; then reading pauses
    idle_close_s: float = (
        120.0  # no byte in either direction for so long: closed (serverChannelMaxIdleTimeSeconds)
    )
    handshake_s: float = 10.0  # for a TLS handshake, from the connection's first moment
    frame_s: float = 30.0  # for a frame that has begun, and a second more for each
    frame_bytes_per_s: int = 8_192  # of its length: who is slower than that is closed


@dataclass(slots=True)
class Endpoint:
    """What all connections of one server or one client have in common."""

    handlers: Mapping[int, Handler]
    default: Handler | None = None
    burst: Burst | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: ServerTls | None = None
    going_away: bool = False
    leaves_unresponsive_peers: bool = (
        False  # a peer that was silent while a call waited is left: see pending_calls.py
    )
    watch: LoopWatch = field(default_factory=LoopWatch)
    on_made: Callable[[Connection], None] | None = None
    on_lost: Callable[[Connection], None] | None = None


class Connection(asyncio.Protocol):
    """One open connection, of a server or of a client: a Peer (peer.py). Belongs to its event loop.

    `address` is "ip:port", `listener` the name of the listener it came in through. `burst_note` is a slot where the
    burst hook keeps what it knows of this connection.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        listener: str = "default",
        address: str = "",
        tls: TlsPump | None = None,
        server_side: bool = True,
    ) -> None:
        self.address = address
        self.host_port: tuple[str, int] = ("", 0)
        self.listener = listener
        self.principal = ""
        self.is_open = False
        self.burst_note: Any = None
        self.touched = False  # a byte moved since the last sweep for idle connections
        self.idle_since = 0.0  # the clock's monotonic time of that sweep
        self.ready: asyncio.Future[None] | None = None  # set by a client that waits for the TLS handshake
        # Set by a transport that gives reads to the burst hook itself: from this call on they all come here again.
        self.end_bursts: Callable[[], None] | None = None
        # The same, only where that transport keeps the beginning of a frame.
        self.hand_back: Callable[[], None] | None = None
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(endpoint.limits.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._tls = tls
        self._first_byte_seen = not server_side
        self._name = address
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._serving = False
        self._flush_scheduled = False
        self._write_paused = False
        self._reading_paused = False
        self._calls = PendingCalls(self._loop, self._after_sweep, self._peer_is_unresponsive)
        self.pending = self._calls.table  # by opaque; a burst hook may take out calls that it answers
        self._leave_at: float | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_bytes = 0
        self._writable_waiters: list[asyncio.Future[None]] = []
        self._close_callbacks: list[Callable[[Connection], None]] = []
        self._close_reason = ""
        self._is_lost = False

    # What handlers and callers use

    @property
    def congested(self) -> bool:
        """True while the peer takes its replies slower than they are made: serve nothing more now."""
        return self._write_paused or self._out_bytes > self._limits.write_high_bytes

    @property
    def takes_bursts(self) -> bool:
        """Whether what arrives next may go to the burst hook without passing here: nothing waits before it."""
        endpoint = self._endpoint
        return (
            self.is_open
            and endpoint.burst is not None
            and not endpoint.going_away
            and self._first_byte_seen
            and self._tls is None
            and not self._reading_paused
            and not self._decoder.buffer
        )

    @property
    def is_busy(self) -> bool:
        """True while handlers run or bytes wait to be sent."""
        transport = self._transport
        unsent = 0 if transport is None or self._is_lost else transport.get_write_buffer_size()
        return bool(self._tasks or self._out_bytes or unsent)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of replies and calls that the peer has not taken yet."""
        transport = self._transport
        waiting = 0 if transport is None or self._is_lost else transport.get_write_buffer_size()
        return self._out_bytes + waiting

    @staticmethod
    def next_opaque() -> int:
        """Return a correlation id, unique in this process until 2^31 calls later."""
        return next(opaques) & OPAQUE_MASK

    def send(self, command: RemotingCommand) -> None:
        """Queue a command; it leaves with the replies of this read, or at the end of this loop pass."""
        self.write(encode_frame(command))

    def write(self, data: bytes) -> None:
        """Queue whole encoded frames, as send() does. Dropped when the connection is closed."""
        if not self.is_open:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._serving and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        if self._out_bytes > self._limits.write_max_bytes:
            self._check_unsent()

    def write_now(self, data: bytes) -> None:
        """As write(), but nothing waits for the end of this loop pass. For many replies to as many connections."""
        if not self.is_open:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._serving:
            self._flush()

    def call(
        self, frame: bytes, opaque: int, timeout_s: float, request: str = ""
    ) -> asyncio.Future[RemotingCommand]:
        """Send an encoded request and return the future of its response; `request` names it in errors.

        The future fails with ConnectionLost, RequestTimeout (noticed up to CALL_SWEEP_S late) or, when
        pending_calls_max wait already, TransportError. Cancelling it gives the call up.
        """
        now = self._loop.time()
        future: asyncio.Future[RemotingCommand]
        if self.is_open and len(self.pending) < self._limits.pending_calls_max:
            future = self._calls.add(opaque, now, now + timeout_s, request, None)
            self.write(frame)
            return future
        future = self._loop.create_future()
        if not self.is_open:
            future.set_exception(self._lost_error(request, 0.0))
        else:
            future.set_exception(
                TransportError(
                    f"{len(self.pending)} calls to {self._name} wait for an answer, no more are taken: "
                    f"send slower, or raise pending_calls_max",
                    address=self._name,
                    request=request,
                )
            )
        return future

    def try_call(
        self, frame: bytes, opaque: int, now: float, deadline: float, request: str, note: Any
    ) -> asyncio.Future[Any] | None:
        """As call(), for a caller who knows the loop's time; None, and nothing done, when that would fail or wait.

        `note` is for the burst hook: it may take the call out of `pending` when it reads the response, and give the
        future what it made of it instead of the RemotingCommand.
        """
        limits = self._limits
        if (
            self._write_paused
            or not self.is_open
            or self._out_bytes > limits.write_high_bytes
            or len(self.pending) >= limits.pending_calls_max
        ):
            return None
        future = self._calls.add(opaque, now, deadline, request, note)
        # As write(), without the call.
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._flush_scheduled and not self._serving:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        return future

    async def invoke(self, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Send a request and return its response, whatever its code. Either side may call the other.

        Raises ConnectionLost, RequestTimeout.
        """
        name = request_name(command.code)
        if self._write_paused:
            started = self._loop.time()
            await self.wait_writable(timeout_s, name)
            timeout_s -= self._loop.time() - started
        opaque = command.opaque = self.next_opaque()
        return await self.call(encode_frame(command), opaque, timeout_s, name)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send a request that gets no response. Returns at once; lost when the connection is or gets closed."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self.next_opaque()
        self.send(command)

    async def wait_writable(self, timeout_s: float, request: str = "") -> None:
        """Wait until the peer takes bytes again. Raises RequestTimeout, ConnectionLost."""
        started = self._loop.time()
        if not self._serving:
            self._flush()  # what is only queued counts for nothing until the transport had it
        while self._write_paused and self.is_open:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._writable_waiters.append(waiter)
            try:
                async with asyncio.timeout_at(started + timeout_s):
                    await waiter
            except TimeoutError as error:
                text = (
                    f"{self._name} took no bytes for {timeout_s:.1f} s, {request or 'a request'} was not sent"
                )
                raise RequestTimeout(
                    text, address=self._name, request=request, elapsed_s=self._loop.time() - started
                ) from error
            finally:
                if waiter in self._writable_waiters:
                    self._writable_waiters.remove(waiter)
        if not self.is_open:
            raise self._lost_error(request, self._loop.time() - started)

    def on_close(self, callback: Callable[[Connection], None]) -> None:
        """Call back once, when the connection is gone; at once when it is gone already."""
        if self._is_lost:
            callback(self)
        else:
            self._close_callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        """Send what is queued, then close. Pending calls fail now; `reason` goes into their errors."""
        if not self.is_open:
            return
        self._flush()
        self.is_open = False
        self._close_reason = reason
        transport = self._transport
        assert transport is not None
        if self._tls is not None:
            self._tls.end()
            self._send_tls()
        transport.close()
        self._fail_pending(None)

    @property
    def shakes_hands(self) -> bool:
        """Whether a TLS handshake has begun and is not done."""
        return self._tls is not None and not self._tls.is_ready

    def frame_begun(self) -> tuple[tuple[int, int], int] | None:
        """A mark of the frame that has begun to arrive, and how long it says it is; None when none has."""
        if self.hand_back is not None and self.takes_bursts:
            self.hand_back()
        mark = None if self._reading_paused else self._decoder.beginning()
        return None if mark is None else (mark, self._decoder.announced_bytes())

    def close_when_answered(self, wait_s: float) -> None:
        """Close as soon as no call of ours waits for an answer, after `wait_s` in any case."""
        now = self._loop.time()
        self._leave_at = now + wait_s
        if now < self._calls.sweep_at:
            self._calls.sweep_by(now)

    def abort(self, reason: str = "") -> None:
        """Close without sending what is queued."""
        self._close_reason = self._close_reason or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.host_port = (str(peer[0]), int(peer[1]))
            host = f"[{peer[0]}]" if ":" in self.host_port[0] else peer[0]
            self.address = f"{host}:{peer[1]}"
        self._name = self._calls.peer = self._name or self.address
        self._transport.set_write_buffer_limits(high=self._limits.write_high_bytes)
        self.is_open = True
        if self._endpoint.on_made is not None:
            self._endpoint.on_made(self)
        if self._tls is not None:
            self._receive_tls(b"")

    def data_received(self, data: bytes) -> None:
        self.touched = self._calls.heard = True
        if not self.is_open:
            return
        decoder, burst = self._decoder, self._endpoint.burst
        # What most reads are: frames that the burst hook takes to the last byte, and nothing waits before them.
        if (
            burst is not None
            and not decoder.buffer
            and self._tls is None
            and self._first_byte_seen
            and not self._reading_paused
            and not self._endpoint.going_away
        ):
            self._serving = True
            try:
                used = burst(self, data, 0)
            except Exception:
                self.failed()
                return
            finally:
                self._serving = False
            if used < len(data):
                decoder.buffer, decoder.position = data, used
                self._serve(is_looked_at=True)
            elif self._out:
                self._flush()
            return
        if not self._first_byte_seen:
            self._first_byte_seen = True
            if not self._choose_tls(data[0]):
                return
        if self._tls is not None:
            data = self._receive_tls(data)
            if not data:
                return
        self._decoder.feed(data)
        if not self._reading_paused:
            self._serve()

    def eof_received(self) -> None:
        return None  # the transport closes; replies that are queued still leave

    def pause_writing(self) -> None:
        self._write_paused = True
        if not self._serving:
            self._set_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.touched = True
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._is_lost = True
        self._fail_pending(exc)
        self._calls.stop_sweeping()
        for task in self._tasks:
            task.cancel()
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(self._lost_error("the TLS handshake", 0.0))
        self._out.clear()
        self._out_bytes = 0
        callbacks, self._close_callbacks = self._close_callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                _LOG.exception("a callback for the close of %s failed", self._name)
        if self._endpoint.on_lost is not None:
            self._endpoint.on_lost(self)

    # Serving

    def _serve(self, *, is_looked_at: bool = False) -> None:
        """Serve every whole frame that is buffered, unless the peer or the handlers are too far behind.

        `is_looked_at`: the burst hook has left the next frame already.
        """
        decoder = self._decoder
        self._serving = True
        try:
            while self.is_open:
                burst = None if self._endpoint.going_away else self._endpoint.burst
                if burst is not None and decoder.unused:
                    if not is_looked_at:
                        decoder.position = burst(self, decoder.buffer, decoder.position)
                    is_looked_at = False
                    if self.congested:
                        self._flush()
                        if self._write_paused:
                            break
                        continue
                command = decoder.next_frame()
                if command is None:
                    break
                self._handle(command)
                if self._out_bytes > self._limits.write_high_bytes:
                    self._flush()
                if self._write_paused or self._has_enough_tasks():
                    break
            if not decoder.unused:
                decoder.drop_used()
        except WireError as error:
            self._refuse(error)
        except Exception:
            self.failed()
        finally:
            self._serving = False
        self._flush()
        self._set_reading()

    def failed(self, error: BaseException | None = None) -> None:
        """An exception that is ours, that of the handler one is in when none is given: log it and close."""
        _LOG.error("serving %s failed", self._name, exc_info=error or True)
        self.close("a fault of ours, see the log")

    def _handle(self, command: RemotingCommand) -> None:
        flag = command.flag
        if flag & FLAG_RESPONSE:
            call = self.pending.pop(command.opaque, None)
            # A response that nobody waits for any more came after its time-out.
            if call is not None and not call[0].done():
                call[0].set_result(command)
            return
        endpoint = self._endpoint
        if endpoint.going_away:
            if not flag & FLAG_ONEWAY and command.version > GO_AWAY_VERSION:
                self._reply(
                    command, command.reply(ResponseCode.GO_AWAY, remark="the server is shutting down")
                )
            return
        handler = endpoint.handlers.get(command.code, endpoint.default)
        if handler is None:
            remark = f" request type {command.code} not supported"
            self._reply(command, command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        watch = endpoint.watch
        started = watch.monotonic()
        try:
            outcome = handler(self, command)
        except Exception as error:
            self._reply(command, self._error_reply(command, error))
            return
        finally:
            held_s = watch.monotonic() - started
            if held_s > HELD_LIMIT_S:
                watch.note(command.code, self.address, held_s)
        if outcome is None or type(outcome) is RemotingCommand:
            self._reply(command, outcome)
        else:
            self._start_task(command, cast("Coroutine[Any, Any, Reply]", outcome))

    def _reply(self, request: RemotingCommand, reply: Reply) -> None:
        if reply is None or request.flag & FLAG_ONEWAY:
            return
        try:
            data = encode_frame(reply)
        except AerobeeError as error:
            _LOG.error("the reply to %s cannot be sent: %s", request_name(request.code), error)
            data = encode_frame(request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        self.write(data)

    def _error_reply(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, RemoteError):
            return request.reply(error.code, remark=error.remark)
        if isinstance(error, AerobeeError):
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        _LOG.error("%s of %s failed", request_name(request.code), self._name, exc_info=error)
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _start_task(self, command: RemotingCommand, work: Coroutine[Any, Any, Reply]) -> None:
        body_bytes = len(command.body)
        self._task_bytes += body_bytes
        task = self._loop.create_task(self._run(command, work), name=f"handler-{command.code}")
        self._tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            work.close()  # a task that is cancelled before its first step never awaits it
            self._tasks.discard(finished)
            self._task_bytes -= body_bytes
            if not finished.cancelled() and finished.exception() is not None:
                _LOG.error(
                    "the reply to %s failed", request_name(command.code), exc_info=finished.exception()
                )
            self._go_on()

        task.add_done_callback(done)

    async def _run(self, command: RemotingCommand, work: Coroutine[Any, Any, Reply]) -> None:
        try:
            reply = await Watched(work, self._endpoint.watch, command.code, self)
        except Exception as error:
            reply = self._error_reply(command, error)
        self._reply(command, reply)

    def _has_enough_tasks(self) -> bool:
        return (
            len(self._tasks) >= self._limits.handler_tasks_max
            or self._task_bytes >= self._limits.handler_bytes_max
        )

    def _go_on(self) -> None:
        """Serve what waits, and read again, when nothing forbids it any more."""
        if self._reading_paused and self.is_open and not self._serving:
            if self._write_paused or self._has_enough_tasks():
                return
            self._serve()

    def _set_reading(self) -> None:
        paused = self._write_paused or self._has_enough_tasks()
        if paused == self._reading_paused or self._transport is None or not self.is_open:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _refuse(self, error: WireError) -> None:
        _LOG.warning("%s broke the protocol and is disconnected: %s", self._name, error)
        self.close(f"the peer broke the protocol: {error}")

    # Sending

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._out or not self.is_open:
            return
        transport = self._transport
        assert transport is not None
        if self._tls is not None and not self._tls.is_ready:
            return  # leaves when the handshake is done
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self.touched = True
        if self._tls is not None:
            self._tls.send(data)
            self._send_tls()
        else:
            transport.write(data)
        if self._write_paused:
            self._check_unsent()

    def _check_unsent(self) -> None:
        """Close the connection when the peer takes nothing while replies and calls for it pile up."""
        if not self._serving and self._out and not self._write_paused:
            self._flush()
        transport = self._transport
        if transport is None or not self.is_open:
            return
        unsent = transport.get_write_buffer_size()
        if unsent + self._out_bytes > self._limits.write_max_bytes and self._write_paused:
            _LOG.warning("%s does not read: %d bytes wait for it, it is disconnected", self._name, unsent)
            self._fail_pending(None)
            self.abort(f"the peer does not read, {unsent} bytes waited for it")

    def _send_tls(self) -> None:
        assert self._tls is not None
        data = self._tls.outgoing()
        if data and self._transport is not None:
            self._transport.write(data)

    def _receive_tls(self, data: bytes) -> bytes:
        """Return the plain bytes of what arrived; b"" during the handshake and after an error."""
        assert self._tls is not None
        was_ready = self._tls.is_ready
        try:
            plain = self._tls.receive(data)
        except WireError as error:
            self._send_tls()
            self._refuse(error)
            return b""
        self._send_tls()
        if self._tls.is_ready and not was_ready:
            if self.ready is not None and not self.ready.done():
                self.ready.set_result(None)
            self._flush()
        if self._tls.is_ended and not plain:
            self.close("the peer ended the TLS session")
        return plain

    def _choose_tls(self, first_byte: int) -> bool:
        """Decide by the first byte of a connection. Returns False when the connection was refused."""
        tls = self._endpoint.tls
        if first_byte != FIRST_BYTE:
            if tls is not None and tls.mode is TlsMode.ENFORCING:
                self._refuse(WireError("a plain connection, and tls.server.mode is enforcing"))
                return False
            return True
        if tls is None or tls.mode is TlsMode.DISABLED:
            self._refuse(WireError("a TLS connection, and tls.server.mode is disabled"))
            return False
        try:
            self._tls = TlsPump(tls.context(), server_side=True)
        except ConfigError as error:
            self._refuse(WireError(f"a TLS connection cannot be served: {error}"))
            return False
        return True

    # Calls

    def _after_sweep(self, now: float) -> None:
        if self._leave_at is not None and (not self.pending or now >= self._leave_at):
            self.close("the peer is shutting down")

    def _peer_is_unresponsive(self, silence_s: float) -> None:
        if self._endpoint.leaves_unresponsive_peers and not self._reading_paused and self.is_open:
            self.abort(f"it has sent nothing for {silence_s:.1f} s")

    def _fail_pending(self, cause: BaseException | None) -> None:
        self._calls.fail_all(self._lost_error, cause)
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _lost_error(self, request: str, elapsed_s: float) -> ConnectionLost:
        why = f": {self._close_reason}" if self._close_reason else ""
        text = f"the connection to {self._name} closed before {request or 'the request'} was answered{why}"
        return ConnectionLost(text, address=self._name, request=request, elapsed_s=elapsed_s)
