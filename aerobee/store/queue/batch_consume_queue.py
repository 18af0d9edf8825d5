"""The consume queue of a topic with `queue.type=BatchCQ`: one entry for each record, which may hold many messages.

Follows BatchConsumeQueue of RocketMQ. Entries of 46 bytes, in the order of their records:

    physical_offset int64 | size int32 | tags_code int64 | store_timestamp int64 | base_offset int64
    | batch_size int16 | compacted_offset int32 (-1) | reserved int32

A record holds the queue offsets base_offset to base_offset + batch_size - 1; the entry of an offset is found by
binary search. File names count bytes of entries, not queue offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass

from aerobee.store.files.config import BATCH_QUEUE_ENTRY_BYTES
from aerobee.store.queue.queue_files import FilePool, QueueFileList

NO_SIZE = 0x7FFFFFFF  # of an entry without a record, a hole
_BATCH_SIZE_MAX = 0x7FFF
_SIZE = struct.Struct(">i")
BATCH_ENTRY = struct.Struct(">qiqqqhii")
BATCH_ENTRY_BYTES = BATCH_QUEUE_ENTRY_BYTES
assert BATCH_ENTRY.size == BATCH_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One record of the queue, with the queue offsets [base_offset, base_offset + batch_size)."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base_offset: int
    batch_size: int

    @property
    def end_offset(self) -> int:
        """The queue offset behind its last message."""
        return self.base_offset + self.batch_size

    @property
    def end_physical(self) -> int:
        """End of its record; for a hole, the offset that it points to."""
        return self.physical_offset + (0 if self.size == NO_SIZE else self.size)


class BatchConsumeQueue:
    """Entries of one batch queue. One thread."""

    is_batch = True

    def __init__(self, topic: str, queue_id: int, directory: str, file_size: int, pool: FilePool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self.readable_max = 0
        self.unsynced_from = -1
        self._files = QueueFileList(directory, file_size, pool)
        self._pool = pool
        self._per_file = file_size // BATCH_ENTRY_BYTES
        self._first = 0  # number of the first entry whose record is in the log
        self._end = 0  # number of entries ever written

    # -- writing

    def ensure_room(self, count: int) -> None:
        """Take disk space for `count` entries, so that writing them cannot fail. Raises StoreFull."""
        for number in range(self._end, self._end + count):
            self._files.writable_file(number * BATCH_ENTRY_BYTES, BATCH_ENTRY_BYTES)

    def append_batch_entry(self, entry: BatchEntry) -> None:
        """Write the entry of the next record. Raises StoreFull and changes nothing."""
        file = self._files.writable_file(self._end * BATCH_ENTRY_BYTES, BATCH_ENTRY_BYTES)
        BATCH_ENTRY.pack_into(
            self._pool.buffer(file),
            self._end * BATCH_ENTRY_BYTES - file.base,
            entry.physical_offset,
            entry.size,
            entry.tags_code,
            entry.store_timestamp,
            entry.base_offset,
            entry.batch_size,
            -1,
            0,
        )
        if self._end == self._first:
            self.min_offset = entry.base_offset
        self._end += 1
        self.max_offset = entry.end_offset
        self._pool.mark_dirty(file)
        if self.unsynced_from < 0:
            self.unsynced_from = entry.physical_offset
            self._pool.unsynced_queues.append(self)

    # -- reading

    def entry_at(self, number: int) -> BatchEntry | None:
        """The entry with that number, or None."""
        if not self._first <= number < self._end:
            return None
        return self._unpack(number)

    def _unpack(self, number: int) -> BatchEntry | None:
        file = self._files.file_at(number * BATCH_ENTRY_BYTES)
        if file is None:
            return None
        at = number * BATCH_ENTRY_BYTES - file.base
        values = BATCH_ENTRY.unpack(self._pool.peek(file, at, at + BATCH_ENTRY_BYTES))
        if values[1] <= 0 or values[0] < 0 or values[5] <= 0:
            return None
        return BatchEntry(*values[:6])

    def number_of(self, offset: int) -> int:
        """Number of the entry that holds a queue offset, of the next one when none does, -1 when there is neither."""
        low, high = self._first, self._end
        if self.min_offset <= offset < self.max_offset:
            # Where it stands if all batches have one size: a look at the file instead of one for each halving.
            guess = low + (offset - self.min_offset) * (high - low) // (self.max_offset - self.min_offset)
            likely = self._unpack(guess)
            if likely is not None and likely.base_offset <= offset < likely.end_offset:
                return guess
        while low < high:
            middle = (low + high) // 2
            entry = self._unpack(middle)
            if entry is not None and entry.end_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low if low < self._end else -1

    def entries_from(self, offset: int, count: int) -> Iterator[BatchEntry]:
        """Up to `count` entries, the first being the one that holds `offset`. Each is read when the caller takes it."""
        number = self.number_of(offset)
        if number < 0:
            return
        while number < self._end and count > 0:
            entry = self._unpack(number)
            if entry is not None and entry.end_offset > offset:  # damaged ones are passed over
                count -= 1
                yield entry
            number += 1

    def all_entries(self) -> Iterator[BatchEntry]:
        """Every entry whose record is in the log, in order; damaged ones are left out."""
        for number in range(self._first, self._end):
            entry = self._unpack(number)
            if entry is not None:
                yield entry

    @property
    def holds_single_messages(self) -> bool:
        """Whether each entry holds one message."""
        return self.max_offset - self.min_offset == self._end - self._first

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Entry of a queue offset: physical offset, size, tags code."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        for found in self.entries_from(offset, 1):
            return found.physical_offset, found.size, found.tags_code
        return None

    def last_entry(self) -> tuple[int, int, int] | None:
        """As entry() of the last queue offset."""
        return self.entry(self.max_offset - 1)

    def forget_known(self) -> None:
        """As ConsumeQueue.forget_known(): nothing here."""

    @property
    def max_physical_offset(self) -> int:
        """End in the log of the last entry's record; 0 without entries."""
        last = self.entry_at(self._end - 1)
        return last.end_physical if last is not None else 0

    # -- opening, cutting, deleting

    @property
    def fault(self) -> str:
        """As ConsumeQueue.fault."""
        return self._files.fault

    @property
    def first_position(self) -> int:
        """Start of the first file; 0 when there is none."""
        return self._files.files[0].base if self._files.files else 0

    def first_bad_file(self, log_end: int) -> int | None:
        """0 when an entry cannot be one of this queue: then all of it is built again; None when all may.

        Looks at every entry: their records follow one another in the log, and their offsets without a gap.
        """
        before = None
        for file in self._files.files:
            number = file.base // BATCH_ENTRY_BYTES
            for at in range(number, min(number + self._per_file, self._end)):
                entry = self._unpack(at)
                if entry is None or entry.physical_offset >= log_end + (entry.size == NO_SIZE):
                    return 0
                if before is not None and (
                    entry.base_offset != before.end_offset or entry.physical_offset < before.end_physical
                ):
                    return 0
                before = entry
        return None

    def make_holes(self, start: int, stop: int) -> None:
        """As ConsumeQueue.make_holes: no record has the size that such an entry says."""
        for number in range(self._first, self._end):
            entry = self._unpack(number)
            if entry is not None and start <= entry.physical_offset < stop:
                at = number * BATCH_ENTRY_BYTES
                file = self._files.writable_file(at, BATCH_ENTRY_BYTES)
                _SIZE.pack_into(self._pool.buffer(file), at - file.base + 8, NO_SIZE)
                self._pool.mark_dirty(file)

    def pad_to(self, offset: int, physical_offset: int) -> None:
        """Holes up to a queue offset, for messages before the record at `physical_offset`. Raises StoreFull."""
        while self.max_offset < offset:
            count = min(offset - self.max_offset, _BATCH_SIZE_MAX)
            self.append_batch_entry(BatchEntry(physical_offset, NO_SIZE, 0, 0, self.max_offset, count))

    def start_at(self, offset: int) -> None:
        """Let an empty queue give this offset next. The file records this from its first entry on."""
        self.min_offset = self.max_offset = self.readable_max = offset

    def load(self, written_size: int = 0) -> None:
        """Find the files and the end."""
        self._files.load("mapperFileSizeBatchConsumeQueue", written_size)
        self._settle(1 << 62)

    def _settle(self, physical_bound: int) -> None:
        files = self._files.files
        self._first = files[0].base // BATCH_ENTRY_BYTES if files else 0
        low, high = self._first, self._first + len(files) * self._per_file
        while low < high:
            middle = (low + high) // 2
            entry = self._unpack(middle)
            if entry is not None and entry.physical_offset < physical_bound:
                low = middle + 1
            else:
                high = middle
        self._end = low
        first, last = self._unpack(self._first), self._unpack(self._end - 1)
        self.min_offset = first.base_offset if first is not None and self._end > self._first else 0
        self.max_offset = last.end_offset if last is not None and self._end > self._first else 0
        self.readable_max = self.max_offset

    def cut_records_from(self, physical_bound: int) -> int:
        """Drop the entries of records at or behind the bound. Returns how many entries there were."""
        before = self._end
        self._settle(physical_bound)
        self._files.cut(self._end * BATCH_ENTRY_BYTES)
        return before - self._end

    def clear(self) -> None:
        """Remove every entry and file: the queue begins at 0 again."""
        self._files.remove_all()
        self._first = self._end = self.min_offset = self.max_offset = self.readable_max = 0

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files wholly below the log's first record, and move min_offset. Returns files deleted."""
        files = self._files.files
        removed = 0
        while len(files) > 1:
            last = self._unpack(files[0].base // BATCH_ENTRY_BYTES + self._per_file - 1)
            if last is not None and last.physical_offset >= log_min_offset:
                break
            self._files.remove_first()
            removed += 1
        if not files:
            return removed
        low, high = files[0].base // BATCH_ENTRY_BYTES, self._end
        while low < high:
            middle = (low + high) // 2
            entry = self._unpack(middle)
            if entry is not None and entry.physical_offset < log_min_offset:
                low = middle + 1
            else:
                high = middle
        self._first = low
        first = self._unpack(low) if low < self._end else None
        self.min_offset = first.base_offset if first is not None else self.max_offset
        return removed

    def delete(self, kept: Container[str] = ()) -> None:
        """Remove the queue from the disk, but the files of the paths in `kept`."""
        self._files.remove_all(kept)

    @property
    def file_paths(self) -> list[str]:
        """Its files on the disk."""
        return [file.path for file in self._files.files]

    @property
    def file_count(self) -> int:
        """Number of files of the queue."""
        return len(self._files.files)

    @property
    def path(self) -> str:
        """The queue's directory."""
        return self._files.directory
