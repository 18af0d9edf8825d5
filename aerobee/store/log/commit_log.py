"""The commit log: one file after another, holding the records of all topics in the order of their arrival.

Follows CommitLog and MappedFileQueue of RocketMQ. A file has `mappedFileSizeCommitLog` bytes and is named after the
offset of its first byte, 20 digits. A record never crosses files: when it does not leave 8 bytes free, the
rest of the file becomes blank,

    int32 bytes to the file's end | int32 0xCBD43194

and the record begins the next file. Physical offsets count bytes from the log's first file ever.

Invariants: bytes from the first segment's base to `end` are whole records and blanks; the current segment's disk space
is reserved up to `limit + 8`; `end + 8` never exceeds the current segment.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Iterable

from aerobee.errors import ConfigError, RecordInvalid, StoreError
from aerobee.message import MAGIC_BLANK
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk, MappedFile, WritableBuffer, store_full
from aerobee.store.files.zeros import is_zero

_logger = logging.getLogger(__name__)
BLANK = struct.Struct(">II")
BLANK_BYTES = BLANK.size
THROUGH_FILE_BYTES = 64 << 10  # of a master's log in one piece are written through the file
FILL_STEP_BYTES = 1 << 20  # of a new file are made ready at a time: about 0.2 ms each 3,000 small messages


def segment_name(base: int) -> str:
    """The file name of the segment that begins at this physical offset: 20 digits."""
    return f"{base:020d}"


def is_segment_name(name: str) -> bool:
    """Whether a file of this name is a segment."""
    return len(name) == 20 and name.isdecimal()


class Segment:
    """One file of the log; mapped at its first use. While `pins` is above 0 it is not unmapped."""

    __slots__ = (
        "_disk",
        "_file",
        "base",
        "filled",
        "is_removed",
        "path",
        "pins",
        "reserved",
        "size",
        "spoiled",
    )

    def __init__(self, disk: Disk, path: str, base: int, size: int, file: MappedFile | None = None) -> None:
        self._disk = disk
        self._file = file
        self.reserved = 0  # bytes below it have disk space, as far as this process knows
        # Bytes below it are ready for writing. A file of an earlier run counts as ready to its end: this run does not know
        # that it holds only zeros.
        self.filled = 0 if file is not None else size
        self.spoiled = 0  # a write that failed may have left bytes behind the log's end, up to here
        self.path = path
        self.base = base
        self.size = size
        self.pins = 0
        self.is_removed = False

    @property
    def end(self) -> int:
        """The physical offset behind the file's last byte."""
        return self.base + self.size

    @property
    def file(self) -> MappedFile:
        """Raises StoreError when the file cannot be opened."""
        if self._file is not None:  # nearly always, and asked with each read
            return self._file
        try:
            return self.open_file()
        except OSError as error:
            raise StoreError(
                f"the commit log file {self.path} cannot be read: {error}. Its messages are served again as soon as it can",
                path=self.path,
                offset=self.base,
            ) from error

    def open_file(self) -> MappedFile:
        """As `file`. Raises OSError."""
        if self._file is None:
            self._file = self._disk.open_mapped(self.path)
        return self._file

    def close(self) -> None:
        """Unmap the file. Not while it is pinned."""
        if self._file is not None:
            self._file.close()
            self._file = None


