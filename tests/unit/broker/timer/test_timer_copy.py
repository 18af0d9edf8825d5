"""A slave copies its master's wheel in memory of one answer, whatever the master sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from aerobee.broker.state.master_questions import MasterQuestions
from aerobee.broker.timer import timer_copy
from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.broker.timer.timer_copy import EMPTY_PAUSE_S, TimerCopy
from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.broker.timer.timer_statement import WALK, WHEEL_FIRST, WHEEL_NEXT, TimerStatement
from aerobee.broker.timer.waiting_slot import WaitingSlot
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame
from aerobee.remoting.command import RemotingCommand
from aerobee.store.message_store import MessageStore
from aerobee.store.timer import wheel_walk
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import ROLL, UNIT, UNIT_BYTES
from aerobee.store.timer.wheel_walk import WalkPosition, decode_walk_position, walk
from tests.unit.store.timer.test_copied_units import BASE_MS, make_files, unit, waiting

COUNT = 500
LOG_END = 1_000_000
Answer = Callable[[RemotingCommand], TimerStatement]


class Pauses:
    """A clock on which time passes by sleeping, and whose `count_max`-th sleep is the last."""

    def __init__(self, count_max: int) -> None:
        self.pauses: list[float] = []
        self._count_max = count_max

    def monotonic(self) -> float:
        return sum(self.pauses)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self._count_max:
            raise asyncio.CancelledError


def copy_of(
    answer: Answer, *, message_count: int, clock: Pauses | None = None
) -> tuple[TimerCopy, TimerFiles]:
    """A copy that asks a master of these answers, and its files."""

    async def ask(master: str, request: RemotingCommand) -> RemotingCommand:
        fields, body = answer(request).encode()
        return request.reply(ext=fields, body=body)

    files, _ = make_files(2, 1 << 20)
    store = SimpleNamespace(
        log=SimpleNamespace(end=LOG_END),
        queues={("rmq_sys_wheel_timer", 0): SimpleNamespace(max_offset=message_count)},
    )
    copy = TimerCopy(
        questions=cast(MasterQuestions, SimpleNamespace(ask=ask)),
        store=cast(MessageStore, store),
        files=files,
        saver=cast(TimerSaver, SimpleNamespace(started_over=lambda: None)),
        pending=PendingCounts(0),
        clock=cast(Clock, clock or Pauses(1)),
    )
    return copy, files


def statement(*, units: bytes, wheel: str, following: str) -> TimerStatement:
    return TimerStatement(
        source=5,
        position=0,
        next_position=0,
        units=units,
        checkpoint=TimerCheckpoint(read_time_ms=BASE_MS, scan_from=0),
        log_end=LOG_END,
        is_whole=False,
        wheel=wheel,
        walk=following,
    )


async def test_a_slot_of_many_parts_is_written_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_walk, "UNITS_MAX", 60)
    its, _ = make_files(1, 1 << 20)
    its.add_run([unit(BASE_MS, number) for number in range(COUNT)])
    sent = 0

    def answer(request: RemotingCommand) -> TimerStatement:
        nonlocal sent
        text = request.field(WALK)
        begin = WalkPosition() if text is None else decode_walk_position(text)
        part = walk(its, begin, read_time_ms=BASE_MS, until=its.log.end)
        sent += len(part.units)
        return statement(
            units=b"".join(UNIT.pack(UNIT_BYTES, *each) for each in part.units),
            wheel=WHEEL_NEXT if text else WHEEL_FIRST,
            following="" if part.following is None else part.following.encode(),
        )

    copy, files = copy_of(answer, message_count=COUNT)
    while not sent or copy._walk:
        await copy._copy_next("m")
        assert files.log.end == sent * UNIT_BYTES, "nothing of an earlier answer is in memory only"
    assert sent == COUNT
    mine, other = (sorted(waiting(each, BASE_MS)[BASE_MS]) for each in (files, its))
    assert mine == other


async def test_a_wheel_of_more_units_than_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_copy, "UNITS_MAX", 10)
    many = b"".join(UNIT.pack(UNIT_BYTES, *unit(BASE_MS, number)) for number in range(40))

    def answer(request: RemotingCommand) -> TimerStatement:
        return statement(units=many, wheel=WHEEL_NEXT if request.field(WALK) else WHEEL_FIRST, following="x")

    copy, files = copy_of(answer, message_count=50)
    await copy._copy_next("m")
    await copy._copy_next("m")
    with pytest.raises(MalformedFrame, match="120 units or more, and the timer topic 50 messages"):
        await copy._copy_next("m")
    assert files.log.end == 80 * UNIT_BYTES
    assert copy._source == 0, "the next request begins with the wheel again"


@pytest.mark.parametrize("wheel", [WHEEL_FIRST, WHEEL_NEXT])
async def test_a_master_of_empty_parts_is_asked_with_pauses(wheel: str) -> None:
    def answer(request: RemotingCommand) -> TimerStatement:
        return statement(units=b"", wheel=wheel if request.field(WALK) else WHEEL_FIRST, following="x")

    clock = Pauses(20)
    copy, _ = copy_of(answer, message_count=50, clock=clock)
    with pytest.raises(asyncio.CancelledError):
        await copy.run("m", lambda: True)
    assert min(clock.pauses) >= EMPTY_PAUSE_S


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 1, 0)])
def test_a_slot_is_handled_in_order_whatever_its_chain(order: tuple[int, ...]) -> None:
    units = [unit(BASE_MS, number, magic) for number, magic in enumerate((1, 1, 1 | ROLL, 1 | ROLL))]
    slot = WaitingSlot(
        BASE_MS,
        iter([(number, units[number]) for number in order]),
        latest_ms=BASE_MS + 2_000,
        due_of=lambda each: 0,
        delete_key_of=lambda each: None,
    )
    while not slot.load(1):
        pass
    assert slot.offsets() == [0, 1]
    assert [slot.rolls.pop() for _ in range(2)] == [2, 3]
