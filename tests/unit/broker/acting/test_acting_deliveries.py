"""What an acting master cannot read is left for its master: it is neither noted as delivered nor passed over."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, cast

import pytest

from aerobee.broker.acting import deliveries
from aerobee.broker.acting.deliveries import ActingDeliveries
from aerobee.broker.acting.waiting import Waits
from aerobee.clock import Clock, ManualClock, SystemClock
from aerobee.errors import NoBroker
from tests.waiting import wait_until


class Noted:
    """Stands for the schedule and for the table of deliveries."""

    def __init__(self) -> None:
        self.sources: list[int] = []
        self.levels: list[dict[int, int]] = []

    def add(self, sources: Any) -> None:
        self.sources += sources

    def delivered_elsewhere(self, offsets: dict[int, int]) -> None:
        self.levels.append(offsets)


class Bridge:
    async def send(self, message: object) -> str:
        return "broker-b"


class ChoosyBridge:
    """Takes the messages of one topic; those of all others are refused for as long as the test lasts."""

    def __init__(self) -> None:
        self.refused = 0
        self.took: list[int] = []
        self.done = asyncio.Event()

    async def send(self, message: Any) -> str:
        await asyncio.sleep(0)
        if message.topic != "good":
            self.refused += 1
            raise NoBroker("no broker takes it")
        self.took.append(message.number)
        if len(self.took) == GOOD:
            self.done.set()
        return "broker-b"


class Leaving(NamedTuple):
    topic: str
    number: int


GOOD, BAD = 50, 3_000


async def test_what_no_broker_takes_delays_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that become due while thousands of others are refused again and again leave when it is their time."""
    clock, bridge = ManualClock(), ChoosyBridge()
    started_ms = clock.now_ms()
    acting = make_acting(Noted(), bridge, clock)

    async def waiting() -> list[Waits]:
        bad = [Waits(started_ms, number) for number in range(BAD)]
        good = [Waits(started_ms + 5_000 + number, BAD + number) for number in range(GOOD)]
        return bad + good  # in order, so a heap

    def leaving(store: object, waits: Waits, inner_group: str) -> Leaving:
        return Leaving("bad" if waits.physical_offset < BAD else "good", waits.physical_offset)

    monkeypatch.setattr(acting, "_all", waiting)
    monkeypatch.setattr(deliveries, "leaving", leaving)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(acting.run())
        await wait_until(lambda: bridge.refused >= BAD)  # each once; a second later they are tried again
        refused_before = bridge.refused
        clock.advance(5 + GOOD / 1000)
        await bridge.done.wait()
        acting.finish()
        await running
    assert bridge.took == list(range(BAD, BAD + GOOD))
    assert bridge.refused - refused_before < BAD, "the good ones waited for all refused ones"


def make_acting(noted: Noted, bridge: object, clock: Clock) -> ActingDeliveries:
    return ActingDeliveries(
        store=cast(Any, None),
        schedule=cast(Any, noted),
        escaped=cast(Any, noted),
        bridge=cast(Any, bridge),
        halves=lambda: (),
        pending_timers=cast(Any, None),
        clock=clock,
        inner_group="g",
    )


async def test_what_cannot_be_read_here_waits_for_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    acting = make_acting(noted, Bridge(), SystemClock())

    async def waiting() -> list[Waits]:
        found = [Waits(0, 100, 1, 0), Waits(0, 200, 1, 1)]
        for each in found:
            acting._levels[each.level].add(each.queue_offset)
        return found

    def leaving(store: object, waits: Waits, inner_group: str) -> object:
        return None if waits.physical_offset == 100 else object()

    monkeypatch.setattr(acting, "_all", waiting)
    monkeypatch.setattr(deliveries, "leaving", leaving)
    async with asyncio.timeout(60):
        await acting.run()
    assert noted.sources == [200]
    assert noted.levels == [{1: 0}]
