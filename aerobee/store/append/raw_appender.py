"""Writes bytes of a master's log at the same offsets of this log.

Follows CommitLog.appendToCommitLog of RocketMQ. The records get the same queue and index entries that recovery would
create, in the order of every append (log_appender.py). Native code mirrors it for ordinary records (`RawAppender` of
native/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aerobee.errors import RecordInvalid, StoreError
from aerobee.store.append.log_appender import LogAppender
from aerobee.store.append.visibility import Visibility
from aerobee.store.index.index_file import key_hash
from aerobee.store.log.commit_log import THROUGH_FILE_BYTES
from aerobee.store.log.dispatch import DispatchRecord, index_texts, message_count
from aerobee.store.log.raw_records import RawRun, cut_raw
from aerobee.store.queue.consume_queue import QUEUE_OFFSET_MAX, ConsumeQueue
from aerobee.store.queue.queue_kind import kind_for
from aerobee.store.queue.queue_table import AnyQueue, QueueTable, check_queue_name


class RawAppender:
    """Appends the records of a master's log to a commit log. Belongs to the event loop's thread."""

    def __init__(
        self,
        appender: LogAppender,
        queues: QueueTable,
        visibility: Visibility,
        *,
        check_open: Callable[[], None],
    ) -> None:
        """`check_open` raises while not even what a master sends can be taken."""
        self._appender = appender
        self._queues = queues
        self._show = visibility.show
        self._check_open = check_open

    def append(self, physical_offset: int, data: bytes) -> RawRun:
        """Write what a master has at `physical_offset`: whole records, and the blank at a file's end, of one log file.

        The bytes go to the same offset here, with the queue and index entries that recovery would make of them. The
        records must begin at the log's end; in an empty log, at the begin of a file. All or nothing. Raises
        RecordInvalid for bytes that are not whole records of that offset or that skip messages of a queue, StoreFull,
        StoreNotWritable. Source: CommitLog.appendToCommitLog.
        """
        self.check(physical_offset)
        appender, index = self._appender, self._appender.index
        log = appender.log
        run = cut_raw(data, physical_offset, check_crc=True)
        now_ms = run.last_store_timestamp
        entries = [
            (entry, properties)
            for record, properties in run.records
            if record.has_queue_entry
            for entry in (record, *self._queues.light_records(record, properties))
        ]
        keyed = [
            (key_hash(f"{record.topic}#{key}"), record)
            for record, properties in run.records
            if record.is_indexed
            for key in index_texts(properties)
        ]
        index_entries = [(value, record.physical_offset) for value, record in keyed]
        times = [record.store_timestamp for _, record in keyed]
        self._check_continues(entries)
        appender.write_index(now_ms)
        if index_entries and not index.has_room(len(index_entries)):
            index.make_room(len(index_entries), now_ms)
        self._reserve_entries(entries)
        is_through_file = len(data) >= THROUGH_FILE_BYTES
        if is_through_file:
            log.write_raw(physical_offset, memoryview(data), fills_file=run.fills_file)
        else:
            log.reserve_raw(physical_offset, len(data), fills_file=run.fills_file)
        # Nothing from here on can fail.
        try:
            if is_through_file:
                appender.written(physical_offset, len(data))
            else:
                appender.write(physical_offset, data, None)
            for record, properties in entries:
                outcome = self._queues.redispatch(record, properties)
                assert outcome in ("added", "began"), (outcome, record)
            index.put_timed_run(index_entries, times)
        except Exception as error:
            raise appender.broken(physical_offset, error) from error
        assert log.end == physical_offset + len(data)
        if run.records:
            appender.follow(now_ms, run.records[-1][0].physical_offset)
        else:
            appender.follow(appender.last_store_timestamp, appender.last_record_offset)
        for record, properties in entries:
            queue = self._queues.any(record.topic, record.queue_id)
            code = self._queues.tags_code(record.topic, properties, record.store_timestamp)
            self._show(queue, record.queue_offset + _count(record, properties), code)
        return run

    def check(self, physical_offset: int) -> None:
        """Raise StoreNotWritable or RecordInvalid unless a master's bytes for this offset can be taken now."""
        self._check_open()
        log = self._appender.log
        if log.segments and physical_offset != log.end:
            raise RecordInvalid(
                f"records for {physical_offset} do not continue the log, which ends at {log.end}"
            )

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """For native code: how long each delay level waits."""
        return self._queues.delay_levels_ms

    def queue(self, topic: str, queue_id: int) -> AnyQueue:
        """For native code: the queue of a master's record, made when it is new. Raises RecordInvalid."""
        return self._queues.any(topic, queue_id)

    def reserve(self, physical_offset: int, size: int) -> None:
        """For native code: CommitLog.reserve_raw of whole records without a blank."""
        self._appender.log.reserve_raw(physical_offset, size, fills_file=False)

    def write_through(
        self, physical_offset: int, data: bytearray | memoryview, begin: int, size: int
    ) -> None:
        """For native code: CommitLog.write_raw of the whole records `data[begin : begin + size]`, without a blank."""
        self._appender.log.write_raw(
            physical_offset, memoryview(data)[begin : begin + size], fills_file=False
        )

    def show(
        self, store_timestamp: int, record_offset: int, notes: Sequence[tuple[AnyQueue, int, int]]
    ) -> None:
        """For native code: a run of a master's records is complete, the newest one begins at `record_offset`.

        `notes`: queue, queue offset behind the newest message, tags code; one for consecutive messages of a queue that have
        the same code. One notice may announce several messages to waiting consumers.
        """
        self._appender.follow(store_timestamp, record_offset)
        for queue, next_offset, tags_code in notes:
            self._show(queue, next_offset, tags_code)

    def broken(self, physical_offset: int, error: Exception) -> StoreError:
        """For native code: as LogAppender.broken()."""
        return self._appender.broken(physical_offset, error)

    def _check_continues(self, entries: Sequence[tuple[DispatchRecord, dict[str, str]]]) -> None:
        """Raise RecordInvalid unless each entry is the next one of its queue, the first one of a new queue, or number
        0: there a queue begins again after its topic was deleted. A record that restarts a queue, or needs another kind
        of queue, after an entry of the same run is refused, too: the caller appends it alone."""
        self._check_possible(entries)
        seen: dict[tuple[str, int], tuple[bool, int, int]] = {}  # kind, first offset, end
        for record, properties in entries:
            key = record.topic, record.queue_id
            queue = self._queues.any(*key)
            is_batch, start, end = seen.get(key, (queue.is_batch, queue.min_offset, queue.max_offset))
            is_new = start == end and key not in seen
            if record.queue_offset not in (end, 0) and not (is_new and record.queue_offset > end):
                raise RecordInvalid(
                    f"the record at {record.physical_offset} is message {record.queue_offset} of queue {record.topic} "
                    f"{record.queue_id}, which ends at {end}"
                )
            kind = kind_for(
                record,
                is_batch=is_batch,
                start=start,
                end=end,
                is_batch_topic=record.topic in self._queues.batch_topics,
            )
            if key in seen and (kind.is_batch != is_batch or kind.restarts):
                raise RecordInvalid(
                    f"the record at {record.physical_offset} restarts queue {record.topic} {record.queue_id} or changes its "
                    "kind: append it behind the run before it"
                )
            first = 0 if kind.restarts else record.queue_offset if is_new else start
            seen[key] = kind.is_batch, first, record.queue_offset + _count(record, properties)

    def _check_possible(self, entries: Sequence[tuple[DispatchRecord, dict[str, str]]]) -> None:
        """Raise RecordInvalid for a record whose queue entry would be invalid. Before any queue is made: an empty one
        would be left with each connection of a master that sends such records.
        """
        for record, _ in entries:
            if not 0 <= record.queue_offset <= QUEUE_OFFSET_MAX:
                raise RecordInvalid(
                    f"the record at {record.physical_offset} is message {record.queue_offset} of queue {record.topic} "
                    f"{record.queue_id}, a queue has at most {QUEUE_OFFSET_MAX}, the first one is 0"
                )
            if (record.topic, record.queue_id) not in self._queues.queues:
                check_queue_name(record.topic, record.queue_id)

    def _reserve_entries(self, entries: Sequence[tuple[DispatchRecord, dict[str, str]]]) -> None:
        """Take disk space for the entries, in queues of the kind that they need. Raises StoreFull."""
        counts: dict[tuple[str, int], int] = {}
        for record, _ in entries:
            key = record.topic, record.queue_id
            if key not in counts:
                queue = self._queues.of_record(record)
                if (
                    isinstance(queue, ConsumeQueue)
                    and record.queue_offset != queue.max_offset == queue.min_offset
                ):
                    queue.start_at(record.queue_offset)  # the messages before it are no longer on the master
            counts[key] = counts.get(key, 0) + 1
        for key, count in counts.items():
            self._queues.any(*key).ensure_room(count)


def _count(record: DispatchRecord, properties: dict[str, str]) -> int:
    return message_count(record.topic, record.sys_flag, properties)