class CommitLog:
    """Append and read by physical offset. One thread writes and reads; sync_pinned may run in another."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.directory = config.commit_log_dir
        self.segment_size = config.mapped_file_size_commit_log
        self.segments: list[Segment] = []
        self.end = 0  # physical offset behind the last record or blank
        self.limit = 0  # a record may end here without a call of _reserve_slowly()
        self.base = 0  # of the current segment
        self.buffer: WritableBuffer = bytearray()  # the current segment's bytes
        self._reserve_bytes = config.commit_log_reserve_bytes
        self._disk = disk
        self._unsynced_names = False  # a segment was created or removed since the directory was synced
        self._create_lock = threading.Lock()
        self._spare: Segment | None = None
        self._empty_path = ""  # of a last file without any length
        self._removed: list[Segment] = []  # deleted files that a reader still has pinned

    # -- writing

    def reserve(self, size: int) -> int:
        """Return the physical offset for a record of `size` bytes, with disk space behind it.

        The caller writes it to `buffer` at `offset - base`, then sets `end`. Nothing changes for readers until
        then. Raises StoreFull, or RecordInvalid for a record that no file can hold.
        """
        end = self.end
        if end + size <= self.limit:
            return end
        return self._reserve_slowly(size)

    def _reserve_slowly(self, size: int) -> int:
        if size + BLANK_BYTES > self.segment_size:
            raise RecordInvalid(
                f"a record of {size} bytes does not fit a commit log file of {self.segment_size} bytes: send "
                "smaller messages or raise mappedFileSizeCommitLog"
            )
        if not self.segments:
            # A first message in an empty directory, or after every file was lost: continue at `end`.
            self._enter(self._new_segment(self.end))
        elif self.end + size + BLANK_BYTES > self.base + self.segment_size:
            self._reserve_blank()
            # The next file first: when the disk is full nothing has changed.
            segment = self._new_segment(self.base + self.segment_size)
            free = self.base + self.segment_size - self.end
            if free:  # none when recovery found the file complete and the next one missing
                BLANK.pack_into(self.buffer, self.segment_size - free, free, MAGIC_BLANK)
            self.end = segment.base
            self._enter(segment)
        self._reserve(size)
        return self.end

    def reserve_raw(self, physical_offset: int, size: int, *, fills_file: bool) -> None:
        """Take disk space for another log's bytes at exactly this offset: the log's end, or a file's begin in an empty log.

        `fills_file`: they hold the rest of the file, blank and all. Nothing changes for readers. Raises RecordInvalid for
        bytes that do not fit there as they would in any log, StoreFull.
        """
        self._enter_raw(physical_offset, size, fills_file=fills_file)
        if not self.limit or physical_offset + size > self.limit:
            self._reserve(size)

    def write_raw(self, physical_offset: int, data: memoryview, *, fills_file: bool) -> None:
        """As reserve_raw(), and write the bytes, through the file. The caller then sets `end`: until then nothing
        changes for readers. For THROUGH_FILE_BYTES and more: their pages are written once, not filled before.
        """
        self._enter_raw(physical_offset, len(data), fills_file=fills_file)
        segment, at = self.segments[-1], physical_offset - self.base
        end = at + len(data)
        needed = min(end + BLANK_BYTES, self.segment_size)
        if needed > segment.reserved:
            self._take_space(segment, needed)
        if segment.spoiled:
            self._clear_spoiled(segment)
        try:
            segment.file.write(at, data)
        except OSError as error:
            segment.spoiled, self.limit = end, 0
            what = f"the commit log file {segment.path}"
            raise store_full(what, error, path=segment.path, offset=physical_offset) from error
        segment.filled = max(segment.filled, end)
        self.limit = self.base + min(segment.reserved, segment.filled) - BLANK_BYTES

    def _enter_raw(self, physical_offset: int, size: int, *, fills_file: bool) -> None:
        """Make the file for these bytes the current one."""
        is_new = not self.segments or physical_offset == self.base + self.segment_size
        base = physical_offset if is_new else self.base
        bound = base + self.segment_size - (0 if fills_file else BLANK_BYTES)
        end = physical_offset + size
        if base % self.segment_size or end > bound or (fills_file and end != bound):
            raise RecordInvalid(
                f"{size} bytes for {physical_offset} do not fit a commit log file of {self.segment_size} bytes at {base}"
            )
        assert is_new or physical_offset == self.end
        if is_new:
            segment = self._new_segment(base)
            self.end = base
            self._enter(segment)

    def _clear_spoiled(self, segment: Segment) -> None:
        """Before anything is written behind the log's end: what a failed write left there may be whole records, which another
        master does not have. Recovery would take them behind a shorter append. Raises StoreFull.
        """
        begin = self.end - segment.base
        if segment.spoiled > begin:
            try:
                segment.file.fill(begin, segment.spoiled)
            except OSError as error:
                what = f"the commit log file {segment.path}"
                raise store_full(what, error, path=segment.path, offset=self.end) from error
        segment.spoiled = 0

    def _reserve_blank(self) -> None:
        """After a restart nothing of the current file is reserved yet, not even the blank's bytes."""
        free = self.base + self.segment_size - self.end
        if free and not self.limit:
            self._reserve(0)

    def _reserve(self, size: int) -> None:
        segment = self.segments[-1]
        needed = min(self.end - self.base + size + BLANK_BYTES, self.segment_size)
        if needed > segment.reserved:
            self._take_space(segment, needed)
        if segment.spoiled:
            self._clear_spoiled(segment)
        end = min(segment.reserved, needed + min(FILL_STEP_BYTES, self._reserve_bytes))
        if end > segment.filled:
            begin = max(segment.filled, self.end - self.base)
            try:
                segment.file.fill(begin, end)
            except OSError as error:
                what = f"the commit log file {segment.path}"
                raise store_full(what, error, path=segment.path, offset=self.end) from error
            segment.file.prefault(begin, end)
            segment.filled = end
        self.limit = self.base + end - BLANK_BYTES

    def _take_space(self, segment: Segment, needed: int) -> None:
        ahead = min(self.segment_size, needed + self._reserve_bytes)
        for end in (ahead, needed):  # the last bytes of a nearly full disk are used too
            try:
                segment.file.reserve(end)
            except OSError as error:
                if end == needed:
                    what = f"the commit log file {segment.path}"
                    raise store_full(what, error, path=segment.path, offset=self.end) from error
            else:
                segment.reserved = end
                return

    def _new_segment(self, base: int) -> Segment:
        with self._create_lock:  # waits while the executor prepares this very file
            spare, self._spare = self._spare, None
            if spare is not None and spare.base == base:
                segment = spare
            else:
                segment = self._create(base)
        self.segments.append(segment)
        return segment

    def _create(self, base: int) -> Segment:
        path = os.path.join(self.directory, segment_name(base))
        file: MappedFile | None = None
        try:
            if self._disk.exists(path):
                self._disk.remove(path)  # of a creation that failed, and could not even be taken back
            file = self._disk.create_mapped(path, self.segment_size)
            self._unsynced_names = True
            file.reserve(min(self.segment_size, self._reserve_bytes))
        except OSError as error:
            if file is not None:
                file.close()
                self._take_back(path)
            raise store_full(f"the commit log file {path}", error, path=path, offset=base) from error
        return Segment(self._disk, path, base, self.segment_size, file)

    def _take_back(self, path: str) -> None:
        """Remove a file that was created but got no space."""
        try:
            self._disk.remove(path)
        except OSError as error:
            _logger.warning("the unused file %s could not be removed: %s", path, error)

    def _enter(self, segment: Segment) -> None:
        self.base = segment.base
        self.buffer = segment.file.buffer
        self.limit = 0

    def needs_spare(self) -> bool:
        """Whether the next file should be made now, in the executor, by make_spare()."""
        return bool(self.segments) and self._spare is None and self.end - self.base > self.segment_size // 2

    def make_spare(self) -> None:
        """Create the next file ahead of its use. Any thread. Raises StoreFull."""
        with self._create_lock:
            base = self.segments[-1].base + self.segment_size
            if self._spare is None and self.segments[-1].end == base:
                self._spare = self._create(base)

    # -- reading

    def segment_at(self, physical_offset: int) -> Segment | None:
        """The segment that holds the offset, or None when it was deleted or does not exist yet."""
        if not self.segments:
            return None
        index = (physical_offset - self.segments[0].base) // self.segment_size
        return self.segments[index] if 0 <= index < len(self.segments) else None

    def read(self, physical_offset: int, size: int) -> bytes:
        """Copy bytes of one segment; fewer than `size` when the segment ends. Empty when there are none."""
        segment = self.segment_at(physical_offset)
        if segment is None:
            return b""
        at = physical_offset - segment.base
        return bytes(segment.file.buffer[at : at + size])

    @property
    def min_offset(self) -> int:
        """Physical offset of the oldest byte that is kept; the end for an empty log."""
        return self.segments[0].base if self.segments else self.end

    # -- durability

    def pin(self, start: int, end: int) -> list[Segment]:
        """Keep the segments of [start, end) mapped until unpin() is called with the returned list."""
        pinned = [segment for segment in self.segments if segment.base < end and segment.end > start]
        for segment in pinned:
            segment.pins += 1
        return pinned

    def unpin(self, pinned: Iterable[Segment]) -> None:
        """Release what pin() returned: a file that was removed meanwhile is closed now."""
        for segment in pinned:
            segment.pins -= 1
            if segment.is_removed and segment.pins == 0:
                segment.close()
                self._removed.remove(segment)

    def has_removed(self, pinned: Iterable[Segment]) -> bool:
        """Whether one of these pinned files was deleted: it takes space on the disk until it is released."""
        return any(segment.is_removed for segment in pinned)

    def sync_pinned(self, pinned: Iterable[Segment], start: int, end: int) -> None:
        """Make [start, end) durable. Any thread, while the segments are pinned. Raises OSError."""
        if self._unsynced_names:
            self._unsynced_names = False
            try:
                self._disk.sync_dir(self.directory)
            except BaseException:
                self._unsynced_names = True
                raise
        for segment in pinned:
            base = segment.base
            segment.open_file().sync(max(start - base, 0), min(end - base, segment.size))

    def rewrite(self, start: int, end: int) -> None:
        """Rewrite [start, end) unchanged, because a failed sync of an earlier run may have left it only in the page
        cache.
        """
        for segment in self.segments:
            if segment.base < end and segment.end > start:
                first, last = max(start - segment.base, 0), min(end - segment.base, segment.size)
                segment.open_file().reserve(last)
                segment.open_file().rewrite(first, last)

    def sync(self, start: int, end: int) -> None:
        """Make [start, end) durable in this thread. Raises OSError."""
        pinned = self.pin(start, end)
        try:
            self.sync_pinned(pinned, start, end)
        finally:
            self.unpin(pinned)

    # -- opening and cutting

    def load(self, *, written_size: int = 0, mend: bool = False) -> list[str]:
        """Find the files. Their content is recovery's business: until set_end() nothing may be appended.

        `written_size`: the length that the files are known to have had, 0 when nothing is known. With `mend` a
        shortened file is extended with zeros, and a missing one becomes a blank; the repairs are returned as sentences.
        Raises ConfigError for files of another length, StoreError for a file that was cut or is missing.
        """
        notes: list[str] = []
        names = [name for name in self._disk.list_dir(self.directory) if is_segment_name(name)]
        sizes = {name: self._disk.file_size(os.path.join(self.directory, name)) for name in names}
        is_known = self.segment_size in (written_size, *sizes.values())
        for name in names:
            path, size, base = os.path.join(self.directory, name), sizes[name], int(name)
            if size == 0 and name == names[-1]:
                self._empty_path = (
                    path  # created, and the power went before it got its length; or it was emptied
                )
                continue
            if size > self.segment_size or (size != self.segment_size and not is_known):
                raise ConfigError(
                    f"{path} has {size} bytes, but mappedFileSizeCommitLog is {self.segment_size}: set it to the "
                    "value with which the store was written"
                )
            while self.segments and base > self.segments[-1].end:
                notes.append(self._fill_hole(name, mend))
            if size != self.segment_size:
                notes.append(self._lengthen(path, size, mend))
            if self.segments and base != self.segments[-1].end:
                raise StoreError(
                    f"{path} begins inside {self.segments[-1].path}: it belongs to another store; move it away",
                    path=path,
                    offset=base,
                )
            self.segments.append(Segment(self._disk, path, base, self.segment_size))
        self.end = self.segments[-1].end if self.segments else 0
        return notes

    def _fill_hole(self, next_name: str, mend: bool) -> str:
        base = self.segments[-1].end
        path = os.path.join(self.directory, segment_name(base))
        text = f"the commit log file {segment_name(base)} is missing in {self.directory}: the next one there is {next_name}"
        if not mend:
            raise StoreError(
                f"{text}. Acknowledged messages are lost with it. Restore it from a copy or a replica, or start once with "
                "truncateCorruptLog=true to continue with the other files",
                path=self.directory,
                offset=base,
            )
        segment = self._create(base)
        BLANK.pack_into(segment.file.buffer, 0, self.segment_size, MAGIC_BLANK)
        segment.file.sync(0, BLANK_BYTES)
        self.segments.append(segment)
        return f"{text}; an empty {path} replaces it because truncateCorruptLog is set"

    def _lengthen(self, path: str, size: int, mend: bool) -> str:
        text = f"the commit log file {path} was cut: it has {size} of {self.segment_size} bytes"
        if not mend:
            raise StoreError(
                f"{text}. Restore it from a copy or a replica, or start once with "
                "truncateCorruptLog=true to continue with the remaining part",
                path=path,
                offset=int(os.path.basename(path)) + size,
            )
        whole = path + ".whole"
        if self._disk.exists(whole):
            self._disk.remove(whole)
        target = self._disk.create_mapped(whole, self.segment_size)
        source = self._disk.open_mapped(path) if size else None
        try:
            target.reserve(max(1, size))
            for at in range(0, size, _CLEAR_STEP_BYTES):
                assert source is not None
                stop = min(size, at + _CLEAR_STEP_BYTES)
                target.buffer[at:stop] = source.read(at, stop)
            target.sync(0, self.segment_size)
        finally:
            target.close()
            if source is not None:
                source.close()
        self._disk.rename(whole, path)
        self._unsynced_names = True
        return f"{text}; zeros replace the rest because truncateCorruptLog is set"

    def set_end(self, end: int, *, clear: bool) -> int:
        """Make `end` the log's end, as recovery found it: later files go, and with `clear` later bytes become zero.

        Returns how many bytes that were not zero were cleared. RocketMQ leaves them; here the next recovery must
        distinguish bytes that were cut earlier from bytes that were lost recently.
        """
        cleared = 0
        self._drop_spare()
        if self._empty_path:
            self._disk.remove(self._empty_path)
            self._empty_path = ""
            self._unsynced_names = True
        while self.segments and self.segments[-1].base > end:
            segment = self.segments.pop()
            cleared += _nonzero_bytes(segment, 0) if clear else 0
            self._close_unpinned(segment)
            self._disk.remove(segment.path)
            self._unsynced_names = True
        self.end = end
        if not self.segments:
            return cleared
        tail = self.segments[-1]
        if end == tail.end:
            self.base, self.buffer, self.limit = tail.base, tail.file.buffer, 0
            return cleared
        if clear:
            cleared += _clear(tail, end - tail.base)
        self._enter(tail)
        return cleared

    def clear(self) -> None:
        """Remove every file: the log is as empty as a new one, and begins at 0 or where a master's log does. Raises OSError."""
        self.set_end(0, clear=False)
        while self.segments:
            segment = self.segments.pop()
            self._close_unpinned(segment)
            self._disk.remove(segment.path)
            self._unsynced_names = True
        self.base, self.buffer, self.limit = 0, bytearray(), 0

    def detach_first(self) -> Segment:
        """Take the oldest file out of the log; the caller removes it from the disk. Never the current one.

        It stays mapped while it is pinned.
        """
        assert len(self.segments) > 1
        segment = self.segments.pop(0)
        self._unsynced_names = True
        self._close_unpinned(segment)
        return segment

    def _close_unpinned(self, segment: Segment) -> None:
        """Close a file that is no longer the log's: now, or when the last reader unpins it. A cut file's successor may begin at
        the same offset."""
        segment.is_removed = True
        if segment.pins:
            self._removed.append(segment)
        else:
            segment.close()

    def _drop_spare(self) -> None:
        """Remove the file that was made ahead of its use."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()
            self._disk.remove(spare.path)

    def close(self) -> None:
        """Unmap everything and drop the unused spare file."""
        self._drop_spare()
        for segment in (*self.segments, *self._removed):
            segment.close()
        self.buffer = bytearray()
        self.limit = 0


_CLEAR_STEP_BYTES = 1 << 20
# The search ends after this number of zeros: a crash leaves holes of at most the unflushed bytes, and reading
# the remainder of a 1 GiB file would take a second.
ZERO_RUN_BYTES_MAX = 64 << 20


def _nonzero_bytes(segment: Segment, start: int) -> int:
    """End of the content after `start`; 0 when only zeros follow."""
    file = segment.file
    last = start
    for at in range(start, segment.size, _CLEAR_STEP_BYTES):
        part = file.peek(at, min(segment.size, at + _CLEAR_STEP_BYTES))
        if not is_zero(part):
            last = at + len(part.rstrip(b"\0"))
        elif at - last > ZERO_RUN_BYTES_MAX:
            break
    return last - start


def _clear(segment: Segment, start: int) -> int:
    """Overwrite non-zero bytes behind `start` with zeros; returns their number."""
    count = _nonzero_bytes(segment, start)
    if count:
        buffer = segment.file.buffer
        for at in range(start, start + count, _CLEAR_STEP_BYTES):
            stop = min(at + _CLEAR_STEP_BYTES, start + count)
            if not is_zero(buffer[at:stop]):
                segment.file.reserve(stop)
                buffer[at:stop] = bytes(stop - at)
        segment.file.sync(start, start + count)
    return count
