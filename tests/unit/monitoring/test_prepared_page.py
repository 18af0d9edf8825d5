"""Pages that are made before anybody asks: the first scrape of a large broker is answered like any other."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from aerobee import collector
from aerobee.monitoring import http_server
from aerobee.monitoring.exposition import GAUGE, Family, Slice
from aerobee.monitoring.health import Health
from aerobee.monitoring.http_server import HttpServer
from tests.waiting import wait_until

SLICES = 40


class Shown:
    """Families that know how often a page of them was begun."""

    def __init__(self) -> None:
        self.begun_count = 0

    def families(self) -> Iterator[Family]:
        self.begun_count += 1
        slices = (Slice(object(), lambda: [("", 1)]) for _ in range(SLICES))
        yield Family("large", GAUGE, "", slices=slices)


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
async def server(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpServer]:
    monkeypatch.setattr(http_server, "AHEAD_S", -1.0)  # every page costs much
    monkeypatch.setattr(http_server, "AHEAD_PAUSE_S", 0.0)
    server = HttpServer(host="127.0.0.1", port=0, health=Health("broker"), families=shown.families)
    await server.start()
    yield server
    await server.stop()


async def scrape(server: HttpServer) -> str:
    host, port = server.address
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}/metrics") as answer:
        return await answer.text()


async def test_the_first_scrape_gets_a_page_that_was_made_before(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "AHEAD_PAUSE_S", 3_600.0)
    server.prepare(0)
    await wait_until(lambda: server._last is not None)
    assert shown.begun_count == 1
    assert (await scrape(server)).count("\nlarge{") == SLICES
    assert shown.begun_count == 1


async def test_a_page_is_prepared_again_only_when_there_is_much_more_to_show(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.0)
    for size, pages in ((0, 1), (900, 1), (10_000, 2), (12_000, 2), (12_500, 3), (3, 3)):
        server.prepare(size)
        await wait_until(lambda pages=pages: shown.begun_count == pages and server._ahead is None)


async def test_nothing_is_made_for_nobody_when_the_time_is_over(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.prepare(0)
    await wait_until(lambda: shown.begun_count >= 3)
    monkeypatch.setattr(http_server, "IDLE_S", 0.0)
    await wait_until(lambda: server._ahead is None)
    made = shown.begun_count
    for _ in range(100):
        await asyncio.sleep(0)
    assert shown.begun_count == made
    assert server._last is None  # an old page is shown to nobody


async def test_who_asks_too_early_gets_the_page_that_is_being_made_without_further_pauses(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SLICE_S", 0.0)
    monkeypatch.setattr(http_server, "AHEAD_PAUSE_S", 3_600.0)
    pauses: list[bool] = []
    reached, go_on = asyncio.Event(), asyncio.Event()
    sleep = asyncio.sleep

    async def pause(delay_s: float) -> None:
        task = asyncio.current_task()
        if task is None or task.get_name() != "metrics-page":
            await sleep(delay_s)
            return
        pauses.append(delay_s > 0)
        if len(pauses) == 10:
            reached.set()
            await go_on.wait()
        await sleep(0)

    monkeypatch.setattr(http_server.asyncio, "sleep", pause)
    server.prepare(0)
    await reached.wait()
    asked = asyncio.create_task(scrape(server))
    await wait_until(lambda: server._is_awaited)
    go_on.set()
    assert (await asked).count("\nlarge{") == SLICES
    assert shown.begun_count == 1
    assert all(pauses[:10])
    assert not any(pauses[10:])
    assert len(pauses) > SLICES


async def test_who_asks_while_a_cheap_page_is_prepared_gets_one_that_was_begun_then(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "AHEAD_S", 3_600.0)
    monkeypatch.setattr(http_server, "SLICE_S", 0.0)
    go_on = asyncio.Event()
    sleep = asyncio.sleep
    second: list[float] = []

    async def pause(delay_s: float) -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "metrics-page":
            if shown.begun_count == 2:
                second.append(delay_s)
            await go_on.wait()
            delay_s = 0.0
        await sleep(delay_s)

    monkeypatch.setattr(http_server.asyncio, "sleep", pause)
    server.prepare(0)
    await wait_until(lambda: shown.begun_count == 1)
    asked = asyncio.create_task(scrape(server))
    await wait_until(lambda: server._is_awaited)
    go_on.set()
    assert (await asked).count("\nlarge{") == SLICES
    assert shown.begun_count == 2
    assert not any(second)  # somebody waits for it


async def test_a_page_that_fails_is_said_and_the_next_one_is_made(
    server: HttpServer, shown: Shown, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Iterator[Family]:
        raise ValueError("no number")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(server, "_families", broken)
        server.prepare(0)
        await wait_until(lambda: server._ahead is None)
    assert "could not be made" in caplog.text
    assert "large{} 1" in await scrape(server)


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
