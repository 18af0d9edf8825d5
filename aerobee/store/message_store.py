"""The store of one broker: wires, opens and closes its parts in order, and offers their methods under one object.

DefaultMessageStore of RocketMQ. Each part has one job and gets what it needs in its constructor:

    store_files.py    files on disk: lock, log, queues, index; opened with recovery
    writability.py    whether messages are accepted, and the reason if not
    log_appender.py   appends: the only writer of the log
    durability.py     durable end, callbacks that wait for it, visibility to consumers
    store_reads.py    reads by topic and queue; key_query.py by key
    checkpointing.py  content and time of checkpoints
    queue_upkeep.py, log_cleaner.py   the tasks: queues to the disk, files ahead; retention
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from aerobee.clock import Clock
from aerobee.errors import RecordInvalid, StoreError, StoreFull
from aerobee.message import TRANSACTION_MASK
from aerobee.shared_task import to_its_end
from aerobee.store.append.durability import Durability
from aerobee.store.append.log_appender import LogAppender
from aerobee.store.append.raw_appender import RawAppender
from aerobee.store.append.visibility import Visibility
from aerobee.store.append.writability import Writability
from aerobee.store.checkpointing import Checkpointing
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk, open_failed
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.store.read.key_query import KeyQueries
from aerobee.store.read.reader import MessageReader
from aerobee.store.read.store_reads import StoreReads
from aerobee.store.read.warmer import Warmer
from aerobee.store.recovery.log_cut import LogCut, last_record
from aerobee.store.recovery.queue_mender import QueueMender
from aerobee.store.recovery.recovery_report import RecoveryReport
from aerobee.store.store_files import StoreFiles
from aerobee.store.store_parts import StoreParts
from aerobee.store.upkeep.log_cleaner import LogCleaner
from aerobee.store.upkeep.queue_upkeep import QueueUpkeep
from aerobee.thread_pool import start_threads

_DEFAULT_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"  # 127.0.0.1:10911
_THREADS = 4
_QUEUES_PER_TURN = 16  # of a deletion, some milliseconds


class MessageStore(StoreParts):
    """The store. Every method belongs to the event loop's thread (single writer), except load(), which blocks and runs
    first.

    Code that appends many records of a burst uses `appender` (log_appender.py) directly, and at the end calls its
    end_burst() and burst_done().
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        disk: Disk,
        clock: Clock,
        executor: Executor | None = None,
        store_host: Callable[[], bytes] = lambda: _DEFAULT_HOST,
        needs_confirmation: bool = False,
    ) -> None:
        """`store_host` returns the packed address for records; called for each record, because the port is known later
        than the store. Blocking work runs in `executor`, else in threads of the store's own. `needs_confirmation`:
        consumers see the log up to confirm()'s offset, and nothing that another master may not have."""
        self.config, self._on_reconfigured = config, list[Callable[[], None]]()
        self._own_executor = None if executor is not None else ThreadPoolExecutor(_THREADS, "aerobee-store")
        self._executor: Executor | None = executor or self._own_executor
        files = self._files = StoreFiles(config, disk)
        self.log, self.index, self.pool = files.log, files.index, files.pool
        self.queues: dict[tuple[str, int], AnyQueue] = files.table.queues
        self.writability = Writability(config)
        self._make_appenders(clock, store_host, holds=config.is_sync_flush or needs_confirmation)
        self.durability = Durability(
            config,
            self.log,
            self.visibility,
            self.writability,
            clock=clock,
            executor=self._executor,
            needs_confirmation=needs_confirmation,
        )
        mender = QueueMender(self.log, files.table)
        self.reader = MessageReader(config, self.log, config.memory_share_bytes(), mender.mend)
        self.warmer = Warmer(config, self.log, self.pool, self._executor)
        self.reads = StoreReads(config, self.queues, self.log, self.reader, self.warmer, self.durability)
        self.keys = KeyQueries(config, self.index, self.reads, self.reader, self.warmer)
        self._checkpointing = Checkpointing(
            config,
            files,
            self.appender,
            self.durability,
            self.writability,
            disk=disk,
            record_time=self.reader.record_time,
        )
        self._upkeep = QueueUpkeep(
            config,
            self.log,
            files.queue_flusher,
            self.durability.flushed,
            files.checkpoints,
            clock=clock,
            executor=self._executor,
            next_checkpoint=self._checkpointing.next,
            on_failed=self._checkpointing.sync_failed,
        )
        self._cleaner = LogCleaner(
            config,
            self.log,
            files.table,
            self.index,
            self.durability.flushed,
            disk=disk,
            clock=clock,
            executor=self._executor,
            on_ratio=self._note_disk,
            flush=self.durability.flushed_to_end,
        )
        files.table.on_replaced = self._queue_replaced
        self._tasks: list[asyncio.Task[None]] = []
        self._cuts = asyncio.Lock()
        self._is_ending = False
        self._removed_queues: list[AnyQueue] = []  # of deleted topics, whose files are not gone yet

    def _make_appenders(self, clock: Clock, store_host: Callable[[], bytes], *, holds: bool) -> None:
        files = self._files
        self.visibility = Visibility(self.log, files.table, clock=clock, holds=holds)
        self.appender = LogAppender(
            self.config,
            self.log,
            files.table,
            self.index,
            self.visibility,
            clock=clock,
            store_host=store_host,
            check_writable=self.writability.check_writable,
            on_broken=self.writability.fail,
        )
        self.raw_appender = RawAppender(
            self.appender, files.table, self.visibility, check_open=self.writability.check_open
        )

    # -- life

    def load(self) -> RecoveryReport:
        """Lock the directory, recover, become writable. Blocking; nothing stays open when it raises.

        Raises StoreLocked when another process has it open, ConfigError for files of other lengths, StoreError for a
        directory that cannot be used or a log whose acknowledged records are damaged.
        """
        self._files.lock()
        try:
            if self._own_executor is not None:
                start_threads(self._own_executor, _THREADS)
            report = self._files.recover()
            cut = self._files.finish_cut()
            self.appender.follow(report.last_store_timestamp, report.last_record_offset)
            self.flushed.reset(self.log.end)
            self.durability.recovered(self._files.checkpoints.current.confirm_offset)
            if cut is None:
                self._checkpointing.sync_all()
            else:
                report.notes.append(
                    f"the cut of the log at {cut.start} that the last run began is finished; its end, up to {cut.end}, is kept "
                    f"in {', '.join(cut.paths)}"
                )
            self._settle_cut()
            assert self.last_record_offset < self.log.end or self.log.end == 0, (
                "the newest record lies in the log"
            )
            assert self.flushed.value <= self.log.end, "more counts as durable than was recovered"
        except OSError as error:
            self._close_files()
            raise open_failed(self.config.store_path_root_dir, error) from error
        except BaseException:
            self._close_files()
            raise
        report.tell(self.config.store_path_root_dir)
        self.writability.open()
        return report

    async def start(self) -> None:
        """Start flush, checkpoint and retention in the running event loop. Before it nothing is flushed."""
        self._start_tasks()

    def _start_tasks(self) -> None:
        self.durability.start()
        self._tasks = [
            asyncio.create_task(self._upkeep.run(), name="store-queue-flush"),
            asyncio.create_task(self._cleaner.run(), name="store-retention"),
        ]

    async def stop(self) -> None:
        """Refuse appends, flush everything, write the checkpoint, remove `abort`, unlock.

        After a failed sync `abort` stays, so that the next start recovers from what the disk holds.
        """
        if not self._files.is_open:
            return
        self._is_ending = True
        self.writability.close("the store is closing")
        await self._stop_tasks()
        try:
            if self.writability.failure is None:
                await asyncio.get_running_loop().run_in_executor(self._executor, self._finish)
                if self.writability.failure is None:
                    self.durability.show_finished()
        finally:
            self._close_files()
            if self._own_executor is not None:
                self._own_executor.shutdown(wait=True)

    async def abandon(self) -> None:
        """Leave as a killed process does: no flush, no checkpoint, `abort` stays; files closed, lock released."""
        self._is_ending = True
        self.writability.close("the store was abandoned")
        await self._stop_tasks()
        self.flushed.fail()
        self._close_files()
        if self._own_executor is not None:
            self._own_executor.shutdown(wait=True)

    async def _stop_tasks(self) -> None:
        """End flush, checkpoint and retention, and wait for running work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.durability.stop()

    async def cut_to(self, physical_offset: int) -> LogCut:
        """Cut the log's end off, from a record's begin on, and keep it in a file (log_cut.py). No caller may append meanwhile.

        Durable on return, and `pending_cut` until cut_finished(). A caller that is cancelled meanwhile has cut nothing, and
        the store continues as before. Raises RecordInvalid, StoreError: then the store takes nothing more until it is opened again.
        """
        async with self._cuts:
            self.check_open()
            stopping = asyncio.create_task(self._stop_tasks(), name="store-pause")
            try:
                await to_its_end(stopping)
                self.check_open()
                return self._cut(physical_offset)
            finally:
                if not self._is_ending:
                    self._start_tasks()

    def _cut(self, physical_offset: int) -> LogCut:
        """No task of the store runs."""
        try:
            self.flush_now()
            cut = self._files.cut(physical_offset)
            assert self.log.end == physical_offset, "the log ends where it was cut"
            self.durability.cut(physical_offset)
            assert self.flushed.value <= physical_offset, "the truncation counts as durable"
            self._settle_cut()
        except RecordInvalid:
            raise  # before anything changed
        except Exception as error:
            failure = StoreError(
                f"the log could not be cut at {physical_offset}: {error}", path=self.log.directory
            )
            self.writability.fail(failure)
            raise failure from error
        return cut

    def _settle_cut(self) -> None:
        """Complete a truncation of the log: sync the log's new end, and write a checkpoint without bounds behind it.
        Durable on return. Raises OSError.
        """
        intent = self._files.cut_intent
        if intent.current is None or intent.current.is_log_cut:
            return
        end = self.log.end
        offset, store_timestamp = last_record(self.log)
        self.appender.follow(store_timestamp, offset)
        self.log.sync(max(self.log.min_offset, end - 1), end)
        self._checkpointing.sync_cut()
        intent.log_is_cut()

    @property
    def pending_cut(self) -> int | None:
        """Offset of a pending cut of the log, also of an earlier run, until all its steps are done; else None."""
        intent = self._files.cut_intent.current
        return intent.offset if intent is not None else None

    def cut_finished(self) -> None:
        """All steps of the cut are done and durable. Raises OSError."""
        self._files.cut_intent.finished()

    def _finish(self) -> None:
        """The last flush. Runs in the executor while the loop waits in stop()."""
        try:
            while self._removed_queues:
                self._files.table.delete_taken(self._removed_queues.pop())
            self.durability.finish()
            self._checkpointing.finish()
        except OSError as error:
            self.writability.fail(
                StoreError(f"the last flush failed: {error}", path=self.config.store_path_root_dir)
            )

    def _close_files(self) -> None:
        self.writability.close("the store is closed")
        self._files.close()

    # -- appending

    def append(self, message: StoredMessage, *, lmqs: Sequence[ConsumeQueue] = ()) -> AppendResult:
        """Write one record, its queue entry, its entries in LMQs and its index entries; all or nothing.

        Raises StoreFull, StoreNotWritable, RecordInvalid (topic, properties or body too large).
        """
        result = self.appender.append((message,), lmqs=lmqs)
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

    def set_batch_topic(self, topic: str, is_batch: bool) -> None:
        """Make new queues of the topic batch queues (`queue.type=BatchCQ`), or ordinary ones."""
        topics = self._files.table.batch_topics
        (topics.add if is_batch else topics.discard)(topic)

    # -- deleting

    async def delete_topics(self, topics: Collection[str]) -> int:
        """Remove the queues of topics and their files. Returns how many queues; the log keeps the records.

        The queues are gone immediately, and the topics may be recreated; the files go in slices, between other tasks.
        """
        taken = self._files.table.take_topics(topics)
        await self._delete_taken(taken, topics)
        return len(taken)

    async def delete_ended(self, ends: Mapping[str, int]) -> list[str]:
        """Remove the queues of deleted topics, {topic: where the log ended then}, that have no newer records. As delete_topics();
        returns the topics."""
        table = self._files.table
        taken = table.take_queues(table.ended_before(ends))
        topics = sorted({queue.topic for queue in taken})
        await self._delete_taken(taken, topics)
        return topics

    def delete_ended_now(self, ends: Mapping[str, int]) -> list[str]:
        """delete_ended() in one step of the event loop, for the few that came since it was called last. Raises OSError."""
        table = self._files.table
        taken = table.take_queues(table.ended_before(ends))
        if taken:
            self._checkpointing.forget_queues(taken)
        for queue in taken:
            table.delete_taken(queue)
        topics = sorted({queue.topic for queue in taken})
        table.remove_directories(topics)
        return topics

    def _queue_replaced(self, old: AnyQueue, new: AnyQueue | None) -> None:
        self.visibility.replaced(old, new)
        if new is None:
            self._checkpointing.forget_queues((old,))

    async def _delete_taken(self, taken: list[AnyQueue], topics: Collection[str]) -> None:
        table = self._files.table
        if taken:
            self._checkpointing.forget_queues(taken)
        self._removed_queues += taken
        while self._removed_queues:
            for _ in range(min(_QUEUES_PER_TURN, len(self._removed_queues))):
                table.delete_taken(self._removed_queues.pop())
            await asyncio.sleep(0)
        table.remove_directories(topics)

    async def delete_topics_except(self, topics: Iterable[str]) -> list[str]:
        """Remove queues of every topic that is not listed (cleanUnusedTopic). Returns the removed topics."""
        gone = sorted(self._files.table.topics() - set(topics))
        await self.delete_topics(gone)
        return gone

    async def delete_expired(self, *, manual: bool = True) -> int:
        """Run retention now. `manual` deletes expired files outside the hours too. Returns files removed, in the executor."""
        return await self._cleaner.clean(manual=manual)

    def _note_disk(self, is_full: bool, ratio: float) -> None:
        full = StoreFull(
            f"the disk of {self.log.directory} is {ratio:.0%} full, above diskSpaceWarningLevelRatio "
            f"{self.config.disk_space_warning_level_ratio}: free space; the store takes messages again at "
            f"{self.config.disk_space_clean_forcibly_ratio} %",
            path=self.log.directory,
        )
        self.writability.note_disk(full if is_full else None)

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply a changed configuration: limits, intervals and ratios. Paths, file sizes and roles must stay the
        same.
        """
        self.config = config
        for part in (
            self.appender,
            self.durability,
            self.reads,
            self.keys,
            self._cleaner,
            self._upkeep,
        ):
            part.reconfigure(config)
        for callback in self._on_reconfigured:
            callback()

    def on_reconfigured(self, callback: Callable[[], None]) -> None:
        """Call back when the settings are others, in force already."""
        self._on_reconfigured.append(callback)
