"""The HTTP port of a role: /metrics for Prometheus, /livez, /readyz and /startupz for whoever watches the process.

A page is made in steps of a millisecond between which the event loop serves others. Those who ask while one is being made get
the same one: a hundred scrapers cost what one costs. A page that took more than AHEAD_S of work is made ahead from then on, again
and again with pauses, and whoever asks gets the last one at once. So that this holds of the first scrape too, a page is made when
the role says prepare(): when it has started and when it has much more to show. Nobody has asked then: after IDLE_S no further page
is made ahead, and what stays of the last one are its pieces, from which the next is made in a tenth of the time.

Who asks while a page is made with pauses waits for it, and it is made without pauses from then on.

No part of it takes anything from a request but its path; a peer that sends a body is not listened to. A page is sent in parts, of which a peer
that does not read holds one, and for RESPONSE_S at most.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from aerobee.errors import ConfigError
from aerobee.monitoring.exposition import CONTENT_TYPE, GAUGE, Family
from aerobee.monitoring.health import Health
from aerobee.monitoring.page import Page, PageMaker
from aerobee.monitoring.slices import PAUSE_STEPS, SLICE_S, SOON_STEPS
from aerobee.monitoring.web_listener import WebListener

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

AHEAD_S = 0.1  # of work: a page that costs more is made before it is asked for
AHEAD_PAUSE_S = 5.0  # between two pages that nobody waits for, at least
IDLE_S = 120.0  # when nobody asks for so long nothing is made ahead
GROWTH_MIN = 1_000  # series of a family: of fewer a page is made in milliseconds
BODY_BYTES_MAX = 0
WRITE_BYTES = 65_536
RESPONSE_S = 60.0  # Prometheus gives up after its scrape_timeout, 10 s
CONNECTIONS_MAX = 256


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
        self._maker = PageMaker()
        self._page: asyncio.Task[Page] | None = None
        self._ahead: asyncio.Task[None] | None = None
        self._last: Page | None = None  # made ahead
        self._is_awaited = False  # somebody waits for the page that is being made
        self._prepared_size: int | None = None
        self._made_at = self._asked_at = 0.0
        self._listener: WebListener | None = None
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
        listener = WebListener(app, connections_max=CONNECTIONS_MAX)
        await listener.start(self._host, self._port)
        self._listener = listener
        host, port = self.address = listener.address
        log.info("metrics and health of this %s at http://%s:%s/", self._health.role, host, port)

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        for task in (self._page, self._ahead):
            if task is not None:
                task.cancel()
        self._page = self._ahead = None
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def prepare(self, size: int) -> None:
        """Make a page before anybody asks for it. `size` is how much there is to show: while it has not grown by a quarter since
        the last call that did so nothing is done."""
        known = self._prepared_size
        if known is not None and size < known + max(GROWTH_MIN, known // 4):
            return
        self._prepared_size = size
        self._asked_at = perf_counter()
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._make_ahead(), name="metrics-ahead")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._asked_at = perf_counter()
        page = self._last
        if page is None:
            began_for_nobody = self._page is not None and not self._is_awaited
            self._is_awaited = True
            # Shielded: that one of those who wait goes away stops nothing for the others.
            page = await asyncio.shield(self._making())
            if began_for_nobody and self.page_cpu_s < AHEAD_S:
                # Cheap: what happened since it was begun is shown, too.
                self._is_awaited = True
                page = await asyncio.shield(self._making())
        headers = {"Content-Type": CONTENT_TYPE}
        length, parts = page.length, page.texts()
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            headers["Content-Encoding"] = "gzip"
            length, parts = page.gzip_length, page.gzip_parts()
        if request.method == "HEAD":
            parts = iter(())
        response: web.StreamResponse = self._web.StreamResponse(headers=headers)
        response.content_length = length
        try:
            async with asyncio.timeout(RESPONSE_S):
                await response.prepare(request)
                for part in joined_to(parts, WRITE_BYTES):
                    await response.write(part)
                    await asyncio.sleep(0)  # write() waits only for a peer that is slower than this
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    def _making(self) -> asyncio.Task[Page]:
        """The page that is being made, begun now if there is none."""
        if self._page is None:
            self._page = asyncio.create_task(self._make_page(), name="metrics-page")
            self._page.add_done_callback(self._page_done)
        return self._page

    def _page_done(self, task: asyncio.Task[Page]) -> None:
        self._page, self._is_awaited = None, False
        if task.cancelled():
            return
        if task.exception() is not None:
            log.error("the page of metrics could not be made", exc_info=task.exception())
        elif self.page_cpu_s > AHEAD_S and self._ahead is None:
            self._last = task.result()
            self._ahead = asyncio.create_task(self._make_ahead(), name="metrics-ahead")

    async def _make_ahead(self) -> None:
        """Pages that nobody waits for, until nobody asks any more or they cost little."""
        try:
            while True:
                if self._last is not None:
                    if perf_counter() - self._asked_at >= IDLE_S:
                        return
                    await asyncio.sleep(AHEAD_PAUSE_S)
                making = self._making()
                await asyncio.wait((making,))
                if making.cancelled() or making.exception() is not None:
                    return  # _page_done() has said it
                if self.page_cpu_s < (AHEAD_S if self._last is None else AHEAD_S / 2):
                    return
                self._last = making.result()
        finally:
            self._last = self._ahead = None

    async def _make_page(self) -> Page:
        """While nobody waits with pauses: short ones as long as a scrape would have to wait."""
        began = turn = perf_counter()
        worked_s, turn_cpu = 0.0, thread_time()
        page: Page | None = None
        for made in self._maker.make(self._all_families()):
            page = made
            now = perf_counter()
            if now - turn >= SLICE_S:
                worked_s += thread_time() - turn_cpu
                pauses = 0 if self._is_awaited else SOON_STEPS if self._last is None else PAUSE_STEPS
                await asyncio.sleep((now - turn) * pauses)
                turn, turn_cpu = perf_counter(), thread_time()
        assert page is not None
        ended = self._made_at = perf_counter()
        self.page_s, self.page_cpu_s = ended - began, worked_s + thread_time() - turn_cpu
        return page

    def _all_families(self) -> Iterable[Family]:
        yield from self._families()
        if self._made_at:
            # Of the page before this one: what is made ahead is as old as that when it is asked for.
            for name, meaning, value in (
                ("aerobee_page_work_seconds", "What the page before this one took", self.page_cpu_s),
                (
                    "aerobee_page_made_ahead",
                    "1: this page was made before it was asked for",
                    self._last is not None,
                ),
            ):
                yield Family(name, GAUGE, meaning, (("", float(value)),))

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


def takes_gzip(accepted: str) -> bool:
    """Whether a header Accept-Encoding names gzip, and not in order to refuse it (RFC 9110, 12.5.3)."""
    for each in accepted.split(","):
        name, *parameters = (word.strip().lower() for word in each.split(";"))
        if name == "gzip":
            return not any(word.startswith("q=") and not word[2:].strip("0.") for word in parameters)
    return False


def joined_to(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of `size` at least, but for the last."""
    waiting: list[bytes] = []
    length = 0
    for part in parts:
        waiting.append(part)
        length += len(part)
        if length >= size:
            yield b"".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield b"".join(waiting)


def _load_web() -> Any:
    """aiohttp's server. Loaded when it is needed only: it takes 17 MB of memory."""
    try:
        return importlib.import_module("aiohttp.web")
    except ImportError as missing:
        raise ConfigError(
            "metricsExporterType=PROM needs a package that is not installed: pip install 'aerobee[metrics]'"
        ) from missing
