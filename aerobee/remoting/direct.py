"""Sockets that native code reads and writes itself: an asyncio transport, and the network that makes it.

    event loop ── some are ready ──> DirectNetwork ── receive ──> FastPath.receive ──> native Sockets: read, serve, write
                                                  └── what is not ordinary ──> DirectTransport ──> Connection.data_received

A connection's bytes go to its Connection as usual until that sets `takes_bursts`; from then on the fast path reads them
without a Python object for bytes or replies, and frames that it leaves return here. Everything but that is what an
asyncio transport does: half-open peers, limits of unsent bytes, pausing, orderly close.

Invariants: bytes are sent in the order of writes; no byte overtakes bytes that the peer has not accepted. A transport
that is closed calls connection_lost once, from the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import Any, cast

from aerobee.message import pack_host
from aerobee.network import AsyncioNetwork, NetworkServer
from aerobee.remoting.connection import Connection
from aerobee.remoting.native_loop import NativeEventLoop, NativeSockets, Wait

_LOG = logging.getLogger("aerobee.remoting")
_BACKLOG = 1024
_ACCEPTED_AT_ONCE_MAX = 100
_ACCEPT_AGAIN_S = 1.0  # pause after the process ran out of descriptors
_HIGH_BYTES = 64 * 1024
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH})
# Kinds of events, as native/src/sockets.rs numbers them.
_DATA, _END, _BROKEN, _WRITABLE = 0, 1, 2, 3

_TURNS_MAX = 4
_SENT_AT_ONCE_MAX = 1 << 20

Event = tuple["DirectTransport", int, Any]
# (number of iterations, (descriptor, mask) of other ready descriptors, events for the transports).
Received = tuple[int, list[tuple[int, int]], list[Event]]
Receive = Callable[[NativeSockets, Wait, int], Received]  # the number is the maximum of iterations


class DirectNetwork(AsyncioNetwork):
    """A network with native reads: native code reads the servers' connections, and the fast path serves them
    from serve() on.
    """

    def __init__(self, make_sockets: Callable[[], NativeSockets]) -> None:
        self._receive: Receive = _give_all
        self.host_of: Callable[[Connection], str | None] = lambda connection: None
        self._make_sockets = make_sockets
        self._sockets: NativeSockets | None = None
        self._users = 0  # number of listeners and transports; the last one to close returns the sockets
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lender: NativeEventLoop | None = None  # None: the sockets have a separate epoll

    def serve(self, receive: Receive, host_of: Callable[[Connection], str | None]) -> None:
        """Pass arriving bytes to `receive` (FastPath.receive) from now on; before, connections get all bytes.
        `host_of` returns the host that the guard checks for a connection (FastPath.host_of).
        """
        self._receive = receive
        self.host_of = host_of

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> NetworkServer:
        loop = asyncio.get_running_loop()
        # The event loop resolves names and binds the sockets; this class accepts connections.
        server = await loop.create_server(
            asyncio.Protocol, host or None, port, reuse_address=True, backlog=_BACKLOG, start_serving=False
        )
        listeners = [_duplicate(each) for each in server.sockets]
        server.close()
        for listener in listeners:
            listener.listen(_BACKLOG)
        return DirectServer(self, loop, listeners, cast(Callable[[], Connection], factory))

    def enter(self, loop: asyncio.AbstractEventLoop) -> NativeSockets:
        """Count a further listener or transport."""
        self._users += 1
        if self._sockets is None:
            self._loop = loop
            if isinstance(loop, NativeEventLoop):
                self._sockets = loop.lend(self._run)
            if self._sockets is not None:
                self._lender = cast(NativeEventLoop, loop)
            else:
                self._sockets = self._make_sockets()
                loop.add_reader(self._sockets.fileno(), self._ready)
        return self._sockets

    def leave(self) -> None:
        """One less."""
        self._users -= 1
        if not self._users and self._sockets is not None and self._loop is not None:
            if self._lender is not None:
                self._lender.take_back()
            else:
                self._loop.remove_reader(self._sockets.fileno())
            self._sockets = self._loop = self._lender = None

    def _run(self, wait: Wait, turn_count_max: int = 1 << 30) -> tuple[int, list[tuple[int, int]]]:
        """As native_loop.Run. Raises nothing: it is called from inside the loop's wait."""
        if self._sockets is None:
            return 0, []
        try:
            turn_count, others, events = self._receive(self._sockets, wait, turn_count_max)
        except Exception:
            _LOG.exception("serving the connections that have something failed")
            return 0, []
        for transport, kind, what in events:
            try:
                transport.on_event(kind, what)
            except Exception as error:
                transport.failed(error)
        return turn_count, others

    def _ready(self) -> None:
        # While several peers send, more bytes arrive while they are served: polling again costs less than an
        # event loop iteration, which follows after a few polls.
        self._run((0.0, None, None), _TURNS_MAX)


def _give_all(sockets: NativeSockets, wait: Wait, turn_count_max: int) -> Received:
    timeout_s, loop_ready, loop_timers = wait
    turns = sockets.run(
        None,
        timeout_s,
        turn_count_max=turn_count_max,
        takes_sends=False,
        takes_pulls=False,
        now_ms=None,
        loop_ready=loop_ready,
        loop_timers=loop_timers,
    )
    return turns.turn_count, turns.others, turns.events


def _duplicate(listener: Any) -> socket.socket:
    return socket.socket(listener.family, listener.type, listener.proto, os.dup(listener.fileno()))


