"""One connection of the remoting protocol: frames both ways, calls from either side, back-pressure.

An asyncio.Protocol, not a stream: a read of many frames costs one wake-up, its replies leave in one write, and a
handler that is a plain function costs no task and no future. Follows NettyRemotingAbstract (RocketMQ).

Invariants:

- A oneway request gets no reply. A response completes at most one call. A closed connection fails each pending call
  once, with ConnectionLost.
- The connection reads nothing while the peer does not read its replies (`write_high_bytes`), or while pending handlers
  exceed their bounds (served_requests.py). Requests that were read already stay in the decoder.
- Bytes that break the protocol close this connection and affect no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from aerobee.caller import GRPC, REMOTING
from aerobee.errors import WireError
from aerobee.host_port import join_address
from aerobee.remoting.command import FLAG_RESPONSE, RemotingCommand
from aerobee.remoting.connection_calls import ConnectionCalls
from aerobee.remoting.first_bytes import FirstBytes
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.loop_watch import LoopWatch
from aerobee.remoting.other_protocol import HTTP2_FIRST_BYTE, OtherProtocol
from aerobee.remoting.peer import Handler
from aerobee.remoting.pending_calls import PendingCalls
from aerobee.remoting.request_proof import RequestProofs
from aerobee.remoting.request_stats import RequestStats
from aerobee.remoting.served_requests import ServedRequests
from aerobee.remoting.signature import Credentials
from aerobee.remoting.tls import ServerTls, TlsPump

_LOG = logging.getLogger("aerobee.remoting")

# burst(connection, buffer, position) -> position of the first byte that was not used
Burst = Callable[["Connection", bytes | bytearray, int], int]


@runtime_checkable
class BurstReader(Protocol):
    """A transport that passes reads directly to the burst hook while the connection `takes_bursts`.

    A protocol, because direct.py, which implements it, imports this file.
    """

    def stop_serving(self) -> None:
        """Pass all bytes to the connection from now on."""

    def hand_back(self) -> None:
        """As stop_serving(), but only if the transport buffers the beginning of a frame."""


@dataclass(slots=True)
class Endpoint:
    """Shared state of all connections of one server or client."""

    handlers: Mapping[int, Handler]
    default: Handler | None = None
    burst: Burst | None = None
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: ServerTls | None = None
    proxied_from: Callable[[str], bool] = lambda host: (
        False
    )  # whether a peer of this host may send a PROXY header
    going_away: bool = False
    leaves_unresponsive_peers: bool = (
        False  # called for a peer that was silent during a pending call: see pending_calls.py
    )
    credentials: Credentials | None = None  # credentials that sign requests
    watch: LoopWatch = field(default_factory=LoopWatch)
    stats: RequestStats = field(default_factory=RequestStats)
    http2: Callable[[Connection], OtherProtocol] | None = None  # serves connections with HTTP/2's preface
    on_made: Callable[[Connection], None] | None = None
    on_lost: Callable[[Connection], None] | None = None


class Connection(ConnectionCalls, asyncio.Protocol):
    """One open connection, of a server or of a client: a Peer (peer.py). Belongs to its event loop.

    `address` is "ip:port", `listener` the name of the listener it came in through. `burst_note` is a slot for
    data of the burst hook about this connection.
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
        self.own_host = ""  # the address at this end
        self.own_port = 0
        self.listener = listener
        self.principal = ""
        self.protocol = REMOTING  # GRPC once its first byte says so
        self.is_open = False
        self.burst_note: Any = None
        self.proofs: RequestProofs | None = None  # prover of requests, after prove() was called
        self.proofs_are_known = False  # whether the client knows if the peer accepts proofs
        self._moved = False  # a byte moved since take_moved()
        self._ready: asyncio.Future[None] | None = None  # of a client that waits for the TLS handshake
        self._reader: BurstReader | None = None
        self._endpoint = endpoint
        self._credentials = endpoint.credentials
        self._limits = endpoint.limits
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(endpoint.limits.frame_bytes_max, endpoint.limits.header_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._tls = tls
        self._is_remoting = not server_side  # the first byte has decided the protocol
        self._first: FirstBytes | None = None  # while the first bytes of a server's connection are read
        self._other: OtherProtocol | None = None
        self._server_side = server_side
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
        self._requests = ServedRequests(
            self,
            handlers=endpoint.handlers,
            default=endpoint.default,
            watch=endpoint.watch,
            stats=endpoint.stats,
            limits=endpoint.limits,
            resume=self._continue,
        )
        self._writable_waiters: list[asyncio.Future[None]] = []
        self._close_callbacks: list[Callable[[Connection], None]] = []
        self._close_reason = ""
        self._is_lost = False

    # Interface for handlers and callers

    @property
    def congested(self) -> bool:
        """True while the peer reads its replies too slowly: serve no further request now."""
        return self._write_paused or self._out_bytes > self._limits.write_high_bytes

    @property
    def takes_bursts(self) -> bool:
        """Whether arriving bytes may bypass this object and go to the burst hook: no earlier bytes are pending."""
        endpoint = self._endpoint
        return (
            self.is_open
            and endpoint.burst is not None
            and not endpoint.going_away
            and self._is_remoting
            and self._tls is None
            and not self._reading_paused
            and not self._decoder.buffer
        )

    @property
    def close_reason(self) -> str:
        """Reason why this side closed it; "" while it is open, or when the peer did."""
        return self._close_reason

    @property
    def is_busy(self) -> bool:
        """True while handlers run or bytes wait to be sent."""
        is_busy = self._requests.is_busy or (self._other is not None and self._other.is_busy)
        return is_busy or self.unsent_bytes > 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes of replies and calls that the peer has not taken yet."""
        transport = self._transport
        waiting = 0 if transport is None or self._is_lost else transport.get_write_buffer_size()
        return self._out_bytes + waiting + (0 if self._other is None else self._other.unsent_bytes)

    @property
    def is_behind(self) -> bool:
        """True while the peer takes less than was made for it: of its socket, or of the windows of another protocol."""
        return self.congested or (self._other is not None and self._other.unsent_bytes > 0)

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
        """As write(), but without delay to the end of this loop iteration. For single replies to many connections."""
        if not self.is_open:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._serving:
            self._flush()

    def on_close(self, callback: Callable[[Connection], None]) -> None:
        """Call back once, when the connection closes; immediately if it is closed already."""
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

    def end_bursts(self) -> None:
        """Pass every read to this object from now on, even if the transport has passed reads to the burst hook."""
        if self._reader is not None:
            self._reader.stop_serving()

    def go_away(self) -> None:
        """Prepare for the stop of the server. Remoting peers get GO_AWAY as the reply to their next request."""
        self.end_bursts()
        if self._other is not None:
            self._other.go_away()

    def take_moved(self) -> bool:
        """Whether a byte moved, either way, since the last call."""
        moved, self._moved = self._moved, False
        return moved

    async def handshake(self) -> None:
        """Wait for the TLS handshake of a client's connection, if it has one. Raises ConnectionLost."""
        if self._tls is not None and not self._tls.is_ready:
            self._ready = self._loop.create_future()
            if self._is_lost:
                raise self._lost_error("the TLS handshake", 0.0)
            await self._ready

    @property
    def shakes_hands(self) -> bool:
        """Whether a PROXY header or a TLS handshake has begun and is not done."""
        if self._first is not None:
            return self._first.has_begun
        return self._tls is not None and not self._tls.is_ready

    def frame_begun(self) -> tuple[tuple[int, int], int] | None:
        """(token of the incomplete frame, its stated length); None without an incomplete frame."""
        if self._reader is not None and self.takes_bursts:
            self._reader.hand_back()
        begun = None if self._reading_paused else self._decoder.beginning()
        return None if begun is None else (begun, self._decoder.announced_bytes())

    def abort(self, reason: str = "") -> None:
        """Close without sending what is queued."""
        self._close_reason = self._close_reason or reason
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = transport if isinstance(transport, BurstReader) else None
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.host_port = (str(peer[0]), int(peer[1]))
            self.address = join_address(*self.host_port)
        if self._server_side:
            balancer = self.host_port[0] if self._endpoint.proxied_from(self.host_port[0]) else None
            self._first = FirstBytes(self._endpoint.tls, self.listener, balancer=balancer)
        own = transport.get_extra_info("sockname")
        if isinstance(own, tuple) and own:
            self.own_host = str(own[0])
            self.own_port = int(own[1]) if len(own) > 1 else 0
        self._name = self._calls.peer = self._name or self.address
        self._transport.set_write_buffer_limits(high=self._limits.write_high_bytes)
        self.is_open = True
        if self._endpoint.on_made is not None:
            self._endpoint.on_made(self)
        if self._tls is not None:
            self._receive_tls(b"")

    def data_received(self, data: bytes) -> None:
        self._moved = self._calls.heard = True
        if not self.is_open:
            return
        decoder, burst = self._decoder, self._endpoint.burst
        # The common case: the burst hook serves the whole read, and no earlier bytes are waiting.
        if (
            burst is not None
            and not decoder.buffer
            and self._tls is None
            and self._is_remoting
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
                if len(self._out) == 1 and self.is_open and not self._write_paused:
                    # As _flush(), inlined: nearly all bursts leave one piece, and no TLS is here. The call costs 2,100 of
                    # the 37,000 instructions of a native burst of one send (5 %).
                    self._out_bytes = 0
                    self._transport.write(self._out.pop())  # type: ignore[union-attr]
                else:
                    self._flush()
            return
        if self._first is not None:
            data = self._begin(data)
            if not data:
                return
        if self._tls is not None:
            data = self._receive_tls(data)
            if not data:
                return
        if not self._is_remoting:
            if self._other is None and data[0] == HTTP2_FIRST_BYTE and self._endpoint.http2 is not None:
                self.protocol = GRPC
                self._other = self._endpoint.http2(self)
            if self._other is not None:
                self._receive_other(data)
                return
            self._is_remoting = True
        self._decoder.feed(data)
        if not self._reading_paused:
            self._serve()

    def _receive_other(self, data: bytes) -> None:
        assert self._other is not None
        self._serving = True
        try:
            self._other.receive(data)
        except Exception:
            self.failed()
        finally:
            self._serving = False
        self._flush()
        self.set_reading()

    def eof_received(self) -> None:
        return None  # the transport closes; replies that are queued still leave

    def pause_writing(self) -> None:
        self._write_paused = True
        if not self._serving:
            self.set_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._moved = True
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._continue()
        if self._other is not None and self.is_open:
            self._other.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._is_lost = True
        self._fail_pending(exc)
        self._calls.stop_sweeping()
        self._requests.cancel()
        if self._other is not None:
            self._other.lost()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(self._lost_error("the TLS handshake", 0.0))
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
                if self._write_paused or self._requests.is_full:
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
        self.set_reading()

    def failed(self, error: BaseException | None = None) -> None:
        """Log an internal error (default: the exception being handled) and close the connection."""
        _LOG.error("serving %s failed", self._name, exc_info=error or True)
        self.close("internal error, see the log")

    def _handle(self, command: RemotingCommand) -> None:
        if command.flag & FLAG_RESPONSE:
            call = self.pending.pop(command.opaque, None)
            # A response without a pending call arrived after its time-out.
            if call is not None and not call[0].done():
                call[0].set_result(command)
        elif self._endpoint.going_away:
            self._requests.turn_away(command)
        else:
            self._requests.serve(command)

    def _continue(self) -> None:
        """Serve pending frames and resume reading when no bound is exceeded any more."""
        if self._reading_paused and self.is_open and not self._serving:
            if self._write_paused or self._requests.is_full:
                return
            self._serve()

    def set_reading(self) -> None:  # resume or pause reading, depending on the waiting bytes
        paused = (
            self._write_paused or self._requests.is_full or (self._other is not None and self._other.is_full)
        )
        if paused == self._reading_paused or self._transport is None or not self.is_open:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _refuse(self, error: WireError) -> None:
        # The callers of pending calls get this error.
        level = logging.WARNING if self._server_side else logging.INFO
        _LOG.log(level, "%s broke the protocol and is disconnected: %s", self._name, error)
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
        self._moved = True
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
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            self._flush()
        if self._tls.is_ended and not plain:
            self.close("the peer ended the TLS session")
        return plain

    def _begin(self, data: bytes) -> bytes:
        """Decide by the first bytes; return those that follow a PROXY header, b"" when more are needed or the connection was refused."""
        first = cast(FirstBytes, self._first)
        try:
            data = first.take(data)
            if first.source is not None:
                self.host_port = first.source
                self.address = self._name = self._calls.peer = join_address(*first.source)
            if data:
                self._tls, self._first = first.choose_tls(data[0]), None
        except WireError as error:
            self._refuse(error)
            return b""
        return data

    def _peer_is_unresponsive(self, silence_s: float) -> None:
        if self._endpoint.leaves_unresponsive_peers and not self._reading_paused and self.is_open:
            self.abort(f"it has sent nothing for {silence_s:.1f} s")
