"""The key index: all its files (index_file.py), adding entries, and queries. Follows IndexService of RocketMQ."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence

from aerobee.errors import ConfigError
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk, store_full
from aerobee.store.index.index_file import (
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    IndexFile,
    index_file_name,
    key_hash,
)

DEFERRED_ENTRIES = 512  # of bursts that wait to be written
MAP_IN_ENTRIES = 256  # a file with more of them is worth its slots' pages

_logger = logging.getLogger(__name__)


class KeyIndex:
    """All index files, oldest first. One thread."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.directory = config.path("index")
        self.is_enabled = config.message_index_enable
        self.fault = ""  # reason why the index was disabled
        self._files: list[IndexFile] = []
        # The last arguments of put_run_deferred(), of records that.
        self._deferred: list[tuple[int, int]] = []
        self._deferred_ms = 0  # were stored at this time at the latest, and
        self._deferred_until_ms = 0  # before this one: they have the same seconds in their entries
        self.unsynced_names = False
        self._strays: list[str] = []  # files that load() left out
        self._config = config
        self._disk = disk
        self._spare: IndexFile | None = None
        self._create_lock = threading.Lock()

    @property
    def files(self) -> list[IndexFile]:
        """All of them, oldest first, with every entry that was put. For the thread that puts them."""
        if self._deferred:
            self._put_waiting()
        return self._files

    def load(self, written_size: int = 0) -> None:
        """Open the files; the first truncated one and the later ones are left out and reported by first_fault().

        `written_size`: the length that files are known to have had, 0 when nothing is known. Raises ConfigError for
        files of another length, unless they are known to be truncated.
        """
        names = [name for name in self._disk.list_dir(self.directory) if len(name) == 17 and name.isdecimal()]
        sizes = {name: self._disk.file_size(os.path.join(self.directory, name)) for name in names}
        is_known = self._config.index_file_bytes in (written_size, *sizes.values())
        for name, size in sizes.items():
            path = os.path.join(self.directory, name)
            if size == 0:
                self._disk.remove(path)
                continue
            if self._strays or (size != self._config.index_file_bytes and is_known):
                self._strays.append(path)
                continue
            if size != self._config.index_file_bytes:
                raise ConfigError(
                    f"{path} has {size} bytes, but maxHashSlotNum {self._config.max_hash_slot_num} and maxIndexNum "
                    f"{self._config.max_index_num} make {self._config.index_file_bytes}: set them to the values "
                    "with which the store was written"
                )
            self.files.append(
                IndexFile(
                    self._disk.open_mapped(path), self._config.max_hash_slot_num, self._config.max_index_num
                )
            )

    def first_fault(self, log_end: int) -> str:
        """Error of the first file that cannot belong to this log; "" when all can."""
        before = -1
        for number, file in enumerate(self.files):
            if file.is_empty:
                if number < len(self.files) - 1 and not file.is_unused:
                    return f"{file.path} has lost its beginning"
                continue
            if not file.is_plausible(before, log_end):
                return f"{file.path} does not hold entries of this log"
            before = file.end_physical_offset
        return f"{self._strays[0]} was cut" if self._strays else ""

    def remove_faulty(self) -> None:
        """Delete the first file that cannot be right and those behind it."""
        for path in self._strays:
            self._disk.remove(path)
        self._strays = []
        before = -1
        for number, file in enumerate(self.files):
            if file.is_empty or not file.is_plausible(before, 1 << 62):
                for following in self.files[number:]:
                    self.remove(following)
                return
            before = file.end_physical_offset

    def make_room(self, count: int, now_ms: int) -> None:
        """Take disk space for `count` more entries, so that add() cannot fail.

        Without space the index is disabled until the next start: `is_enabled` is false then, and messages are stored without
        entries. The messages are still delivered; only queries by key do not find them.
        """
        if not self.is_enabled:
            return
        try:
            if not self.files or self.files[-1].is_full:
                self._roll(now_ms)
            file = self.files[-1]
            if file.count + count > file.reserved:
                is_first = file.count <= 1  # an idle broker does without
                file.reserve(min(file.count + count, file.entry_count_max), fill=not is_first)
            if file.count + count > file.entry_count_max and len(self.files) and not file.is_full:
                # The burst fills this file: the rest goes to a new one, made when it is needed. To be able to
                # promise that it exists then, it is made now and the few entries left here stay unused.
                self._roll(now_ms)
                self.files[-1].reserve(count + 1)
        except OSError as error:
            self.is_enabled = False
            self.fault = str(store_full(f"the key index {self.directory}", error, path=self.directory))
            _logger.error(
                "messages are stored without entries in the key index until the next start, and not found by key: %s",
                self.fault,
            )

    def has_room(self, count: int) -> bool:
        """Whether `count` entries can be added without make_room()."""
        if not self.is_enabled:
            return True
        if not self.files:
            return False
        file = self.files[-1]
        return file.count + count <= file.reserved and file.count + count <= file.entry_count_max

    def _roll(self, now_ms: int) -> None:
        with self._create_lock:  # waits while the executor makes the spare
            file, self._spare = self._spare, None
            if file is None:
                file = self._create(now_ms)
        self.files.append(file)
        self.unsynced_names = True

    def _create(self, now_ms: int) -> IndexFile:
        self._disk.make_dirs(self.directory)
        if self._files:
            # Two files within one millisecond, or a clock that stepped back: names must keep the order.
            last = os.path.basename(self._files[-1].path)
            while index_file_name(now_ms) <= last:
                now_ms += 1 if index_file_name(now_ms)[:14] == last[:14] else 1000
        path = os.path.join(self.directory, index_file_name(now_ms))
        mapped = self._disk.create_mapped(path, self._config.index_file_bytes)
        file = IndexFile(mapped, self._config.max_hash_slot_num, self._config.max_index_num)
        try:
            file.reserve(2)
            mapped.fill(HEADER_BYTES, file.entries_at)
        except OSError:
            mapped.close()
            self._disk.remove(path)
            raise
        if self._files:  # the first file of a store waits for map_in(): an idle broker does without its 20 MB
            file.map_in()
        return file

    def add(self, topic: str, key_texts: Sequence[str], physical_offset: int, store_timestamp: int) -> None:
        """Index one record under each text (`key` or `T#tag`). make_room() was called for that many."""
        if not key_texts or not self.is_enabled:
            return
        file = self.files[-1]
        for text in key_texts:
            file.put(key_hash(f"{topic}#{text}"), physical_offset, store_timestamp)
        file.write_header()

    def put_run(self, entries: Sequence[tuple[int, int]], store_timestamp: int) -> None:
        """Write entries (hash, physical offset) in order, all with this store time. make_room() was called for that many.

        The same as IndexFile.put() for each, with the file's numbers written once.
        """
        if entries and self.is_enabled:
            self.files[-1].put_run(entries, store_timestamp)

    def put_run_deferred(self, entries: list[tuple[int, int]], store_timestamp: int) -> None:
        """put_run() of entries, not before `store_timestamp` of those before, that may wait in memory: until a caller needs
        the files (a query, a flush, another put), until there are DEFERRED_ENTRIES, or until a second has passed.

        The resulting files are equal: for bursts of one message the file's header fields are written only once per
        several bursts. A crash loses the deferred entries, and recovery recreates them from the log. Keeps the list.
        """
        if store_timestamp < self._deferred_until_ms:
            self._deferred += entries
            self._deferred_ms = store_timestamp
            if len(self._deferred) >= DEFERRED_ENTRIES:
                self._put_waiting()
        elif self.is_enabled:
            file = self.files[-1]
            self._deferred = entries
            self._deferred_ms = store_timestamp
            passed_ms = store_timestamp - file.begin_timestamp
            # A file counts seconds from the store time of its first entry, so that entry is deferred for 1 ms
            # only.
            is_counted = not file.is_empty and file.begin_timestamp > 0 and passed_ms >= 0
            self._deferred_until_ms = store_timestamp + (1000 - passed_ms % 1000 if is_counted else 1)

    def _put_waiting(self) -> None:
        entries, self._deferred, self._deferred_until_ms = self._deferred, [], 0
        self._files[-1].put_run(entries, self._deferred_ms)

    def put_timed_run(self, entries: Sequence[tuple[int, int]], times: Sequence[int]) -> None:
        """put_run() of entries that each have a store time, ms."""
        if entries and self.is_enabled:
            self.files[-1].put_timed_run(entries, times)

    def find(self, topic: str, text: str, begin_ms: int, end_ms: int, count_max: int) -> list[int]:
        """Physical offsets of candidates, newest first, each once."""
        hash_value = key_hash(f"{topic}#{text}")
        found: dict[int, None] = {}
        for file in reversed(self.files):
            if file.overlaps(begin_ms, end_ms):
                for physical_offset in file.find(hash_value, begin_ms, end_ms):
                    found[physical_offset] = None
                    if len(found) >= count_max:
                        return list(found)
            if file.begin_timestamp and file.begin_timestamp < begin_ms:
                break
        return list(found)

    @property
    def last_timestamp(self) -> int:
        """Store time of the newest indexed record; 0 when there is none."""
        return next((file.end_timestamp for file in reversed(self.files) if not file.is_empty), 0)

    @property
    def last_physical_offset(self) -> int:
        """Of the newest indexed record; -1 when there is none."""
        return next((file.end_physical_offset for file in reversed(self.files) if not file.is_empty), -1)

    @property
    def open_file(self) -> IndexFile | None:
        """The oldest file that is not both full and synced; None when there is none with entries.

        After a crash RocketMQ deletes the files that end after the checkpoint's index time, this one and later ones,
        and indexes again only records after the checkpoint's queue bound.
        """
        files = self.files
        for file in files:
            if not file.is_empty and (file.dirty_from >= 0 or file is files[-1]):
                return file
        return None

    @property
    def settled_timestamp(self) -> int:
        """Store time of the newest record in the files before open_file; 0 when there is none."""
        settled, open_file = 0, self.open_file
        for file in self._files:
            if file is open_file or file.is_empty:
                break
            settled = file.end_timestamp
        return settled

    # -- a spare file, so that a full file does not make the loop wait for the next one

    def needs_spare(self) -> bool:
        """Whether make_spare() should be called in the executor now. Any thread, so entries that wait are left alone."""
        if not self.is_enabled or self._spare is not None:
            return False
        return not self._files or self._files[-1].count > self._config.max_index_num * 9 // 10

    def make_spare(self, now_ms: int) -> None:
        """Create the next file ahead of its use. Any thread. Raises OSError."""
        with self._create_lock:
            if self.needs_spare():
                self._spare = self._create(now_ms)

    def needs_map_in(self) -> bool:
        """Whether pin_newest() should be called in the executor now."""
        files = self.files
        return bool(files) and not files[-1].is_mapped_in and files[-1].count > MAP_IN_ENTRIES

    def pin_newest(self) -> IndexFile:
        """The newest file, pinned, so that any thread may call its map_in(); unpin() follows."""
        file = self.files[-1]
        file.pins += 1
        return file

    def unsynced_from(self) -> int:
        """Physical offset of the oldest record with an unsynced entry; -1: none."""
        offsets = [file.dirty_from for file in self.files if file.dirty_from >= 0]
        return min(offsets, default=-1)

    def take_dirty(self) -> list[IndexFile]:
        """Files to sync now, pinned; hand them back with unpin()."""
        files = [file for file in self.files if file.dirty_from >= 0]
        for file in files:
            file.dirty_from = -1
            file.pins += 1
        return files

    def rewrite_dirty(self) -> None:
        """As FilePool.rewrite_dirty."""
        self.unsynced_names = bool(self.files)
        for file in self.files:
            if file.dirty_from >= 0:
                file.file.rewrite(0, file.entries_at + file.count * INDEX_ENTRY_BYTES)

    def unpin(self, files: list[IndexFile]) -> None:
        """Release the files returned by pin_newest() and similar calls, so that they may be closed."""
        for file in files:
            file.pins -= 1
            if file.pins == 0 and file not in self.files:
                file.file.close()

    def remove(self, file: IndexFile) -> None:
        """Delete one file."""
        self.files.remove(file)
        self._disk.remove(file.path)
        self.unsynced_names = True
        if file.pins == 0:
            file.file.close()

    def delete_before(self, log_min_offset: int) -> int:
        """Delete the files wholly below the log's first record, never the last. Returns how many."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end_physical_offset < log_min_offset:
            self.remove(self.files[0])
            removed += 1
        return removed

    def close(self) -> None:
        """Unmap everything and drop the unused spare file."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.file.close()
            self._disk.remove(spare.path)
        for file in self.files:
            file.file.close()
        self.files.clear()
