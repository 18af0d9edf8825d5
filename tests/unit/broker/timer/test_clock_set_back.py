"""A clock that is set back: the slots of the timer wheel that hold messages are found a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from aerobee.broker.timer.clock_set_back import NOTICE_MS, ClockSetBack
from aerobee.clock import ManualClock
from aerobee.store.timer.timer_wheel import TimerSlot


class Wheel:
    """Ten pieces of three slots. `read` counts the pieces that were read."""

    def __init__(self, begin_ms: int) -> None:
        self.begin_ms = begin_ms
        self.read = 0

    def slot_pieces(self) -> Iterator[list[TimerSlot]]:
        for piece in range(10):
            self.read += 1
            times = (self.begin_ms + (piece * 3 + each) * 1_000 for each in range(3))
            yield [TimerSlot(time_ms, 0, 0, 1) for time_ms in times]


def test_slots_are_found_a_piece_at_a_time() -> None:
    clock = ManualClock()
    at_hand = SimpleNamespace(
        time_ms=clock.now_ms() + 2_000, waiting_after=lambda now: [], move=lambda dues: 0
    )
    wheel = Wheel(at_hand.time_ms)
    looked: list[int] = []
    files = SimpleNamespace(wheel=wheel, slot=lambda time_ms: looked.append(time_ms))
    ended: list[int] = []
    progress = SimpleNamespace(log_end=lambda: 100, handled_is_at_hand=lambda: ended.append(len(looked)))
    back = ClockSetBack(
        slots=cast(Any, SimpleNamespace(slot=at_hand)),
        messages=cast(Any, None),
        files=cast(Any, files),
        progress=cast(Any, progress),
        clock=clock,
    )
    back.start(clock.now_ms() + NOTICE_MS + 1)
    steps = 0
    while back.is_busy:
        read, found = wheel.read, len(looked)
        back.step(cast(Any, at_hand))
        steps += 1
        assert wheel.read - read <= 1, "one piece a step"
        assert wheel.read == read or len(looked) == found
    assert looked == sorted(looked)
    assert len(looked) == 29, "all behind the one at hand"
    assert ended == [29]
    back.start(clock.now_ms() + NOTICE_MS + 1)
    for _ in range(3):
        back.step(cast(Any, at_hand))
    back.stop()
    assert not back.is_busy
