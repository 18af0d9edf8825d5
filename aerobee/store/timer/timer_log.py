"""The timer log: one unit for each message that waits in the timer wheel. Follows TimerLog of RocketMQ.

Files of `mappedFileSizeTimerLog` bytes, named after the position of their first byte, 20 digits. A unit has 52 bytes:

    int32 size (52) | int64 previous position | int32 magic | int64 write time | int32 delay ms
    int64 physical offset | int32 message size | int32 hash of the real topic | int64 due ms

Write time plus delay is the time of the slot whose chain the unit belongs to; `previous position` is the unit before
it in the chain, -1 for the first. `magic` has the bits DEFAULT, ROLL (the message is to be stored again for a later
slot) and DELETE (the message cancels others). A unit that would leave less than 16 bytes goes to the next file; the
rest becomes

    int32 bytes to the file's end | int64 0 | int32 0xCBD43194

RocketMQ keeps the last field 0 and does not read it. Here it is the moment at which the message is due, in ms, so that
delivery within the slot's second does not read the message; 0 when it is unknown.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from aerobee.errors import ConfigError, StoreFull
from aerobee.message import MAGIC_BLANK
from aerobee.store.files.disk import Disk, MappedFile, store_full
from aerobee.store.files.zeros import is_zero

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_BYTES = UNIT.size
UNIT_TIMES = struct.Struct(">16xqi24x")  # write time and delay
BLANK = struct.Struct(">iqI")
DEFAULT, ROLL, DELETE = 1, 2, 4
MAGIC_MAX = 15  # RocketMQ takes any of the four low bits
_RESERVE_STEP_BYTES = 1 << 20
_READ_UNITS = 4096
UNITS_PER_STEP = 1024  # some 2 ms
_MAGICS = bytes(range(1, MAGIC_MAX + 1))


class TimerUnit(NamedTuple):
    """One message of the wheel. Times in ms."""

    previous: int
    magic: int
    write_time: int
    delay_ms: int
    physical_offset: int
    message_size: int
    topic_hash: int
    due_ms: int

    @property
    def slot_time(self) -> int:
        """To which slot it belongs, ms; the wheel layers it to its precision."""
        return self.write_time + self.delay_ms


def _is_unit(size: int, fields: Sequence[int]) -> bool:
    """Whether 52 bytes can be a unit; `fields` are those of TimerUnit. No message has 0 bytes: zeros in the middle of a unit reach it."""
    return size == UNIT_BYTES and 0 < fields[1] <= MAGIC_MAX and fields[5] > 0


def _leading_units(data: bytes) -> bytes:
    """The units with which `data` begins."""
    count = 0
    for size, *fields in UNIT.iter_unpack(data):
        if not _is_unit(size, fields):
            break
        count += 1
    return data[: count * UNIT_BYTES]


def are_units(data: bytes) -> bool:
    """_is_unit() of each 52 bytes of `data`, for all of them in a few steps: some 30 ns a unit."""
    count = len(data) // UNIT_BYTES
    column = [data[at::UNIT_BYTES] for at in range(4)]
    if column[3].count(UNIT_BYTES) != count or any(each.count(0) != count for each in column[:3]):
        return False
    if any(data[at::UNIT_BYTES].count(0) != count for at in (12, 13, 14)):
        return False
    if data[15::UNIT_BYTES].translate(None, _MAGICS) or not data[36::UNIT_BYTES].isascii():
        return False
    size_bits = 0  # of the message sizes: none may be 0
    for at in range(36, 40):
        size_bits |= int.from_bytes(data[at::UNIT_BYTES], "big")
    return 0 not in size_bits.to_bytes(count, "big")


class _File:
    __slots__ = ("base", "mapped", "path", "reserved")

    def __init__(self, path: str, base: int, mapped: MappedFile) -> None:
        self.path = path
        self.base = base
        self.mapped = mapped
        self.reserved = 0


class TimerLog:
    """Append and read by position. One thread, but sync(), which any thread may call.

    Invariant: every byte from the first file to `end` belongs to a whole unit or a blank; zeros follow.
    """

    def __init__(self, directory: str, file_size: int, disk: Disk) -> None:
        self.end = 0  # position of the next unit, without a possible blank
        self._directory = directory
        self.file_size = file_size
        self._disk = disk
        self._files: list[_File] = []
        self._unsynced_names = False
        self.fault = ""  # error that load() found in the files

    @property
    def min_position(self) -> int:
        """Begin of the oldest file."""
        return self._files[0].base if self._files else self.end

    # -- writing

    def append(self, unit: TimerUnit) -> int:
        """Write one unit and return its position. Raises StoreFull; nothing has changed then."""
        position = self.end
        file = self._files[-1] if self._files else None
        if file is None:
            file = self._create(position)
        elif position + UNIT_BYTES + BLANK.size > file.base + self.file_size:
            free = file.base + self.file_size - position
            following = self._create(file.base + self.file_size)
            if free >= BLANK.size:
                self._reserve(file, self.file_size)
                BLANK.pack_into(file.mapped.buffer, position - file.base, free, 0, MAGIC_BLANK)
            file, position = following, following.base
        at = position - file.base
        if at + UNIT_BYTES > file.reserved:
            self._reserve(file, at + UNIT_BYTES)
        UNIT.pack_into(file.mapped.buffer, at, UNIT_BYTES, *unit)
        self.end = position + UNIT_BYTES
        return position

    def append_chain(self, units: Sequence[TimerUnit], previous: int) -> range:
        """Write the first of `units`, each linked to the one before it, the first to `previous`; at least one, and as
        many as the open file has space for. Returns their positions. Raises StoreFull; nothing has changed then.
        """
        file = self._files[-1] if self._files else None
        position = self.end
        room = (file.base + file.reserved - position) // UNIT_BYTES if file is not None else 0
        if file is not None and position + UNIT_BYTES + BLANK.size > file.base + self.file_size:
            room = 0
        if file is None or room < 2:
            position = self.append(units[0]._replace(previous=previous))
            return range(position, position + 1)
        count = min(room, len(units), (file.base + self.file_size - BLANK.size - position) // UNIT_BYTES)
        pack = UNIT.pack
        parts = []
        end = position
        for unit in units[:count]:
            parts.append(pack(UNIT_BYTES, previous, *unit[1:]))
            previous, end = end, end + UNIT_BYTES
        file.mapped.buffer[position - file.base : end - file.base] = b"".join(parts)
        self.end = end
        return range(position, end, UNIT_BYTES)

    def _create(self, base: int) -> _File:
        path = os.path.join(self._directory, f"{base:020d}")
        try:
            self._disk.make_dirs(self._directory)
            mapped = self._disk.create_mapped(path, self.file_size)
        except OSError as error:
            raise store_full(f"the timer log file {path}", error, path=path) from error
        file = _File(path, base, mapped)
        try:
            self._reserve(file, UNIT_BYTES)
        except StoreFull:
            mapped.close()
            self._disk.remove(path)
            raise
        self._files.append(file)
        self._unsynced_names = True
        return file

    def _reserve(self, file: _File, end: int) -> None:
        if end <= file.reserved:
            return
        ahead = min(self.file_size, end + _RESERVE_STEP_BYTES)
        for target in (ahead, end):
            try:
                file.mapped.reserve(target)
            except OSError as error:
                if target == end:
                    what = f"the timer log file {file.path}"
                    raise store_full(what, error, path=file.path, offset=end) from error
            else:
                file.reserved = target
                return

    # -- reading

    def read(self, position: int) -> TimerUnit | None:
        """The unit at a position, or None when there is none: deleted, behind the end, or not a unit."""
        file = self._file_at(position)
        if file is None or not 0 <= position <= self.end - UNIT_BYTES:
            return None
        at = position - file.base
        if at + UNIT_BYTES > self.file_size:
            return None
        size, *fields = UNIT.unpack_from(file.mapped.buffer, at)
        return TimerUnit(*fields) if _is_unit(size, fields) else None

    def piece(self, position: int, unit_count_max: int) -> tuple[bytes, int] | None:
        """Whole units from `position` on, as they are in the file, to the end of that file or of the log at most, and the position
        behind them. None when no unit can begin there.
        """
        if position == self.end:
            return b"", position
        file = self._file_at(position)
        if file is None or position > self.end or (position - file.base) % UNIT_BYTES:
            return None
        at, full = position - file.base, (self.file_size - BLANK.size) // UNIT_BYTES * UNIT_BYTES
        if at >= full:
            return self.piece(file.base + self.file_size, unit_count_max)
        stop = min(full, self.end - file.base, at + unit_count_max * UNIT_BYTES)
        return file.mapped.read(at, stop), file.base + stop

    def chain(self, position: int, slot_time: int, precision_ms: int) -> Iterator[tuple[int, TimerUnit]]:
        """The units of a slot, the newest first, from the slot's last position on."""
        number = slot_time // precision_ms
        while (unit := self.read(position)) is not None and unit.slot_time // precision_ms == number:
            yield position, unit
            if unit.previous >= position:
                return
            position = unit.previous

    def units(self, start: int) -> Iterator[tuple[int, TimerUnit]]:
        """Whole units from `start` to the first position without one, or to the end of the last file.

        Reads the disk in pieces, not through the mapping. `end` does not bound it.
        """
        for position, data in self.unit_pieces(start):
            for at, (_, *fields) in enumerate(UNIT.iter_unpack(data)):
                yield position + at * UNIT_BYTES, TimerUnit(*fields)

    def unit_pieces(self, start: int) -> Iterator[tuple[int, bytes]]:
        """As units(), as position and bytes of up to 4,096 units that follow one another."""
        for number, file in enumerate(self._files):
            if file.base + self.file_size <= start:
                continue
            at = max(0, start - file.base)
            while True:
                stop = min(self.file_size, at + _READ_UNITS * UNIT_BYTES)
                whole = (stop - at) // UNIT_BYTES * UNIT_BYTES
                data = file.mapped.read(at, at + whole) if whole > 0 else b""
                ended = not whole
                if not are_units(data):
                    ended, data = True, _leading_units(data)
                if data:
                    yield file.base + at, data
                    at += len(data)
                if ended:
                    break
            if not self._is_blank(file, at) and number < len(self._files) - 1:
                return

    def _is_blank(self, file: _File, at: int) -> bool:
        free = self.file_size - at
        if free < BLANK.size:
            return True
        return BLANK.unpack(file.mapped.read(at, at + BLANK.size)) == (free, 0, MAGIC_BLANK)

    def _file_at(self, position: int) -> _File | None:
        if not self._files:
            return None
        index = (position - self._files[0].base) // self.file_size
        return self._files[index] if 0 <= index < len(self._files) else None

    def last_unit(self, number: int) -> TimerUnit | None:
        """The last unit of the file with this number from the oldest on, when the file is complete."""
        if not 0 <= number < len(self._files) - 1:
            return None
        at = (self.file_size - BLANK.size) // UNIT_BYTES * UNIT_BYTES - UNIT_BYTES
        return self.read(self._files[number].base + at)

    # -- durability

    def sync(self, start: int, end: int) -> None:
        """Make [start, end) durable. Any thread. Raises OSError."""
        if self._unsynced_names:
            self._disk.sync_dir(self._directory)
            self._unsynced_names = False
        for file in list(self._files):
            if file.base < end and file.base + self.file_size > start:
                file.mapped.sync(max(0, start - file.base), min(self.file_size, end - file.base))

    # -- opening, cutting, deleting

    def load(self, written: int = 0) -> None:
        """Find the files; set_end() comes next. The first invalid file and all later ones are reported in `fault`.

        `written`: the length that files are known to have had, 0 for not known. Raises ConfigError when nothing says that
        a file of another length was cut.
        """
        self.fault = ""
        names = [n for n in self._disk.list_dir(self._directory) if len(n) == 20 and n.isdecimal()]
        sizes = {name: self._disk.file_size(os.path.join(self._directory, name)) for name in names}
        if names and not sizes[names[-1]]:
            self._disk.remove(os.path.join(self._directory, names.pop()))  # it never got its length
        for name in names:
            path, size = os.path.join(self._directory, name), sizes[name]
            if size != self.file_size and (size > self.file_size or not written or written == size):
                raise ConfigError(
                    f"{path} has {size} bytes, but mappedFileSizeTimerLog is {self.file_size}: set it to the "
                    "value with which the store was written"
                )
            if size != self.file_size:
                self.fault = f"{path} has {size} of {self.file_size} bytes"
            elif self._files and int(name) != self._files[-1].base + self.file_size:
                self.fault = f"the file before {path} is missing"
            if self.fault:
                break
            self._files.append(_File(path, int(name), self._disk.open_mapped(path)))
        self.end = self.min_position
        self._unsynced_names = bool(names)  # a killed process may have left them in the cache only

    def set_end(self, end: int) -> None:
        """Make `end` the end: later files go, later bytes become zero. Raises StoreFull."""
        for _ in self.setting_end(end):
            pass

    def setting_end(self, end: int) -> Iterator[None]:
        """As set_end(), in steps of a MiB."""
        while self._files and self._files[-1].base >= max(end, 1):
            file = self._files.pop()
            file.mapped.close()
            self._disk.remove(file.path)
            self._unsynced_names = True
        if self.fault:
            self._remove_what_load_left_out()
        self.end = end
        if not self._files:
            return
        tail = self._files[-1]
        at = min(self.file_size, end - tail.base)
        while at < self.file_size:
            stop = min(self.file_size, at + _RESERVE_STEP_BYTES)
            if not is_zero(tail.mapped.read(at, stop)):
                self._reserve(tail, stop)
                tail.mapped.buffer[at:stop] = bytes(stop - at)
            at = stop
            yield
        used = min(self.file_size, end - tail.base)
        for at in range(0, used, _RESERVE_STEP_BYTES):
            tail.mapped.rewrite(at, min(used, at + _RESERVE_STEP_BYTES))
            yield

    def _remove_what_load_left_out(self) -> None:
        """No unit of these files counts: they are behind the end. A file of another length would be in the way of the next one."""
        loaded = {os.path.basename(file.path) for file in self._files}
        for name in sorted(self._disk.list_dir(self._directory), reverse=True):
            if len(name) == 20 and name.isdecimal() and name not in loaded:
                self._disk.remove(os.path.join(self._directory, name))
                self._unsynced_names = True
        self.fault = ""

    def clear(self) -> None:
        """Delete every file, also what load() left out; the log is empty and begins at 0."""
        for _ in self.clearing():
            pass

    def clearing(self) -> Iterator[None]:
        """As clear(), in steps of one file, the newest first."""
        self.close()
        for name in sorted(self._disk.list_dir(self._directory), reverse=True):
            if len(name) == 20 and name.isdecimal():
                self._disk.remove(os.path.join(self._directory, name))
                self._unsynced_names = True
                yield
        self.end = 0
        self.fault = ""

    def finding_whole(self, end: int) -> Generator[None, None, int]:
        """Find the position up to which the log consists of whole units and blanks, at most `end`; in steps of a
        millisecond.
        """
        at = self.min_position
        for position, data in self.unit_pieces(at):
            yield
            if position >= end:
                break
            count = min(len(data) // UNIT_BYTES, -(-(end - position) // UNIT_BYTES))
            at = position + count * UNIT_BYTES
            if position + len(data) > at:
                break
        file = self._file_at(end - 1)
        # Behind the last unit of a file there may be a blank, or too little space for one.
        is_at_file_end = (
            file is not None and end == file.base + self.file_size and at > end - UNIT_BYTES - BLANK.size
        )
        return end if is_at_file_end else at

    def detach_first(self) -> tuple[str, MappedFile]:
        """Take the oldest file out; the caller closes and removes it. Never the only one."""
        assert len(self._files) > 1
        file = self._files.pop(0)
        self._unsynced_names = True
        return file.path, file.mapped

    @property
    def file_count(self) -> int:
        """Number of files."""
        return len(self._files)

    def close(self) -> None:
        """Unmap every file."""
        for file in self._files:
            file.mapped.close()
        self._files = []
