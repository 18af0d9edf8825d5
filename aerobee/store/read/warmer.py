"""Loads data from the disk into memory without blocking the event loop.

A page fault in a mapping happens under the interpreter's lock and stops every thread. So the store first requests the
bytes from the kernel (POSIX_FADV_WILLNEED) and reads when they are in memory; if that takes long, an executor thread
reads them through the file. The read through the mapping then finds them in memory. RocketMQ's threads simply wait for
the page fault.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor

from aerobee.store.files.config import RUN_BYTES_MAX, SCATTERED_COUNT_MAX, StoreConfig
from aerobee.store.files.disk import MappedFile
from aerobee.store.log.commit_log import CommitLog, Segment
from aerobee.store.log.raw_records import RECORD_BYTES_MAX
from aerobee.store.queue.consume_queue import ENTRY_BYTES, ConsumeQueue
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.queue.queue_table import AnyQueue

# Number and bytes of messages warmed at a time: more than most reads take, because the consumer's next reads
# follow there. A larger read warms as many messages as it needs, up to RUN_BYTES_MAX.
COUNT_MAX, BYTES_MAX = 256, 1 << 20
# Maximum size of other queues' records between two records; a smaller gap is read, too.
GAP_BYTES_MAX = 64 << 10
STEP_BYTES_MAX = 1 << 20  # of one read
NEAR_ENTRIES = 1024  # within this distance of its end, a queue's entries are in memory
# One check of residency covers this many messages and successive reads of a consumer, because a check costs
# as much as a read.
LOOK_ENTRIES, LOOK_READS, LOOK_BYTES_MAX = 512, 32, 4 << 20
LOOKED_AT_QUEUES_MAX = 4_096
LOOKS, LOOK_AGAIN_S = 10, 0.002  # for bytes that were requested from the system; then a thread reads them
_Run = tuple[MappedFile, int, int]  # bytes of a file from one position to another


class Warmer:
    """Reads ahead in the executor. Segments and queue files stay open while they are read."""

    def __init__(
        self, config: StoreConfig, log: CommitLog, pool: FilePool, executor: Executor | None
    ) -> None:
        self._config, self._memory_bytes = config, config.memory_share_bytes()
        self._log = log
        self._pool = pool
        self._executor = executor
        # Range found in memory: first offset, offset after the last, number of reads that may still use this
        # result.
        self._looked_at: dict[AnyQueue, tuple[int, int, int]] = {}
        # An entry that was found to be hot: offset, physical offset. Later entries are newer.
        self._hot: dict[AnyQueue, tuple[int, int]] = {}

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply other limits."""
        self._config, self._memory_bytes = config, config.memory_share_bytes()

    def is_cold(self, queue: AnyQueue | None, offset: int, count_max: int = SCATTERED_COUNT_MAX) -> bool:
        """Whether reading up to `count_max` messages of the queue there would wait for the disk."""
        if queue is None or not queue.min_offset <= offset < queue.readable_max:
            return False
        count_max = self._bounded(queue, offset, count_max)
        known = self._looked_at.get(queue)
        if known is not None:
            start, stop, reads = known
            if reads and start <= offset and offset + count_max <= stop:
                self._looked_at[queue] = (start, stop, reads - 1)
                return False
            del self._looked_at[queue]
        if isinstance(queue, ConsumeQueue) and queue.readable_max - offset > NEAR_ENTRIES:
            count = self._entry_count(count_max)
            if not queue.is_resident(offset, min(count, queue.readable_max - offset)):
                return True
            if count >= LOOK_ENTRIES and self._look_ahead(queue, offset, max(LOOK_ENTRIES, count_max)):
                return False
        return not self._are_resident(queue, offset, count_max)

    def take_warm_span(
        self, queue: AnyQueue | None, offset: int, count_max: int
    ) -> tuple[int, int, int] | None:
        """Like is_cold, for several successive reads: None when a read there would wait for the disk.

        Else (first offset, offset behind the last, reads): this read and `reads` further ones within these offsets will
        not wait. The caller owns this allowance from now on; is_cold no longer uses it.
        """
        if self.is_cold(queue, offset, count_max):
            return None
        known = self._looked_at.pop(queue, None) if queue is not None else None
        return known if known is not None and known[0] <= offset < known[1] else (offset, offset, 0)

    def _bounded(self, queue: AnyQueue, offset: int, count_max: int) -> int:
        """Number of messages that must be in memory for a read of `count_max` at this position."""
        if count_max <= SCATTERED_COUNT_MAX:
            return count_max
        first = queue.entry(offset)
        is_old = first is not None and self._log.end - first[0] > self._memory_bytes
        most = (
            self._config.max_transfer_count_on_message_in_disk
            if is_old
            else self._config.max_transfer_count_on_message_in_memory
        )
        return min(count_max, max(most, SCATTERED_COUNT_MAX))

    def _entry_count(self, count_max: int) -> int:
        """Number of queue entries that a read of `count_max` messages examines."""
        return max(self._config.max_filter_message_size // ENTRY_BYTES, count_max)

    def _are_resident(self, queue: AnyQueue, offset: int, count_max: int) -> bool:
        """Whether the records of one read are in memory: as many as a read of hot messages takes."""
        hot_from = self._log.end - self._config.hot_read_bytes
        hot = self._hot.get(queue)
        if hot is not None and hot[0] <= offset and hot[1] >= hot_from:
            return True
        count = min(count_max, self._config.max_transfer_count_on_message_in_memory)
        first = queue.entry(offset)
        if first is None:
            return True
        if first[0] >= hot_from:
            if len(self._hot) >= LOOKED_AT_QUEUES_MAX:
                self._hot.clear()
            self._hot[queue] = (offset, first[0])
            return True
        if count > SCATTERED_COUNT_MAX:
            count = self._run_count(queue, offset, count)
        last = queue.entry(min(offset + count, queue.readable_max) - 1)
        if last is None:
            return True
        if 0 <= last[0] - first[0] <= LOOK_BYTES_MAX:
            return self._is_resident(first[0], last[0] + last[1] - first[0])
        # Far between: one by one.
        is_old = self._log.end - first[0] > self._memory_bytes
        count = min(
            count,
            self._config.max_transfer_count_on_message_in_disk if is_old else SCATTERED_COUNT_MAX,
            SCATTERED_COUNT_MAX,
        )
        entries = map(queue.entry, range(offset, min(offset + count, queue.readable_max)))
        return all(entry is None or self._is_resident(entry[0], entry[1]) for entry in entries)

    def _run_count(self, queue: AnyQueue, offset: int, count: int) -> int:
        """Number of `count` cold messages that one read returns: those near the first one, or a few scattered ones."""
        first, last = queue.entry(offset), queue.entry(min(offset + count, queue.readable_max) - 1)
        if first is None or last is None or last[0] - first[0] <= RUN_BYTES_MAX:
            return count

        def distance(at: int) -> int:
            entry = queue.entry(at)
            return entry[0] - first[0] if entry is not None else RUN_BYTES_MAX + 1

        offsets = range(offset, min(offset + count, queue.readable_max))
        return max(SCATTERED_COUNT_MAX, bisect_right(offsets, RUN_BYTES_MAX, key=distance))

    def _look_ahead(self, queue: ConsumeQueue, offset: int, count: int) -> bool:
        """Check whether all of `count` messages from `offset` on are in memory (their entries are), and if so remember
        the span.
        """
        first, last = queue.entry(offset), queue.entry(offset + count - 1)
        if first is None or last is None or not 0 < last[0] - first[0] <= LOOK_BYTES_MAX:
            return False
        if not self._is_resident(first[0], last[0] + last[1] - first[0]):
            return False
        if len(self._looked_at) >= LOOKED_AT_QUEUES_MAX:
            self._looked_at.clear()
        self._looked_at[queue] = (offset, offset + count, LOOK_READS)
        return True

    def _is_resident(self, physical_offset: int, size: int) -> bool:
        """Whether these bytes of the log are in memory, the newest unasked."""
        if self._log.end - physical_offset <= self._config.hot_read_bytes:
            return True
        segment = self._log.segment_at(physical_offset)
        if segment is None:
            return True
        start = physical_offset - segment.base
        return segment.file.is_resident(start, min(segment.size, start + size))

    async def warm_queue(
        self,
        queue: AnyQueue | None,
        offset: int,
        tag_codes: frozenset[int] | None,
        count_max: int = SCATTERED_COUNT_MAX,
    ) -> None:
        """Load the data of the next reads of up to `count_max` messages from `offset` on into memory."""
        if queue is None or not queue.min_offset <= offset < queue.readable_max:
            return
        count_max = self._bounded(queue, offset, count_max)
        if isinstance(queue, ConsumeQueue):
            await self._warm_entries(queue, offset, self._entry_count(count_max))
        await self._warm_records(queue, offset, tag_codes, count_max)

    async def _warm_entries(self, queue: ConsumeQueue, offset: int, count: int) -> None:
        if queue.is_resident(offset, count):
            return
        pinned = queue.pin_entries(offset, count)
        if pinned is None:
            return
        file, start, end = pinned
        assert file.file is not None
        try:
            has_arrived = await _arrive([(file.file, start, end)])
        except BaseException:
            self._pool.unpin([file])
            raise
        if has_arrived:
            self._pool.unpin([file])
            return
        future = asyncio.get_running_loop().run_in_executor(self._executor, file.file.read, start, end)
        future.add_done_callback(lambda _: self._pool.unpin([file]))
        await asyncio.shield(future)

    async def _warm_records(
        self, queue: AnyQueue, offset: int, tag_codes: frozenset[int] | None, count_max: int
    ) -> None:
        span = self._span(queue, offset, count_max) if tag_codes is None else None
        await self.warm(self._extents(queue, offset, tag_codes, count_max) if span is None else span)

    def _span(self, queue: AnyQueue, offset: int, count_max: int) -> list[tuple[int, int]] | None:
        """One contiguous range of log bytes from the first to the last message to warm, as (physical offset, size) per
        log file. None when the range, which includes records of other queues in between, is too large. Warming each
        record separately costs the event loop ten times as much.
        """
        count = min(queue.readable_max - offset, max(COUNT_MAX, count_max))
        if count_max > SCATTERED_COUNT_MAX:
            count = self._run_count(queue, offset, count)
        first, last = queue.entry(offset), queue.entry(offset + count - 1)
        if first is None or last is None or not 0 <= last[0] - first[0] <= RUN_BYTES_MAX:
            return None
        at, end = first[0], last[0] + min(max(last[1], 0), RECORD_BYTES_MAX)
        extents: list[tuple[int, int]] = []
        while at < end:
            segment = self._log.segment_at(at)
            if segment is None:
                return None
            extents.append((at, min(end, segment.end) - at))
            at = segment.end
        return extents

    def _extents(
        self, queue: AnyQueue, offset: int, tag_codes: frozenset[int] | None, count_max: int
    ) -> list[tuple[int, int]]:
        """(physical offset, size) of the messages that are to be warmed."""
        extents: list[tuple[int, int]] = []
        total, most = 0, COUNT_MAX if tag_codes is None else max(COUNT_MAX, count_max)
        count = min(queue.readable_max - offset, self._entry_count(most))
        # A plain ConsumeQueue returns many entries with one read: 256 single reads would block the event loop
        # for long.
        entries: Iterable[tuple[int, int, int] | None] = (
            queue.entries(offset, count)
            if type(queue) is ConsumeQueue
            else map(queue.entry, range(offset, offset + count))
        )
        for entry in entries:
            if entry is None or not 0 < entry[1] <= RECORD_BYTES_MAX:
                continue  # a filler, or nothing that can be a record
            if tag_codes is not None and entry[2] not in tag_codes:
                continue
            if not extents or extents[-1] != entry[:2]:
                extents.append(entry[:2])
                total += entry[1]
            if len(extents) >= most or total >= BYTES_MAX:
                break
        return extents

    async def warm(self, extents: Sequence[tuple[int, int]]) -> None:
        """Bring (physical offset, size) into memory in the executor. Deleted ones are left out."""
        runs = self._runs(extents)
        pins = [
            pinned
            for segment, start, end in runs
            for pinned in self._log.pin(segment.base + start, segment.base + end)
        ]
        wanted: list[_Run] = [(segment.file, start, end) for segment, start, end in runs]
        try:
            has_arrived = await _arrive(wanted)
        except BaseException:
            self._log.unpin(pins)
            raise
        if has_arrived:
            self._log.unpin(pins)
            return
        future = asyncio.get_running_loop().run_in_executor(self._executor, _read_all, wanted)
        future.add_done_callback(lambda _: self._log.unpin(pins))
        await asyncio.shield(future)

    def _runs(self, extents: Sequence[tuple[int, int]]) -> list[tuple[Segment, int, int]]:
        """Join extents that lie near each other: (segment, start in it, end in it), each for one read.

        Separate reads would release and take the interpreter's lock once per record.
        """
        runs: list[tuple[Segment, int, int]] = []
        for start, size in sorted(extents):
            segment = self._log.segment_at(start)
            if segment is None:
                continue
            at = start - segment.base
            end = min(segment.size, at + size)
            if runs and runs[-1][0] is segment and at - runs[-1][2] <= GAP_BYTES_MAX:
                runs[-1] = (segment, runs[-1][1], max(end, runs[-1][2]))
            else:
                runs.append((segment, at, end))
        return runs


async def _arrive(runs: list[_Run]) -> bool:
    """Request these bytes from the kernel, and poll until they are in memory; False when that takes too long.

    No thread is used: a thread that passes the bytes takes the GIL from the event loop for each piece, and a thread
    that is preempted while it holds the GIL stops all others.
    """
    missing = [run for run in runs if not run[0].is_resident(run[1], run[2])]
    for file, start, end in missing:
        file.will_need(start, end)
    for _ in range(LOOKS):
        if all(file.is_resident(start, end) for file, start, end in missing):
            return True
        await asyncio.sleep(LOOK_AGAIN_S)
    return False


def _read_all(runs: list[_Run]) -> None:
    for file, start, end in runs:
        for at in range(start, end, STEP_BYTES_MAX):
            file.read(at, min(end, at + STEP_BYTES_MAX))
