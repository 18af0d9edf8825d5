"""Flushes queue entries and index entries to the disk, and tracks the bound up to which they are durable.

Follows FlushConsumeQueueService of RocketMQ. The bound is a physical offset: every queue and index entry of a record
before it is on the disk. The checkpoint records it, and recovery starts there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from aerobee.store.files.disk import Disk
from aerobee.store.index.index_file import IndexFile
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.queue.queue_files import FilePool, QueueFile


class QueueFlusher:
    """Rounds of flushing. begin() and end() belong to the event loop's thread; any thread may call sync()."""

    @dataclass(slots=True)
    class Work:
        """One round: the files to sync, and the bound that holds after the sync."""

        bound: int
        files: list[QueueFile]
        index_files: list[IndexFile]
        directories: list[str]

        @property
        def is_empty(self) -> bool:
            """Whether there is nothing to sync."""
            return not (self.files or self.index_files or self.directories)

    def __init__(self, pool: FilePool, index: KeyIndex, disk: Disk) -> None:
        self._pool = pool
        self.index = index
        self._disk = disk

    @property
    def dirty_count(self) -> int:
        """Queue files that the next round would sync."""
        return self._pool.dirty_count

    def bound(self, log_end: int) -> int:
        """Physical offset below which nothing is unsynced."""
        offsets = [queue.unsynced_from for queue in self._pool.unsynced_queues if queue.unsynced_from >= 0]
        index_from = self.index.unsynced_from()
        if index_from >= 0:
            offsets.append(index_from)
        return min(offsets, default=log_end)

    def begin(self, log_flushed: int) -> Work:
        """Take everything that is dirty now. Later writes belong to the next round.

        `log_flushed` limits the bound: an entry may be on the disk before its record, the promise may not.
        """
        for queue in self._pool.unsynced_queues:
            queue.unsynced_from = -1
        self._pool.unsynced_queues.clear()
        directories = self._pool.take_dirty_dirs()
        if self.index.unsynced_names:
            self.index.unsynced_names = False
            directories.append(self.index.directory)
        return self.Work(log_flushed, self._pool.take_dirty(), self.index.take_dirty(), directories)

    def sync(self, work: Work) -> None:
        """Raises OSError; then the durability of this round's data is unknown."""
        for directory in work.directories:
            # A topic may be deleted at any time meanwhile: deleted files have no directory entries to sync.
            with suppress(FileNotFoundError):
                if self._disk.is_dir(directory):
                    self._disk.sync_dir(directory)
        for file in work.files:
            self._pool.sync_file(file)
        for index_file in work.index_files:
            index_file.file.sync(0, index_file.file.size)

    def end(self, work: Work) -> None:
        """Release the round's files."""
        self._pool.unpin(work.files)
        self.index.unpin(work.index_files)

    def sync_all_below(self, log_flushed: int) -> int:
        """Run one round in this thread. Returns the bound. Raises OSError."""
        work = self.begin(log_flushed)
        try:
            self.sync(work)
        finally:
            self.end(work)
        return work.bound

    def sync_all(self) -> None:
        """Everything, in this thread. Raises OSError."""
        self.sync_all_below(0)
