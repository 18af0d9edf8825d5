"""A consume queue whose entries point to units that hold, besides the tags code, the store time and filter bits.

Follows ConsumeQueueExt and the extended part of ConsumeQueue of RocketMQ (enableConsumeQueueExt). Files of
mappedFileSizeConsumeQueueExt bytes in consumequeue_ext/{topic}/{queueId}/, each a row of units:

    size int16 (whole unit) | tags_code int64 | store_timestamp int64 | bitmap_size int16 (bytes) | bitmap

A unit does not cross files, and a file's last 4 bytes hold none; size -1 is the end of a file. The queue entry has in
place of the tags code the unit's position plus -2^63. A value above -2^31 - 1 is a tags code: one queue may contain
both kinds of entries, and an entry whose unit is unreadable matches for every reader.

Invariant: units are before `end`, in the order of their entries.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Container
from dataclasses import dataclass

from aerobee.store.queue.consume_queue import ENTRY, ENTRY_BYTES, FILLER, ConsumeQueue, QueueEntry
from aerobee.store.queue.queue_files import FilePool, QueueFileList

_logger = logging.getLogger(__name__)

UNIT = struct.Struct(">hqqh")
UNIT_BYTES_MIN = UNIT.size
UNIT_BYTES_MAX = 32_767
BITMAP_BYTES_MAX = UNIT_BYTES_MAX - UNIT_BYTES_MIN
END_BYTES = 4
END_OF_FILE = -1
_SIZE = struct.Struct(">h")
ADDRESS_BASE = -(1 << 63)
ADDRESS_MAX = -(1 << 31) - 1
assert UNIT_BYTES_MIN == 20

MayTake = Callable[[bytes, int], bool]  # bitmap, store time, ms
Bitmap = Callable[[str, bytes], bytes]  # topic, properties -> the bits of the filters that take the message


@dataclass(frozen=True, slots=True)
class ExtensionUnit:
    """The unit of an entry. `store_timestamp` in ms; an empty `bitmap` decides nothing: the record must be tested."""

    tags_code: int
    store_timestamp: int
    bitmap: bytes

    @property
    def size(self) -> int:
        """Its bytes in the file."""
        return UNIT_BYTES_MIN + len(self.bitmap)


@dataclass(frozen=True, slots=True)
class BitmapAccept:
    """A filter on whole records that can reject an entry by its bitmap alone."""

    accept: Callable[[bytes], bool]
    may_take: MayTake

    def __call__(self, record: bytes) -> bool:
        return self.accept(record)


class QueueExtension:
    """The units of one queue. One thread."""

    def __init__(self, directory: str, file_size: int, pool: FilePool) -> None:
        self._files = QueueFileList(directory, file_size, pool)
        self._pool = pool
        self._file_size = file_size
        self.end = 0  # position of the next unit

    def put(self, unit: ExtensionUnit) -> int:
        """Write a unit; return what the queue entry gets. Raises StoreFull and changes nothing."""
        position = self._fitting_position(self.end, unit.size)
        if position != self.end and (last := self._files.file_at(self.end)) is not None:
            last = self._files.writable_file(self.end, END_BYTES)  # after a restart its space is not known
            _SIZE.pack_into(self._pool.buffer(last), self.end - last.base, END_OF_FILE)
            self._pool.mark_dirty(last)
        file = self._files.writable_file(position, unit.size)
        at = position - file.base
        buffer = self._pool.buffer(file)
        UNIT.pack_into(buffer, at, unit.size, unit.tags_code, unit.store_timestamp, len(unit.bitmap))
        buffer[at + UNIT_BYTES_MIN : at + unit.size] = unit.bitmap
        self._pool.mark_dirty(file)
        self.end = position + unit.size
        return position + ADDRESS_BASE

    def ensure_room(self, count: int, unit_bytes: int) -> None:
        """Reserve disk space, so that writing this many units cannot fail. Raises StoreFull."""
        position = self.end
        for _ in range(count):
            position = self._fitting_position(position, unit_bytes)
            self._files.writable_file(position, unit_bytes)
            position += unit_bytes

    def _fitting_position(self, position: int, size: int) -> int:
        """Position of a unit that cannot begin before `position`."""
        left = self._file_size - position % self._file_size
        return position if size + END_BYTES <= left else position + left

    def get(self, address: int) -> ExtensionUnit | None:
        """The unit of a queue entry's address; None when there is none."""
        position = address - ADDRESS_BASE
        file = self._files.file_at(position)
        if file is None or position + UNIT_BYTES_MIN > file.base + file.size:
            return None
        at = position - file.base
        unit = self._pool.peek(file, at, at + UNIT_BYTES_MIN)
        size, tags_code, store_timestamp, bitmap_size = UNIT.unpack(unit)
        if bitmap_size < 0 or size != UNIT_BYTES_MIN + bitmap_size or at + size > file.size:
            return None
        bitmap = self._pool.peek(file, at + UNIT_BYTES_MIN, at + size)
        return ExtensionUnit(tags_code, store_timestamp, bitmap)

    def load(self) -> None:
        """Open its files. Until recovery has looked, `end` is that of the last file. Raises OSError."""
        self._files.load("mappedFileSizeConsumeQueueExt")
        # Until the queue says where its last unit is, nothing may be written over.
        self.end = self._files.files[-1].base + self._file_size if self._files.files else 0

    def cut(self, address: int | None) -> None:
        """Drop everything behind the unit at `address`; all of it without one."""
        unit = self.get(address) if address is not None else None
        if address is None or unit is None:
            self.end = self._files.files[0].base if self._files.files else 0
        else:
            self.end = address - ADDRESS_BASE + unit.size
        self._files.cut(self.end)

    def delete_before(self, address: int) -> None:
        """Delete files whose units all lie before the one at `address`."""
        position = address - ADDRESS_BASE
        while len(self._files.files) > 1 and self._files.files[1].base <= position:
            self._files.remove_first()

    def remove_all(self, kept: Container[str] = ()) -> None:
        """Remove its files, but those of the paths in `kept`."""
        self._files.remove_all(kept)
        self.end = 0

    @property
    def file_paths(self) -> list[str]:
        """Its files on the disk."""
        return [file.path for file in self._files.files]

    @property
    def is_empty(self) -> bool:
        """Whether it has no files."""
        return not self._files.files


