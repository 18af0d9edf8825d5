"""The timer wheel: for each time slot, the position of its newest unit in the timer log. Follows TimerWheel of
RocketMQ.

One file, `timerwheel`, of 2 * 7 * 86,400 slots of 32 bytes:

    int64 time / precision | int64 first position | int64 last position | int32 number | int32 magic (0)

Slot of a time: (time / precision) mod the number of slots. A slot whose stored time differs is empty: a delivered slot
keeps its content until a later time reuses it. `number` counts messages less cancelling ones.

The file is sparse; the first message that needs it creates it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from aerobee.errors import StoreFull
from aerobee.store.files.config import TIMER_WHEEL_SLOTS
from aerobee.store.files.disk import Disk, MappedFile, store_full
from aerobee.store.files.zeros import is_zero

SLOT = struct.Struct(">qqqii")
SLOT_BYTES = SLOT.size
_PIECE_BYTES = 1 << 16  # 2,048 slots
SLOTS_PER_PIECE = _PIECE_BYTES // SLOT_BYTES
_PAGE_BYTES = 4096


class TimerSlot(NamedTuple):
    """Content of one slot of the wheel. `time_ms` is when it begins."""

    time_ms: int
    first: int
    last: int
    number: int


class TimerWheel:
    """The wheel file. One thread, except sync()."""

    def __init__(
        self, path: str, disk: Disk, *, precision_ms: int, slot_count: int = TIMER_WHEEL_SLOTS
    ) -> None:
        self.precision_ms = precision_ms
        self.slot_count = 2 * slot_count
        self._path = path
        self._disk = disk
        self._file: MappedFile | None = None
        self._has_new_name = False

    def load(self) -> str:
        """Open the file if there is one. A file of another length is removed and named: it is rebuilt from the timer log."""
        if not self._disk.exists(self._path):
            return ""
        size = self._disk.file_size(self._path)
        if size != self.slot_count * SLOT_BYTES:
            self._disk.remove(self._path)
            return (
                f"{self._path} had {size} bytes, a timer wheel has {self.slot_count * SLOT_BYTES}"
                if size
                else ""
            )
        self._file = self._disk.open_mapped(self._path)
        self._reserve(self._file)
        self._has_new_name = True  # a killed process may have left it in the cache only
        return ""

    @property
    def exists(self) -> bool:
        """Whether the file exists; the first timer message creates it."""
        return self._file is not None

    def make(self) -> None:
        """Create the file unless it exists. Raises StoreFull."""
        if self._file is not None:
            return
        try:
            file = self._disk.create_mapped(self._path, self.slot_count * SLOT_BYTES)
        except OSError as error:
            raise store_full(f"the timer wheel {self._path}", error, path=self._path) from error
        try:
            self._reserve(file)
        except StoreFull:
            file.close()
            self._disk.remove(self._path)
            raise
        self._file = file
        self._has_new_name = True

    def _reserve(self, file: MappedFile) -> None:
        try:
            file.reserve(self.slot_count * SLOT_BYTES)
        except OSError as error:
            raise store_full(f"the timer wheel {self._path}", error, path=self._path) from error

    def _at(self, time_ms: int) -> int:
        return time_ms // self.precision_ms % self.slot_count * SLOT_BYTES

    def get(self, time_ms: int) -> TimerSlot | None:
        """The slot of a time, or None when it is empty."""
        if self._file is None:
            return None
        number, first, last, count, _ = SLOT.unpack_from(self._file.buffer, self._at(time_ms))
        if not number or number != time_ms // self.precision_ms:
            return None
        return TimerSlot(number * self.precision_ms, first, last, count)

    def is_free(self, time_ms: int, read_time_ms: int) -> bool:
        """Whether a time's slot has that time already, or nothing waits in it: slots before `read_time_ms` are done."""
        if self._file is None:
            return True
        number: int = SLOT.unpack_from(self._file.buffer, self._at(time_ms))[0]
        return number == time_ms // self.precision_ms or number * self.precision_ms < read_time_ms

    def count(self, time_ms: int, slot_count: int) -> int:
        """Messages minus cancellations in `slot_count` slots from that of a time on, at most all slots. Reads each
        slot.
        """
        if self._file is None:
            return 0
        number, left, total = time_ms // self.precision_ms, min(slot_count, self.slot_count), 0
        while left > 0:
            index = number % self.slot_count
            some = min(left, self.slot_count - index)  # to the end of the file
            data = self._file.buffer[index * SLOT_BYTES : (index + some) * SLOT_BYTES]
            for expected, (stored, _, _, count, _) in enumerate(SLOT.iter_unpack(data), number):
                if stored == expected:
                    total += count
            number, left = number + some, left - some
        return total

    def put(self, time_ms: int, first: int, last: int, count: int) -> None:
        """Write a slot. make() was called."""
        assert self._file is not None
        SLOT.pack_into(
            self._file.buffer, self._at(time_ms), time_ms // self.precision_ms, first, last, count, 0
        )

    def add(self, time_ms: int, position: int, step: int) -> None:
        """A unit at `position` joined the slot's chain; `step` is 1, or -1 for one that cancels."""
        slot = self.get(time_ms)
        if slot is None:
            self.put(time_ms, position, position, step)
        else:
            self.put(time_ms, slot.first, position, slot.number + step)

    def clear(self, time_ms: int) -> None:
        """Make the slot of a time empty."""
        if self._file is not None and self.get(time_ms) is not None:
            at = self._at(time_ms)
            self._file.buffer[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)

    def slots(self) -> Iterator[TimerSlot]:
        """Every slot that was ever used, with its latest content, in the file's order. Reads the disk, not the
        mapping.
        """
        for piece in self.slot_pieces():
            yield from piece

    def slot_pieces(self) -> Iterator[list[TimerSlot]]:
        """As slots(), in pieces of at most 2,048; those of unused parts of the file are empty."""
        for index in range(0, self.slot_count if self._file is not None else 0, SLOTS_PER_PIECE):
            yield self.piece_from(index)

    def piece_from(self, index: int) -> list[TimerSlot]:
        """The used slots among those with indexes [index, index + SLOTS_PER_PIECE), in the file's order."""
        piece: list[TimerSlot] = []
        start, size = index * SLOT_BYTES, self.slot_count * SLOT_BYTES
        if self._file is None or not 0 <= start < size:
            return piece
        data = self._file.read(start, min(size, start + _PIECE_BYTES))
        for at in range(0, len(data), _PAGE_BYTES):
            page = data[at : at + _PAGE_BYTES]
            if is_zero(page):
                continue
            for number, first, last, count, _ in SLOT.iter_unpack(page):
                if number:
                    piece.append(TimerSlot(number * self.precision_ms, first, last, count))
        return piece

    def index_of(self, time_ms: int) -> int:
        """Index of a time's slot in the file."""
        return time_ms // self.precision_ms % self.slot_count

    def first_used(self, time_ms: int, slot_count: int) -> int:
        """Start of the first non-empty slot among this number of slots from a time on; the end of the range when all
        are empty."""
        number = time_ms // self.precision_ms
        end = number + slot_count
        while number < end and self._file is not None:
            index = number % self.slot_count
            some = min(end - number, self.slot_count - index, _PIECE_BYTES // SLOT_BYTES)
            data = self._file.read(index * SLOT_BYTES, (index + some) * SLOT_BYTES)
            if not is_zero(data):
                for expected, (stored, _, _, _, _) in enumerate(SLOT.iter_unpack(data), number):
                    if stored == expected and stored:
                        return expected * self.precision_ms
            number += some
        return end * self.precision_ms

    def sync(self) -> None:
        """Make the slots durable. Any thread. Raises OSError."""
        if self._file is None:
            return
        if self._has_new_name:
            self._disk.sync_dir(self._path.rpartition("/")[0] or ".")
            self._has_new_name = False
        self._file.sync(0, self.slot_count * SLOT_BYTES)

    def rewriting(self) -> Iterator[None]:
        """Write the used pages again, in steps: a failed sync of an earlier run may have left them only in the cache."""
        if self._file is not None:
            size = self.slot_count * SLOT_BYTES
            for start in range(0, size, _PIECE_BYTES):
                stop = min(size, start + _PIECE_BYTES)
                data = self._file.read(start, stop)
                for at in range(0, len(data), _PAGE_BYTES):
                    if not is_zero(data[at : at + _PAGE_BYTES]):
                        self._file.rewrite(start + at, min(stop, start + at + _PAGE_BYTES))
                yield

    def remove(self) -> None:
        """Delete the file. Raises OSError."""
        self.close()
        if self._disk.exists(self._path):
            self._disk.remove(self._path)

    def close(self) -> None:
        """Unmap the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
