"""The HTTP port of a role: /metrics for Prometheus, /livez, /readyz and /startupz for whoever watches the process.

A page is made in slices between which the event loop serves others. Those who ask while one is being made get the same
one: a hundred scrapers cost what one costs.

No part of it takes anything from a request but its path; a peer that sends a body is not listened to.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import zlib
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aerobee.errors import ConfigError
from aerobee.monitoring.exposition import CONTENT_TYPE, Family, render
from aerobee.monitoring.health import Health

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

SLICE_S = 0.001  # so long a page is worked on before others get their turn
BODY_BYTES_MAX = 0
CLOSE_TIMEOUT_S = 1.0
_GZIP_WINDOW = 31


class HttpServer:
    """One listener. start() once, then stop(); stop() without start() does nothing."""

    def __init__(
        self, *, host: str, port: int, health: Health, families: Callable[[], Iterable[Family]]
    ) -> None:
        """`host` empty: every address; `port` 0 takes a free one. `families` is asked for each page.

        Raises ConfigError when the extra `metrics` is not installed.
        """
        self._web = _load_web()
        self._host, self._port = host, port
        self._health = health
        self._families = families
        self._page: asyncio.Task[bytes] | None = None
        self._runner: web.AppRunner | None = None
        self.address: tuple[str, int] = (host, port)  # where it listens, after start()
        self.page_s = 0.0  # how long the last page took, from the first line to the last
        self.page_cpu_s = 0.0  # and how much of it was work

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        app = self._web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/startupz", self._started)
        app.router.add_get("/", self._index)
        self._runner = self._web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=CLOSE_TIMEOUT_S
        )
        await self._runner.setup()
        site = self._web.TCPSite(self._runner, self._host or None, self._port, reuse_address=True)
        try:
            await site.start()
        except BaseException:
            await self.stop()
            raise
        host, port = self._runner.addresses[0][:2]
        self.address = (str(host), int(port))
        log.info("metrics and health of this %s at http://%s:%s/", self._health.role, host, port)

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        if self._page is not None:
            self._page.cancel()
            self._page = None
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._page is None:
            self._page = asyncio.create_task(self._make_page(), name="metrics-page")
            self._page.add_done_callback(self._page_done)
        # Shielded: that one of those who wait goes away stops nothing for the others.
        page = await asyncio.shield(self._page)
        headers = {"Content-Type": CONTENT_TYPE}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            page = await asyncio.to_thread(_gzip, page)
        return self._response(body=page, headers=headers)

    def _page_done(self, task: asyncio.Task[bytes]) -> None:
        self._page = None
        if not task.cancelled() and task.exception() is not None:
            log.error("the page of metrics could not be made", exc_info=task.exception())

    async def _make_page(self) -> bytes:
        began = turn = perf_counter()
        pieces: list[bytes] = []
        worked_s = 0.0
        for piece in render(self._families()):
            pieces.append(piece.encode())
            now = perf_counter()
            if now - turn >= SLICE_S:
                worked_s += now - turn
                await asyncio.sleep(0)
                turn = perf_counter()
        page = b"".join(pieces)
        ended = perf_counter()
        self.page_s, self.page_cpu_s = ended - began, worked_s + ended - turn
        return page

    async def _live(self, request: web.Request) -> web.Response:
        return self._answer({"role": self._health.role, "live": True}, 200)

    async def _started(self, request: web.Request) -> web.Response:
        started = self._health.is_started
        return self._answer({"role": self._health.role, "started": started}, 200 if started else 503)

    async def _ready(self, request: web.Request) -> web.Response:
        reasons = self._health.reasons()
        body = {"role": self._health.role, "ready": not reasons, **({"reasons": reasons} if reasons else {})}
        return self._answer(body, 503 if reasons else 200)

    async def _index(self, request: web.Request) -> web.Response:
        paths = ("/metrics", "/livez", "/readyz", "/startupz")
        return self._response(text=f"{self._health.role}: {' '.join(paths)}\n")

    def _answer(self, body: dict[str, object], status: int) -> web.Response:
        return self._response(text=json.dumps(body) + "\n", status=status, content_type="application/json")

    def _response(self, **fields: Any) -> web.Response:
        response: web.Response = self._web.Response(**fields)
        return response


def _load_web() -> Any:
    """aiohttp's server. Loaded when it is needed only: it takes 17 MB of memory."""
    try:
        return importlib.import_module("aiohttp.web")
    except ImportError as missing:
        raise ConfigError(
            "metricsExporterType=PROM needs a package that is not installed: pip install 'aerobee[metrics]'"
        ) from missing


def _gzip(page: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(page) + packer.flush()
