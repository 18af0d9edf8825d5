"""The files of one store together: the log, the queues, the key index, the checkpoint, `abort` and the lock.

They are opened with recovery and closed in order. Follows DefaultMessageStore.load, recover and shutdown.
"""

from __future__ import annotations

import os

from aerobee.errors import RecordInvalid
from aerobee.store.files.checkpoint import CheckpointFile, without_queues
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk
from aerobee.store.files.store_lock import StoreLock
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.dispatch import DispatchRecord
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.queue_bounds import written_sizes
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.queue.queue_table import QueueTable
from aerobee.store.recovery.cut_intent import CutIntentFile, head_crc
from aerobee.store.recovery.log_cut import DIRECTORY, LogCut, check_cut, cut_log
from aerobee.store.recovery.recovery import Recovery
from aerobee.store.recovery.recovery_report import RecoveryReport
from aerobee.store.upkeep.queue_flush import QueueFlusher


class StoreFiles:
    """Files of a store. lock() and recover() block and run before anything else."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.log = CommitLog(config, disk)
        self.pool = FilePool(disk, config.mapped_queue_files_max)
        self.index = KeyIndex(config, disk)
        self.table = QueueTable(config, self.pool, record_at=self._record_at)
        self.checkpoints = CheckpointFile(disk, config.path("checkpoint"))
        self.queue_flusher = QueueFlusher(self.pool, self.index, disk)
        self.cut_intent = CutIntentFile(disk, os.path.join(config.store_path_root_dir, DIRECTORY))
        self._config = config
        self._disk = disk
        self._root = config.store_path_root_dir
        self._lock = StoreLock(config, disk)

    def _record_at(self, physical_offset: int) -> DispatchRecord | None:
        return LogScanner(self.log, check_crc=False).alone(physical_offset).record

    @property
    def is_open(self) -> bool:
        """Whether this process holds the directories."""
        return self._lock.is_held

    def lock(self) -> None:
        """Make the directories and lock them. Raises StoreLocked, StoreError."""
        self._lock.take()

    def recover(self) -> RecoveryReport:
        """Read and mend the files that a killed process, or one that ended in order, has left. Blocking.

        Raises ConfigError for files of other lengths, StoreError for a log whose acknowledged records are damaged, OSError.
        From here on `abort` stands.
        """
        was_clean = not was_aborted(self._disk, self._root)
        if not was_clean:
            # Sync all data that was read, which counts as durable from now on, even after a refused start
            # removed an entry: otherwise a power loss could restore that entry, which would point to another
            # record.
            self._disk.sync_all(self._root)
        checkpoint = self.checkpoints.read()
        sizes = written_sizes(checkpoint.queue_bounds)
        notes = self.log.load(written_size=sizes[0], mend=self._config.truncate_corrupt_log)
        self.table.load(sizes[1:3])
        self.index.load(sizes[3])
        report = Recovery(
            self._config,
            self.log,
            self.table,
            self.index,
            checkpoint,
            disk=self._disk,
            was_clean=was_clean,
            before_rebuild=self._distrust_queues,
            keep_bounds=self._keep_bounds,
        ).run()
        report.notes[:0] = notes
        write_abort_file(self._disk, self._root, os.getpid())
        # Data of a killed process may be only in the page cache: sync it, because it counts as durable from
        # now on.
        start = max(self.log.min_offset, min(checkpoint.log_flushed, self.log.end))
        if not report.was_clean:
            self.log.rewrite(start, self.log.end)
            self.pool.rewrite_dirty()
            self.index.rewrite_dirty()
        self.log.sync(start, self.log.end)
        self._disk.sync_dir(self.log.directory)
        return report

    def _distrust_queues(self) -> None:
        """Recovery is about to delete queues or index files: should it not get to its end, the next one starts over."""
        write_abort_file(self._disk, self._root, os.getpid())
        self.checkpoints.must_write(without_queues(self.checkpoints.current, self.log.min_offset))

    def _keep_bounds(self, queue_bounds: bytes, queues_flushed: int, must: bool) -> None:
        """Let the checkpoint say other bounds of the queues. Raises OSError when it `must`; else the older ones stay."""
        checkpoints = self.checkpoints
        checkpoint = checkpoints.with_bounds(queue_bounds, queues_flushed)
        (checkpoints.must_write if must else checkpoints.write)(checkpoint)

    def cut(self, start: int) -> LogCut:
        """Cut the log's end off from `start` on, a record's begin, with what points into it; log_cut.py keeps it.

        The intent of it is on the disk before anything changes. Raises RecordInvalid where no record begins, OSError.
        """
        check_cut(self.log, start)
        self.cut_intent.begin(start, self.log)
        return self._cut(start)

    def finish_cut(self) -> LogCut | None:
        """As cut(), for one that a kill left unfinished; None without a pending cut, or when the log no longer contains
        the part to cut. This does not complete the dependent steps. Raises OSError."""
        self.cut_intent.read(self.log)
        intent = self.cut_intent.current
        if intent is None or intent.is_log_cut or intent.offset >= self.log.end:
            return None
        if intent.head_crc != head_crc(self.log, intent.offset):
            return None
        try:
            check_cut(self.log, intent.offset)
        except RecordInvalid:
            return None
        return self._cut(intent.offset)

    def _cut(self, start: int) -> LogCut:
        return cut_log(
            self.log, self.table, self.index, self.checkpoints, disk=self._disk, root=self._root, start=start
        )

    def remove_abort(self) -> None:
        """Say that everything is on the disk. Raises OSError."""
        remove_abort_file(self._disk, self._root)

    def close(self) -> None:
        """Close everything and release the lock, whatever is open."""
        self.log.close()
        self.pool.close()
        self.index.close()
        self._lock.release()

    def disk_ratios(self) -> tuple[float, float]:
        """Used share (0..1) of the disks of the commit log and of the queues."""
        ratios = []
        for path in (self.log.directory, self._root):
            used, total = self._disk.usage(path)
            ratios.append(used / total if total else 0.0)
        return ratios[0], ratios[1]


# The file `abort` exists while a broker runs, and a clean stop removes it. A start that finds it follows a crash.
#
# Its content is the process id in decimal; `abort.bak` holds the content before the last write, as RocketMQ leaves it.
def was_aborted(disk: Disk, root: str) -> bool:
    """Whether the last owner of the directory did not close it in order. Raises OSError."""
    return disk.exists(os.path.join(root, "abort"))


def write_abort_file(disk: Disk, root: str, process_id: int) -> None:
    """Durable on return."""
    path = os.path.join(root, "abort")
    previous = disk.read_file(path) if disk.exists(path) else b""
    disk.replace_file(path + ".bak", previous)
    disk.replace_file(path, str(process_id).encode())


def remove_abort_file(disk: Disk, root: str) -> None:
    """Durable on return."""
    disk.remove(os.path.join(root, "abort"))
    disk.sync_dir(root)
