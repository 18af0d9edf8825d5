"""When a queue that leaves a broker is drained: nothing of it may come again, and that was so for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from aerobee.placement.apply import Applier
from aerobee.placement.apply_config import ApplyConfig
from aerobee.placement.journal import Journal
from aerobee.placement.plan import Forecast, Plan, TopicChange
from aerobee.placement.steps import Kind, State, Step

NOTHING = Forecast(imbalance={}, broken_goals={}, loads={})
CHANGE = TopicChange(topic="away", before={"a": 1, "b": 1}, after={"a": 0, "b": 2})


class Time:
    """A clock that each sleep moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Broker:
    """What POP has of the topic at a broker that does not tell: records until `settled_s`, then a message that comes again."""

    def __init__(self, time: Time, settled_s: float, read_s: float) -> None:
        self._time, self._settled_s, self._read_s = time, settled_s, read_s
        self.on_ask: Callable[[], None] = lambda: None

    @property
    def is_settled(self) -> bool:
        return self._time.now_s >= self._settled_s

    async def unread(self, *_: object) -> str:
        return ""

    async def waiting_again(self, *_: object) -> str:
        waits = self.is_settled and self._time.now_s < self._read_s
        self.on_ask()
        return "group g gets 1 message of a again" if waits else ""

    async def arrivals(self, *_: object) -> str:
        return ""

    async def reading_groups(self, topic: str) -> tuple[str, ...]:
        return ("g",)

    async def unsettled_pops(self, *_: object) -> str:
        return "" if self.is_settled else "1 record of POP is not settled at a"

    async def ends(self, *_: object) -> dict[int, int]:
        return {0: 3}

    async def state_at(self, *_: object) -> tuple[State, int]:
        return State(1, 0), 1


def applier(time: Time, broker: Broker, path: Path, **config: float) -> Applier:
    plan = Plan(made_at_ms=0, changes=(CHANGE,), before=NOTHING, after=NOTHING, warnings=())
    made = Applier(
        cast(Any, broker),
        plan,
        Journal(path / "journal"),
        clock=cast(Any, time),
        config=ApplyConfig(grace_s=5.0, poll_s=1.0, **config),
    )
    made._masters = {"a": "127.0.0.1:10911"}
    return made


async def drained_at(time: Time, broker: Broker, path: Path, **config: float) -> float:
    step = Step(Kind.DRAIN, "away", "a", State(1, 0), first=0, end=1)
    assert await applier(time, broker, path, **config)._drain(step, CHANGE, grace_s=5.0)
    return time.now_s


async def test_what_pop_settles_between_two_looks_is_waited_for(tmp_path: Path) -> None:
    time = Time()
    broker = Broker(time, settled_s=20.5, read_s=40.0)
    asks = 0

    def settles_behind_the_first_look() -> None:
        nonlocal asks
        asks += 1
        if time.now_s == 20.0:  # after the topic of what comes again was looked at, before the records are
            time.now_s = 20.6

    broker.on_ask = settles_behind_the_first_look
    assert await drained_at(time, broker, tmp_path) >= 45.0
    assert asks > 20


async def test_the_grace_time_begins_when_all_is_settled(tmp_path: Path) -> None:
    time = Time()
    assert await drained_at(time, Broker(time, settled_s=20.0, read_s=0.0), tmp_path) == pytest.approx(25.0)


async def test_records_that_are_never_settled_hold_a_topic_for_so_long(tmp_path: Path) -> None:
    time = Time()
    broker = Broker(time, settled_s=1e9, read_s=0.0)
    assert await drained_at(time, broker, tmp_path, pop_s=60.0) == pytest.approx(60.0)
