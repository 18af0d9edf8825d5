"""One file of the key index: maps a key's hash to the records that may carry the key. Follows IndexFile of RocketMQ.

A file is named after its creation, local time `yyyyMMddHHmmssSSS`:

    header 40  begin_timestamp 8 | end_timestamp 8 | begin_physical_offset 8 | end_physical_offset 8
               | used_slot_count 4 | index_count 4 (begins at 1)
    slots      maxHashSlotNum x int32: number of the newest entry of the slot, 0 = none
    entries    maxIndexNum x (key_hash int32 | physical_offset int64 | seconds after begin int32 | previous int32)

Entry number n stands at slot-end + n * 20, so entry 0 is never used. The key text is `topic#key` or
`topic#T#tag`; hash = |Java hashCode|, slot = hash mod slot count. Collisions are for the reader to sort out.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Iterator, Sequence

from aerobee.message import java_hash
from aerobee.store.files.disk import SECTOR_BYTES, MappedFile, WritableBuffer
from aerobee.store.files.zeros import is_zero

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = HEADER.size
INDEX_ENTRY = struct.Struct(">iqii")
INDEX_ENTRY_BYTES = INDEX_ENTRY.size
_INT = struct.Struct(">i")
_RESERVE_BYTES = 1_048_576
_CHECK_STEP = 65_536  # entries
_CLEAR_STEP_BYTES = 65_536
# Run of zero bytes after which _clear_from() stops: longer than the entries that one moment can leave behind
# the header's count.
_ZERO_RUN_BYTES_MAX = 8 << 20


def key_hash(text: str) -> int:
    """Hash of a key text (`topic#key`), never negative."""
    value = abs(java_hash(text))
    return value if value <= 0x7FFFFFFF else 0


def index_file_name(now_ms: int) -> str:
    """Local time with milliseconds, 17 digits."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now_ms // 1000)) + f"{now_ms % 1000:03d}"


