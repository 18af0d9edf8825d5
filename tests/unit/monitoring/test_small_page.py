"""Pages of prometheus-client: many scrapers share one, and one with many lines is rendered in steps instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

pytest.importorskip("prometheus_client", reason="needs the extra metrics")

from aerobee.clock import ManualClock
from aerobee.monitoring import http_server
from aerobee.monitoring.exposition import GAUGE, Family, label_text
from aerobee.monitoring.health import Health
from aerobee.monitoring.http_server import SMALL_AGAIN_S, HttpServer
from aerobee.monitoring.registry_page import LINES_MAX

LONG = 1e9  # times the CPU of a page


class Brokers:
    """A family with a line for each of `count` brokers; knows how often it was read, and how many lines were made."""

    def __init__(self) -> None:
        self.count, self.reads, self.lines = 1, 0, 0

    def families(self) -> Iterator[Family]:
        self.reads += 1
        yield Family("aerobee_broker", GAUGE, "", self._samples())

    def _samples(self) -> Iterator[tuple[str, float]]:
        for number in range(self.count):
            self.lines += 1
            yield label_text({"name": f"b{number}"}), 1


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(
    brokers: Brokers, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpServer]:
    monkeypatch.setattr(http_server, "SHARED_TIMES", LONG)
    monkeypatch.setattr(http_server, "SHARED_FROM_S", 0.0)
    server = HttpServer(
        host="127.0.0.1",
        port=0,
        health=Health("nameserver"),
        families=brokers.families,
        clock=clock,
        by_registry=True,
    )
    await server.start()
    yield server
    await server.stop()


async def scrape(server: HttpServer, **headers: str) -> str:
    host, port = server.address
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/metrics", headers=headers) as answer,
    ):
        assert answer.status == 200
        return await answer.text()


async def test_many_scrapers_cost_as_much_as_one(
    server: HttpServer, brokers: Brokers, clock: ManualClock
) -> None:
    pages = {await scrape(server, **{"Accept-Encoding": coding}) for coding in ("gzip", "identity") * 10}
    assert len(pages) == 1
    assert "aerobee_broker{" in pages.pop()
    assert brokers.reads == 1
    assert (await scrape(server, Accept="application/openmetrics-text")).endswith("# EOF\n")
    assert brokers.reads == 2
    clock.advance(1e12)
    brokers.count = 2
    assert (await scrape(server)).count("aerobee_broker{") == 2


async def test_a_page_with_many_lines_is_rendered_in_steps(
    server: HttpServer, brokers: Brokers, clock: ManualClock
) -> None:
    brokers.count = LINES_MAX
    assert "python_info" in await scrape(server)
    clock.advance(1e12)
    brokers.count, brokers.lines = 3 * LINES_MAX, 0
    page = await scrape(server)
    assert page.count("aerobee_broker{") == brokers.count
    assert "aerobee_page_complete" in page
    assert brokers.lines <= LINES_MAX + 1 + brokers.count
    brokers.count = 1
    assert "python_info" not in await scrape(server)
    clock.advance(SMALL_AGAIN_S)
    assert "python_info" in await scrape(server)


async def test_a_cheap_page_is_made_for_each_request(
    server: HttpServer, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SHARED_FROM_S", 60.0)
    for count in (1, 2, 3):
        brokers.count = count
        assert (await scrape(server)).count("aerobee_broker{") == count
