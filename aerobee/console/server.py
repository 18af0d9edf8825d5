"""The console's web server: static files, JSON for the pages, events for updates.

GET  /                    the page; /static/… its parts
GET  /api/session         the user and the token that POSTs need
POST /api/login, /api/logout
GET  /api/VIEW?…          views.py
POST /api/plan            shows a placement plan; changes nothing
POST /api/act/ACTION      actions.py; {"dry_run": true} returns a preview
GET  /api/stream          an event after each refresh of the snapshot
GET  /api/tail?topic=     new messages of a topic

Every path takes `cluster`, the name of one of --also; without it the first cluster is meant.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator
from hashlib import sha256
from importlib import resources
from typing import Any

import orjson
from aiohttp import web

from aerobee.access.refusals import Refusals
from aerobee.client import ClientConfig
from aerobee.clock import Clock, SystemClock
from aerobee.console.access import COOKIE, SESSION_S, Access, Session
from aerobee.console.audit import Audit
from aerobee.console.cluster_pages import ClusterPages
from aerobee.console.cluster_users import ClusterUsers
from aerobee.console.config import ConsoleConfig
from aerobee.console.fair_share import FairShare
from aerobee.console.prometheus import Prometheus
from aerobee.console.users import Role
from aerobee.console.views import needed
from aerobee.errors import AerobeeError, ConfigError, UsageError
from aerobee.host_port import is_loopback, join_address
from aerobee.monitoring.web_listener import WebListener

log = logging.getLogger(__name__)
BODY_MAX = 5 * 1024 * 1024
STREAMS_MAX = 2_000
CONNECTIONS_MAX = 2 * STREAMS_MAX
KEEP_ALIVE_S = 15.0
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class ConsoleServer:
    """One console: start(), then stop(). Use it in one event loop only."""

    def __init__(
        self, config: ConsoleConfig, *, client: ClientConfig | None = None, clock: Clock | None = None
    ) -> None:
        """Raises ConfigError for an invalid file of users."""
        self.config = config
        self._clock = clock or SystemClock()
        self._prometheus = Prometheus(config.prometheus_url, self._clock) if config.prometheus_url else None
        self._clusters = {
            name: ClusterPages(nameserver, config, self._clock, self._prometheus, client)
            for name, nameserver in (("", config.nameserver), *config.further_clusters)
        }
        first = self._clusters[""]
        self._admin, self._views, self.snapshot = first.admin, first.views, first.snapshot
        by_cluster = ClusterUsers(first.admin, config.nameserver, client) if config.cluster_users else None
        self._access = Access(config, self._clock, by_cluster)
        self._audit = Audit(config.audit_file, self._clock)
        self._refusals = Refusals()
        self._streams = FairShare(lambda: STREAMS_MAX)
        self._static = _static_files()
        self._listener: WebListener | None = None
        self.address = join_address(config.host, config.port)

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    async def start(self) -> None:
        """Start to listen. Raises OSError when the address is in use."""
        app = web.Application(client_max_size=BODY_MAX, middlewares=[self._access.middleware])
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/favicon.ico", self._icon)
        app.router.add_get("/api/session", self._session)
        app.router.add_post("/api/login", self._login)
        app.router.add_post("/api/logout", self._logout)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/tail", self._tail)
        app.router.add_post("/api/act/{name}", self._act)
        app.router.add_post("/api/plan", self._plan)
        app.router.add_get("/api/{name}", self._view)
        listener = WebListener(app, connections_max=CONNECTIONS_MAX)
        await self._listen(listener)
        self._listener = listener
        host, port = listener.address
        self.address = join_address(host, port)
        for cluster in self._clusters.values():
            await cluster.start()
        if not is_loopback(self.config.host):
            log.warning("the console at %s uses plain HTTP: use a reverse proxy with TLS", self.address)

    async def _listen(self, at: WebListener) -> None:
        """Raises ConfigError for an inherited descriptor that is not a loopback socket."""
        number = self.config.listen_descriptor
        if number < 0:
            await at.start(self.config.host, self.config.port)
            return
        try:
            listener = socket.socket(fileno=number)
        except OSError as error:
            raise ConfigError(f"descriptor {number} is not a listening socket: {error.strerror}") from error
        if not self.config.has_login and not is_loopback(str(listener.getsockname()[0])):
            raise ConfigError(f"descriptor {number} accepts connections of other machines: use --users FILE")
        await at.start_at(listener)

    async def stop(self) -> None:
        """Close the port and the clients. A second call does nothing."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for cluster in self._clusters.values():
            await cluster.stop()
        await listener.stop()
        if self._prometheus is not None:
            await self._prometheus.close()
        for cluster in self._clusters.values():
            await cluster.close()

    # --- pages

    async def _page(self, request: web.Request) -> web.Response:
        return self._static_response(request, "index.html")

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._static:
            raise web.HTTPNotFound(reason=f"unknown file {name}")
        return self._static_response(request, name)

    async def _icon(self, request: web.Request) -> web.Response:
        return self._static_response(request, "icon.svg")

    def _static_response(self, request: web.Request, name: str) -> web.Response:
        """A file of the page; browsers revalidate a cached copy with each request (ETag)."""
        kind = TYPES[name[name.rindex(".") :]]
        body, tag = self._static[name]
        headers = {"Cache-Control": "no-cache", "ETag": f'"{tag}"'}
        if any(known.value in (tag, "*") for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    # --- who

    async def _session(self, request: web.Request) -> web.Response:
        session = self._access.session_of(request)
        document: dict[str, Any] = {
            "has_login": self._access.has_login,
            "read_only": self.config.read_only,
            "clusters": [
                {"name": name, "nameserver": each.nameserver} for name, each in self._clusters.items()
            ],
        }
        if session is not None:
            document |= {
                "user": session.user.name,
                "role": session.user.role.name.lower(),
                "csrf": session.csrf,
            }
        return web.json_response(document)

    async def _login(self, request: web.Request) -> web.Response:
        address = self._access.client_of(request)
        if refusal := self._access.shut_out(
            address
        ):  # no audit line: clients without login could fill the disk
            return web.json_response({"error": refusal}, status=403)
        fields = await _json_object(request)
        name = str(fields.get("name", ""))
        if name and (refusal := self._access.shut_out(address, name)):
            return web.json_response({"error": refusal}, status=403)
        outcome = await self._access.login(request, name, str(fields.get("password", "")))
        result = outcome if isinstance(outcome, str) else "done"
        self._record_login(name, address, result, is_in=not isinstance(outcome, str))
        if isinstance(outcome, str):
            return web.json_response({"error": outcome}, status=403)
        response = web.json_response({"ok": True})
        response.set_cookie(
            COOKIE,
            outcome[0],
            max_age=int(SESSION_S),
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        return response

    def _record_login(self, name: str, address: str, result: str, *, is_in: bool) -> None:
        """Write a line for a login. Failed ones are written up to a rate, so that they cannot fill the disk."""
        now = self._clock.now_ms()
        for host, count in self._refusals.left_out(now):
            self._audit.write(
                user="", address=host, action="login", fields={}, result=f"{count} more refused, not written"
            )
        if is_in or self._refusals.admit(address, now):
            self._audit.write(user=name, address=address, action="login", fields={}, result=result)

    async def _logout(self, request: web.Request) -> web.Response:
        self._access.logout(request)
        response = web.json_response({"ok": True})
        response.del_cookie(COOKIE)
        return response

    # --- data

    def _cluster_of(self, request: web.Request) -> ClusterPages:
        """The cluster that a request names, or the first. Raises HTTPNotFound."""
        found = self._clusters.get(request.query.get("cluster", ""))
        if found is None:
            raise web.HTTPNotFound(reason="unknown cluster")
        return found

    async def _view(self, request: web.Request) -> web.Response:
        cluster = self._cluster_of(request)
        view = cluster.views.paths.get(request.match_info["name"])
        if view is None:
            raise web.HTTPNotFound(reason="unknown view")
        cluster.snapshot.asked()
        if not cluster.snapshot.number:
            await cluster.snapshot.first()
        try:
            return web.json_response(await view(request.query))
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=400)
        except AerobeeError as error:
            return web.json_response({"error": str(error)}, status=502)

    async def _plan(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(reason="the body must be application/json")
        try:
            return web.json_response(await self._cluster_of(request).placement.of_text(await request.read()))
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=400)
        except AerobeeError as error:
            return web.json_response({"error": str(error)}, status=502)

    async def _act(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        table = self._cluster_of(request).actions.table
        if name not in table:
            raise web.HTTPNotFound(reason="unknown action")
        role, run = table[name]
        session = self._access.session_of(request)
        if session is None:  # the session has ended since the middleware checked it
            raise web.HTTPUnauthorized(reason="login required")
        fields = await _json_object(request)
        dry_run = fields.pop("dry_run", False) is True
        refusal = self._refusal(session.user.role, role, dry_run)
        try:
            if not dry_run:
                self._record(request, session, name, fields, refusal or "asked")
            if refusal:
                return web.json_response({"error": refusal}, status=403)
            outcome = await run(fields, dry_run)
        except UsageError as error:
            return self._failed(request, session, name, fields, error, 400, dry_run)
        except AerobeeError as error:
            return self._failed(request, session, name, fields, error, 502, dry_run)
        except OSError as error:
            return web.json_response(
                {"error": f"nothing was done: the audit log cannot be written: {error}"}, status=500
            )
        if not dry_run:
            self._record(request, session, name, fields, f"done: {outcome.text}")
        return web.json_response({"command": outcome.command, "text": outcome.text, "rows": outcome.rows})

    def _refusal(self, has: Role, needs: Role, dry_run: bool) -> str:
        if self.config.read_only and not dry_run:
            return "this console is read-only"
        if has < needs:
            return f"the role {needs.name.lower()} is required, yours is {has.name.lower()}"
        return ""

    def _failed(
        self,
        request: web.Request,
        session: Session,
        name: str,
        fields: dict[str, Any],
        error: AerobeeError,
        status: int,
        dry_run: bool,
    ) -> web.Response:
        if not dry_run:
            self._record(request, session, name, fields, f"failed: {error}")
        return web.json_response({"error": str(error)}, status=status)

    def _record(
        self, request: web.Request, session: Session, name: str, fields: dict[str, Any], result: str
    ) -> None:
        cluster = request.query.get("cluster", "")
        self._audit.write(
            user=session.user.name,
            address=self._access.client_of(request),
            action=name,
            fields={**fields, "cluster": cluster} if cluster else fields,
            result=result,
        )

    # --- events

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        cluster = self._cluster_of(request)

        async def looks() -> AsyncGenerator[bytes, None]:
            number = -1
            while True:
                number, event = await cluster.next_event(number)
                yield event

        return await self._events(request, cluster, looks())

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        try:
            topic = needed(request.query, "topic")
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=400)
        cluster = self._cluster_of(request)
        watched = cluster.tails.watch(topic, self._access.viewer_of(request))

        async def messages() -> AsyncGenerator[bytes, None]:
            try:
                async for event in watched:
                    yield json.dumps(event).encode()
            finally:
                await watched.aclose()

        return await self._events(request, cluster, messages())

    async def _events(
        self, request: web.Request, cluster: ClusterPages, events: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        """Send server-sent events until the page closes the connection."""
        ended = asyncio.Event()
        slot = self._streams.take(self._access.viewer_of(request), ended.set)
        if slot is None:
            return web.json_response(
                {"error": f"the limit of {STREAMS_MAX} open pages is reached"}, status=503
            )
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        over = asyncio.ensure_future(ended.wait())
        waiting: asyncio.Task[bytes] | None = None
        try:
            await response.prepare(request)  # raises if the page has closed the connection
            while True:
                waiting = waiting or asyncio.ensure_future(anext(events))
                done, _ = await asyncio.wait(
                    (waiting, over), timeout=KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if ended.is_set():
                    return response  # the slot went to another viewer
                await self._access.check_user(request)
                if self._access.session_of(request) is None:
                    return response  # logged out, or deleted at the cluster
                if not done:
                    cluster.snapshot.asked()
                    await response.write(b": still here\n\n")
                    continue
                event, waiting = waiting.result(), None
                await response.write(b"data: " + event + b"\n\n")
        except (ConnectionResetError, StopAsyncIteration):
            return response
        finally:
            self._streams.leave(slot)
            over.cancel()
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await events.aclose()


async def _json_object(request: web.Request) -> dict[str, Any]:
    """The body. A form of another page cannot send this type."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(reason="the body must be application/json")
    try:
        fields = orjson.loads(await request.read())  # orjson bounds the nesting and refuses surrogates
    except ValueError:
        raise web.HTTPBadRequest(reason="the body is not JSON") from None
    if not isinstance(fields, dict):
        raise web.HTTPBadRequest(reason="the body is not a JSON object")
    return fields


def _static_files() -> dict[str, tuple[bytes, str]]:
    """All static files with their digests, read once: no path of a request reaches the file system."""
    folder = resources.files("aerobee.console") / "static"
    files = [file for file in folder.iterdir() if file.name[file.name.rfind(".") :] in TYPES]
    return {file.name: (body := file.read_bytes(), sha256(body).hexdigest()[:20]) for file in files}
