"""How often a slave asks for its master's tables."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.replication.metadata_sync import MetadataSync
from aerobee.clock import SystemClock
from aerobee.errors import RequestTimeout
from aerobee.remoting.command import RemotingCommand


class JumpingClock:
    """A sleep takes no time here; a pause of a second or more ends the test's task."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        if delay_s >= 1.0:
            self.pauses_s.append(delay_s)
            raise asyncio.CancelledError


class Master:
    """Answers with offsets that belong to a log of `log_end` bytes, each answer after `answer_s`."""

    def __init__(self, clock: JumpingClock, *, log_end: int = 0, answer_s: float = 0.0) -> None:
        self._clock, self._log_end, self._answer_s = clock, log_end, answer_s

    def connection_to(self, address: str) -> object:
        return self

    async def ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        self._clock.now_s += self._answer_s
        return RemotingCommand(0, {"aerobeeLogEnd": str(self._log_end)}, b'{"offsetTable":{}}')


def sync_of(clock: JumpingClock, master: Master, step: str) -> MetadataSync:
    """One whose round is one step."""

    async def delete_ended(deleted: object) -> list[str]:
        clock.now_s += 0.5  # a disk that takes its time
        return []

    topics = SimpleNamespace(copied_to=0, deleted={"gone": 0}, log_cut=lambda end: None)
    parts: dict[str, Any] = dict.fromkeys(("mappings", "groups", "modes", "filters"))
    parts |= {
        "questions": master,
        "store": SimpleNamespace(log=SimpleNamespace(end=0), delete_ended=delete_ended),
        "topics": topics,
        "offsets": ConsumerOffsets(clock=SystemClock()),
        "schedule": SimpleNamespace(offsets={1: 1}, copy_from=lambda levels, end: None),
        "clock": clock,
    }
    sync = MetadataSync(**parts)
    sync._round = getattr(sync, step)  # type: ignore[method-assign]
    return sync


@pytest.mark.parametrize("step", ["_delete_ended", "_copy_offsets"])
async def test_what_a_slave_waits_for_its_own_disk_and_log_makes_no_pause_longer(step: str) -> None:
    clock = JumpingClock()
    with pytest.raises(asyncio.CancelledError):
        await sync_of(clock, Master(clock, log_end=1), step).run("master")
    assert clock.now_s >= 1.5, "it waited"
    assert clock.pauses_s == [1.0]


async def test_the_pause_is_ten_times_what_a_master_takes_to_answer() -> None:
    clock = JumpingClock()
    with pytest.raises(asyncio.CancelledError):
        await sync_of(clock, Master(clock, answer_s=0.5), "_copy_offsets").run("master")
    assert clock.pauses_s == [pytest.approx(10.0)]


class SilentMaster(Master):
    """Answers nothing: its connection hangs."""

    async def ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        self._clock.now_s += 10.0
        raise RequestTimeout("no answer within 10.0 s")


async def test_after_a_round_without_an_answer_a_slave_pauses_only_as_long_as_it_took() -> None:
    """Seeds 583 and 1131: a hung connection kept a slave from its master's tables for 110 s."""
    clock = JumpingClock()
    with pytest.raises(asyncio.CancelledError):
        await sync_of(clock, SilentMaster(clock), "_copy_offsets").run("master")
    assert clock.pauses_s == [pytest.approx(10.0)]
