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
NEAR_ENTRIES = 1024  # so near to the end, a queue's entries are in memory
# A consumer that reads on is asked about once for so many messages and reads: a look costs as much as a read.
LOOK_ENTRIES, LOOK_READS, LOOK_BYTES_MAX = 512, 32, 4 << 20
LOOKED_AT_QUEUES_MAX = 4_096
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
        # What was found in memory: first offset, offset behind the last, reads that still go by it.
        self._looked_at: dict[AnyQueue, tuple[int, int, int]] = {}

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other limits."""
        self._config = config

    def is_cold(self, queue: AnyQueue | None, offset: int) -> bool:
        """Whether reading the queue there would wait for the disk."""
        if queue is None or not queue.min_offset <= offset < queue.readable_max:
            return False
        known = self._looked_at.get(queue)
        if known is not None:
            start, stop, reads = known
            if reads and start <= offset < stop:
                self._looked_at[queue] = (start, stop, reads - 1)
                return False
            del self._looked_at[queue]
        if isinstance(queue, ConsumeQueue) and queue.readable_max - offset > NEAR_ENTRIES:
            count = self._config.max_filter_message_size // 20
            if not queue.is_resident(offset, min(count, queue.readable_max - offset)):
                return True
            if count >= LOOK_ENTRIES and self._look_ahead(queue, offset):
                return False
        for at in (
            offset,
            min(offset + self._config.max_transfer_count_on_message_in_disk, queue.readable_max) - 1,
        ):
            entry = queue.entry(at)
            if entry is not None and not self._is_resident(entry[0], entry[1]):
                return True
        return False

    def _look_ahead(self, queue: ConsumeQueue, offset: int) -> bool:
        """Look at many messages from `offset` on, whose entries are in memory; note when all of them are, too."""
        first, last = queue.entry(offset), queue.entry(offset + LOOK_ENTRIES - 1)
        if first is None or last is None or not 0 < last[0] - first[0] <= LOOK_BYTES_MAX:
            return False
        if not self._is_resident(first[0], last[0] + last[1] - first[0]):
            return False
        if len(self._looked_at) >= LOOKED_AT_QUEUES_MAX:
            self._looked_at.clear()
        # A read that begins below the end of what was looked at may go beyond it by what one reply holds.
        self._looked_at[queue] = (offset, offset + LOOK_ENTRIES - LOOK_READS, LOOK_READS)
        return True

    def _is_resident(self, physical_offset: int, size: int) -> bool:
        """Whether these bytes of the log are in memory, the youngest unasked."""
        if self._log.end - physical_offset <= self._config.hot_read_bytes:
            return True
        segment = self._log.segment_at(physical_offset)
        if segment is None:
            return True
        start = physical_offset - segment.base
        return segment.file.is_resident(start, min(segment.size, start + size))

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
