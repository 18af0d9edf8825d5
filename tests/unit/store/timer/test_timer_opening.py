"""What a start reads of the timer log: whole pieces, and single units only where a slot is behind."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from aerobee.simulation.simulated_disk import SimulatedDisk
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import UNIT, UNIT_BYTES, TimerUnit, are_units
from tests.unit.store.timer.test_timer_files import BASE_MS, new_files, open_again, unit

COUNT = 300


def encoded(units: list[TimerUnit]) -> bytearray:
    return bytearray(b"".join(UNIT.pack(UNIT_BYTES, *each) for each in units))


def is_unit(data: bytes) -> bool:
    size, *fields = UNIT.unpack(data)
    return bool(size == UNIT_BYTES and 0 < fields[1] <= 15 and fields[5] > 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_piece_is_whole_exactly_when_each_unit_is(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        units = [
            unit(BASE_MS + at * 1000, at, rng.randint(1, 15))._replace(
                message_size=rng.choice((1, 255, 256, 1 << 24))
            )
            for at in range(rng.randint(0, 20))
        ]
        data = encoded(units)
        assert are_units(bytes(data))
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.3:
                at = rng.randrange(len(data))
                data[at : at + 8] = bytes(len(data[at : at + 8]))
        pieces = [bytes(data[at : at + UNIT_BYTES]) for at in range(0, len(data), UNIT_BYTES)]
        assert are_units(bytes(data)) == all(map(is_unit, pieces))


def saved(disk: SimulatedDisk) -> TimerFiles:
    files = new_files(disk)
    for number in range(COUNT):
        files.add(BASE_MS + number % 50 * 1000, unit(BASE_MS + number % 50 * 1000, number))
    files.save(
        TimerCheckpoint(
            read_time_ms=BASE_MS, log_flushed=files.log.end, queue_offset=COUNT, scan_from=0, counter=1
        )
    )
    return files


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of units of each piece that was looked at unit by unit."""
    found: list[int] = []
    link = TimerFiles._link

    def count(
        files: TimerFiles, position: int, data: bytes, read_time_ms: int, log_end: int, changed: set[int]
    ) -> Iterator[None]:
        found.append(len(data) // UNIT_BYTES)
        return link(files, position, data, read_time_ms, log_end, changed)

    monkeypatch.setattr(TimerFiles, "_link", count)
    return found


def test_a_start_looks_at_no_unit_of_slots_that_are_right(linked: list[int]) -> None:
    disk = SimulatedDisk(random.Random(1))
    saved(disk).close()
    files = open_again(disk)
    assert linked == []
    slots = {slot.time_ms: slot.number for slot in files.wheel.slots()}
    assert slots == {BASE_MS + number * 1000: COUNT // 50 for number in range(50)}


def test_a_start_links_units_that_a_slot_lacks(linked: list[int]) -> None:
    disk = SimulatedDisk(random.Random(1))
    files = saved(disk)
    before = {slot.time_ms: slot for slot in files.wheel.slots()}
    files.wheel.clear(BASE_MS + 7000)
    files.close()
    files = open_again(disk)
    assert linked, "the units of the empty slot are found in the timer log"
    assert {slot.time_ms: slot for slot in files.wheel.slots()} == before