class IndexFile:
    """One index file. It keeps the header's fields in memory, and writes them to the file with every burst of
    entries.
    """

    def __init__(self, file: MappedFile, slot_count: int, entry_count_max: int) -> None:
        self.file = file
        self.path = file.path
        self.begin_timestamp: int
        self.end_timestamp: int
        self.begin_physical_offset: int
        self.end_physical_offset: int
        self.used_slots: int
        self.count: int  # number of the next entry
        self.buffer: WritableBuffer = file.buffer
        self.slot_count = slot_count
        self.entry_count_max = entry_count_max
        self.entries_at = HEADER_BYTES + slot_count * 4
        self.reserved = 0  # entries numbered below it have disk space
        self.dirty_from = -1  # physical offset of the oldest record with an unsynced entry
        self.pins = 0
        self.is_mapped_in = False  # every page of the slots can be touched without a fault
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.count,
        ) = HEADER.unpack(file.peek(0, HEADER_BYTES))
        self.count = min(max(self.count, 1), entry_count_max)

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry."""
        return self.count <= 1

    @property
    def is_full(self) -> bool:
        """Whether it takes no more entries."""
        return self.count >= self.entry_count_max

    @property
    def is_unused(self) -> bool:
        """Whether the file is a spare that was created in advance and never written."""
        return is_zero(self.file.peek(0, HEADER_BYTES)) and is_zero(
            self.file.peek(self.entries_at, min(self.file.size, self.entries_at + _CLEAR_STEP_BYTES))
        )

    def is_plausible(self, before: int, log_end: int) -> bool:
        """Whether its header and last entry are those of an index of a log that ends at `log_end`, and of records behind
        `before`.
        """
        last = self._entry(self.count - 1)
        return (
            before <= self.begin_physical_offset <= self.end_physical_offset < log_end
            and last[1] == self.end_physical_offset
            and last[0] >= 0
            and last[2] >= 0
        )

    def reserve(self, count: int, *, fill: bool = False) -> None:
        """Take disk space for entries numbered below `count`, and for some more. Raises OSError.

        With `fill` the space after them is prepared for writing: it must not contain valid entries.
        """
        needed = self.entries_at + count * INDEX_ENTRY_BYTES
        target = min(self.file.size, needed + _RESERVE_BYTES)
        try:
            self.file.reserve(target)
        except OSError:
            if target == needed:
                raise
            self.file.reserve(needed)
            target = needed
        if fill:
            begin = max(needed, self.entries_at + self.reserved * INDEX_ENTRY_BYTES)
            self.file.fill(begin, target)
            self.file.prefault(begin, target)
        self.reserved = (target - self.entries_at) // INDEX_ENTRY_BYTES

    def map_in(self) -> None:
        """Load the pages of the hash slots for writing: slots are written in random order, so each first write would
        wait for a page.
        """
        self.is_mapped_in = True
        self.file.prefault(HEADER_BYTES, self.entries_at)

    def put(self, hash_value: int, physical_offset: int, store_timestamp: int) -> None:
        """Write one entry; the caller has checked is_full and `reserved`. write_header() follows."""
        number = self.count
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = min(max((store_timestamp - self.begin_timestamp) // 1000, 0), 0x7FFFFFFF)
        slot_at = HEADER_BYTES + hash_value % self.slot_count * 4
        buffer = self.buffer
        (previous,) = _INT.unpack_from(buffer, slot_at)
        if not 0 < previous < number:  # RocketMQ takes it for "none" too
            previous = 0
        INDEX_ENTRY.pack_into(
            buffer,
            self.entries_at + number * INDEX_ENTRY_BYTES,
            hash_value,
            physical_offset,
            seconds,
            previous,
        )
        _INT.pack_into(buffer, slot_at, number)
        if number == 1:
            self.begin_physical_offset = physical_offset
            self.begin_timestamp = store_timestamp
        if previous == 0:
            self.used_slots += 1
        self.count = number + 1
        self.end_physical_offset = physical_offset
        self.end_timestamp = store_timestamp
        if self.dirty_from < 0:
            self.dirty_from = physical_offset

    def put_timed_run(self, entries: Sequence[tuple[int, int]], times: Sequence[int]) -> None:
        """put_run() of entries that each have a store time."""
        first = 0
        for number, time_ms in enumerate(times):
            if time_ms != times[first]:
                self.put_run(entries[first:number], times[first])
                first = number
        self.put_run(entries[first:], times[first])

    def put_run(self, entries: Sequence[tuple[int, int]], store_timestamp: int) -> None:
        """put() for each (hash, physical offset), and write_header()."""
        rest = entries
        if self.count == 1:
            self.put(*entries[0], store_timestamp)  # the file's first entry sets its beginning
            rest = entries[1:]
        seconds = 0
        if self.begin_timestamp > 0:
            seconds = (store_timestamp - self.begin_timestamp) // 1000
            # Two calls less than with min() and max(): this is paid once a burst.
            if not 0 <= seconds <= 0x7FFFFFFF:
                seconds = 0 if seconds < 0 else 0x7FFFFFFF
        buffer = self.buffer
        slot_count = self.slot_count
        number = self.count
        chains = 0
        at = self.entries_at + number * INDEX_ENTRY_BYTES
        read, write_entry, write_slot = _INT.unpack_from, INDEX_ENTRY.pack_into, _INT.pack_into
        for value, physical_offset in rest:
            slot_at = HEADER_BYTES + value % slot_count * 4
            (previous,) = read(buffer, slot_at)
            if not 0 < previous < number:
                previous = 0
                chains += 1
            write_entry(buffer, at, value, physical_offset, seconds, previous)
            write_slot(buffer, slot_at, number)
            number += 1
            at += INDEX_ENTRY_BYTES
        self.used_slots += chains
        self.count = number
        self.end_timestamp = store_timestamp
        self.end_physical_offset = entries[-1][1]
        if self.dirty_from < 0:
            self.dirty_from = entries[0][1]
        self.write_header()

    def write_header(self) -> None:
        """Write times, offsets and counts to the file's first 40 bytes."""
        HEADER.pack_into(
            self.buffer,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.count,
        )

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether it may have records stored in [begin_ms, end_ms]."""
        return self.count > 1 and self.begin_timestamp <= end_ms and self.end_timestamp >= begin_ms

    def find(self, hash_value: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash, newest first. Ends at anything that cannot be right."""
        slot_at = HEADER_BYTES + hash_value % self.slot_count * 4
        (number,) = _INT.unpack(self.file.peek(slot_at, slot_at + 4))
        upper = self.count
        while 0 < number < upper:
            found, physical_offset, seconds, previous = self._entry(number)
            if seconds < 0:
                return
            # Only seconds are known: an entry may be up to 999 ms later than this says.
            moment = self.begin_timestamp + seconds * 1000
            if found == hash_value and moment <= end_ms and moment + 999 >= begin_ms:
                yield physical_offset
            upper, number = number, previous  # chains only point to smaller numbers

    def cut(self, physical_bound: int, *, is_trusted: bool) -> bool:
        """Drop the entries of records at or behind the bound and mend the slots.

        `is_trusted`: what the header counts below the bound is known to be on the disk; only slots may be newer.
        Returns False when entries below the bound are damaged: then the file cannot be used.
        """
        count = self._first_at(physical_bound) if is_trusted else 0
        slots = array("i", self.file.peek(HEADER_BYTES, self.entries_at))
        slots.byteswap()
        if not count or not self._mend_slots(slots, count):
            slots = array("i", bytes(self.slot_count * 4))
            count = self._check_entries(physical_bound, slots)
            if not count:
                return False
        used_slots = self.slot_count - slots.count(0)
        stale = self.entries_at + count * INDEX_ENTRY_BYTES
        self.used_slots = used_slots
        self.reserve(max(count, self.count))
        slots.byteswap()
        data = slots.tobytes()
        if self.file.peek(HEADER_BYTES, self.entries_at) != data:
            self.buffer[HEADER_BYTES : self.entries_at] = data
        self._clear_from(stale)
        self.count = count
        if count == 1:
            self.begin_timestamp = self.end_timestamp = 0
            self.begin_physical_offset = self.end_physical_offset = 0
        else:
            _, self.end_physical_offset, seconds, _ = self._entry(count - 1)
            # Not below what 64 bits hold, when both times are damaged.
            self.end_timestamp = min(self.end_timestamp, self.begin_timestamp + max(seconds, 0) * 1000 + 999)
        self.write_header()
        self.dirty_from = physical_bound
        return True

    def _clear_from(self, start: int) -> None:
        """Zero the bytes after the last entry, also after the header's count: a page of entries may have reached the
        disk without the header's page. Otherwise they would count as entries once the header's count includes them.
        """
        at = zeros_from = start
        while at < self.file.size and at - zeros_from < _ZERO_RUN_BYTES_MAX:
            stop = min(self.file.size, at + _CLEAR_STEP_BYTES)
            if not is_zero(self.file.peek(at, stop)):
                self.file.reserve(stop)
                self.buffer[at:stop] = bytes(stop - at)
                zeros_from = stop
            at = stop

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        at = self.entries_at + number * INDEX_ENTRY_BYTES
        return INDEX_ENTRY.unpack(self.file.peek(at, at + INDEX_ENTRY_BYTES))

    def _first_at(self, physical_bound: int) -> int:
        """Number of the first entry of a record at or behind the bound."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            # An entry in two sectors may be there by half: then the one before it is missing too.
            if self._is_before(middle, physical_bound) and (
                middle == 1 or self._is_before(middle - 1, physical_bound)
            ):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_before(self, number: int, physical_bound: int) -> bool:
        hash_value, physical_offset, _, _ = self._entry(number)
        is_there = hash_value > 0 or physical_offset > 0
        return is_there and self.begin_physical_offset <= physical_offset < physical_bound

    def _mend_slots(self, slots: array[int], count: int) -> bool:
        """Lead slots that point to entries at or behind `count` back to the newest entry before it.

        Returns False when a chain does not lead there: then only all entries tell.
        """
        if max(slots) < count and min(slots) >= 0:
            return True
        for slot, number in enumerate(slots):
            while not 0 <= number < count:
                at = self.entries_at + number * INDEX_ENTRY_BYTES
                if not 0 < number < self.entry_count_max:
                    return False
                hash_value, _, _, previous = self._entry(number)
                is_torn = at // SECTOR_BYTES != (at + INDEX_ENTRY_BYTES - 1) // SECTOR_BYTES and previous == 0
                if is_torn or hash_value <= 0 or hash_value % self.slot_count != slot or previous >= number:
                    return False
                number = previous
            slots[slot] = number
        return True

    def _check_entries(self, physical_bound: int, newest: array[int]) -> int:
        """Fill `newest` (slot to entry number) from the entries below the bound. Returns the first number behind
        them, 0 when one is damaged.
        """
        last_offset = -1
        number = 1
        while number < self.count:
            start = self.entries_at + number * INDEX_ENTRY_BYTES
            stop = self.entries_at + min(self.count, number + _CHECK_STEP) * INDEX_ENTRY_BYTES
            for hash_value, physical_offset, seconds, previous in INDEX_ENTRY.iter_unpack(
                self.file.peek(start, stop)
            ):
                if physical_offset >= physical_bound:
                    return number
                slot = hash_value % self.slot_count
                if hash_value < 0 or seconds < 0 or physical_offset < last_offset or previous != newest[slot]:
                    return 0
                newest[slot] = number
                last_offset = physical_offset
                number += 1
        return number
