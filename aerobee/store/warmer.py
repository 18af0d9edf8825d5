"""Bringing data from the disk into memory without stopping the event loop.

A page fault in a mapping happens under the interpreter's lock and stops every thread. So the executor reads the same
bytes through the file first, where the lock is released; the read through the mapping then finds them in memory.
RocketMQ has threads for this and nothing of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from aerobee.store.commit_log import CommitLog
from aerobee.store.config import StoreConfig
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.queue_files import FilePool
from aerobee.store.queue_table import AnyQueue

COUNT_MAX = 64  # messages warmed at a time; a read beyond it may wait for the disk
_Read = tuple[Callable[[int, int], bytes], int, int]


class Warmer:
    """Reads ahead in the executor. Segments and queue files stay open while they are read."""

    def __init__(
        self, config: StoreConfig, log: CommitLog, pool: FilePool, executor: Executor | None
    ) -> None:
        self._config = config
        self._log = log
        self._pool = pool
        self._executor = executor

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other limits."""
        self._config = config

    def is_cold(self, queue: AnyQueue | None, offset: int) -> bool:
        """Whether reading the queue there would wait for the disk."""
        if queue is None or not queue.min_offset <= offset < queue.readable_max:
            return False
        if isinstance(queue, ConsumeQueue) and queue.readable_max - offset > 1024:
            count = self._config.max_filter_message_size // 20
            if not queue.is_resident(offset, min(count, queue.readable_max - offset)):
                return True
        for at in (
            offset,
            min(offset + self._config.max_transfer_count_on_message_in_disk, queue.readable_max) - 1,
        ):
            entry = queue.entry(at)
            if entry is None or self._log.end - entry[0] <= self._config.hot_read_bytes:
                continue
            segment = self._log.segment_at(entry[0])
            if segment is not None:
                start = entry[0] - segment.base
                if not segment.file.is_resident(start, min(segment.size, start + entry[1])):
                    return True
        return False

    async def warm_queue(
        self, queue: AnyQueue | None, offset: int, count: int, tag_codes: frozenset[int] | None
    ) -> None:
        """Bring what a read of `count` messages needs into memory."""
        if queue is None or not queue.min_offset <= offset < queue.readable_max:
            return
        if isinstance(queue, ConsumeQueue):
            await self._warm_entries(queue, offset)
        await self._warm_records(queue, offset, min(count, COUNT_MAX), tag_codes)

    async def _warm_entries(self, queue: ConsumeQueue, offset: int) -> None:
        pinned = queue.pin_entries(offset, self._config.max_filter_message_size // 20)
        if pinned is None:
            return
        file, start, end = pinned
        assert file.file is not None
        future = asyncio.get_running_loop().run_in_executor(self._executor, file.file.read, start, end)
        future.add_done_callback(lambda _: self._pool.unpin([file]))
        await asyncio.shield(future)

    async def _warm_records(
        self, queue: AnyQueue, offset: int, count: int, tag_codes: frozenset[int] | None
    ) -> None:
        places: list[tuple[int, int]] = []
        total = 0
        stop = min(queue.readable_max, offset + self._config.max_filter_message_size // 20)
        for at in range(offset, stop):
            entry = queue.entry(at)
            if entry is None or (tag_codes is not None and entry[2] not in tag_codes):
                continue
            if self._log.segment_at(entry[0]) is not None and (not places or places[-1] != entry[:2]):
                places.append(entry[:2])
                total += entry[1]
            if len(places) >= count or total >= self._config.max_transfer_bytes_on_message_in_memory:
                break
        if not places:
            return
        await self.warm(places)

    async def warm(self, places: Sequence[tuple[int, int]]) -> None:
        """Bring (physical offset, size) into memory in the executor. Deleted ones are left out."""
        pins: list[int] = []
        reads: list[_Read] = []
        for start, size in places:
            segment = self._log.segment_at(start)
            if segment is not None:
                pins.extend(self._log.pin(start, min(segment.end, start + size)))
                at = start - segment.base
                reads.append((segment.file.read, at, min(segment.size, at + size)))
        future = asyncio.get_running_loop().run_in_executor(self._executor, _read_all, reads)
        future.add_done_callback(lambda _: self._log.unpin(pins))
        await asyncio.shield(future)


def _read_all(reads: list[_Read]) -> None:
    for read, start, end in reads:
        read(start, end)
