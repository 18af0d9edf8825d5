"""The store of one broker: commit log, consume queues, key index, flush, retention, recovery.

The one class that a broker uses (DefaultMessageStore of RocketMQ). It owns nothing but order: the parts hold the
formats, `Disk` the files, `Clock` the time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from aerobee.clock import Clock
from aerobee.errors import RecordInvalid, StoreError, StoreFull, StoreNotWritable
from aerobee.message import TRANSACTION_MASK
from aerobee.store.abort_file import remove_abort_file, was_aborted, write_abort_file
from aerobee.store.checkpoint import Checkpoint, CheckpointFile, next_checkpoint, without_queues
from aerobee.store.commit_log import CommitLog
from aerobee.store.config import BrokerRole, StoreConfig
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.disk import Disk, open_failed
from aerobee.store.flush import LogFlusher, Watermark
from aerobee.store.index_file import KeyIndex
from aerobee.store.key_query import KeyQuestion, answer, candidates
from aerobee.store.log_appender import LogAppender
from aerobee.store.log_cleaner import LogCleaner
from aerobee.store.log_cut import LogCut, cut_log, last_record
from aerobee.store.queue_bounds import BoundsKeeper, written_sizes
from aerobee.store.queue_files import FilePool
from aerobee.store.queue_flush import QueueFlusher
from aerobee.store.queue_mender import QueueMender
from aerobee.store.queue_table import AnyQueue, QueueTable
from aerobee.store.queue_upkeep import QueueUpkeep
from aerobee.store.reader import Accept, MessageReader
from aerobee.store.recovery import Recovery, RecoveryReport
from aerobee.store.store_lock import StoreLock
from aerobee.store.stored_message import AppendResult, GetResult, QueryResult, StoredMessage
from aerobee.store.warmer import Warmer

_logger = logging.getLogger(__name__)
_DEFAULT_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"  # 127.0.0.1:10911
Arrival = Callable[[str, int, int, int], None]


class MessageStore:
    """Single writer: every method belongs to the event loop's thread, but load(), which blocks and runs before.

    What appends many records of a burst uses `appender` (log_appender.py) itself, between its begin_burst() and
    end_burst(), and calls burst_done() at the end.
    """

    _on_burst: Callable[[], None] | None = None

    def __init__(
        self,
        config: StoreConfig,
        *,
        disk: Disk,
        clock: Clock,
        executor: Executor | None = None,
        store_host: bytes = _DEFAULT_HOST,
    ) -> None:
        self.config = config
        self.log = CommitLog(config, disk)
        self.pool = FilePool(disk, config.mapped_queue_files_max)
        self.index = KeyIndex(config, disk)
        self.flushed = Watermark()
        self._table = QueueTable(config, self.pool)
        self.queues: dict[tuple[str, int], AnyQueue] = self._table.queues
        self.set_bitmap = self._table.set_bitmap
        self._disk = disk
        self._clock = clock
        self._own_executor = None if executor is not None else ThreadPoolExecutor(4, "aerobee-store")
        self._executor: Executor | None = executor or self._own_executor
        self._lock = StoreLock(config, disk)
        self._checkpoints = CheckpointFile(disk, config.path("checkpoint"))
        self._bounds = BoundsKeeper(boot_id=disk.boot_id, file_sizes=config.file_sizes)
        self._is_sync = config.is_sync_flush
        mender = QueueMender(self.log, self._table)
        self.reader = MessageReader(config, self.log, config.memory_share_bytes(), mender.mend)
        self.warmer = Warmer(config, self.log, self.pool, self._executor)
        self._refusal: StoreError | None = StoreNotWritable("the store is not open yet")
        self._slave_refusal: StoreError | None = (
            StoreNotWritable("this broker is a slave: send to its master")
            if config.broker_role is BrokerRole.SLAVE
            else None
        )
        self._failure: StoreError | None = None
        self.appender = LogAppender(
            config,
            self.log,
            self._table,
            self.index,
            clock=clock,
            store_host=store_host,
            check_writable=self.check_writable,
            check_open=self.check_open,
            on_broken=self._failed,
        )
        self._flusher = LogFlusher(
            self.log,
            self.flushed,
            config,
            clock=clock,
            executor=self._executor,
            on_flushed=self._flushed,
            on_failed=self._failed,
        )
        self.want_flush = self._flusher.want  # begin to flush now, with async flush too
        self._queue_flusher = QueueFlusher(self.pool, self.index, disk)
        self._upkeep = QueueUpkeep(
            config,
            self.log,
            self._queue_flusher,
            self.flushed,
            self._checkpoints,
            clock=clock,
            executor=self._executor,
            next_checkpoint=self._next_checkpoint,
            on_failed=self._sync_failed,
        )
        self._cleaner = LogCleaner(
            config,
            self.log,
            self._table,
            self.index,
            self.flushed,
            disk=disk,
            clock=clock,
            executor=self._executor,
            on_ratio=self._set_full,
        )
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    def load(self) -> RecoveryReport:
        """Lock the directory, recover, become writable. Blocking.

        Raises StoreLocked when another process has it open, ConfigError for files of other lengths, StoreError for a
        directory that cannot be used or a log whose acknowledged records are damaged.
        """
        root = self.config.store_path_root_dir
        self._lock.take()
        try:
            report = self._recover()
        except OSError as error:
            self._close_files()
            raise open_failed(root, error) from error
        except BaseException:
            self._close_files()
            raise
        for note in report.notes:
            _logger.warning("%s: %s", root, note)
        _logger.info("%s: %s", root, report.summary())
        return report

    def _recover(self) -> RecoveryReport:
        root = self.config.store_path_root_dir
        was_clean = not was_aborted(self._disk, root)
        checkpoint = self._checkpoints.read()
        sizes = written_sizes(checkpoint.queue_bounds)
        notes = self.log.load(written_size=sizes[0], mend=self.config.truncate_corrupt_log)
        self._table.load(sizes[1:3])
        self.index.load(sizes[3])
        report = Recovery(
            self.config,
            self.log,
            self._table,
            self.index,
            checkpoint,
            disk=self._disk,
            was_clean=was_clean,
            before_rebuild=self._distrust_queues,
            keep_bounds=self._checkpoints.keep_bounds,
        ).run()
        report.notes[:0] = notes
        write_abort_file(self._disk, root, os.getpid())
        self.last_store_timestamp = report.last_store_timestamp
        self.last_record_offset = report.last_record_offset
        # What a killed process left may be in the system's cache only: from here on it counts as durable.
        start = max(self.log.min_offset, min(checkpoint.log_flushed, self.log.end))
        if not report.was_clean:
            self.log.rewrite(start, self.log.end)
            self.pool.rewrite_dirty()
            self.index.rewrite_dirty()
        self.log.sync(start, self.log.end)
        self._disk.sync_dir(self.log.directory)
        self.flushed.reset(self.log.end)
        self._queue_flusher.sync_all()
        self._checkpoints.write(self._next_checkpoint(self._queue_flusher.bound(self.log.end)))
        self._refusal = None
        return report

    def _distrust_queues(self) -> None:
        """Recovery is about to delete queues or index files: should it not get to its end, the next one starts over."""
        write_abort_file(self._disk, self.config.store_path_root_dir, os.getpid())
        self._checkpoints.must_write(without_queues(self._checkpoints.current, self.log.min_offset))

    async def start(self) -> None:
        """Start flush, checkpoint and retention in the running event loop. Before it nothing is flushed."""
        self._start_tasks()

    def _start_tasks(self) -> None:
        self._flusher.start()
        self._tasks = [
            asyncio.create_task(self._upkeep.run(), name="store-queue-flush"),
            asyncio.create_task(self._cleaner.run(), name="store-retention"),
        ]
        if self.flushed.value < self.log.end:
            self._flusher.want()

    async def stop(self) -> None:
        """Refuse appends, flush everything, write the checkpoint, remove `abort`, unlock.

        After a failed sync `abort` stays, so that the next start recovers from what the disk holds.
        """
        if not self._lock.is_held:
            return
        if self._refusal is None:
            self._refusal = StoreNotWritable("the store is closing")
        await self._stop_tasks()
        try:
            if self._failure is None:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._finish)
                if self._failure is None:
                    self._flushed()
        finally:
            self._close_files()
            if self._own_executor is not None:
                self._own_executor.shutdown(wait=True)

    async def abandon(self) -> None:
        """Leave as a killed process does: no flush, no checkpoint, `abort` stays; files closed, lock released."""
        self._refusal = StoreNotWritable("the store was abandoned")
        await self._stop_tasks()
        self.flushed.fail()
        self._close_files()
        if self._own_executor is not None:
            self._own_executor.shutdown(wait=True)

    async def _stop_tasks(self) -> None:
        """End flush, checkpoint and retention; what is under way is waited for."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._flusher.stop()

    async def cut_to(self, physical_offset: int) -> LogCut:
        """Cut the log's end off, from a record's begin on, and keep it in a file (log_cut.py). Nobody may append meanwhile.

        Durable on return. Raises RecordInvalid, StoreError: then the store takes nothing more until it is opened again.
        """
        self.check_open()
        await self._stop_tasks()
        try:
            self.flush_now()
            cut = cut_log(
                self.log,
                self._table,
                self.index,
                self._checkpoints,
                disk=self._disk,
                root=self.config.store_path_root_dir,
                start=physical_offset,
            )
            self.flushed.cut(physical_offset)
            self.last_record_offset, self.last_store_timestamp = last_record(self.log)
            self.log.sync(max(self.log.min_offset, physical_offset - 1), physical_offset)
            self._queue_flusher.sync_all()
            self._checkpoints.must_write(self._next_checkpoint(self._queue_flusher.bound(self.log.end)))
        except OSError as error:
            failure = StoreError(
                f"the log could not be cut at {physical_offset}: {error}", path=self.log.directory
            )
            self._failed(failure)
            raise failure from error
        finally:
            self._start_tasks()
        return cut

    def _finish(self) -> None:
        """The last flush. Runs in the executor while the loop waits in stop()."""
        try:
            self.log.sync(self.flushed.value, self.log.end)
            self.flushed.value = max(self.flushed.value, self.log.end)
            self._queue_flusher.sync_all()
            bound = self._queue_flusher.bound(self.log.end)
            self._checkpoints.write(self._next_checkpoint(bound))
            remove_abort_file(self._disk, self.config.store_path_root_dir)
            # Only without `abort` may it say that nothing at all is to be read again.
            self._checkpoints.write(self._next_checkpoint(bound, is_closed=True))
        except OSError as error:
            self._failed(StoreError(f"the last flush failed: {error}", path=self.config.store_path_root_dir))

    def _close_files(self) -> None:
        self._refusal = self._refusal or StoreNotWritable("the store is closed")
        self.log.close()
        self.pool.close()
        self.index.close()
        self._lock.release()

    # -- appending

    def check_writable(self) -> None:
        """Raise StoreNotWritable or StoreFull when no message can be taken now."""
        if (refusal := self._refusal or self._slave_refusal) is not None:
            raise refusal

    @property
    def is_writable(self) -> bool:
        return self._refusal is None and self._slave_refusal is None

    @property
    def not_writable_reason(self) -> str:
        """Why appends are refused; empty when they are not."""
        return str(self._refusal or self._slave_refusal or "")

    def refuse_messages(self, reason: str) -> None:
        """Take no messages but a master's raw ones, for this reason; "": take them. Overrides what brokerRole says."""
        self._slave_refusal = StoreNotWritable(reason) if reason else None

    def check_open(self) -> None:
        """Raise StoreNotWritable or StoreFull when not even what a master sends can be taken."""
        if self._refusal is not None:
            raise self._refusal

    @property
    def store_host(self) -> bytes:
        """Packed. The broker sets it when its port is known."""
        return self.appender.store_host

    @store_host.setter
    def store_host(self, store_host: bytes) -> None:
        self.appender.store_host = store_host

    @property
    def last_store_timestamp(self) -> int:
        """Store time of the youngest record, ms."""
        return self.appender.last_store_timestamp

    @last_store_timestamp.setter
    def last_store_timestamp(
        self, store_timestamp: int
    ) -> None:  # the native fast path, at the end of a burst
        self.appender.last_store_timestamp = store_timestamp

    @property
    def last_record_offset(self) -> int:
        """Where the youngest record begins; -1 when there is none."""
        return self.appender.last_record_offset

    @last_record_offset.setter
    def last_record_offset(self, physical_offset: int) -> None:
        self.appender.last_record_offset = physical_offset

    def store_time_now(self) -> int:
        """The store time for the next record, ms: the clock's, but never before the record before it."""
        return self.appender.store_time_now()

    def queue(self, topic: str, queue_id: int) -> AnyQueue:
        """The queue, created empty when it is new. On the disk it is made by its first entry."""
        return self._table.any(topic, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message gets, whether or not consumers see the ones before it."""
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def set_batch_topic(self, topic: str) -> None:
        """Make new queues of the topic batch queues (`queue.type=BatchCQ`)."""
        self._table.batch_topics.add(topic)

    def append(self, message: StoredMessage, *, light_queues: Sequence[ConsumeQueue] = ()) -> AppendResult:
        """Write one record, its queue entry, its entries in light queues and its index entries; all or nothing.

        Raises StoreFull, StoreNotWritable, RecordInvalid (topic, properties or body too large).
        """
        result = self.appender.append((message,), light_queues=light_queues)
        self.burst_done()
        return result

    def append_batch(self, messages: Sequence[StoredMessage]) -> AppendResult:
        """Write records of one queue back to back in one log file; all or nothing. Raises as append()."""
        if not messages:
            raise RecordInvalid("an empty batch cannot be stored")
        first = messages[0]
        for message in messages:
            if (message.topic, message.queue_id) != (first.topic, first.queue_id):
                raise RecordInvalid("the messages of a batch belong to different queues")
            if message.sys_flag & TRANSACTION_MASK:
                raise RecordInvalid("a batch cannot hold transactional messages")
        result = self.appender.append(messages)
        self.burst_done()
        return result

    def announce(self, queue: AnyQueue, physical_offset: int, store_timestamp: int, tags_code: int) -> None:
        """As LogAppender.announce."""
        self.appender.announce(queue, physical_offset, store_timestamp, tags_code)

    def burst_done(self) -> None:
        """After the last append of a burst: with sync flush, begin the group commit; tell who sends the log on."""
        if self._is_sync:
            self._flusher.want()
        if self._on_burst is not None:
            self._on_burst()

    def on_burst(self, callback: Callable[[], None] | None) -> None:
        """Call back after each burst of appends, before its answers leave. One callback, cheap, which never raises."""
        self._on_burst = callback

    def on_arrival(self, callback: Arrival) -> None:
        """Call back with (topic, queue_id, new max offset, tags code) when a message becomes readable."""
        self.appender.arrivals.add(callback)

    # -- durability

    @property
    def appended(self) -> int:
        """The log's end, bytes."""
        return self.log.end

    @property
    def readable_offset(self) -> int:
        """Consumers see records that end at or before it: with sync flush what is durable, else all."""
        return self.flushed.value if self._is_sync else self.log.end

    @property
    def holds_answers(self) -> bool:
        """Whether appends are answered when the disk has them (SYNC_FLUSH)."""
        return self._is_sync

    def wait_durable(self, offset: int, callback: Callable[[bool], None]) -> None:
        """With sync flush call back when the log is durable up to `offset`; with async flush at once.

        callback(False): a sync failed, nothing is known about the record. The time limit is the caller's.
        """
        if self._is_sync:
            self.flushed.when(offset, callback)
        else:
            callback(self._failure is None)

    def flush_now(self) -> None:
        """Sync the log in this thread and release who waits. For tests and tools. Raises StoreError."""
        if self._failure is not None:
            raise self._failure
        self._flusher.sync_now()

    def flush_queues_now(self) -> None:
        """Sync queues and index and write the checkpoint, in this thread. Raises StoreError."""
        if self._failure is not None:
            raise self._failure  # what a second sync says is worth nothing
        try:
            bound = self._queue_flusher.sync_all_below(self.log.end)
            self._checkpoints.write(self._next_checkpoint(bound))
        except OSError as error:
            raise self._sync_failed(error) from error

    @property
    def unflushed_bytes(self) -> int:
        """Bytes of the log that are not durable yet (remainHowManyDataToFlush)."""
        return self.log.end - self.flushed.value

    def _flushed(self) -> None:
        """The watermark moved: show what is durable now."""
        self.appender.show_durable(self.flushed.value)

    def _failed(self, failure: StoreError) -> None:
        if self._failure is None:
            _logger.error("%s", failure)
            self._failure = failure
            self._refusal = StoreNotWritable(str(failure), path=failure.path, offset=failure.offset)

    def _sync_failed(self, error: OSError) -> StoreError:
        failure = StoreError(
            f"syncing queues or index of {self.config.store_path_root_dir} to the disk failed: {error}. The store "
            "takes no more messages. Check the disk, then restart the broker: recovery builds them again from the log",
            path=self.config.store_path_root_dir,
        )
        self._failed(failure)
        self.flushed.fail()
        return failure

    # -- reading

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Accept | None = None,
    ) -> GetResult:
        """Read up to `count_max` messages. `tag_codes` None takes all; `accept` sees whole records (SQL filter)."""
        return self.reader.get(self.queues.get((topic, queue_id)), offset, count_max, tag_codes, accept)

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether get_messages there would wait for the disk: then use get_messages_cold."""
        return self.warmer.is_cold(self.queues.get((topic, queue_id)), offset)

    async def get_messages_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Accept | None = None,
    ) -> GetResult:
        """As get_messages, after bringing the data into memory."""
        await self.warmer.warm_queue(self.queues.get((topic, queue_id)), offset, tag_codes)
        return self.get_messages(
            topic, queue_id, offset, count_max=count_max, tag_codes=tag_codes, accept=accept
        )

    async def read_record_cold(self, physical_offset: int) -> bytes | None:
        """As read_record, after bringing the record into memory."""
        if self.log.end - physical_offset > self.config.hot_read_bytes:
            await self.warmer.warm([(physical_offset, 4)])
            size = int.from_bytes(self.log.read(physical_offset, 4), "big")
            await self.warmer.warm([(physical_offset, min(size, self.log.segment_size))])
        return self.read_record(physical_offset)

    async def warm_records(self, places: Sequence[tuple[int, int]]) -> None:
        """Bring records (physical offset, size) into memory: read_record does not wait then."""
        await self.warmer.warm(places)

    def read_record(self, physical_offset: int) -> bytes | None:
        """The whole record that starts there, or None when none does (or it is not readable yet)."""
        if not self.log.min_offset <= physical_offset < self.readable_offset:
            return None
        if self.reader.record_time(physical_offset) < 0:
            return None
        size = int.from_bytes(self.log.read(physical_offset, 4), "big")
        if physical_offset + size > self.readable_offset:
            return None
        record = self.log.read(physical_offset, size)
        return record if len(record) == size else None

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset that a consumer can read; 0 for an unknown queue."""
        queue = self.queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Next offset that a consumer will see; 0 for an unknown queue."""
        queue = self.queues.get((topic, queue_id))
        return queue.readable_max if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """LOWER: first offset stored at or after; UPPER: last offset stored at or before. Clamped to the queue."""
        queue = self.queues.get((topic, queue_id))
        return self.reader.offset_by_time(queue, timestamp_ms, upper) if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at a queue offset, ms; -1 when there is none."""
        queue = self.queues.get((topic, queue_id))
        return self.reader.store_time(queue, offset) if queue is not None else -1

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of a queue, or without a topic of the log; -1 when empty."""
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        return self.reader.record_time(self.log.min_offset)

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        index_type: str = "",
    ) -> QueryResult:
        """Records that KeyQuestion asks for, at most maxMsgsNumBatch. Candidates: only hashes are compared."""
        return self._answer(self._question(topic, key, count_max, begin_ms, end_ms, index_type))

    async def query_cold(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        index_type: str = "",
    ) -> QueryResult:
        """As query, after bringing the records into memory in the executor."""
        question = self._question(topic, key, count_max, begin_ms, end_ms, index_type)
        await self.warmer.warm([(offset, 4096) for offset in candidates(self.index, question)])
        return self._answer(question)

    def _question(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, index_type: str
    ) -> KeyQuestion:
        return KeyQuestion(
            topic=topic,
            key=key,
            count_max=min(count_max, self.config.max_msgs_num_batch),
            begin_ms=begin_ms,
            end_ms=end_ms,
            index_type=index_type,
        )

    def _answer(self, question: KeyQuestion) -> QueryResult:
        return answer(self.index, question, read_record=self.read_record, record_time=self.reader.record_time)

    # -- deleting

    def delete_topic(self, topic: str) -> int:
        """Remove the topic's queues and their files. Returns how many queues; the log keeps the records."""
        self._bounds.forget([key for key in self.queues if key[0] == topic])
        return self._table.delete_topic(topic)

    def delete_topics_except(self, topics: Iterable[str]) -> list[str]:
        """Remove queues of every topic that is not listed (cleanUnusedTopic). Returns the removed topics."""
        gone = sorted(self._table.topics() - set(topics))
        for topic in gone:
            self.delete_topic(topic)
        return gone

    def delete_expired(self, *, manual: bool = True) -> int:
        """Run retention now. `manual` deletes expired files outside the hours too. Returns files removed.

        Removing large files takes a while: the background task does the same in the executor.
        """
        return self._cleaner.clean(manual=manual)

    def _set_full(self, is_full: bool, ratio: float) -> None:
        if is_full and self._refusal is None:
            self._refusal = StoreFull(
                f"the disk of {self.log.directory} is {ratio:.0%} full, above diskSpaceWarningLevelRatio "
                f"{self.config.disk_space_warning_level_ratio}: free space; the store takes messages again at "
                f"{self.config.disk_space_clean_forcibly_ratio} %",
                path=self.log.directory,
            )
            _logger.error("%s", self._refusal)
        elif not is_full and isinstance(self._refusal, StoreFull):
            self._refusal = None

    @property
    def min_physical_offset(self) -> int:
        return self.log.min_offset

    @property
    def max_physical_offset(self) -> int:
        return self.log.end

    def disk_ratios(self) -> tuple[float, float]:
        """Used share (0..1) of the disks of the commit log and of the queues."""
        ratios = []
        for path in (self.log.directory, self.config.store_path_root_dir):
            used, total = self._disk.usage(path)
            ratios.append(used / total if total else 0.0)
        return ratios[0], ratios[1]

    def _next_checkpoint(self, queues_bound: int, *, is_closed: bool = False) -> Checkpoint:
        """What is durable now; `queues_bound`: the queue and index entries of every record before it."""
        return next_checkpoint(
            self._checkpoints.current,
            log_flushed=self.flushed.value,
            log_end=self.log.end,
            queues_bound=queues_bound,
            last_record=(self.last_record_offset, self.last_store_timestamp),
            record_time=self.reader.record_time,
            index_timestamp=self.index.settled_timestamp,
            open_index=None if is_closed else self.index.open_file,
            queue_bounds=self._bounds.encoded(
                self.queues, self.log, self.index, self.flushed.value, now=is_closed
            ),
        )

    def reconfigure(self, config: StoreConfig) -> None:
        """Go on with other limits, intervals and ratios. Paths, file sizes and roles must be those of before."""
        self.config = self.appender.config = config
        self.reader.reconfigure(config, config.memory_share_bytes())
        self._flusher.reconfigure(config)
        self._cleaner.reconfigure(config)
        self._upkeep.reconfigure(config)
        self.warmer.reconfigure(config)
