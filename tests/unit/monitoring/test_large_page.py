"""Large pages: some are pre-rendered, and every scrape is answered in time, if need be without the last families."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import pytest

from aerobee import collector
from aerobee.clock import ManualClock
from aerobee.monitoring import http_server
from aerobee.monitoring.exposition import GAUGE, Family, Slice
from aerobee.monitoring.health import Health
from aerobee.monitoring.http_server import AHEAD_PAUSE_S, ANSWER_S, IDLE_S, HttpServer
from tests.waiting import wait_until

SLICES = 40
FOREVER = 1e12


class Shown:
    """Two families that know how often a page of them was begun and which of their slices were made."""

    def __init__(self) -> None:
        self.begun_count = 0
        self.made: list[str] = []
        self.on_slice: Callable[[str, int], None] = lambda name, number: None

    def families(self) -> Iterator[Family]:
        self.begun_count += 1
        for name in ("first", "second"):
            yield Family(name, GAUGE, "", slices=self._slices(name))

    def _slices(self, name: str) -> Iterator[Slice]:
        for number in range(SLICES):
            self.on_slice(name, number)
            yield Slice(number, lambda: self._samples(name))

    def _samples(self, name: str) -> list[tuple[str, float]]:
        self.made.append(name)
        return [("", 1)]


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(
    shown: Shown, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpServer]:
    monkeypatch.setattr(http_server, "LARGE_BYTES", 1)
    monkeypatch.setattr(http_server, "SLICE_S", 0.0)
    server = HttpServer(
        host="127.0.0.1", port=0, health=Health("broker"), families=shown.families, clock=clock
    )
    await server.start()
    yield server
    await server.stop()


async def scrape(server: HttpServer) -> str:
    host, port = server.address
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/metrics") as answer:
        assert answer.status == 200
        return await answer.text()


def counts(page: str) -> tuple[int, int]:
    """Samples of either family."""
    return page.count("\nfirst{"), page.count("\nsecond{")


async def test_the_first_scrape_is_made_from_the_pieces_of_a_page_that_was_made_before(
    server: HttpServer, shown: Shown
) -> None:
    server.prepare(10_000)
    await wait_until(lambda: server._making is None)
    assert shown.begun_count == 1
    assert len(shown.made) == 2 * SLICES
    page = await scrape(server)
    assert counts(page) == (SLICES, SLICES)
    assert shown.begun_count == 2  # a page rendered without a scrape is not shown as current
    assert len(shown.made) == 2 * SLICES


async def test_a_page_is_prepared_again_only_when_there_is_much_more_to_show(
    server: HttpServer, shown: Shown
) -> None:
    for size, pages in ((999, 0), (1_000, 1), (1_900, 1), (10_000, 2), (12_000, 2), (12_500, 3), (3, 3)):
        server.prepare(size)
        await wait_until(lambda: server._making is None)
        assert shown.begun_count == pages


async def test_a_large_page_is_refreshed_while_it_is_requested(
    server: HttpServer, shown: Shown, clock: ManualClock
) -> None:
    assert "aerobee_page_age_seconds{} 0.0\n" in await scrape(server)
    await wait_until(lambda: server._last is not None)
    clock.advance(AHEAD_PAUSE_S - 1)
    page = await scrape(server)
    assert f"aerobee_page_age_seconds{{}} {AHEAD_PAUSE_S - 1}\n" in page
    assert "aerobee_page_complete{} 1\n" in page
    assert shown.begun_count == 1
    clock.advance(1)
    await wait_until(lambda: shown.begun_count == 2 and server._making is None)
    assert "aerobee_page_age_seconds{} 0.0\n" in await scrape(server)
    assert shown.begun_count == 2
    clock.advance(IDLE_S)
    await wait_until(lambda: server._last is None and server._making is None)
    made = shown.begun_count
    clock.advance(IDLE_S)
    await asyncio.sleep(0)
    assert shown.begun_count == made
    assert "aerobee_page_age_seconds{} 0.0\n" in await scrape(server)  # an old page is not shown
    assert shown.begun_count == made + 1


async def test_a_small_page_is_made_for_each_scrape(
    server: HttpServer, shown: Shown, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LARGE_BYTES", 1_000_000)
    for number in range(3):
        await scrape(server)
        assert shown.begun_count == number + 1
    clock.advance(IDLE_S)
    assert shown.begun_count == 3


async def test_who_asks_is_answered_in_time_with_the_families_that_are_through(
    server: HttpServer, shown: Shown, clock: ManualClock
) -> None:
    def pass_time(name: str, number: int) -> None:
        if (name, number) == ("second", SLICES // 2) and shown.begun_count == 1:
            clock.advance(ANSWER_S)

    shown.on_slice = pass_time
    page = await scrape(server)
    assert counts(page) == (SLICES, 0)
    assert "TYPE second" not in page
    assert "aerobee_page_complete{} 0\n" in page
    assert f"aerobee_page_age_seconds{{}} {ANSWER_S}\n" in page
    await wait_until(lambda: server._last is not None)  # the rest was made meanwhile
    page = await scrape(server)
    assert counts(page) == (SLICES, SLICES)
    assert "aerobee_page_complete{} 1\n" in page
    assert shown.begun_count == 1


async def test_a_small_page_is_waited_for(
    server: HttpServer, shown: Shown, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LARGE_BYTES", 1_000_000)
    shown.on_slice = lambda name, number: clock.advance(ANSWER_S)
    page = await scrape(server)
    assert counts(page) == (SLICES, SLICES)
    assert "aerobee_page_complete{} 1\n" in page


async def test_a_scrape_during_a_background_render_skips_its_pauses(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SOON_STEPS", FOREVER)
    server.prepare(10_000)
    await wait_until(lambda: shown.begun_count == 1)
    assert counts(await scrape(server)) == (SLICES, SLICES)
    assert shown.begun_count == 1


async def test_a_page_that_fails_is_said_and_the_next_one_is_made(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Iterator[Family]:
        raise ValueError("no number")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(server, "_families", broken)
        host, port = server.address
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/metrics") as answer:
            assert answer.status == 500
    assert "could not be made" in caplog.text
    assert counts(await scrape(server)) == (SLICES, SLICES)


async def test_a_server_that_stops_makes_no_further_page(
    server: HttpServer, shown: Shown, clock: ManualClock
) -> None:
    await scrape(server)
    await wait_until(lambda: server._last is not None)
    await server.stop()
    clock.advance(AHEAD_PAUSE_S)
    await asyncio.sleep(0)
    assert shown.begun_count == 1


def test_tables_are_hidden_from_the_collector_as_they_grow_in_a_process_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[int] = []
    thresholds: list[tuple[int, ...]] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    monkeypatch.setattr(gc, "set_threshold", lambda *numbers: thresholds.append(numbers))
    monkeypatch.setattr(collector, "_is_own", False)
    monkeypatch.setattr(collector, "_hidden", {})
    assert not collector.hide_grown("pairs", 1_000_000)
    collector.own_process()
    assert thresholds[0][:2] == (collector.NEW_OBJECTS_MAX, collector.YOUNG_COLLECTIONS_MAX)
    sizes = (4_999, 5_000, 9_999, 10_000, 100_000, 124_999, 125_000, 50)
    assert [collector.hide_grown("pairs", size) for size in sizes] == [
        False,
        True,
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    assert collector.hide_grown("others", 5_000)
    assert len(frozen) == 5
