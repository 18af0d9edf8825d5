"""Reads time series of a Prometheus server: range queries with a bound on time and size, and a cache that all pages share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson

from aerobee.clock import Clock
from aerobee.errors import AerobeeError

TIMEOUT_S = 10.0
DOCUMENT_BYTES_MAX = 1024 * 1024
CACHED_S = 30.0
CACHED_MAX = 256
QUERIES_AT_ONCE = 4


class PrometheusFailed(AerobeeError):
    """A query got no usable reply: carries the reason, without the query."""


class Prometheus:
    """One server. Create it in an event loop, and close() it."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url.rstrip("/")
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._gate = asyncio.Semaphore(QUERIES_AT_ONCE)
        self._cache: dict[tuple[str, int, int, int], tuple[float, asyncio.Task[list[float | None]]]] = {}

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        tasks = [task for _, task in self._cache.values()]
        self._cache.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def range(self, query: str, end_s: int, step_s: int, points: int) -> list[float | None]:
        """The values of a query that yields one series, at `points` times that end with `end_s`; None where there is none.

        Pages that request the same within CACHED_S share one query. Raises PrometheusFailed.
        """
        now_s = self._clock.monotonic()
        key = (query, end_s, step_s, points)
        made_s, task = self._cache.get(key, (-math.inf, None))
        if task is None or now_s - made_s > CACHED_S:
            while len(self._cache) >= CACHED_MAX:
                self._cache.pop(next(iter(self._cache)))
            self._cache.pop(key, None)
            task = asyncio.create_task(self._ask(query, end_s, step_s, points), name="console-prometheus")
            task.add_done_callback(_read_failure)
            self._cache[key] = now_s, task
        return await asyncio.shield(task)

    async def ranges(
        self, queries: Mapping[str, str], end_s: int, step_s: int, points: int
    ) -> dict[str, list[float | None]]:
        """As range(), for several queries by name. Raises the first failure."""
        found = await asyncio.gather(
            *(self.range(query, end_s, step_s, points) for query in queries.values()), return_exceptions=True
        )
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return dict(zip(queries, (each for each in found if isinstance(each, list)), strict=True))

    async def _ask(self, query: str, end_s: int, step_s: int, points: int) -> list[float | None]:
        begin_s = end_s - step_s * (points - 1)
        fields = {"query": query, "start": str(begin_s), "end": str(end_s), "step": str(step_s)}
        document = await self._document(fields)
        try:
            result = document["data"]["result"]
            pairs = result[0]["values"] if result else []
            found = {round((float(at) - begin_s) / step_s): float(value) for at, value in pairs}
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise PrometheusFailed(f"{self.url} replied with another format than Prometheus's") from error
        return [
            value if (value := found.get(at)) is not None and math.isfinite(value) else None
            for at in range(points)
        ]

    async def _document(self, fields: Mapping[str, str]) -> dict[str, Any]:
        async with self._gate:
            if self._session is None:
                self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
            try:
                async with self._session.get(
                    f"{self.url}/api/v1/query_range", params=fields, allow_redirects=False
                ) as reply:
                    body = await reply.content.read(DOCUMENT_BYTES_MAX + 1)
                    while len(body) <= DOCUMENT_BYTES_MAX and (
                        more := await reply.content.read(DOCUMENT_BYTES_MAX)
                    ):
                        body += more
                    status = reply.status
            except TimeoutError as error:
                raise PrometheusFailed(f"{self.url} did not reply within {TIMEOUT_S:.0f} s") from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise PrometheusFailed(f"{self.url} is unreachable: {error}") from error
        if len(body) > DOCUMENT_BYTES_MAX:
            raise PrometheusFailed(f"{self.url} replied with more than {DOCUMENT_BYTES_MAX} bytes")
        if status != 200:
            raise PrometheusFailed(f"{self.url} replied with status {status}")
        try:
            document = orjson.loads(body)
        except ValueError as error:
            raise PrometheusFailed(f"{self.url} replied with another format than JSON") from error
        if not isinstance(document, dict) or document.get("status") != "success":
            raise PrometheusFailed(f"{self.url} refused the query")
        return document


def _read_failure(task: asyncio.Task[list[float | None]]) -> None:
    """A page that closed does not read its failure, which is then no error of the console."""
    if not task.cancelled():
        task.exception()


def quoted(value: str) -> str:
    """A label value as a PromQL string. Names come from untrusted clients: no character of one ends the string."""
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
