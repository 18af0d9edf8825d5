"""Writes checkpoints: after a sync, a checkpoint records the bounds that the sync made durable.

Follows the StoreCheckpoint of RocketMQ and its flush by FlushConsumeQueueService.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aerobee.errors import StoreError
from aerobee.store.append.durability import Durability
from aerobee.store.append.log_appender import LogAppender
from aerobee.store.append.writability import Writability
from aerobee.store.files.checkpoint import Checkpoint, next_checkpoint
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk
from aerobee.store.queue.queue_bounds import BoundsKeeper
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.store.store_files import StoreFiles


class Checkpointing:
    """Writes the checkpoints of one store. Belongs to the event loop's thread, except finish()."""

    def __init__(
        self,
        config: StoreConfig,
        files: StoreFiles,
        appender: LogAppender,
        durability: Durability,
        writability: Writability,
        *,
        disk: Disk,
        record_time: Callable[[int], int],
    ) -> None:
        """`record_time` gives the store time, ms, of the record at a physical offset, -1 for none."""
        self._root = config.store_path_root_dir
        self._files = files
        self._appender = appender
        self._flushed = durability.flushed
        self._durability = durability
        self._writability = writability
        self._record_time = record_time
        self._bounds = BoundsKeeper(boot_id=disk.boot_id, file_sizes=config.file_sizes)

    def next(self, queues_bound: int, *, is_closed: bool = False, is_cut: bool = False) -> Checkpoint:
        """The durable bounds; `queues_bound`: the queue and index entries of every record before it are."""
        files, appender = self._files, self._appender
        return next_checkpoint(
            files.checkpoints.current,
            log_flushed=self._flushed.value,
            confirm_offset=self._durability.confirmed,
            log_end=files.log.end,
            queues_bound=queues_bound,
            last_record=(appender.last_record_offset, appender.last_store_timestamp),
            record_time=self._record_time,
            index_timestamp=files.index.settled_timestamp,
            open_index=None if is_closed else files.index.open_file,
            queue_bounds=self._bounds.encoded(
                files.table.queues, files.log, files.index, self._flushed.value, now=is_closed or is_cut
            ),
        )

    def forget_queues(self, queues: Iterable[AnyQueue]) -> None:
        """The queues were deleted or restarted: remove their bounds from the checkpoint."""
        self._bounds.forget([(queue.topic, queue.queue_id) for queue in queues])

    def sync_all(self) -> int:
        """Sync queues and index, in this thread, and write the checkpoint; returns its queue bound. Raises OSError."""
        flusher = self._files.queue_flusher
        flusher.sync_all()
        bound = flusher.bound(self._files.log.end)
        self._files.checkpoints.write(self.next(bound))
        return bound

    def sync_cut(self) -> None:
        """As sync_all(), after the end of the log was truncated: the previous bounds must be replaced. Raises OSError."""
        flusher = self._files.queue_flusher
        flusher.sync_all()
        self._bounds.forget_all()
        self._files.checkpoints.must_write(self.next(flusher.bound(self._files.log.end), is_cut=True))

    def finish(self) -> None:
        """The last sync, after that of the log: from here on a start finds a store that was closed in order. Raises OSError."""
        bound = self.sync_all()
        self._files.remove_abort()
        # Only without `abort` may it say that nothing at all is to be read again.
        self._files.checkpoints.write(self.next(bound, is_closed=True))

    def flush_queues_now(self) -> None:
        """Sync queues and index and write the checkpoint, in this thread. Raises StoreError."""
        if self._writability.failure is not None:
            raise self._writability.failure  # the result of a second sync is meaningless
        try:
            bound = self._files.queue_flusher.sync_all_below(self._files.log.end)
            self._files.checkpoints.write(self.next(bound))
        except OSError as error:
            raise self.sync_failed(error) from error

    def sync_failed(self, error: OSError) -> StoreError:
        """A sync of queues or index failed: the store takes nothing more, no caller gets "durable" again."""
        failure = StoreError(
            f"syncing queues or index of {self._root} to the disk failed: {error}. The store takes no more messages. "
            "Check the disk, then restart the broker: recovery builds them again from the log",
            path=self._root,
        )
        self._writability.fail(failure)
        self._flushed.fail()
        return failure
