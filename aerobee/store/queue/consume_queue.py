"""One consume queue: the physical offsets in the commit log of the messages of one topic queue.

Follows ConsumeQueue of RocketMQ. Entries of 20 bytes, position = queue offset * 20:

    physical_offset int64 | size int32 | tags_code int64

`size` 0 is no entry. A queue that begins inside a file has fillers before its first entry: offset 0, size
0x7FFFFFFF, tags code 0. A hole, in place of messages whose records are lost, has that size too and points to the record
behind it. `tags_code` is the hash of TAGS, or the delivery time in the schedule topic.

Invariants: entries [min_offset, max_offset) exist, their physical offsets grow, and after max_offset there are zeros up
to `room`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterator

from aerobee.store.files.config import QUEUE_ENTRY_BYTES
from aerobee.store.files.disk import WritableBuffer
from aerobee.store.files.zeros import is_zero
from aerobee.store.queue.queue_files import FilePool, QueueFile, QueueFileList

ENTRY = struct.Struct(">qiq")
ENTRY_BYTES = QUEUE_ENTRY_BYTES
FILLER_SIZE = 0x7FFFFFFF
# Maximum queue offset: byte positions of entries, and of the files behind them, fit into 64 bits.
QUEUE_OFFSET_MAX = 1 << 56
FILLER = ENTRY.pack(0, FILLER_SIZE, 0)
_LOOK_BYTES = 1 << 20
_PAGE_ENTRIES = 256  # of one read in search of the end
assert ENTRY.size == ENTRY_BYTES

QueueEntry = tuple[int, int, int]  # physical offset, size, tags code


class ConsumeQueue:
    """Entries of one queue. One thread."""

    is_batch = False

    def __init__(self, topic: str, queue_id: int, directory: str, file_size: int, pool: FilePool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0  # first entry whose record is still in the log
        self.max_offset = 0  # the next entry's offset
        self.readable_max = 0  # consumers see the entries below it
        self.room = 0  # append_entry may be called while max_offset is below it
        self.unsynced_from = -1  # physical offset of the oldest record whose entry was not synced; -1: none
        self.rejected: tuple[int, int] | None = None  # the entry at the found end: its offset and its content
        self._files = QueueFileList(directory, file_size, pool, on_close=self._forget)
        self._pool = pool
        # While the store opens: queue offset -> entry, of what a search of an end has read.
        self._known: dict[int, QueueEntry] = {}
        self._entries_per_file = file_size // ENTRY_BYTES
        self.tail_buffer: WritableBuffer = bytearray()  # of the tail file; empty when it is not open
        self._tail: QueueFile | None = None
        self.tail_base = 0  # offset of the tail file's first entry

    # -- writing

    def append_entry(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Write the entry at max_offset. The caller has checked `max_offset < room`, or called make_room."""
        offset = self.max_offset
        ENTRY.pack_into(
            self.tail_buffer, (offset - self.tail_base) * ENTRY_BYTES, physical_offset, size, tags_code
        )
        self.max_offset = offset + 1
        if self.unsynced_from < 0:
            self.mark_dirty(physical_offset)

    def append_entries(self, entries: bytes, physical_offset: int) -> None:
        """Write encoded entries from max_offset on, the first of the record at `physical_offset`.

        The caller has checked that all of them are below `room`.
        """
        at = (self.max_offset - self.tail_base) * ENTRY_BYTES
        self.tail_buffer[at : at + len(entries)] = entries
        self.max_offset += len(entries) // ENTRY_BYTES
        if self.unsynced_from < 0:
            self.mark_dirty(physical_offset)

    def append_message(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, properties: bytes
    ) -> None:
        """append_entry() with all data of the message that any kind of queue uses."""
        self.append_entry(physical_offset, size, tags_code)

    def make_room(self, count: int = 1) -> None:
        """Take disk space for at least one entry, and for up to `count` that fit the same file. Raises StoreFull.

        Entries of a burst may cross files: check `room` before each entry.
        """
        offset = self.max_offset
        base = offset - offset % self._entries_per_file
        count = max(1, min(count, base + self._entries_per_file - offset))
        is_new = self._files.file_at(offset * ENTRY_BYTES) is None
        file = self._files.writable_file(offset * ENTRY_BYTES, count * ENTRY_BYTES)
        self.tail_buffer = self._pool.buffer(file)
        self._tail = file
        self.tail_base = file.base // ENTRY_BYTES
        if is_new and offset > self.tail_base:
            # The queue begins here: its log before this point is gone, or it was deleted with its topic.
            self.tail_buffer[: (offset - self.tail_base) * ENTRY_BYTES] = FILLER * (offset - self.tail_base)
        start, end = (offset - self.tail_base) * ENTRY_BYTES, file.reserved - file.reserved % ENTRY_BYTES
        if not is_zero(self.tail_buffer[start:end]):  # left behind by a queue that was cut after a power loss
            self.tail_buffer[start:end] = bytes(end - start)
        self.room = self.tail_base + end // ENTRY_BYTES
        if self.unsynced_from >= 0:
            self._pool.mark_dirty(file)

    def ensure_room(self, count: int) -> None:
        """Make sure that `count` entries can be written without failing, over a file's end too. Raises StoreFull.

        make_room() is still to be called when `room` is reached; it then finds the space taken.
        """
        if self.max_offset + count <= self.room:
            return
        first, last = self.max_offset, self.max_offset + count - 1
        self.make_room(count)
        base = self.next_file_offset(first)
        while base <= last:
            count = min(last - base + 1, self._entries_per_file)
            self._files.writable_file(base * ENTRY_BYTES, count * ENTRY_BYTES)
            base += self._entries_per_file

    def mark_dirty(self, physical_offset: int) -> None:
        """The entry of the record at `physical_offset` is the oldest that was not synced."""
        self.unsynced_from = physical_offset
        self._pool.unsynced_queues.append(self)
        if self._tail is not None:
            self._pool.mark_dirty(self._tail)

    def _forget(self, file: QueueFile) -> None:
        if file is self._tail:
            self._tail = None
            self.tail_buffer = bytearray()
            self.room = 0

    def rewrite_entry(self, offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Overwrite an existing entry, found wrong by recovery."""
        self._known.pop(offset, None)
        file = self._files.writable_file(offset * ENTRY_BYTES, ENTRY_BYTES)
        buffer = self._pool.buffer(file)
        ENTRY.pack_into(buffer, offset * ENTRY_BYTES - file.base, physical_offset, size, tags_code)
        self._pool.mark_dirty(file)

    # -- reading

    def entry(self, offset: int) -> QueueEntry | None:
        """The entry at a queue offset, or None when there is none."""
        if not 0 <= offset < self.max_offset:
            return None
        file = self._files.file_at(offset * ENTRY_BYTES)
        if file is None:
            return None
        physical_offset, size, tags_code = ENTRY.unpack_from(
            self._pool.buffer(file), offset * ENTRY_BYTES - file.base
        )
        if size <= 0 or size == FILLER_SIZE:
            return None
        return physical_offset, size, tags_code

    def last_entry(self) -> QueueEntry | None:
        """As entry() of the last one; while the store opens it is usually known without reading."""
        known = self._known.get(self.max_offset - 1)
        if known is None:
            return self.entry(self.max_offset - 1)
        return known if known[1] > 0 and known[1] != FILLER_SIZE else None

    def forget_known(self) -> None:
        """The store is open: release what only its opening reads several times."""
        self._known = {}

    def is_hole(self, offset: int) -> bool:
        """Whether a message was here whose record is lost, which was said."""
        return any(size == FILLER_SIZE for _, size, _ in self.entries(offset, 1))

    def read_entries(self, offset: int, count: int) -> bytes:
        """Up to `count` entries from `offset` on, as bytes, to the end of the file that holds it."""
        file = self._files.file_at(offset * ENTRY_BYTES)
        if file is None or offset >= self.max_offset:
            return b""
        count = min(count, self.max_offset - offset)
        at = offset * ENTRY_BYTES - file.base
        return bytes(self._pool.buffer(file)[at : at + count * ENTRY_BYTES])

    def entries(self, offset: int, count: int) -> list[QueueEntry]:
        """Up to `count` entries from `offset` on, over files' ends too."""
        found: list[QueueEntry] = []
        while len(found) < count and (data := self.read_entries(offset, count - len(found))):
            found.extend(ENTRY.iter_unpack(data))
            offset += len(data) // ENTRY_BYTES
        return found

    def next_file_offset(self, offset: int) -> int:
        """First queue offset of the file after the one that contains `offset`."""
        return (offset // self._entries_per_file + 1) * self._entries_per_file

    def is_resident(self, offset: int, count: int) -> bool:
        """Whether `count` entries from `offset` on are in memory."""
        file = self._files.file_at(offset * ENTRY_BYTES)
        if file is None:
            return True
        self._pool.buffer(file)
        assert file.file is not None
        at = offset * ENTRY_BYTES - file.base
        return file.file.is_resident(at, min(file.size, at + count * ENTRY_BYTES))

    def pin_entries(self, offset: int, count: int) -> tuple[QueueFile, int, int] | None:
        """The file of entries from `offset` on, kept open until FilePool.unpin, and their bytes in it."""
        file = self._files.file_at(offset * ENTRY_BYTES)
        if file is None:
            return None
        self._pool.buffer(file)
        file.pins += 1
        at = offset * ENTRY_BYTES - file.base
        return file, at, min(file.size, at + count * ENTRY_BYTES)

    @property
    def max_physical_offset(self) -> int:
        """End of the last indexed record; 0 when there is none."""
        last = self.last_entry()
        return last[0] + last[1] if last is not None else 0

    # -- opening, cutting, deleting

    def load(self, written_size: int = 0) -> None:
        """Find the files and the end. Looks at names, lengths, and some entries of the last file."""
        self._files.load("mappedFileSizeConsumeQueue", written_size)
        files = self._files.files
        self.max_offset = 0
        if files:
            self.min_offset = files[0].base // ENTRY_BYTES
            self.max_offset = self._find_end(1 << 62)
            while len(files) > 1 and self.max_offset == files[-1].base // ENTRY_BYTES and not self.rejected:
                if not self._is_unused(files[-1]):
                    self._files.note_fault(f"the beginning of {files[-1].path} is gone")
                    break
                self._pool.remove(files.pop())  # made in advance, or all of it was lost
                self.max_offset = self._find_end(1 << 62)
        self.readable_max = self.max_offset

    def _is_unused(self, file: QueueFile) -> bool:
        return all(
            is_zero(self._pool.peek(file, at, min(file.size, at + _LOOK_BYTES)))
            for at in range(0, file.size, _LOOK_BYTES)
        )

    @property
    def fault(self) -> str:
        """Error that load() found in the files; empty: none."""
        return self._files.fault

    @property
    def first_position(self) -> int:
        """Start of the first file, present or future."""
        files = self._files.files
        if files:
            return files[0].base
        return (self.max_offset - self.max_offset % self._entries_per_file) * ENTRY_BYTES

    def first_bad_file(self, log_end: int) -> int | None:
        """Queue offset at which the first file begins that cannot hold entries of this queue; None when all may.

        Looks at the first and the last entry of each: their physical offsets grow and lie in the log. If they do not
        grow from one file to the next, either file may be the wrong one.
        """
        before, previous = -1, 0
        for file in self._files.files:
            base = file.base // ENTRY_BYTES
            count = min(self._entries_per_file, self.max_offset - base)
            for index in (0, count - 1) if count > 0 else ():
                physical_offset, size, _ = self._known.get(base + index) or self._entry_of(file, index)
                if size <= 0 or not 0 <= physical_offset < log_end + (size == FILLER_SIZE):
                    return base
                if physical_offset < before:
                    return previous
                before = max(before, physical_offset)
            previous = base
        return None

    def first_entries(self) -> Iterator[tuple[int, int]]:
        """Queue offset and physical offset of the first entry of each file, but fillers."""
        for file in self._files.files:
            offset = file.base // ENTRY_BYTES
            entry = self.entry(offset)
            if entry is not None:
                yield offset, entry[0]

    def drop_from(self, offset: int) -> None:
        """Remove the entries from a queue offset on, and the files that could not be loaded."""
        self._files.remove_strays()
        self.rejected = None
        files = self._files.files
        while files and files[-1].base // ENTRY_BYTES >= offset:
            self._pool.remove(files.pop())
        self.cut_offsets_from(offset)

    def make_holes(self, start: int, stop: int) -> None:
        """Let the entries of records in log bytes [start, stop) be holes: the records are no more."""
        low, high = self._files.files[0].base // ENTRY_BYTES if self._files.files else 0, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.entry(middle)
            if entry is None or entry[0] < start:
                low = middle + 1
            else:
                high = middle
        while low < self.max_offset and (entry := self.entry(low)) is not None and entry[0] < stop:
            self.rewrite_entry(low, entry[0], FILLER_SIZE, 0)
            low += 1

    def pad_to(self, offset: int, physical_offset: int) -> None:
        """Holes up to a queue offset, for messages before the record at `physical_offset`. Raises StoreFull."""
        hole = ENTRY.pack(physical_offset, FILLER_SIZE, 0)
        while self.max_offset < offset:
            if self.max_offset >= self.room:
                self.make_room()
            count = min(offset, self.room) - self.max_offset
            self.append_entries(hole * count, physical_offset)

    def _find_end(self, physical_bound: int, file: QueueFile | None = None) -> int:
        """First offset of the file, by default the last, that holds no entry of a record below `physical_bound`.

        Reads the page of the end that is known, which mostly is the one: most of the time of a start with many queues
        goes into such reads. Else the page is searched by single entries.
        """
        file = file or self._files.files[-1]
        base = file.base // ENTRY_BYTES
        low, high = 0, self._entries_per_file
        start = min(max(0, self.max_offset - base - 1), high - 1)
        start -= start % _PAGE_ENTRIES
        while low < high:
            stop = min(high, start + _PAGE_ENTRIES)
            data = self._pool.peek(file, start * ENTRY_BYTES, stop * ENTRY_BYTES)
            count = self._count_below(data, physical_bound)
            if count:
                low = start + count
                self._known[base + low - 1] = ENTRY.unpack_from(data, (count - 1) * ENTRY_BYTES)
                if not start:
                    self._known[base] = ENTRY.unpack_from(data)
            if count < stop - start:
                high = start + count
                if count or start <= low:
                    low = high
                    break
            low, high = self._narrowed(file, low, high, physical_bound)
            start = low
        if low < self._entries_per_file:
            self._reject(file, low)
        return base + low

    def _count_below(self, data: bytes, physical_bound: int) -> int:
        """Number of entries of records below the bound with which `data` begins, by a binary search."""
        low, high = 0, len(data) // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = ENTRY.unpack_from(data, middle * ENTRY_BYTES)
            if size > 0 and 0 <= physical_offset < physical_bound:
                low = middle + 1
            else:
                high = middle
        return low

    def _narrowed(self, file: QueueFile, low: int, high: int, physical_bound: int) -> tuple[int, int]:
        """The bounds between which the end lies, by a binary search until one page has them."""
        while high - low > _PAGE_ENTRIES:
            middle = (low + high) // 2
            physical_offset, size, _ = self._entry_of(file, middle)
            if size > 0 and 0 <= physical_offset < physical_bound:
                low = middle + 1
            else:
                high = middle
        return low, high

    def _entry_of(self, file: QueueFile, index: int) -> QueueEntry:
        """The entry at an index, which may never have been written."""
        at = index * ENTRY_BYTES
        entry: QueueEntry = ENTRY.unpack(self._pool.peek(file, at, at + ENTRY_BYTES))
        return entry

    def _reject(self, file: QueueFile, index: int) -> None:
        """Keep the bytes at the assumed end of the queue: recovery checks whether they are a damaged entry."""
        physical_offset, size, _ = self._entry_of(file, index)
        if physical_offset or size:
            self.rejected = (file.base // ENTRY_BYTES + index, physical_offset)

    def cut_records_from(
        self, physical_bound: int, judge: Callable[[ConsumeQueue], None] | None = None
    ) -> int:
        """Drop the entries of records at or behind the bound. Returns the number of dropped entries, as far as known.

        Calls `judge` before it drops an entry; `rejected` then holds the first entry to drop.
        """
        found = None
        if judge is not None:
            found = self._look_for_end(physical_bound)
            judge(self)
        before = self.max_offset
        files = self._files.files
        while len(files) > 1:
            first = self._entry_of(files[-1], 0)
            if first[1] > 0 and 0 <= first[0] < physical_bound:
                break
            self._pool.remove(files.pop())
        if files and found is not None and found[0] is files[-1]:
            self._cut(found[1])
        elif files:
            self._cut(self._find_end(physical_bound))
        return max(0, before - self.max_offset)

    def _look_for_end(self, physical_bound: int) -> tuple[QueueFile, int] | None:
        """Set `rejected` to the bytes at the position where cut_records_from will cut; that position and its file, if the queue has
        any.
        """
        for file in reversed(self._files.files):
            first = self._entry_of(file, 0)
            if file is self._files.files[0] or (first[1] > 0 and 0 <= first[0] < physical_bound):
                return file, self._find_end(physical_bound, file)
            self._reject(file, 0)
        return None

    def cut_offsets_from(self, offset: int) -> None:
        """Drop the entries at or behind a queue offset."""
        self._cut(offset)

    def _cut(self, offset: int) -> None:
        self._known = {at: entry for at, entry in self._known.items() if at < offset}
        self.max_offset = offset
        self.readable_max = min(self.readable_max, offset)
        self.room = 0
        self._files.cut(offset * ENTRY_BYTES)
        self.min_offset = min(self.min_offset, offset)

    def start_at(self, offset: int) -> None:
        """Make an empty queue begin at `offset`."""
        assert self.min_offset == self.max_offset
        self._known = {}
        while self._files.files:
            self._pool.remove(self._files.files.pop())
        self.room = 0
        self.min_offset = self.max_offset = self.readable_max = offset

    def clear(self) -> None:
        """Delete every file; the queue is empty and at offset 0."""
        self._files.remove_all()
        self._known = {}
        self.rejected = None
        self.room = 0
        self.min_offset = self.max_offset = self.readable_max = 0

    def delete_before(self, log_min_offset: int) -> int:
        """Delete files wholly below the log's first record, and move min_offset. Returns files deleted."""
        files = self._files.files
        removed = 0
        while len(files) > 1:
            # The next file's first entry shows whether all records of this file are deleted.
            last = self._entry_of(files[0], self._entries_per_file - 1)
            if last[1] > 0 and last[0] >= log_min_offset:
                break
            self._files.remove_first()
            removed += 1
        self._find_min(log_min_offset)
        return removed

    def _find_min(self, log_min_offset: int) -> None:
        files = self._files.files
        if not files:
            return
        low = files[0].base // ENTRY_BYTES
        base = low
        first = self._known.get(base)
        if first is not None and first[1] != FILLER_SIZE and first[0] >= log_min_offset:
            self.min_offset = base
            return
        high = min(self.max_offset, low + self._entries_per_file)
        while low < high:
            middle = (low + high) // 2
            physical_offset, size, _ = self._entry_of(files[0], middle - base)
            # A negative one is damaged, not old: reading it says so.
            if 0 <= physical_offset < log_min_offset or (size == FILLER_SIZE and physical_offset == 0):
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def delete(self, kept: Container[str] = ()) -> None:
        """Remove the queue from the disk, but the files of the paths in `kept`."""
        self._files.remove_all(kept)
        self.room = 0

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
