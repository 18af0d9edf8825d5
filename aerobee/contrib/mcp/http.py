"""Streamable HTTP: POST /mcp, without sessions; on loopback, or at any address with a token.

Without a token only programs of this machine reach the server, which refuses other Host and Origin headers, so that a web
page whose name resolves to 127.0.0.1 cannot call tools. With a token each request needs `Authorization: Bearer TOKEN`. The server
speaks HTTP: at other addresses than loopback put a reverse proxy with TLS in front of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from aerobee.errors import ConfigError
from aerobee.host_port import is_loopback, join_address

PATH = "/mcp"
PORT = 8_085
TOKEN_CHARS_MIN = 16
CONNECTIONS_MAX = 64
BODY_BYTES_MAX = 1024 * 1024  # of a request: arguments are short
STOP_S = 5
SILENT_S = 10.0
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where the server listens. Raises ConfigError for an address of other machines without a token."""

    host: str = "127.0.0.1"
    """Address of the listener."""
    port: int = PORT
    """Port of the listener. 0: a free port."""
    token: str = ""
    """Token that each request needs. Empty: none."""

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise ConfigError(
                f"the MCP server would listen at {self.host} without a token: use --token-file, or listen at 127.0.0.1"
            )
        if self.token and (len(self.token) < TOKEN_CHARS_MIN or not self.token.isascii()):
            raise ConfigError(f"the token must have at least {TOKEN_CHARS_MIN} characters, all of them ASCII")


class HttpServer:
    """A listener with the tools of one server."""

    def __init__(self, server: MCPServer[Any], config: HttpConfig) -> None:
        app: App = server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=BODY_BYTES_MAX,
            host=config.host,
            transport_security=_allowed_names(config),
        )
        self._config = config
        self._app = with_token(app, config.token) if config.token else app
        self._socket: socket.socket | None = None
        self._uvicorn: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The URL that clients use."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return f"http://{join_address(host, port)}{PATH}"

    async def start(self) -> None:
        """Listen. Raises OSError when the port is in use."""
        family = socket.AF_INET6 if ":" in self._config.host else socket.AF_INET
        self._socket = socket.create_server((self._config.host, self._config.port), family=family)
        self._uvicorn = _Uvicorn(
            uvicorn.Config(
                self._app,
                http=_Protocol,
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                lifespan="on",
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=STOP_S,
                server_header=False,
            )
        )
        self._task = asyncio.create_task(self._uvicorn.serve([self._socket]), name="mcp-http")

    async def stop(self) -> None:
        """Refuse new requests, answer those in progress for up to STOP_S, and close."""
        if self._uvicorn is not None and self._task is not None:
            self._uvicorn.should_exit = True
            await self._task
        if self._socket is not None:
            self._socket.close()


def _allowed_names(config: HttpConfig) -> TransportSecuritySettings:
    """The Host and Origin headers that are accepted. The SDK itself would protect three names of this machine alone."""
    if config.token:  # which no web page has: the Host header of other machines may be any name
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    own = join_address(config.host, 0).rpartition(":")[0]
    names = [f"{name}:*" for name in dict.fromkeys((*LOOPBACK_NAMES, own))]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=names,
        allowed_origins=[f"http://{name}" for name in names],
    )


class _Protocol(AutoHTTPProtocol):
    """uvicorn's, without a limit there: a connection that has no request under way for some SILENT_S is closed, for it counts
    against CONNECTIONS_MAX before it has proved anything."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._schedule_look(None)

    def _schedule_look(self, idle_since: Any) -> None:
        """`idle_since`: the answered request behind which the connection idles already."""
        self.loop.call_later(SILENT_S, self._look, idle_since)

    def _look(self, idle_since: Any) -> None:
        if self.transport.is_closing():
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is idle_since:
            self.transport.abort()
        else:
            self._schedule_look(self.cycle if is_idle else self)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: the command has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def with_token(app: App, token: str) -> App:
    """The app, for requests with `Authorization: Bearer TOKEN` only; others get 401."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if scope["type"] == "http" and hmac.compare_digest(given, expected):
            await app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"a token is needed: Authorization: Bearer TOKEN\n"}
        )

    return guarded
