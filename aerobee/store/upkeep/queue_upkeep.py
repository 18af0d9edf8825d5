"""The store's background work except the log's flush: flushes queues and index, writes checkpoints, creates the next
files.

Follows FlushConsumeQueueService and AllocateMappedFileService of RocketMQ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from aerobee.clock import Clock, in_step
from aerobee.errors import StoreFull
from aerobee.store.files.checkpoint import Checkpoint, CheckpointFile
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.descriptors import is_used_up
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.flush import Watermark
from aerobee.store.upkeep.queue_flush import QueueFlusher

_logger = logging.getLogger(__name__)
_RETRY_S = 0.1  # while all descriptors of the process are used up
_FEW_QUEUE_FILES = (
    256  # maximum number synced every flushIntervalConsumeQueue; all are synced only at the thorough interval
)


class QueueUpkeep:
    """One task. `on_failed` is called with a failed sync; then the task ends, because durability can no longer be
    guaranteed.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        flusher: QueueFlusher,
        flushed: Watermark,
        checkpoints: CheckpointFile,
        *,
        clock: Clock,
        executor: Executor | None,
        next_checkpoint: Callable[[int], Checkpoint],
        on_failed: Callable[[OSError], object],
    ) -> None:
        self._config = config
        self._log = log
        self._flusher = flusher
        self._flushed = flushed
        self._checkpoints = checkpoints
        self._clock = clock
        self._executor = executor
        self._next_checkpoint = next_checkpoint
        self._on_failed = on_failed

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply other intervals."""
        self._config = config

    async def run(self) -> None:
        """Until cancelled; a sync under way is waited for."""
        await self._make_spares()
        thorough_at = self._clock.monotonic() + self._config.flush_consume_queue_thorough_interval / 1000
        while not self._flushed.failed:
            await self._clock.sleep(in_step(self._clock, self._config.flush_interval_consume_queue / 1000))
            if self._flushed.failed:
                return
            await self._make_spares()
            now = self._clock.monotonic()
            if self._flusher.dirty_count > _FEW_QUEUE_FILES and now < thorough_at:
                # Thousands of syncs per second would slow down the log's flush; with fewer, recovery scans
                # more of the log.
                checkpoint = self._next_checkpoint(self._flusher.bound(self._log.end))
                await self._in_thread(self._checkpoints.write, checkpoint)
                continue
            thorough_at = now + self._config.flush_consume_queue_thorough_interval / 1000
            await self._flush()

    async def _flush(self) -> None:
        # Only what the log holds durably may be covered by the checkpoint's queue bound.
        work = self._flusher.begin(self._flushed.value)
        checkpoint = self._next_checkpoint(work.bound)
        if work.is_empty and checkpoint == self._checkpoints.current:
            return  # an idle broker wakes no thread
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self._sync, work, checkpoint)
        try:
            await asyncio.wait([future])
            while is_used_up(future.exception()):
                # A file could not be opened for syncing, which is not an error of the disk: retry.
                await self._clock.sleep(_RETRY_S)
                future = loop.run_in_executor(self._executor, self._sync, work, checkpoint)
                await asyncio.wait([future])
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        finally:
            self._flusher.end(work)
            error = future.exception()
            if isinstance(error, OSError):
                self._on_failed(error)
            elif error is not None:
                raise error

    def _sync(self, work: QueueFlusher.Work, checkpoint: Checkpoint) -> None:
        self._flusher.sync(work)
        self._checkpoints.write(checkpoint)

    async def _make_spares(self) -> None:
        """The next files ahead of their use: making one takes milliseconds, in which the loop would stand still."""
        try:
            if self._log.needs_spare():
                await self._in_thread(self._log.make_spare)
            if self._flusher.index.needs_spare():
                await self._in_thread(self._flusher.index.make_spare, self._clock.now_ms())
            if self._flusher.index.needs_map_in():
                file = self._flusher.index.pin_newest()
                try:
                    await self._in_thread(file.map_in)
                finally:
                    self._flusher.index.unpin([file])
        except (StoreFull, OSError) as error:
            _logger.warning("the next file cannot be made yet: %s", error)

    async def _in_thread(self, work: Callable[..., object], *arguments: object) -> None:
        """Run it in the executor. A cancelled task waits for it, too: a checkpoint that is written after the truncation or the close that
        cancelled the task would replace theirs.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        future.result()