class ExtendedQueue(ConsumeQueue):
    """A consume queue with an extension. Its readers see plain entries with tags codes."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: str,
        file_size: int,
        pool: FilePool,
        extension: QueueExtension,
        bitmap: Callable[[], Bitmap | None],
        *,
        writes: bool,
    ) -> None:
        """`bitmap` gives the function that computes filter bits, if there is one; without `writes` the extension of
        earlier entries is only read."""
        super().__init__(topic, queue_id, directory, file_size, pool)
        self._extension = extension
        self._bitmap = bitmap
        self._writes = writes

    # -- writing

    def append_message(
        self, physical_offset: int, size: int, tags_code: int, store_timestamp: int, properties: bytes
    ) -> None:
        code = tags_code
        if self._writes:
            bits = self._bits(properties)
            code = self._extension.put(ExtensionUnit(tags_code, store_timestamp, bits))
        self.append_entry(physical_offset, size, code)

    def ensure_room(self, count: int) -> None:
        super().ensure_room(count)
        if self._writes:
            self._extension.ensure_room(count, UNIT_BYTES_MIN + len(self._bits(b"")))

    def _bits(self, properties: bytes) -> bytes:
        """The filter bits of a message; empty when they cannot be computed, so that every filter tests the record."""
        bitmap = self._bitmap()
        if bitmap is None:
            return b""
        try:
            return bitmap(self.topic, properties)[:BITMAP_BYTES_MAX]
        except Exception:  # the record is in the log already
            _logger.exception("the filter bits of a message of topic %s could not be computed", self.topic)
            return b""

    # -- reading

    def _tags_code(self, code: int) -> int:
        if code > ADDRESS_MAX:
            return code
        unit = self._extension.get(code)
        return unit.tags_code if unit is not None else code

    def entry(self, offset: int) -> QueueEntry | None:
        found = super().entry(offset)
        return None if found is None else (found[0], found[1], self._tags_code(found[2]))

    def read_entries(self, offset: int, count: int) -> bytes:
        entries = bytearray(super().read_entries(offset, count))
        for at in range(0, len(entries), ENTRY_BYTES):
            physical_offset, size, code = ENTRY.unpack_from(entries, at)
            if code <= ADDRESS_MAX:
                ENTRY.pack_into(entries, at, physical_offset, size, self._tags_code(code))
        return bytes(entries)

    def matching_entries(
        self, offset: int, count: int, tag_codes: frozenset[int] | None, may_take: MayTake | None
    ) -> bytes:
        """Like read_entries, with fillers instead of entries that the tags or the bitmap exclude."""
        entries = bytearray(super().read_entries(offset, count))
        for at in range(0, len(entries), ENTRY_BYTES):
            code = ENTRY.unpack_from(entries, at)[2]
            if code > ADDRESS_MAX:
                wanted = tag_codes is None or code in tag_codes
            else:
                unit = self._extension.get(code)
                wanted = unit is None or (
                    (tag_codes is None or unit.tags_code in tag_codes)
                    and (may_take is None or may_take(unit.bitmap, unit.store_timestamp))
                )
            if not wanted:
                entries[at : at + ENTRY_BYTES] = FILLER
        return bytes(entries)

    # -- opening, cutting, deleting

    def load(self, written_size: int = 0) -> None:
        self._extension.load()
        super().load(written_size)
        self._settle()

    def _settle(self) -> None:
        """Let the extension end behind the last unit that an entry points to."""
        address = None
        offset = self.max_offset
        while address is None and offset > self.min_offset:
            start = max(self.min_offset, offset - 1_000)
            codes = [code for _, _, code in self._raw(start, offset - start)]
            address = next((code for code in reversed(codes) if code <= ADDRESS_MAX), None)
            offset = start
        self._extension.cut(address)

    def _raw(self, offset: int, count: int) -> list[QueueEntry]:
        found: list[QueueEntry] = []
        while len(found) < count and (data := super().read_entries(offset, count - len(found))):
            found.extend(ENTRY.iter_unpack(data))
            offset += len(data) // ENTRY_BYTES
        return found

    def cut_records_from(
        self, physical_bound: int, judge: Callable[[ConsumeQueue], None] | None = None
    ) -> int:
        count = super().cut_records_from(physical_bound, judge)
        if count:
            self._settle()
        return count

    def cut_offsets_from(self, offset: int) -> None:
        super().cut_offsets_from(offset)
        self._settle()

    def clear(self) -> None:
        super().clear()
        self._extension.remove_all()

    def delete_before(self, log_min_offset: int) -> int:
        removed = super().delete_before(log_min_offset)
        for _, _, code in self._raw(self.min_offset, 1):
            if code <= ADDRESS_MAX:
                self._extension.delete_before(code)
        return removed

    def delete(self, kept: Container[str] = ()) -> None:
        super().delete(kept)
        self._extension.remove_all(kept)

    @property
    def file_paths(self) -> list[str]:
        """Its files on the disk, those of the extension too."""
        return super().file_paths + self._extension.file_paths
