"""Reads all pending units of a timer wheel in parts, while the wheel changes, for a slave that has none of them. Core.

Each part names the begin of the next one. The walk does not include units that were written to the timer log after its
first part: the slave reads them in the timer log, from its end at the first part (`until`). So changes of a slot before
or after its part do no harm: each message that enters the slot, or moves to another slot, has a new unit in the timer
log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import TimerUnit
from aerobee.store.timer.timer_wheel import SLOTS_PER_PIECE

UNITS_MAX = 1_024  # of a part; a millisecond, when their pages are in memory
LOOKS_MAX = (
    4 * UNITS_MAX
)  # units of which it leaves out those behind `until`: whoever asks names that position
UNITS_PER_STEP = 128  # of pending_units(): some 10 ms when each is on a page that must be read from the disk
PIECES_MAX = 4  # of the wheel, that a part looks at: up to 8,192 slots


@dataclass(frozen=True, slots=True)
class WalkPosition:
    """Begin of a part: a slot of the wheel, or a unit within a slot's chain."""

    slot_index: int = 0
    unit_position: int = -1  # of the next unit of the chain; -1: the slot's last
    slot_time_ms: int = 0

    def encode(self) -> str:
        """As text without spaces."""
        return f"{self.slot_index}.{self.unit_position}.{self.slot_time_ms}"


def decode_walk_position(text: str) -> WalkPosition:
    """Raises ValueError for an invalid text."""
    if len(text) > 64:
        raise ValueError(f"{text[:64]!r} is not a position in a timer wheel")
    index, position, time_ms = (int(part) for part in text.split("."))
    return WalkPosition(index, position, time_ms)


def pending_units(files: TimerFiles, *, read_time_ms: int) -> Iterator[list[TimerUnit]]:
    """The units of the slots from the read time on, slot after slot, in lists of at most UNITS_PER_STEP: each step reads few
    pages of the timer log. Units that are added meanwhile may be missing.
    """
    units: list[TimerUnit] = []
    for piece in files.wheel.slot_pieces():
        for slot in piece:
            if slot.time_ms < read_time_ms:
                continue
            for _, unit in files.log.chain(slot.last, slot.time_ms, files.precision_ms):
                units.append(unit)
                if len(units) == UNITS_PER_STEP:
                    yield units
                    units = []
        yield units
        units = []


@dataclass(frozen=True, slots=True)
class WalkPart:
    """Units slot after slot, each slot's newest first; the last slot may continue in the next part."""

    units: list[TimerUnit]
    following: WalkPosition | None  # None: this is the last part


def walk(files: TimerFiles, begin: WalkPosition, *, read_time_ms: int, until: int) -> WalkPart:
    """The part from `begin` on: of slots from the read time on the units before the position `until`."""
    wheel, units, look_count = files.wheel, list[TimerUnit](), 0
    index, at = begin.slot_index, begin
    for _ in range(PIECES_MAX):
        if not wheel.exists or not 0 <= index < wheel.slot_count:
            return WalkPart(units, None)
        first = index - index % SLOTS_PER_PIECE
        for slot in wheel.piece_from(first):
            slot_index = wheel.index_of(slot.time_ms)
            if slot_index < index or slot.time_ms < read_time_ms:
                continue
            is_continued = at.unit_position >= 0 and slot_index == at.slot_index
            start, time_ms = (
                (at.unit_position, at.slot_time_ms) if is_continued else (slot.last, slot.time_ms)
            )
            for position, unit in files.log.chain(start, time_ms, files.precision_ms):
                look_count += 1
                if len(units) >= UNITS_MAX or look_count > LOOKS_MAX:
                    return WalkPart(units, WalkPosition(slot_index, position, time_ms))
                if position < until:
                    units.append(unit)
        index = first + SLOTS_PER_PIECE
    return WalkPart(units, WalkPosition(index))
