"""The calls that this side of a connection makes: each request gets its response, a time-out or ConnectionLost.

The base of Connection (connection.py), which reads the responses and writes what is queued here. pending_calls.py has the table of
the calls that wait.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from typing import Any

from aerobee.errors import ConnectionLost, RequestTimeout
from aerobee.remoting.codes import request_name
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.pending_calls import Call, PendingCalls
from aerobee.remoting.request_proof import RequestProofs
from aerobee.remoting.signature import Credentials

OPAQUE_MASK = 0x7FFFFFFF

opaques = itertools.count(1)  # next(opaques) & OPAQUE_MASK is what next_opaque() returns


class ConnectionCalls:
    """Every method belongs to the event loop's thread. Connection sets the attributes."""

    is_open: bool
    proofs: RequestProofs | None  # prover of requests, after prove() was called
    pending: dict[int, Call]  # by opaque; a burst hook may take out calls that it answers
    _calls: PendingCalls
    _close_reason: str
    _credentials: Credentials | None  # credentials that sign requests
    _leave_at: float | None
    _limits: ConnectionLimits
    _loop: asyncio.AbstractEventLoop
    _name: str
    _out_bytes: int
    _serving: bool
    _writable_waiters: list[asyncio.Future[None]]
    _write_paused: bool

    @abstractmethod
    def send(self, command: RemotingCommand) -> None:
        """As Connection.send."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """As Connection.write."""

    @abstractmethod
    def close(self, reason: str = "") -> None:
        """As Connection.close."""

    @abstractmethod
    def _flush(self) -> None:
        """Pass what is queued to the transport."""

    @staticmethod
    def next_opaque() -> int:
        """Return a correlation id, unique in this process until 2^31 calls later."""
        return next(opaques) & OPAQUE_MASK

    def post(self, frame: bytes) -> None:
        """Queue an encoded request, signed where this side has credentials."""
        credentials = self._credentials
        self.write(frame if credentials is None else credentials.sign_frame(frame))

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
            self.post(frame)
            return future
        future = self._loop.create_future()
        if not self.is_open:
            future.set_exception(self._lost_error(request, 0.0))
        else:
            future.set_exception(self._calls.too_many(request))
        return future

    def try_call(
        self, frame: bytes, opaque: int, now: float, deadline: float, request: str, note: Any
    ) -> asyncio.Future[Any] | None:
        """As call(), for a caller that has the loop's time; None, without effect, when it would fail or wait.

        `note` is for the burst hook: it may remove the call from `pending` when it reads the response, and complete the
        future with its own result instead of the RemotingCommand.
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
        if self._credentials is not None:
            frame = self._credentials.sign_frame(frame)
        self.write(frame)
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
        if self.proofs is not None:
            self.proofs.sign(command)
        opaque = command.opaque = self.next_opaque()
        return await self.call(encode_frame(command), opaque, timeout_s, name)

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Send a request without a response, without waiting; it is lost when the connection is or gets closed."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self.next_opaque()
        if self.proofs is not None:
            self.proofs.sign(command)
        elif self._credentials is not None:
            self._credentials.sign(command)
        self.send(command)

    async def wait_writable(self, timeout_s: float, request: str = "") -> None:
        """Wait until the peer takes bytes again. Raises RequestTimeout, ConnectionLost."""
        started = self._loop.time()
        if not self._serving:
            self._flush()  # queued bytes do not count before the transport has them
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
                    text,
                    address=self._name,
                    request=request,
                    elapsed_s=self._loop.time() - started,
                    reason=f"it took no bytes for {timeout_s:.1f} s",
                ) from error
            finally:
                if waiter in self._writable_waiters:
                    self._writable_waiters.remove(waiter)
        if not self.is_open:
            raise self._lost_error(request, self._loop.time() - started)

    def close_when_answered(self, wait_s: float) -> None:
        """Close when no outgoing call is pending, at the latest after `wait_s`."""
        now = self._loop.time()
        self._leave_at = now + wait_s
        if now < self._calls.sweep_at:
            self._calls.sweep_by(now)

    def _after_sweep(self, now: float) -> None:
        if self._leave_at is not None and (not self.pending or now >= self._leave_at):
            self.close("the peer is shutting down")

    def _fail_pending(self, cause: BaseException | None) -> None:
        self._calls.fail_all(self._lost_error, cause)
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _lost_error(self, request: str, elapsed_s: float) -> ConnectionLost:
        why = f": {self._close_reason}" if self._close_reason else ""
        text = f"the connection to {self._name} closed before {request or 'the request'} was answered{why}"
        reason = self._close_reason or "it closed the connection before it answered"
        return ConnectionLost(text, address=self._name, request=request, elapsed_s=elapsed_s, reason=reason)
