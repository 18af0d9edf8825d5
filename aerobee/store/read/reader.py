"""Reads messages of a queue: first the entries, then the records that they point to. Follows
DefaultMessageStore.getMessage and ConsumeQueue.getOffsetInQueueByTime of RocketMQ.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain

from aerobee.message import BORN_HOST_V6
from aerobee.record_head import HOST_V4_BYTES, HOST_V6_BYTES, field_at, field_end, format_of, head_struct
from aerobee.store.files.config import RUN_BYTES_MAX, SCATTERED_COUNT_MAX, BrokerRole, StoreConfig
from aerobee.store.files.disk import WritableBuffer
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.stored_message import GetResult, GetStatus
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue
from aerobee.store.queue.consume_queue import ENTRY, ENTRY_BYTES, FILLER_SIZE, ConsumeQueue
from aerobee.store.queue.extended_queue import BitmapAccept, ExtendedQueue

RESULT_BYTES_MAX = 128 * 1024 * 1024
_SIZE = head_struct("size")
_OWN_EXTENT = head_struct("size", "physical_offset")
_OWN_OFFSET, _OWN_OFFSET_AT = head_struct("physical_offset"), field_at("physical_offset")
_HEAD_BYTES_MIN = field_end("physical_offset")  # the fields of a record that are read here
_SYS_FLAG_AT = field_at("sys_flag")
_LAYOUTS_KEPT = 64
_OWN_EXTENT_FORMAT = format_of("size", "physical_offset")
_STORE_TIME_AT = field_at("store_timestamp")  # with an IPv4 born host; 12 more with IPv6

AnyQueue = ConsumeQueue | BatchConsumeQueue
Accept = Callable[[bytes], bool]


class _Collected:
    """The records gathered by one read, and the bounds at which the read stops."""

    __slots__ = (
        "bytes",
        "config",
        "count",
        "count_max",
        "first_offset",
        "last_offset",
        "log",
        "memory_bytes",
        "parts",
        "removed",
    )

    def __init__(self, log: CommitLog, config: StoreConfig, memory_bytes: int, count_max: int) -> None:
        self.log = log
        self.config = config
        self.memory_bytes = memory_bytes
        self.count_max = count_max
        self.parts: list[bytes | bytearray] = []
        self.bytes = 0
        self.count = 0
        self.first_offset = self.last_offset = -1
        self.removed = False

    def is_full(self, physical_offset: int, size: int, messages: int) -> bool:
        """Whether this record must wait for the next call. The first record never exceeds a bound."""
        if not self.count:
            return False
        if self.count + messages > self.count_max or self.bytes + size > RESULT_BYTES_MAX:
            return True
        config, age = self.config, self.log.end - physical_offset
        if (
            self.count >= SCATTERED_COUNT_MAX
            and age > config.hot_read_bytes
            and physical_offset - self.first_offset > RUN_BYTES_MAX
        ):
            return True
        if age <= self.memory_bytes:
            bytes_max = config.max_transfer_bytes_on_message_in_memory
            count_max = config.max_transfer_count_on_message_in_memory
        else:
            bytes_max = config.max_transfer_bytes_on_message_in_disk
            count_max = config.max_transfer_count_on_message_in_disk
        return self.bytes + size > bytes_max or self.count >= count_max

    def take(self, physical_offset: int, size: int, messages: int, accept: Accept | None) -> bool:
        """Add the record, unless it was deleted or is refused. Returns False when there is no such record."""
        segment = self.log.segment_at(physical_offset)
        if segment is None:
            self.removed = 0 <= physical_offset < self.log.end
            return self.removed
        at = physical_offset - segment.base
        record = bytes(segment.file.buffer[at : at + size])
        if (
            len(record) != size
            or size < _HEAD_BYTES_MIN
            or _SIZE.unpack_from(record)[0] != size
            or _OWN_OFFSET.unpack_from(record, _OWN_OFFSET_AT)[0] != physical_offset
        ):
            return False
        if accept is not None and not accept(record):
            return True
        self.parts.append(record)
        self.bytes += size
        if not self.count:
            self.first_offset = physical_offset
        self.count += messages
        self.last_offset = physical_offset
        return True


@lru_cache(_LAYOUTS_KEPT)
def _entry_extents(count: int) -> struct.Struct:
    """Physical offset and size of `count` queue entries."""
    return struct.Struct(f">{'qi8x' * count}")


@lru_cache(_LAYOUTS_KEPT)
def _own_extents(count: int, size: int) -> struct.Struct:
    """Size and physical offset of each of these back-to-back records of one size."""
    return struct.Struct(f">{f'{_OWN_EXTENT_FORMAT}{size - _HEAD_BYTES_MIN}x' * count}")


@lru_cache(_LAYOUTS_KEPT)
def _alike(count: int, size: int, distance: int) -> struct.Struct:
    """The bytes of `count` records of one size whose offsets differ by `distance`."""
    return struct.Struct(f">{f'{size}s{distance - size}x' * (count - 1)}{size}s")


def record_reader(
    queues: Mapping[tuple[str, int], AnyQueue], log: CommitLog
) -> Callable[[str, int, int], bytes | None]:
    """A function that reads the record of (topic, queue id, queue offset); None when there is none."""

    def record_at(topic: str, queue_id: int, offset: int) -> bytes | None:
        queue = queues.get((topic, queue_id))
        entry = queue.entry(offset) if queue is not None else None
        return log.read(entry[0], entry[1]) if entry is not None else None

    return record_at


class MessageReader:
    """Reads of the broker's consumers. One thread; touches only memory, or waits for the disk when data is cold."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        memory_bytes: int,
        mend: Callable[[AnyQueue, int], bool] = lambda queue, offset: False,
    ) -> None:
        """`mend` judges an entry that points to no record: True when the entry is right now, False to pass over it."""
        self._config = config
        self._log = log
        self._mend = mend
        self.memory_bytes = memory_bytes  # the log's newest bytes, taken for "in memory"
        self._corrects = config.broker_role is not BrokerRole.SLAVE or config.offset_check_in_slave

    def reconfigure(self, config: StoreConfig, memory_bytes: int) -> None:
        """Apply other settings."""
        self._config, self.memory_bytes = config, memory_bytes

    def get(
        self,
        queue: AnyQueue | None,
        offset: int,
        count_max: int,
        tag_codes: frozenset[int] | None,
        accept: Accept | None,
    ) -> GetResult:
        """Read from any offset of a queue, or of none."""
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, self._next(0, offset), 0, 0)
        low, high = queue.min_offset, queue.readable_max
        # A new master may not show yet what its predecessor showed. The group's offset stays: a smaller one would
        # deliver handled messages again.
        if high < offset <= queue.max_offset:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, self._next(0, offset), low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, self._next(low, offset), low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, self._next(high, offset), low, high)
        if tag_codes is None and accept is None and type(queue) is ConsumeQueue:
            run = self.hot_run(queue, offset, max(1, count_max))
            if run is not None:
                body, count = run
                return GetResult(GetStatus.FOUND, offset + count, low, high, body, count)
        return self.look(queue, offset, max(1, count_max), tag_codes, accept)

    def look(
        self,
        queue: AnyQueue,
        offset: int,
        count_max: int,
        tag_codes: frozenset[int] | None,
        accept: Accept | None,
    ) -> GetResult:
        """Collect messages one by one from `offset` on, which must be readable."""
        low, high = queue.min_offset, queue.readable_max
        found = _Collected(self._log, self._config, self.memory_bytes, count_max)
        if isinstance(queue, BatchConsumeQueue):
            next_offset = self._collect_batches(queue, offset, found, tag_codes, accept)
        else:
            next_offset = self._collect(queue, offset, found, tag_codes, accept)
        if next_offset < 0:
            return GetResult(GetStatus.OFFSET_FOUND_NULL, -next_offset, low, high)
        if not found.count:
            status = GetStatus.MESSAGE_WAS_REMOVING if found.removed else GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, next_offset, low, high)
        return GetResult(
            GetStatus.FOUND,
            next_offset,
            low,
            high,
            b"".join(found.parts),
            found.count,
            self._log.end - found.last_offset > self.memory_bytes,
        )

    def _next(self, corrected: int, offset: int) -> int:
        return corrected if self._corrects else offset

    def _collect(
        self,
        queue: ConsumeQueue,
        offset: int,
        found: _Collected,
        tag_codes: frozenset[int] | None,
        accept: Accept | None,
    ) -> int:
        """Returns the next offset; negated, the next file's first, when the queue has a hole at `offset`.

        The inner loop is what a pull costs: it does what is_full() and take() do, inlined (0.48 us a message, 0.75 with the calls).
        """
        config = self._config
        budget = max(config.max_filter_message_size // ENTRY_BYTES, found.count_max)
        at, stop = offset, min(queue.readable_max, offset + budget)
        hot_from, sure_from = self._log.end - found.memory_bytes, self._log.end - config.hot_read_bytes
        run_end = 0  # of a reply of more than SCATTERED_COUNT_MAX
        hot = min(found.count_max, config.max_transfer_count_on_message_in_memory)
        hot_bytes = min(RESULT_BYTES_MAX, config.max_transfer_bytes_on_message_in_memory)
        cold = min(found.count_max, config.max_transfer_count_on_message_in_disk)
        cold_bytes = min(RESULT_BYTES_MAX, config.max_transfer_bytes_on_message_in_disk)
        take, check = found.parts.append, _OWN_EXTENT.unpack_from
        base = end = taken = taken_bytes = 0
        buffer: WritableBuffer = bytearray()
        # Entries are read in pieces: a read that is full after 32 must not copy 800 of them.
        step = found.count_max if tag_codes is None and accept is None else budget
        may_take = accept.may_take if isinstance(accept, BitmapAccept) else None
        checked = (
            None if isinstance(queue, ExtendedQueue) else tag_codes
        )  # the queue itself evaluates its units
        while at < stop:
            count = min(stop - at, step)
            entries = (
                queue.matching_entries(at, count, tag_codes, may_take)
                if isinstance(queue, ExtendedQueue)
                else queue.read_entries(at, count)
            )
            if not entries:
                return at if at > offset else -queue.next_file_offset(offset)
            for physical_offset, size, code in ENTRY.iter_unpack(entries):
                if (checked is not None and code not in checked) or size == FILLER_SIZE:
                    at += 1
                    continue
                if taken:
                    if physical_offset >= hot_from:
                        if taken >= hot or taken_bytes + size > hot_bytes:
                            return at
                    elif taken >= cold or taken_bytes + size > cold_bytes:
                        return at
                    if taken >= SCATTERED_COUNT_MAX and run_end < physical_offset < sure_from:
                        return at
                else:
                    run_end = physical_offset + RUN_BYTES_MAX
                if not base <= physical_offset < end:
                    segment = self._log.segment_at(physical_offset)
                    if segment is None:
                        if not 0 <= physical_offset < self._log.end:
                            if self._mend(queue, at):
                                break  # its entry is right now: read it again
                            at += 1
                            continue
                        found.removed = True
                        at += 1
                        continue
                    base, end, buffer = segment.base, segment.end, segment.file.buffer
                position = physical_offset - base
                record = bytes(buffer[position : position + size])
                if len(record) != size or size < _HEAD_BYTES_MIN or check(record) != (size, physical_offset):
                    if self._mend(queue, at):
                        break
                    at += 1
                    continue
                at += 1
                if accept is None or accept(record):
                    take(record)
                    found.count = taken = taken + 1
                    found.bytes = taken_bytes = taken_bytes + size
                    found.last_offset = physical_offset
        return at

    def hot_run(self, queue: ConsumeQueue, offset: int, count_max: int) -> tuple[bytes, int] | None:
        """The records from `offset` on, which is readable, and how many, when all are hot and what their entries say.

        That is most pulls. None for reads that need the general code, such as a read across the end of a queue file,
        and for a missing record. A run has no loop where its records are alike: of one size, at equal distances, as a
        producer leaves them that sends messages of one size to its queues in turn (32 of them: 8 us instead of 13).
        """
        config, log = self._config, self._log
        count = min(count_max, config.max_transfer_count_on_message_in_memory, queue.readable_max - offset)
        if count <= 0:
            return None
        tail_base = queue.tail_base
        if (
            tail_base <= offset and queue.max_offset <= queue.room
        ):  # the usual file, which is open: as below, inlined (7,500 of the 203,000 instructions of a pull of 32, 4 %)
            extents = _entry_extents(count).unpack_from(queue.tail_buffer, (offset - tail_base) * ENTRY_BYTES)
        else:
            entries = queue.read_entries(offset, count)
            if len(entries) != count * ENTRY_BYTES:
                return None
            extents = _entry_extents(count).unpack(entries)
        offsets, sizes = extents[::2], extents[1::2]
        size, bytes_max = sizes[0], min(RESULT_BYTES_MAX, config.max_transfer_bytes_on_message_in_memory)
        is_even = sizes.count(size) == count
        total = size * count if is_even else sum(sizes)
        if min(size, total) < _HEAD_BYTES_MIN:
            return None
        if total > bytes_max:  # as many as fit
            count = bytes_max // size if is_even else bisect_right(list(accumulate(sizes)), bytes_max)
            if not count or FILLER_SIZE in sizes:
                return None
            offsets, sizes = offsets[:count], sizes[:count]
            total = sum(sizes)
        first, last = offsets[0], offsets[-1]
        if not log.end - self.memory_bytes <= first <= last < log.end:
            return None
        if (
            count > SCATTERED_COUNT_MAX
            and last - first > RUN_BYTES_MAX
            and first < log.end - config.hot_read_bytes
        ):
            return None
        base, buffer = log.base, log.buffer
        if first < base:
            segment = log.segment_at(first)
            if segment is None or last >= segment.end:
                return None
            base, buffer = segment.base, segment.file.buffer
        distance = (last - first) // (count - 1) if count > 1 else size
        records: Sequence[bytes | bytearray]
        try:
            if is_even and distance >= size and offsets == tuple(range(first, last + 1, distance)):
                records = _alike(count, size, distance).unpack_from(buffer, first - base)
            elif min(offsets) < base:
                return None  # a slice from before the file's beginning is one from its end
            else:
                records = [
                    buffer[at - base : at - base + each] for at, each in zip(offsets, sizes, strict=True)
                ]
            body = b"".join(records)
            if is_even:
                said = _own_extents(count, size).unpack(body)
            else:
                said = tuple(chain.from_iterable(map(_OWN_EXTENT.unpack_from, records)))
        except struct.error:
            return None  # one is too short to be a record
        is_true = len(body) == total and said[::2] == sizes and said[1::2] == offsets
        return (body, count) if is_true else None

    def _collect_batches(
        self,
        queue: BatchConsumeQueue,
        offset: int,
        found: _Collected,
        tag_codes: frozenset[int] | None,
        accept: Accept | None,
    ) -> int:
        """A record that contains `offset` is returned as a whole: the client skips messages that it had already."""
        at = offset
        for entry in queue.entries_from(offset, found.count_max):
            if entry.end_offset > queue.readable_max:
                break
            # Entries of inner batches carry no tag: the client filters them.
            if tag_codes is not None and entry.batch_size == 1 and entry.tags_code not in tag_codes:
                at = entry.end_offset
                continue
            if found.is_full(entry.physical_offset, entry.size, entry.batch_size):
                break
            if not found.take(entry.physical_offset, entry.size, entry.batch_size, accept):
                self._mend(queue, entry.base_offset)
            at = entry.end_offset
        return at

    # -- time

    def store_time(self, queue: AnyQueue, offset: int) -> int:
        """Store time of the message at a queue offset; -1 when there is none."""
        entry = queue.entry(offset)
        return self.record_time(entry[0]) if entry is not None else -1

    def record_time(self, physical_offset: int) -> int:
        """Store time of the record at a physical offset; -1 when there is none."""
        head = self._log.read(physical_offset, _STORE_TIME_AT + 20)
        if (
            len(head) < _STORE_TIME_AT + HOST_V6_BYTES
            or _OWN_OFFSET.unpack_from(head, _OWN_OFFSET_AT)[0] != physical_offset
        ):
            return -1
        at = _STORE_TIME_AT + (HOST_V6_BYTES - HOST_V4_BYTES if head[_SYS_FLAG_AT + 3] & BORN_HOST_V6 else 0)
        return int(_OWN_OFFSET.unpack_from(head, at)[0])

    def offset_by_time(self, queue: AnyQueue, timestamp_ms: int, upper: bool) -> int:
        """As StoreReads.offset_by_time, of one queue. A binary search over store times."""
        low, high = queue.min_offset, queue.readable_max
        if low >= high:
            return max(low, high)
        if self.store_time(queue, high - 1) < timestamp_ms:
            return high
        if self.store_time(queue, low) > timestamp_ms:
            return low
        # First offset stored at or after the time; for upper first the one stored after it, then one back.
        wanted = timestamp_ms + 1 if upper else timestamp_ms
        first = low
        while low < high:
            middle = (low + high) // 2
            if self.store_time(queue, middle) < wanted:
                low = middle + 1
            else:
                high = middle
        return max(first, low - 1) if upper else low
