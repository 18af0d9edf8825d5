"""The HTTP port of a server: /metrics for Prometheus; /livez, /readyz and /startupz for probes.

A page is rendered in steps of a millisecond, between which the event loop serves other requests. All scrapes
that arrive during rendering get the same page: a hundred scrapers cost as much as one.

A request is answered within ANSWER_S. If a large page is not ready by then, the reply has the completed families: the others are
absent, aerobee_page_complete is 0, and rendering continues. From then on a large page is rendered repeatedly, with pauses, and a
request gets the last page immediately; aerobee_page_age_seconds is its age. Rendering ends after IDLE_S without a request. The
compressed pieces of the last page stay in memory; the next page reuses them and takes a tenth of the time.

The server calls prepare() when it has many new series. prepare() pre-renders the page, so the first scrape
finds such pieces.

A page of prometheus-client has few lines and is rendered without a pause; one that took SHARED_FROM_S of CPU or more is shared
for a time that grows with it, so that many scrapers take a twentieth of the loop for each format. One with more lines is rendered as above.

The server uses only the path, the Accept and the Accept-Encoding of a request; it refuses a request body. It sends a page
in parts: a peer that does not read occupies one part, for at most RESPONSE_S.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from aerobee.clock import Clock, Timer
from aerobee.errors import ConfigError
from aerobee.host_port import join_address
from aerobee.monitoring.exposition import CONTENT_TYPE, GAUGE, Family
from aerobee.monitoring.health import Health
from aerobee.monitoring.page import Page, PageMaker
from aerobee.monitoring.registry_page import RegistryPage, TooManyLines
from aerobee.monitoring.slices import PAUSE_STEPS, SLICE_S, SOON_STEPS
from aerobee.monitoring.web_listener import WebListener

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

ANSWER_S = 0.2  # a page of 5,000 topics and 20 groups must arrive within 0.3 s, including its transfer
LARGE_BYTES = 4_000_000  # 20,000 lines; a request waits for a smaller page, which takes some 15 ms
AHEAD_PAUSE_S = 5.0  # pause between two pages that are rendered without a pending request
IDLE_S = 360.0  # longer than scrape intervals: Prometheus drops a series without samples for 5 minutes
GROWTH_MIN = 1_000  # series; a page with fewer takes milliseconds
BODY_BYTES_MAX = 0
WRITE_BYTES = 65_536
RESPONSE_S = 60.0  # Prometheus gives up after its scrape_timeout, 10 s
CONNECTIONS_MAX = 256
SHARED_FROM_S = 0.01
SHARED_TIMES = 20  # a page of prometheus-client is served again for 20 times the CPU time that it took
SMALL_AGAIN_S = 60.0
GZIP_LEVEL = 1


@dataclass
class _SmallPage:
    """A page of prometheus-client, which requests until then get as well."""

    body: bytes
    content_type: str
    until: float

    @cached_property
    def gzip_body(self) -> bytes:
        return gzip.compress(self.body, GZIP_LEVEL)


class HttpServer:
    """One listener. start() once, then stop(); stop() without start() does nothing."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        health: Health,
        families: Callable[[], Iterable[Family]],
        clock: Clock,
        by_registry: bool = False,
    ) -> None:
        """`host` empty: every address; `port` 0 takes a free one. `families` is called for each page. `by_registry`: pages are small
        and are rendered by prometheus-client (registry_page.py).

        Raises ConfigError when the extra `metrics` is not installed.
        """
        self._web = _load_web()
        self._host, self._port = host, port
        self._health = health
        self._families = families
        self._clock = clock
        self._registry = RegistryPage(families) if by_registry else None
        self._small: dict[str, _SmallPage] = {}  # by content type
        self._large_until = -inf
        self._maker = PageMaker()
        self._making: asyncio.Task[Page] | None = None
        # page for which the current requests wait, and its deadline
        self._wanted: asyncio.Future[Page] | None = None
        self._answer_at = 0.0
        self._hurry = asyncio.Event()  # set while a request waits: no pauses
        self._last: Page | None = None  # the last large page, kept for further requests
        self._again: Timer | None = None
        self._asked_at = -inf
        self._prepared_size = 0
        self._listener: WebListener | None = None
        self.address: tuple[str, int] = (host, port)  # listening address, after start()
        self.page_cpu_s = 0.0  # duration of the last complete page

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
        self.address = listener.address
        log.info(
            "metrics and health of this %s at http://%s/", self._health.role, join_address(*self.address)
        )

    async def stop(self) -> None:
        """Close the listener and what is open on it."""
        if self._again is not None:
            self._again.cancel()
        if self._making is not None:
            self._making.cancel()
        if self._wanted is not None:
            self._wanted.cancel()
        self._again = self._wanted = self._last = None
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()

    def prepare(self, size: int) -> None:
        """Pre-render a page. `size` is the number of series: while it has not grown by a quarter since
        the last call that did so nothing is done."""
        if self._registry is None and size >= self._prepared_size + max(GROWTH_MIN, self._prepared_size // 4):
            self._prepared_size = size
            self._make()

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        small = self._small_page(request.headers.get("Accept", ""))
        if small is not None:
            headers, body = {"Content-Type": small.content_type}, small.body
            if takes_gzip(request.headers.get("Accept-Encoding", "")):
                headers["Content-Encoding"], body = "gzip", small.gzip_body
            return self._response(body=body, headers=headers)
        self._asked_at = self._clock.monotonic()
        page = self._last
        if page is None:
            # Shielded: a disconnecting client must not cancel the page of the others.
            page = await asyncio.shield(self._soon())
        page = page.with_last(self._about(page))
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
                    await asyncio.sleep(0)  # write() yields to the event loop only when the peer is slow
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    def _small_page(self, accepted: str) -> _SmallPage | None:
        """The page of prometheus-client; None without one, and for SMALL_AGAIN_S if it has too many lines."""
        now = self._clock.monotonic()
        if self._registry is None or now < self._large_until:
            return None
        kept = self._small.get(self._registry.content_type(accepted))
        if kept is not None and now < kept.until:
            return kept
        begun_s = thread_time()
        try:
            body, content_type = self._registry.render(accepted)
        except TooManyLines:
            self._small.clear()
            self._large_until = now + SMALL_AGAIN_S
            return None
        cost_s = thread_time() - begun_s
        until = now + SHARED_TIMES * cost_s if cost_s >= SHARED_FROM_S else now
        made = self._small[content_type] = _SmallPage(body, content_type, until)
        return made

    def _soon(self) -> asyncio.Future[Page]:
        """The page for all current requests."""
        if self._wanted is None:
            self._wanted = asyncio.get_running_loop().create_future()
            self._answer_at = self._clock.monotonic() + ANSWER_S
            self._hurry.set()
            self._make()
        return self._wanted

    def _make(self) -> None:
        if self._making is None:
            self._making = asyncio.create_task(self._make_page(), name="metrics-page")
            self._making.add_done_callback(self._page_done)

    async def _make_page(self) -> Page:
        """Render a page: with pauses while no request waits, with short ones otherwise."""
        turn, cpu, work_s = perf_counter(), thread_time(), 0.0
        for _ in self._maker.make(self._families(), self._clock.monotonic()):
            if perf_counter() - turn >= SLICE_S:
                step_s = thread_time() - cpu
                work_s += step_s
                self._answer_in_part()
                await self._pause(step_s * (SOON_STEPS if self._last is None else PAUSE_STEPS))
                turn, cpu = perf_counter(), thread_time()
        self.page_cpu_s = work_s + thread_time() - cpu
        return self._maker.page

    async def _pause(self, pause_s: float) -> None:
        """Yield to other tasks, and pause while no request waits."""
        if self._wanted is not None:
            await asyncio.sleep(0)
            return
        self._hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._hurry.wait()

    def _answer_in_part(self) -> None:
        if (
            self._wanted is not None
            and self._maker.length >= LARGE_BYTES
            and self._clock.monotonic() >= self._answer_at
        ):
            self._wanted.set_result(self._maker.page)
            self._wanted = None

    def _page_done(self, task: asyncio.Task[Page]) -> None:
        self._making = None
        if task.cancelled() or self._listener is None:
            return
        wanted, self._wanted, self._last = self._wanted, None, None
        error = task.exception()
        if error is not None:
            log.error("the page of metrics could not be made", exc_info=error)
            if wanted is not None:
                wanted.set_exception(error)
                wanted.exception()  # logged already
            return
        page = task.result()
        if wanted is not None:
            wanted.set_result(page)
        if page.length >= LARGE_BYTES and self._is_asked:
            self._last = page
            if self._again is not None:
                self._again.cancel()
            self._again = self._clock.call_later(AHEAD_PAUSE_S, self._make_again)

    def _make_again(self) -> None:
        self._again = None
        if self._is_asked:
            self._make()
        else:
            self._last = None  # drop the old page: it must not be served

    @property
    def _is_asked(self) -> bool:
        return self._clock.monotonic() - self._asked_at < IDLE_S

    def _about(self, page: Page) -> Iterator[Family]:
        """Metrics about the page itself, at its end."""
        for name, meaning, value in (
            (
                "aerobee_page_complete",
                "0: families that were not ready in time are left out; a page soon after this one has them",
                int(page.is_whole),
            ),
            (
                "aerobee_page_age_seconds",
                "Since this page was begun: none of its counters was read before",
                max(0.0, self._clock.monotonic() - page.begun_at),
            ),
            ("aerobee_page_work_seconds", "CPU of the last whole page", self.page_cpu_s),
        ):
            yield Family(name, GAUGE, meaning, (("", value),))

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
    """Join pieces to at least `size` bytes each, except the last."""
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
    """aiohttp's server, imported only when needed: it takes 17 MB of memory."""
    try:
        return importlib.import_module("aiohttp.web")
    except ImportError as missing:
        raise ConfigError(
            "metricsExporterType=PROM needs a package that is not installed: pip install 'aerobee[metrics]'"
        ) from missing