class DirectServer:
    """A listening address. Accepted connections stay open when it closes."""

    def __init__(
        self,
        network: DirectNetwork,
        loop: asyncio.AbstractEventLoop,
        listeners: list[socket.socket],
        factory: Callable[[], Connection],
    ) -> None:
        self.address: tuple[str, int] = listeners[0].getsockname()[:2]
        self._network = network
        self._loop = loop
        self._listeners = listeners
        self._factory = factory
        self._sockets = network.enter(loop)
        for listener in listeners:
            listener.setblocking(False)
            loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        if self._listeners:
            for listener in self._listeners:
                self._loop.remove_reader(listener.fileno())
                listener.close()
            self._listeners = []
            self._network.leave()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                _LOG.error("no connection can be accepted for %.0f s: %s", _ACCEPT_AGAIN_S, error)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_ACCEPT_AGAIN_S, self._accept_again, listener)
                return
            try:
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer = accepted.getpeername()
            except OSError:
                accepted.close()  # the client has disconnected again
                continue
            DirectTransport(self._network, self._loop, accepted, peer, self._factory())

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)


class DirectTransport(asyncio.Transport):
    """One accepted connection."""

    __slots__ = (
        "_connection",
        "_high",
        "_is_closing",
        "_is_finished",
        "_is_write_paused",
        "_loop",
        "_low",
        "_network",
        "_reads",
        "_sockets",
        "_token",
        "_unsent",
    )

    def __init__(
        self,
        network: DirectNetwork,
        loop: asyncio.AbstractEventLoop,
        accepted: socket.socket,
        peer: tuple[Any, ...],
        connection: Connection,
    ) -> None:
        super().__init__({"peername": peer, "sockname": accepted.getsockname()})
        self._network = network
        self._loop = loop
        self._connection = connection
        self._unsent = bytearray()
        self._reads = True
        self._is_closing = False
        self._is_finished = False
        self._is_write_paused = False
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._sockets = network.enter(loop)
        self._token = self._sockets.add(accepted.detach(), self)
        connection.connection_made(self)

    def on_event(self, kind: int, what: Any) -> None:
        """Handle an event of the socket, of one of the kinds above."""
        if self._is_finished:
            return
        if kind == _DATA:
            self._connection.data_received(what)
            self.serve()
        elif kind == _WRITABLE:
            self._send_unsent()
        elif kind == _END:
            self._connection.eof_received()
            self.close()
        elif kind == _BROKEN:
            self._fail(OSError(what, os.strerror(what)))
        else:
            self.failed(what)

    def failed(self, error: BaseException) -> None:
        """Log an internal error and close this connection."""
        self._connection.failed(error)

    def serve(self) -> None:
        """Let the fast path serve arriving bytes if the connection allows it."""
        connection = self._connection
        if connection.takes_bursts and not self._is_closing:
            self._sockets.serve(
                self._token, connection, pack_host(*connection.host_port), self._network.host_of(connection)
            )

    def stop_serving(self) -> None:
        """Pass all bytes to the connection from now on."""
        if not self._is_finished:
            kept = self._sockets.stop_serving(self._token)
            if kept:
                self._connection.data_received(kept)

    def hand_back(self) -> None:
        """Pass the buffered beginning of a frame, if any, and the next read to the connection."""
        if not self._is_finished and self._sockets.keeps(self._token):
            self.stop_serving()

    def on_unsent(self, rest: bytes | int) -> None:
        """Handle replies that the peer did not accept, or the errno of a broken connection."""
        if isinstance(rest, int):
            self._fail(OSError(rest, os.strerror(rest)))
        elif not self._is_finished:
            self._keep(rest)

    # asyncio.Transport

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_finished or not data:
            return
        taken = 0
        if not self._unsent:
            try:
                taken = self._sockets.send(self._token, data if isinstance(data, bytes) else bytes(data))
            except OSError as error:
                self._fail(error)
                return
        if taken < len(data):
            self._keep(memoryview(data)[taken:])

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._set_reads(False)

    def resume_reading(self) -> None:
        self._set_reads(not self._is_closing)

    def is_reading(self) -> bool:
        return self._reads

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Stop reading; close when all unsent bytes are sent."""
        if self._is_closing:
            return
        self._is_closing = True
        self._set_reads(False)
        if not self._unsent:
            self._finish_soon(None)

    def abort(self) -> None:
        self._unsent.clear()
        self._is_closing = True
        self._set_reads(False)
        self._finish_soon(None)

    # Inside

    def _set_reads(self, reads: bool) -> None:
        if reads != self._reads and not self._is_finished:
            self._reads = reads
            self._sockets.watch(self._token, reads, bool(self._unsent))

    def _keep(self, rest: bytes | memoryview[Any]) -> None:
        was_empty = not self._unsent
        self._unsent += rest
        if was_empty:
            self._sockets.watch(self._token, self._reads, True)
        if len(self._unsent) > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self._connection.pause_writing()

    def _send_unsent(self) -> None:
        if not self._unsent:
            return
        try:
            with memoryview(self._unsent) as unsent:
                taken = self._sockets.send(self._token, unsent[:_SENT_AT_ONCE_MAX].tobytes())
        except OSError as error:
            self._fail(error)
            return
        del self._unsent[:taken]
        if not self._unsent:
            self._sockets.watch(self._token, self._reads, False)
            if self._is_closing:
                self._finish_soon(None)
        if self._is_write_paused and len(self._unsent) <= self._low:
            self._is_write_paused = False
            self._connection.resume_writing()

    def _fail(self, error: OSError) -> None:
        if not self._is_finished:
            if error.errno not in _GONE:
                _LOG.warning("the socket of %s failed: %s", self._connection.address, error)
            self._unsent.clear()
            self._is_closing = True
            self._finish_soon(error)

    def _finish_soon(self, error: OSError | None) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._loop.call_soon(self._finish, error)

    def _finish(self, error: OSError | None) -> None:
        self._sockets.remove(self._token)
        self._network.leave()
        self._connection.connection_lost(error)
