"""Executes retention: removes old log files, and the queue and index files that only point into them.

Follows CleanCommitLogService and CleanConsumeQueueService of RocketMQ; retention.py selects the files to delete.

A file goes when the log behind it is durable up to its present end, RocketMQ checks nothing. A record that will still be
needed is stored again before its file goes (half messages, timers, schedules): a loss of power must not leave neither.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from aerobee.clock import Clock
from aerobee.errors import StoreError
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.flush import Watermark
from aerobee.store.log.retention import Retention
from aerobee.store.queue.queue_table import QueueTable

_logger = logging.getLogger(__name__)
_QUEUES_PER_TURN = 64  # candidates that are checked: mostly none is removed


class LogCleaner:
    """Removes expired files. It calls `on_ratio(is_full, used_ratio)` after each check of the disk's usage. Belongs to
    the event loop's thread.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        flushed: Watermark,
        *,
        disk: Disk,
        clock: Clock,
        executor: Executor | None,
        on_ratio: Callable[[bool, float], None],
        flush: Callable[[], Awaitable[bool]],
    ) -> None:
        """`flush` makes the log durable up to its end; False: it cannot."""
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._flushed = flushed
        self._disk = disk
        self._clock = clock
        self._executor = executor
        self._on_ratio = on_ratio
        self._flush = flush
        self._retention = Retention(config)
        self._round = asyncio.Lock()

    async def clean(self, *, manual: bool) -> int:
        """One round. Returns files removed: of the log in the executor, for large ones take a while. Raises OSError and
        StoreError.
        """
        async with self._round:
            loop = asyncio.get_running_loop()
            used, total, times = await loop.run_in_executor(self._executor, self._look_at_disk)
            count = self._expired_count(used, total, times, manual)
            first = self._log.min_offset
            if not count or not await self._flush() or self._log.min_offset != first:
                return 0
            paths = self._detach(count)
            for path in paths:
                await loop.run_in_executor(self._executor, self._disk.remove, path)
            return await self._after_expiry(len(paths))

    async def run(self) -> None:
        """One round every cleanResourceInterval."""
        while True:
            await self._clock.sleep(self._config.clean_resource_interval / 1000)
            try:
                await self.clean(manual=False)
            except (OSError, StoreError) as error:
                _logger.error("retention of %s failed: %s", self._log.directory, error)

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply a changed configuration: retention times and disk ratios."""
        self._config = config
        self._retention.reconfigure(config)

    def _look_at_disk(self) -> tuple[int, int, list[int]]:
        """Used and total bytes, and when each of the oldest log files was last changed. Any thread."""
        paths = [segment.path for segment in self._log.segments[:-1][: self._config.delete_file_batch_max]]
        used, total = self._disk.usage(self._log.directory)
        return used, total, [self._disk.mtime_ms(path) for path in paths]

    def _expired_count(self, used: int, total: int, times: list[int], manual: bool) -> int:
        """How many of the oldest files go; reports the usage of the disk."""
        ratio = used / total if total else 0.0
        now_ms = self._clock.now_ms()
        decision = self._retention.decide(
            now_ms=now_ms,
            local_hour=time.localtime(now_ms / 1000).tm_hour,
            file_times_ms=times,
            used_ratio=ratio,
            manual=manual,
        )
        self._on_ratio(decision.is_full, ratio)
        return decision.delete_count

    def _detach(self, count: int) -> list[str]:
        """Take that many segments out of the log. Returns the files to remove."""
        paths = []
        for _ in range(count):
            if len(self._log.segments) < 2 or self._log.segments[0].end > self._flushed.value:
                break
            paths.append(self._log.detach_first().path)
        return paths

    async def _after_expiry(self, removed: int) -> int:
        if removed:
            for number, count in enumerate(self._queues.deletion_before(self._log.min_offset), 1):
                removed += count
                if number % _QUEUES_PER_TURN == 0:
                    await asyncio.sleep(0)
            removed += self._index.delete_before(self._log.min_offset)
            _logger.info("retention removed %d files; the log begins at %d", removed, self._log.min_offset)
        return removed
