"""Timers of a broker whose clock runs ahead by more than its wheel reaches: no message loses its slot or blocks the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from aerobee.broker.timer.slots_at_hand import SlotsAtHand
from aerobee.message import encode_properties
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.timer.timer_log import TimerUnit
from tests.simulation.timer_world import HOST, TOPIC, World


@pytest.fixture
def world() -> Iterator[World]:
    logging.disable(logging.CRITICAL)
    world = World(1)
    world.start(0)
    yield world
    world.let_go()
    logging.disable(logging.NOTSET)


def send(world: World, number: int, due_ms: int, **more: str) -> None:
    """Store a timer message that is due at this time, with `more` properties."""
    properties = {"UNIQ_KEY": f"K{number}", "TIMER_DELIVER_MS": str(due_ms), **more}
    message = StoredMessage(
        topic=TOPIC,
        queue_id=0,
        body=b"%d:" % number,
        properties=encode_properties(properties).encode(),
        born_host=HOST,
        born_timestamp=world.clock.now_ms(),
    )
    world.writer.put(message, properties)
    world.store.flush_now()


def advance(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.store.flush_now()
        world.clock.advance(1)


def test_two_messages_of_one_pass_never_share_a_slot(world: World) -> None:
    """Their slots are one turn of the wheel apart: the wheel has one place for both."""
    files, begin = world.timers._files, world.clock.now_ms()
    send(world, 0, begin + 1_500)
    world.clock.advance(0.1)
    send(world, 1, begin + 4_000)
    world.clock.set_by_ms = files.span_ms * 10
    send(world, 2, begin + files.span_ms * 10 + 4_000)
    advance(world, 8)
    assert {number: len(records) for number, records in world.deliveries().items()} == {0: 1, 1: 1, 2: 1}


def test_a_message_that_is_due_late_does_not_block_its_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got the present slot while the clock was ahead, and no other was free."""
    begin = world.clock.now_ms()
    send(world, 0, begin + 1_500)
    world.clock.advance(0.1)
    unit = SlotsAtHand.unit

    def present(slots: SlotsAtHand, now: int, out_ms: int, due_ms: int, *where: int, magic: int) -> TimerUnit:
        made = unit(slots, now, out_ms, due_ms, *where, magic=magic)
        return made._replace(write_time=slots.slot_start(now), delay_ms=0)

    with monkeypatch.context() as ahead:
        ahead.setattr(SlotsAtHand, "unit", present)
        send(world, 1, begin + 5_900)
        world.clock.advance(0.1)
    send(world, 2, begin + 3_000)
    advance(world, 4)
    assert sorted(world.deliveries()) == [0, 2]
    advance(world, 4)
    assert {number: len(records) for number, records in world.deliveries().items()} == {0: 1, 1: 1, 2: 1}


def test_a_recalled_message_that_is_due_late_is_not_stored_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got the present slot, and so did the request to delete it."""
    begin = world.clock.now_ms()
    send(world, 0, begin + 1_500)
    world.clock.advance(0.1)
    unit = SlotsAtHand.unit

    def present(slots: SlotsAtHand, now: int, out_ms: int, due_ms: int, *where: int, magic: int) -> TimerUnit:
        made = unit(slots, now, out_ms, due_ms, *where, magic=magic)
        return made._replace(write_time=slots.slot_start(now), delay_ms=0)

    with monkeypatch.context() as ahead:
        ahead.setattr(SlotsAtHand, "unit", present)
        send(world, 1, begin + 5_900)
        send(world, 9, begin + 5_900, TIMER_DEL_UNIQKEY="K1")
        world.clock.advance(0.1)
    send(world, 2, begin + 3_000)
    advance(world, 9)
    assert sorted(world.deliveries()) == [0, 2]
