"""The only code that appends to the commit log: it reserves space, assigns offsets, writes the record, moves the log's
end, and adds entries.

Follows CommitLog.asyncPutMessage(s), appendToCommitLog and the dispatchers of RocketMQ, in one step and one thread. No
other code moves `CommitLog.end` forward (opening and cutting the log aside), which a test holds. Every append has the same
order, and the native fast path (native/) mirrors it:

    1. Parse and reserve: the record's numbers fit their fields; space in the queue, in the index, in the log (CommitLog.reserve).
       All that can fail is here: StoreFull, StoreNotWritable, RecordInvalid, struct.error. Nothing has changed then.
    2. Lay out: queue offset = queue.max_offset, physical offset = what reserve() returned.
    3. Write: the record's bytes, then `log.end`, then the queue's entry and `max_offset`, then the index entries (those
       of a burst at its end, into memory first: KeyIndex.put_run_deferred). Log record first: a consumer that sees the
       entry can read the record, and recovery makes missing entries from the log but can never do the reverse.
       Nothing in this step may fail. Should it, by an internal error, the store takes no more messages, so that a frame
       that is in the log is never stored again.
    4. Show: `last_store_timestamp`, `last_record_offset`; with sync flush the entry waits for the disk, else
       `readable_max` moves and the listeners are notified (visibility.py).

The bytes of another broker's log come by raw_appender.py, which has them written here.

Native code updates these before it calls Python code that may read them: `log.end`; of each queue `max_offset`, and
`readable_max` where no listener is notified (async flush, no consumer waits at the queue), else announce() for each entry, in order;
mark_dirty() at a queue's first unsynced entry; the newest index file's numbers (KeyIndex.put_run); at the end of the burst
`last_store_timestamp` and `last_record_offset`. It asks CommitLog.reserve, ConsumeQueue.make_room and KeyIndex.make_room for
space with everything settled, for these may change files.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from aerobee.clock import Clock
from aerobee.errors import RecordInvalid, StoreError
from aerobee.message import (
    INNER_BATCH,
    MAGIC_V1,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    decode_properties,
)
from aerobee.record_head import RECORD_BYTES_MIN, field_at, head_struct
from aerobee.store.append.visibility import Visibility
from aerobee.store.files.config import StoreConfig
from aerobee.store.index.index_file import key_hash
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import BLANK_BYTES, CommitLog
from aerobee.store.log.dispatch import index_texts, is_batch_record, message_count
from aerobee.store.log.record_layout import Origin, lay_out
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue, BatchEntry
from aerobee.store.queue.consume_queue import ENTRY, ENTRY_BYTES, ConsumeQueue
from aerobee.store.queue.queue_table import MULTI_OFFSET_TEXT, AnyQueue, QueueTable, without_light_offsets

_SIZE = head_struct("size")
_ENTRY_START = struct.Struct(">qi")  # of a queue entry: physical offset, size
_TEXT_SIZE = struct.Struct(">H")
_TEXT_SIZES = [_TEXT_SIZE.pack(size) for size in range(4096)]  # of the usual ones, without a call
_OFFSETS, _OFFSETS_AT = head_struct("queue_offset", "physical_offset"), field_at("queue_offset")
_HEAD = head_struct("size", "queue_offset", "physical_offset")  # the checked fields of a written record
_CODE_MAX = 2**63  # a tags code takes 64 bits with its sign
_NO_INDEX_ROOM = 1 << 30  # without an index there is always space

# (physical offset, queue offset) of the first record -> records back to back, their queue entries, each one's offset
RunLayout = Callable[[int, int], tuple[bytes, bytes, Sequence[int]]]
# offsets of the records -> (hash, physical offset) of their index entries
RunKeys = Callable[[Sequence[int]], Iterable[tuple[int, int]]]


class LaidOut(NamedTuple):
    """An encoded record that lacks only its two offsets, and the content of its entries."""

    record: bytearray
    properties: bytes
    tags_code: int
    key_hashes: Sequence[int]
    batch_size: int = 1  # messages that it counts for in a batch queue


class LogAppender:
    """Appends to one commit log. Belongs to the event loop's thread."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex,
        visibility: Visibility,
        *,
        clock: Clock,
        store_host: Callable[[], bytes],
        check_writable: Callable[[], None],
        on_broken: Callable[[StoreError], None],
    ) -> None:
        """`store_host` returns the broker's address for the records, packed. `check_writable` raises the reason while the store accepts no
        message. `on_broken` is called with the error when a record was written in part: nothing may be appended after it."""
        self.config = config
        self.log = log
        self.index = index
        self._store_host = store_host
        self._holds = visibility.holds  # as it is for the life of a store
        self._show = visibility.show
        self.last_store_timestamp = 0  # of the newest record
        self.last_record_offset = -1  # physical offset of the newest record
        self._last_queue: ConsumeQueue | None = None  # its queue, when a burst wrote it
        self.check_writable = check_writable
        self._on_broken = on_broken
        self._queues = queues
        self.clock = clock
        # Index entries (hash, physical offset) of the present burst, written at its end.
        self._index_entries: list[tuple[int, int]] = []
        # Number of further entries that surely fit into the index. Other writers of the index set it to 0.
        self._index_room = 0

    @property
    def store_host(self) -> bytes:
        """The broker's address for the records, packed."""
        return self._store_host()

    def follow(self, store_timestamp: int, record_offset: int) -> None:
        """Set store time, ms, and offset of the log's newest record (-1: no record), after recovery, a truncation, or
        appending a master's bytes.
        """
        self.last_store_timestamp, self.last_record_offset = store_timestamp, record_offset
        self._index_room, self._last_queue = (
            0,
            None,
        )  # index files may have been removed, or have new entries

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply a changed configuration."""
        self.config = config

    def store_time_now(self) -> int:
        """The store time for the next record, ms: the clock's time, but never earlier than the previous record's."""
        return max(self.clock.now_ms(), self.last_store_timestamp)

    # -- whole messages

    def append(self, messages: Sequence[StoredMessage], *, lmqs: Sequence[ConsumeQueue] = ()) -> AppendResult:
        """Write messages of one queue back to back in one log file, with their entries; all or nothing.

        `lmqs` get an entry of a single message, too. Raises StoreFull, StoreNotWritable, RecordInvalid.
        """
        self.check_writable()
        now_ms = self.store_time_now()
        if not lmqs and any(MULTI_OFFSET_TEXT in message.properties for message in messages):
            messages = [without_light_offsets(message) for message in messages]
        queue = self._queues.any(messages[0].topic, messages[0].queue_id)
        if messages[0].sys_flag & INNER_BATCH and not queue.is_batch:
            queue = self._queues.for_batches(queue)
        records = [self._lay_out(message, queue, now_ms) for message in messages]
        has_entry = messages[0].sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)
        return self.append_records(queue, records, now_ms, has_entry=has_entry, lmqs=lmqs)

    def _lay_out(self, message: StoredMessage, queue: AnyQueue, now_ms: int) -> LaidOut:
        if (
            message.sys_flag & INNER_BATCH
            and not queue.is_batch
            and is_batch_record(message.topic, message.sys_flag)
        ):
            # Its topic has none: replicas and recovery would make the queue a batch queue for it.
            message = dataclasses.replace(message, sys_flag=message.sys_flag & ~INNER_BATCH)
        properties: dict[str, str] = message.parsed or {}
        if message.parsed is None and (
            message.index_keys is None or message.tags_code is None or queue.is_batch
        ):
            properties = decode_properties(message.properties.decode(errors="surrogateescape"))
        keys = message.index_keys if message.index_keys is not None else index_texts(properties)
        if message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
            keys = ()
        code = message.tags_code
        if code is None:
            code = self._queues.tags_code(message.topic, properties, now_ms)
        record = lay_out(
            message, 0, now_ms, store_host=self.store_host, body_bytes_max=self.config.max_message_size
        )
        return LaidOut(
            bytearray(record),
            message.properties,
            code,
            [key_hash(f"{message.topic}#{key}") for key in keys],
            message_count(message.topic, message.sys_flag, properties) if queue.is_batch else 1,
        )

    def append_records(
        self,
        queue: AnyQueue,
        records: Sequence[LaidOut],
        now_ms: int,
        *,
        has_entry: bool = True,
        lmqs: Sequence[ConsumeQueue] = (),
    ) -> AppendResult:
        """Write encoded records of one queue back to back. It sets their offsets; they already contain `now_ms`.

        `has_entry`: consumers shall find them (not so half messages). All or nothing. Raises StoreFull, RecordInvalid.
        """
        sizes, key_count = [], 0
        for laid_out in records:
            if not -_CODE_MAX <= laid_out.tags_code < _CODE_MAX:
                raise RecordInvalid(f"a tags code for {queue.topic} takes more than 64 bits")
            sizes.append(len(laid_out.record))
            key_count += len(laid_out.key_hashes)
        self.write_index(now_ms)
        if key_count and not self.index.has_room(key_count):
            self.index.make_room(key_count, now_ms)
        if has_entry:
            queue.ensure_room(len(records))
        for lmq in lmqs:
            lmq.ensure_room(1)
        total = sum(sizes)
        start = self.log.reserve(total)
        first = queue_offset = queue.max_offset if has_entry else 0
        offsets = tuple(accumulate(sizes[:-1], initial=start))
        for laid_out, offset in zip(records, offsets, strict=True):
            _OFFSETS.pack_into(laid_out.record, _OFFSETS_AT, queue_offset, offset)
            queue_offset += laid_out.batch_size if has_entry else 0
        # Nothing from here on can fail.
        try:
            data = records[0].record if len(records) == 1 else b"".join([each.record for each in records])
            self.write(start, data, first)
            for laid_out, offset, size in zip(records, offsets, sizes, strict=True):
                if has_entry:
                    _add_entry(queue, laid_out, offset, size, now_ms)
                for lmq in lmqs:
                    _add_entry(lmq, laid_out, offset, size, now_ms)
            if key_count:
                self.index.put_run(
                    [(value, at) for laid_out, at in zip(records, offsets, strict=True) for value in laid_out.key_hashes],
                    now_ms,
                )  # fmt: skip
        except Exception as error:
            raise self.broken(start, error) from error
        assert not has_entry or queue.max_offset == queue_offset
        assert (
            not has_entry
            or not isinstance(queue, ConsumeQueue)
            or _newest_entry(queue) == (offsets[-1], sizes[-1])
        )
        self._last_queue = None
        self._index_room = 0  # a burst that continues looks again
        self.last_store_timestamp, self.last_record_offset = now_ms, offsets[-1]
        next_offset = first
        for laid_out in records if has_entry else ():
            next_offset += laid_out.batch_size
            self._show(queue, next_offset, laid_out.tags_code)
        for lmq in lmqs:
            self._show(lmq, lmq.max_offset, records[0].tags_code)
        return AppendResult(start, total, first, now_ms, offsets)

    # -- bursts: many records that share their origin

    def end_burst(self, now_ms: int) -> None:
        """After the last append of a burst: hand over its index entries."""
        self.last_store_timestamp = now_ms
        if __debug__:
            # The newest record has the offset and the size that were returned, or a file begins behind it; and its entry says
            # so: read again where they were written.
            log, queue = self.log, self._last_queue
            if queue is not None and (end := log.end) != log.base:
                offset = self.last_record_offset
                size = end - offset
                assert _newest_entry(queue) == (offset, size)
                assert _SIZE.unpack_from(log.buffer, offset - log.base) == (size,)
        if entries := self._index_entries:
            self._index_entries = []
            self.index.put_run_deferred(entries, now_ms)

    def append_parts(
        self,
        origin: Origin,
        queue: ConsumeQueue,
        topic_field: bytes,
        body: bytes | bytearray,
        properties: bytes,
        key_hashes: Sequence[int],
        tags_code: int,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        reconsume_times: int,
        prepared_offset: int,
        is_awaited: bool,
    ) -> int:
        """Write one record of an ordinary queue (of class ConsumeQueue itself); return its physical offset.

        `topic_field` is the topic behind its length byte. `tags_code` fits 64 bits. `is_awaited`: a consumer may wait at
        this queue; without it no listener is notified with async flush. Raises StoreFull, and struct.error for a number that
        does not fit its field; nothing has changed then.
        """
        log = self.log
        now_ms = origin.now_ms
        head = origin.head
        key_count = len(key_hashes)
        queue_offset = queue.max_offset
        if queue_offset >= queue.room:
            queue.make_room(1)
        if self._index_room < key_count:
            self._make_index_room(key_count, now_ms)
        body_size, properties_size = len(body), len(properties)
        size = head.size + body_size + len(topic_field) + 2 + properties_size
        offset = log.end
        end = offset + size
        if end > log.limit:
            offset = log.reserve(size)
            end = offset + size
        record = b"".join(
            (
                head.pack(
                    size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, queue_offset, offset,
                    sys_flag | origin.host_flags, born_timestamp, origin.born_host, now_ms, origin.store_host,
                    reconsume_times, prepared_offset, body_size,
                ),
                body,
                topic_field,
                _TEXT_SIZES[properties_size] if properties_size < 4096 else _TEXT_SIZE.pack(properties_size),
                properties,
            )
        )  # fmt: skip
        # Nothing from here on can fail. write() and append_entry(), inlined: their calls
        # cost 4,000 of the 88,000 instructions of a send (4 %).
        try:
            # The record continues the log within its file: nothing is written over, and no hole is left.
            assert offset == log.end and end <= log.limit, (offset, end, log.end)  # noqa: PT018  one test, for each message
            at = offset - log.base
            log.buffer[at : at + size] = record  # raises when the record has another size
            log.end = end
            entry_at = (queue_offset - queue.tail_base) * ENTRY_BYTES
            ENTRY.pack_into(queue.tail_buffer, entry_at, offset, size, tags_code)
            queue.max_offset = queue_offset + 1
            if queue.unsynced_from < 0:
                queue.mark_dirty(offset)
        except Exception as error:
            raise self.broken(offset, error) from error
        self._index_room -= key_count
        for value in key_hashes:
            self._index_entries.append((value, offset))
        self.last_record_offset = offset
        self._last_queue = queue
        if is_awaited or self._holds:
            self._show(queue, queue_offset + 1, tags_code)
        else:
            queue.readable_max = queue_offset + 1
        return offset

    def add_entries(self, queues: Sequence[ConsumeQueue], offset: int, size: int, tags_code: int) -> None:
        """Write entries of the record that append_parts() has just written in further queues, whose space was taken."""
        try:
            for queue in queues:
                queue.append_entry(offset, size, tags_code)
        except Exception as error:
            raise self.broken(offset, error) from error
        for queue in queues:
            self._show(queue, queue.max_offset, tags_code)

    def append_run(
        self,
        queue: ConsumeQueue,
        count: int,
        size: int,
        now_ms: int,
        layout: RunLayout,
        *,
        keys: RunKeys | None = None,
        key_count: int = 0,
        is_awaited: bool,
    ) -> tuple[Sequence[int], int]:
        """Write `count` records of one queue of class ConsumeQueue, `size` bytes together, back to back in one log file.

        Returns their physical offsets and the end of the last one. It calls `layout` after space is reserved, with the
        offsets of the first record; `keys` returns the records' `key_count` index entries. All or nothing. Raises what
        these raise, StoreFull, RecordInvalid.
        """
        if queue.max_offset + count > queue.room:
            queue.ensure_room(count)
        if self._index_room < key_count:
            self._make_index_room(key_count, now_ms)
        start, first = self.log.reserve(size), queue.max_offset
        records, entries, offsets = layout(start, first)
        index_entries = list(keys(offsets)) if keys is not None else []
        assert len(records) == size
        assert len(entries) == count * ENTRY_BYTES
        assert len(offsets) == count
        assert len(index_entries) == key_count
        # Nothing from here on can fail.
        try:
            self.write(start, records, first)
            if first + count <= queue.room:
                queue.append_entries(entries, start)
            else:
                for number, (offset, record_size, code) in enumerate(ENTRY.iter_unpack(entries), first):
                    if number >= queue.room:
                        queue.make_room()
                    queue.append_entry(offset, record_size, code)
        except Exception as error:
            raise self.broken(start, error) from error
        assert queue.max_offset == first + count
        self._index_entries += index_entries
        self._index_room -= key_count
        self.last_store_timestamp, self.last_record_offset, self._last_queue = now_ms, offsets[-1], queue
        assert _newest_entry(queue) == (offsets[-1], start + size - offsets[-1])
        if is_awaited or self._holds:
            # Announce the messages one by one, because a listener evaluates only the newest message of a
            # call.
            for number, (_, _, code) in enumerate(ENTRY.iter_unpack(entries), first + 1):
                self._show(queue, number, code)
        else:
            queue.readable_max = first + count
        return offsets, start + size

    # -- the write itself

    def write(self, physical_offset: int, data: bytes | bytearray, queue_offset: int | None) -> None:
        """Write records at the offset that was reserved for them, then move the log's end behind them.

        `queue_offset` is that of the first record, None when the caller has checked every record.
        """
        log, end, at = self.log, physical_offset + len(data), physical_offset - self.log.base
        assert log.base <= physical_offset == log.end < end <= log.limit + BLANK_BYTES, (physical_offset, end)
        log.buffer[at : at + len(data)] = data
        if __debug__ and queue_offset is not None:
            # Entries and readers rely on exactly these bytes.
            size, own_queue_offset, own_offset = _HEAD.unpack_from(log.buffer, at)
            assert RECORD_BYTES_MIN <= size <= len(data), (size, len(data))
            assert (own_queue_offset, own_offset) == (queue_offset, physical_offset)
        log.end = end

    def written(self, physical_offset: int, size: int) -> None:
        """As write(), of bytes of a master that CommitLog.write_raw() has written."""
        log, end = self.log, physical_offset + size
        assert log.base <= physical_offset == log.end < end <= log.base + log.segment_size, (
            physical_offset,
            end,
        )
        log.end = end

    def _make_index_room(self, count: int, now_ms: int) -> None:
        """Take space for `count` entries, in a new index file if need be. Raises StoreFull."""
        self.write_index(now_ms)
        if not self.index.has_room(count):
            self.index.make_room(count, now_ms)
        if self.index.is_enabled:
            file = self.index.files[-1]
            self._index_room = min(file.reserved, file.entry_count_max) - file.count
        else:
            self._index_room = _NO_INDEX_ROOM

    def write_index(self, now_ms: int) -> None:
        """Write the index entries that the burst has collected so far."""
        if self._index_entries:
            entries, self._index_entries = self._index_entries, []
            self.index.put_run(entries, now_ms)

    def broken(self, physical_offset: int, error: Exception) -> StoreError:
        """A record was written incompletely: log it, and refuse further appends.

        Returns what to raise. The native appender calls this method, too.
        """
        failure = StoreError(
            f"the record at {physical_offset} was not finished: {error!r}. The store takes no more messages. "
            "Restart the broker: recovery completes or removes the record",
            path=self.log.directory,
            offset=physical_offset,
        )
        self._on_broken(failure)
        return failure

    def give_up(self, fault: BaseException) -> None:
        """For native code: it wrote messages to the log, but could not update the numbers of the Python objects.
        The store accepts no further message; recovery finds the written ones.
        """
        failure = StoreError(
            f"messages behind {self.last_record_offset} were not noted: {fault!r}. The store takes no more messages. Restart "
            "the broker: recovery finds them",
            path=self.log.directory,
            offset=self.last_record_offset,
        )
        self._on_broken(failure)

    def announce(self, queue: AnyQueue, physical_offset: int, store_timestamp: int, tags_code: int) -> None:
        """For native code: the queue's newest entry, of the record at `physical_offset`, is complete."""
        self.last_store_timestamp = store_timestamp
        self.last_record_offset = physical_offset
        self._show(queue, queue.max_offset, tags_code)


def _add_entry(queue: AnyQueue, laid_out: LaidOut, offset: int, size: int, now_ms: int) -> None:
    """Write a record's entry; space was taken."""
    code = laid_out.tags_code
    if isinstance(queue, BatchConsumeQueue):
        count = laid_out.batch_size
        queue.append_batch_entry(
            BatchEntry(offset, size, 0 if count > 1 else code, now_ms, queue.max_offset, count)
        )
        return
    if queue.max_offset >= queue.room:
        queue.make_room()
    queue.append_message(offset, size, code, now_ms, laid_out.properties)


def _newest_entry(queue: ConsumeQueue) -> tuple[int, int]:
    """Physical offset and size in the newest entry of a queue, read back after writing."""
    return _ENTRY_START.unpack_from(queue.tail_buffer, (queue.max_offset - 1 - queue.tail_base) * ENTRY_BYTES)
