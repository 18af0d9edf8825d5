"""Serves the requests of one connection: calls each handler, and sends the outcome to the peer
(NettyRemotingAbstract.processRequestCommand).

A handler that is a plain function costs no task and no future. A coroutine handler runs as a task of the
connection; `handler_tasks_max` and `handler_bytes_max` bound their number and the bytes of their requests;
above a bound the connection stops reading. A oneway request gets no reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from aerobee.errors import AerobeeError, RemoteError
from aerobee.ordered_set import OrderedSet
from aerobee.remoting import not_served
from aerobee.remoting.codes import ResponseCode, request_name
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.frame import encode_frame
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.loop_watch import HELD_LIMIT_S, LoopWatch, Watched
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.request_stats import FAILED, ONEWAY, SUCCESS, RequestStats

GO_AWAY_VERSION = 475  # clients above it (5.3.2 and later) know GO_AWAY and repeat the request elsewhere

_LOG = logging.getLogger("aerobee.remoting")


class ServedRequests:
    """The requests of one peer in progress. Belongs to the event loop."""

    def __init__(
        self,
        peer: Peer,
        *,
        handlers: Mapping[int, Handler],
        default: Handler | None,
        watch: LoopWatch,
        stats: RequestStats,
        limits: ConnectionLimits,
        resume: Callable[[], None],
    ) -> None:
        """`default` serves codes without a handler. `resume` is called when a handler's task has ended."""
        self._peer = peer
        self._handlers = handlers
        self._default = default
        self._watch, self._stats = watch, stats
        self._limits = limits
        self._resume = resume
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._task_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether handlers run."""
        return bool(self._tasks)

    @property
    def is_full(self) -> bool:
        """Whether the running handlers have reached a bound of the connection."""
        return (
            len(self._tasks) >= self._limits.handler_tasks_max
            or self._task_bytes >= self._limits.handler_bytes_max
        )

    def turn_away(self, command: RemotingCommand) -> None:
        """Refuse a request because the server stops: reply GO_AWAY if the peer knows it, else nothing."""
        if not command.flag & FLAG_ONEWAY and command.version > GO_AWAY_VERSION:
            self._reply(command, command.reply(ResponseCode.GO_AWAY, remark="the server is shutting down"))

    def serve(self, command: RemotingCommand) -> None:
        """Give one request to its handler; its reply is written now or when the handler's task ends."""
        handler = self._handlers.get(command.code, self._default)
        if handler is None:
            said = not_served.remark(command.code)
            self._reply(command, command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=said))
            return
        watch = self._watch
        started = watch.monotonic()
        try:
            outcome = handler(self._peer, command)
        except Exception as error:
            reply = self._error_reply(command, error)
            self._reply(command, reply)
            self._count(command, reply, watch.monotonic() - started, error)
            return
        finally:
            held_s = watch.monotonic() - started
            if held_s > HELD_LIMIT_S:
                watch.note(command.code, self._peer.address, held_s)
        if outcome is None or type(outcome) is RemotingCommand:
            self._reply(command, outcome)
            self._count(command, outcome, held_s)
        else:
            self._start_task(command, cast("Coroutine[Any, Any, Reply]", outcome), started)

    def cancel(self) -> None:
        """Cancel the running handlers: the peer has disconnected."""
        for task in self._tasks:
            task.cancel()

    def _count(
        self, request: RemotingCommand, reply: Reply, elapsed_s: float, error: Exception | None = None
    ) -> None:
        """Count requests that are answered now; deferred replies are counted when they are sent."""
        if error is not None and not isinstance(error, AerobeeError):
            result = FAILED
        elif request.flag & FLAG_ONEWAY:
            result = ONEWAY
        elif reply is None:
            return
        else:
            result = SUCCESS
        self._stats.add(request.code, 0 if reply is None else reply.code, elapsed_s, result=result)

    def _reply(self, request: RemotingCommand, reply: Reply) -> None:
        if reply is None or request.flag & FLAG_ONEWAY:
            return
        try:
            data = encode_frame(reply)
        except AerobeeError as error:
            _LOG.error("the reply to %s cannot be sent: %s", request_name(request.code), error)
            data = encode_frame(request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        self._peer.write(data)

    def _error_reply(self, request: RemotingCommand, error: Exception) -> RemotingCommand:
        if isinstance(error, RemoteError):
            return request.reply(error.code, remark=error.remark, ext=error.ext)
        if isinstance(error, AerobeeError):
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        _LOG.error("%s of %s failed", request_name(request.code), self._peer.address, exc_info=error)
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _start_task(self, command: RemotingCommand, work: Coroutine[Any, Any, Reply], started: float) -> None:
        body_bytes = len(command.body)
        self._task_bytes += body_bytes
        self._stats.running[command.code] += 1
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(command, work, started), name=f"handler-{command.code}")
        self._tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            work.close()  # a task that is cancelled before its first step never awaits it
            self._tasks.discard(finished)
            self._task_bytes -= body_bytes
            self._stats.running[command.code] -= 1
            if not finished.cancelled() and finished.exception() is not None:
                _LOG.error(
                    "the reply to %s failed", request_name(command.code), exc_info=finished.exception()
                )
            self._resume()

        task.add_done_callback(done)

    async def _run(self, command: RemotingCommand, work: Coroutine[Any, Any, Reply], started: float) -> None:
        failure: Exception | None = None
        try:
            reply = await Watched(work, self._watch, command.code, self._peer)
        except Exception as error:
            reply, failure = self._error_reply(command, error), error
        self._reply(command, reply)
        self._count(command, reply, self._watch.monotonic() - started, failure)
