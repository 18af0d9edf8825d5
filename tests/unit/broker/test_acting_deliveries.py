"""What an acting master cannot read is left for its master: it is neither noted as delivered nor passed over."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aerobee.broker.acting import deliveries
from aerobee.broker.acting.deliveries import ActingDeliveries
from aerobee.broker.acting.waiting import Waits
from aerobee.clock import SystemClock


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


async def test_what_cannot_be_read_here_waits_for_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()
    acting = ActingDeliveries(
        store=cast(Any, None),
        schedule=cast(Any, noted),
        escaped=cast(Any, noted),
        bridge=cast(Any, Bridge()),
        halves=lambda: (),
        clock=SystemClock(),
        inner_group="g",
    )

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
