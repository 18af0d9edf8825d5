"""A listener for HTTP that untrusted clients cannot exhaust, on aiohttp.

aiohttp accepts any number of connections, and each may be silent for an hour: at a broker they would take the
descriptors that its store and its clients need. Here a connection beyond the bound ends the oldest connection
of the address with the most connections. So a client that opens many connections loses its own ones, not
those of Prometheus or of an administrator at another address. The event loop accepts up to BACKLOG
simultaneous connections before the server sees the first, so that many more are open for one iteration.
Invalid HTTP, and a peer that disconnects before its reply, cause a debug line; aiohttp would write a
traceback for each.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from heapq import heapify, heapreplace
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from aerobee.host_port import bare_host, join_address
from aerobee.log_throttle import LogThrottle
from aerobee.system import open_files_max

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75.0  # maximum idle time of a connection between two requests
CLOSE_TIMEOUT_S = 1.0
BACKLOG = 128


class WebListener:
    """One port of an application. start() once, then stop(); stop() without start() does nothing."""

    def __init__(self, app: web.Application, *, connections_max: int) -> None:
        """Connections beyond `connections_max`, or half of the limit of open files, are aborted, even during
        a reply.
        """
        web_runner = importlib.import_module("aiohttp.web_runner")
        self._runner: web.AppRunner = web_runner.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=CLOSE_TIMEOUT_S,
            keepalive_timeout=KEEP_ALIVE_S,
            logger=_requests_log(),
        )
        self._connections_max = min(connections_max, max(16, open_files_max() // 2))
        self._throttle = LogThrottle(log, monotonic)
        self._look: asyncio.Handle | None = None
        self._listener: asyncio.Server | None = None
        self.address: tuple[str, int] = ("", 0)  # after start()

    async def start(self, host: str, port: int) -> None:
        """Listen; `host` empty: at every address. Raises OSError when the address is taken."""
        await self._start(host=bare_host(host) or None, port=port, reuse_address=True)

    async def start_at(self, listener: socket.socket) -> None:
        """Listen at a bound socket."""
        await self._start(sock=listener)

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        await self._runner.cleanup()

    async def _start(self, **where: Any) -> None:
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            server = self._runner.server
            assert server is not None
            self._look_at_each(server)
            self._listener = await loop.create_server(server, backlog=BACKLOG, **where)
        except BaseException:
            await self.stop()
            raise
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.address = (str(host), int(port))

    def _look_at_each(self, server: web.Server) -> None:
        """Count connections after each new one. Event loops report it at different times: asyncio's before
        timers that are due, uvloop's in a later iteration, so no delay after accept() is right for both.
        """
        known = server.connection_made

        def connection_made(handler: RequestHandler, transport: asyncio.Transport) -> None:
            known(handler, transport)
            if self._look is None:  # one check counts all connections of this event loop iteration
                self._look = asyncio.get_running_loop().call_soon(self._end_most)

        server.connection_made = connection_made  # type: ignore[method-assign]

    def _end_most(self) -> None:
        self._look = None
        server = self._runner.server
        if server is None:
            return
        by_address: dict[str, list[asyncio.WriteTransport]] = {}  # oldest connection last
        for each in reversed(server.connections):
            # uvloop's transports are of no class of asyncio's; they have the same methods.
            transport = cast("asyncio.WriteTransport | None", each.transport)
            if transport is not None and not transport.is_closing():
                peer = transport.get_extra_info("peername") or ("",)
                by_address.setdefault(peer[0], []).append(transport)
        count = sum(map(len, by_address.values()))
        most_first = [(-len(transports), address) for address, transports in by_address.items()]
        heapify(most_first)
        for _ in range(count - self._connections_max):
            number, address = most_first[0]
            heapreplace(most_first, (number + 1, address))
            self._throttle.warn(
                "full",
                "%d connections are open at %s: the oldest of %s, which has most, is ended for one more",
                self._connections_max,
                join_address(*self.address),
                address,
            )
            by_address[address].pop().abort()  # close() would wait for a peer that does not read


def _requests_log() -> logging.Logger:
    """Logger for aiohttp: errors of handlers stay errors; errors that peers cause become debug lines."""
    found = logging.getLogger(f"{__name__}.requests")
    if not found.filters:
        found.addFilter(_PeersErrors())
    return found


class _PeersErrors(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._kind: type[Exception] = importlib.import_module("aiohttp.http_exceptions").HttpProcessingError

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if not isinstance(error, self._kind | ConnectionError):
            return True
        log.debug("%s: %.200s", record.getMessage(), error)
        return False
