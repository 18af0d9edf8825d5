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
    """A sleep takes no time here; the last of `rounds` pauses of a second or more ends the test's task."""

    def __init__(self, rounds: int = 1) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []
        self._rounds = rounds

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        if delay_s >= 1.0:
            self.pauses_s.append(delay_s)
        if len(self.pauses_s) == self._rounds:
            raise asyncio.CancelledError


class Master:
    """Answers immediately, with offsets that belong to a log of `log_end` bytes."""

    def __init__(self, *, log_end: int = 0) -> None:
        self._log_end = log_end

    def connection_to(self, address: str) -> object:
        return self

    async def ask(self, address: str, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(0, {"aerobeeLogEnd": str(self._log_end)}, b'{"offsetTable":{}}')


def sync_of(clock: JumpingClock, master: Master, step: str) -> MetadataSync:
    """One whose round is one step."""

    async def delete_ended(deleted: object) -> list[str]:
        clock.now_s += 0.5  # a disk that takes its time
        return []

    topics = SimpleNamespace(copied_to=0, deleted={"gone": 1}, log_cut=lambda end: None)
    parts: dict[str, Any] = dict.fromkeys(("mappings", "groups", "modes", "filters", "decisions"))
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
    clock = JumpingClock(rounds=2)
    with pytest.raises(asyncio.CancelledError):
        await sync_of(clock, Master(log_end=1), step).run("master")
    assert clock.now_s >= 3.0, "it waited"
    assert clock.pauses_s == [1.0, 1.0]


async def _pauses_s(answers_s: list[float], *, timeout_s: float = 10.0) -> list[float]:
    """The pauses after rounds of one request each, which the master answers after so many seconds."""
    clock = JumpingClock(len(answers_s))
    sync = sync_of(clock, Master(), "_copy_offsets")
    waiting = list(answers_s)

    async def round_() -> None:
        answer_s = waiting.pop(0)
        clock.now_s += min(answer_s, timeout_s)
        if answer_s > timeout_s:
            raise RequestTimeout("no answer")

    sync._round = round_  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await sync.run("master")
    return clock.pauses_s


async def test_the_pause_is_ten_times_what_a_master_takes_to_answer() -> None:
    assert await _pauses_s([1.0, 1.5, 0.5]) == pytest.approx([1.0, 10.0, 5.0])


async def test_a_master_that_was_paused_once_is_requested_soon_again() -> None:
    """Deleted topics stayed at the slave for two minutes: it paused ten times as long as the master had."""
    assert await _pauses_s([0.01, 9.0, 0.01, 0.01]) == pytest.approx([1.0, 1.0, 1.0, 1.0])


async def test_after_a_round_without_an_answer_a_slave_pauses_only_as_long_as_it_took() -> None:
    """Seeds 583 and 1131: a hung connection kept a slave from its master's tables for 110 s."""
    assert await _pauses_s([0.01, 12.0, 12.0, 0.01]) == pytest.approx([1.0, 10.0, 10.0, 1.0])


async def test_the_pause_is_a_minute_at_most() -> None:
    assert await _pauses_s([9.0, 9.0]) == pytest.approx([1.0, 60.0])
