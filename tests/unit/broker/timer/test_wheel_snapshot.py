"""How many timer messages are due within which part of a day."""

from __future__ import annotations

import random

from aerobee.broker.timer.wheel_snapshot import BOUNDS_S, SLOTS_A_PIECE, WheelSnapshot
from aerobee.clock import ManualClock
from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.timer.timer_wheel import TimerWheel

# Two weeks hold it: the day ahead begins before the end of the file and continues at its beginning.
NOW_MS = 2 * 7 * 86_400_000 * 1_500 - 3_600_000


def wheel(precision_ms: int = 1000) -> TimerWheel:
    disk = SimulatedDisk(random.Random(1))
    disk.make_dirs("/store")
    made = TimerWheel("/store/timerwheel", disk, precision_ms=precision_ms)
    made.make()
    return made


def counted(of: TimerWheel, now_ms: int = NOW_MS) -> dict[str, object]:
    return {labels[0]: value for labels, value in WheelSnapshot(of, ManualClock(now_ms)).read()}


def test_each_bound_counts_from_the_one_before_it_on() -> None:
    slots = wheel()
    for after_s, count in (
        (-1, 100),
        (0, 1),
        (4, 2),
        (5, 4),
        (59, 8),
        (60, 16),
        (3_599, 32),
        (3_600, 64),
        (86_399, 128),
    ):
        slots.put(NOW_MS + after_s * 1000, 0, 0, count)
    slots.put(NOW_MS + 86_400_000, 0, 0, 1_000)
    assert counted(slots, NOW_MS + 999) == {
        "5": 3, "60": 12, "300": 16, "900": 0, "3600": 32, "14400": 64, "28800": 0, "86400": 128,
    }  # fmt: skip


def test_slots_of_another_turn_of_the_wheel_are_empty() -> None:
    slots = wheel()
    slots.put(NOW_MS + 30_000 - slots.slot_count * 1000, 0, 0, 7)
    slots.put(NOW_MS + 40_000, 0, 0, 1)
    slots.add(NOW_MS + 40_000, 52, 1)
    slots.add(NOW_MS + 40_000, 104, -1)  # one that cancels
    assert counted(slots)["60"] == 1


def test_an_unused_wheel_counts_nothing() -> None:
    disk = SimulatedDisk(random.Random(1))
    slots = TimerWheel("/store/timerwheel", disk, precision_ms=1000)
    assert set(counted(slots).values()) == {0}
    assert not slots.exists


def test_seconds_are_seconds_with_finer_slots() -> None:
    slots = wheel(precision_ms=100)
    slots.put(NOW_MS + 4_900, 0, 0, 1)
    slots.put(NOW_MS + 5_000, 0, 0, 2)
    assert (counted(slots)["5"], counted(slots)["60"]) == (1, 2)


def test_others_get_their_turn_in_between() -> None:
    blocks = list(WheelSnapshot(wheel(), ManualClock(NOW_MS)).blocks())
    shown = [block for block in blocks if block.values()]
    assert [block.labels() for block in shown] == [((str(bound),),) for bound in BOUNDS_S]
    assert len(blocks) - len(shown) >= BOUNDS_S[-1] // SLOTS_A_PIECE
