"""The parts of a store, whose operations it offers as its methods, so that callers need one object.

MessageStore makes the parts and has what concerns several of them: opening, closing, cutting, deleting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from aerobee.store.append.durability import Durability
from aerobee.store.append.log_appender import LogAppender
from aerobee.store.append.raw_appender import RawAppender
from aerobee.store.append.visibility import Visibility
from aerobee.store.append.writability import Writability
from aerobee.store.checkpointing import Checkpointing
from aerobee.store.files.config import SCATTERED_COUNT_MAX
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.flush import Watermark
from aerobee.store.log.stored_message import GetResult, QueryResult
from aerobee.store.queue.extended_queue import Bitmap
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.store.read.key_query import KeyQueries, QueryOptions
from aerobee.store.read.store_reads import GetOptions, StoreReads
from aerobee.store.store_files import StoreFiles


class StoreParts:
    """Every method belongs to the event loop's thread."""

    log: CommitLog
    queues: dict[tuple[str, int], AnyQueue]
    writability: Writability
    visibility: Visibility
    appender: LogAppender
    raw_appender: RawAppender
    durability: Durability
    reads: StoreReads
    keys: KeyQueries
    _files: StoreFiles
    _checkpointing: Checkpointing

    # -- whether the store takes messages

    def check_writable(self) -> None:
        """As Writability.check_writable."""
        self.writability.check_writable()

    def check_open(self) -> None:
        """As Writability.check_open."""
        self.writability.check_open()

    def refuse_messages(self, reason: str) -> None:
        """As Writability.refuse_messages."""
        self.writability.refuse_messages(reason)

    @property
    def is_writable(self) -> bool:
        """As Writability.is_writable."""
        return self.writability.is_writable

    # -- appends and their notification

    def store_time_now(self) -> int:
        """As LogAppender.store_time_now."""
        return self.appender.store_time_now()

    def announce(self, queue: AnyQueue, physical_offset: int, store_timestamp: int, tags_code: int) -> None:
        """As LogAppender.announce."""
        self.appender.announce(queue, physical_offset, store_timestamp, tags_code)

    def on_arrival(self, callback: Callable[[str, int, int, int], None], topic: str = "") -> None:
        """As Visibility.on_arrival."""
        self.visibility.on_arrival(callback, topic)

    @property
    def store_host(self) -> bytes:
        """Packed: the address that records name."""
        return self.appender.store_host

    @property
    def last_store_timestamp(self) -> int:
        """Store time of the newest record, ms."""
        return self.appender.last_store_timestamp

    @property
    def last_record_offset(self) -> int:
        """Physical offset of the newest record; -1 without one."""
        return self.appender.last_record_offset

    # -- queues

    def queue(self, topic: str, queue_id: int) -> AnyQueue:
        """As QueueTable.any."""
        return self._files.table.any(topic, queue_id)

    def set_bitmap(self, bitmap: Bitmap | None) -> None:
        """As QueueTable.set_bitmap."""
        self._files.table.set_bitmap(bitmap)

    def settle_kinds(self, kind_of: Callable[[str], bool | None], known_to: int) -> list[str]:
        """As QueueTable.settle_kinds."""
        return self._files.table.settle_kinds(kind_of, known_to)

    # -- durability

    @property
    def flushed(self) -> Watermark:
        """The offset up to which the log is durable."""
        return self.durability.flushed

    def want_flush(self) -> None:
        """As Durability.want_flush."""
        self.durability.want_flush()

    def burst_done(self) -> None:
        """As Durability.burst_done."""
        self.durability.burst_done()

    def on_burst(
        self,
        callback: Callable[[], None] | None,
        is_wanted: Callable[[], bool] = lambda: True,
        is_wanted_soon: Callable[[], bool] = lambda: False,
    ) -> None:
        """As Durability.on_burst."""
        self.durability.on_burst(callback, is_wanted, is_wanted_soon)

    def wait_durable(self, offset: int, callback: Callable[[bool], None]) -> None:
        """As Durability.wait."""
        self.durability.wait(offset, callback)

    def wait_flushed(self, offset: int, callback: Callable[[bool], None]) -> None:
        """As Durability.wait_flushed."""
        self.durability.wait_flushed(offset, callback)

    def flush_now(self) -> None:
        """As Durability.flush_now."""
        self.durability.flush_now()

    def flush_queues_now(self) -> None:
        """As Checkpointing.flush_queues_now."""
        self._checkpointing.flush_queues_now()

    @property
    def readable_offset(self) -> int:
        """As Durability.readable_offset."""
        return self.durability.readable_offset

    @property
    def holds_answers(self) -> bool:
        """As Durability.holds_answers."""
        return self.durability.holds_answers

    @property
    def unflushed_bytes(self) -> int:
        """As Durability.unflushed_bytes."""
        return self.durability.unflushed_bytes

    @property
    def wants_each_burst(self) -> bool:
        """As Durability.wants_each_burst."""
        return self.durability.wants_each_burst

    @property
    def wants_bursts(self) -> bool:
        """As Durability.wants_bursts."""
        return self.durability.wants_bursts

    # -- reading

    def get_messages(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[GetOptions]
    ) -> GetResult:
        """As StoreReads.get_messages."""
        return self.reads.get_messages(topic, queue_id, offset, **options)

    def is_cold(
        self, topic: str, queue_id: int, offset: int, *, count_max: int = SCATTERED_COUNT_MAX
    ) -> bool:
        """As StoreReads.is_cold."""
        return self.reads.is_cold(topic, queue_id, offset, count_max=count_max)

    async def get_messages_cold(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[GetOptions]
    ) -> GetResult:
        """As StoreReads.get_messages_cold."""
        return await self.reads.get_messages_cold(topic, queue_id, offset, **options)

    def read_record(self, physical_offset: int) -> bytes | None:
        """As StoreReads.read_record."""
        return self.reads.read_record(physical_offset)

    def stored_record(self, physical_offset: int) -> bytes | None:
        """As StoreReads.stored_record."""
        return self.reads.stored_record(physical_offset)

    async def read_record_cold(self, physical_offset: int) -> bytes | None:
        """As StoreReads.read_record_cold."""
        return await self.reads.read_record_cold(physical_offset)

    def named_record(self, physical_offset: int) -> bytes | None:
        """As StoreReads.named_record."""
        return self.reads.named_record(physical_offset)

    def has_entry(
        self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int
    ) -> bool:
        """As StoreReads.has_entry."""
        return self.reads.has_entry(topic, queue_id, queue_offset, physical_offset, size)

    async def warm_records(self, extents: Sequence[tuple[int, int]]) -> None:
        """As StoreReads.warm_records."""
        await self.reads.warm_records(extents)

    def query(self, topic: str, key: str, **options: Unpack[QueryOptions]) -> QueryResult:
        """As KeyQueries.query."""
        return self.keys.query(topic, key, **options)

    async def query_cold(self, topic: str, key: str, **options: Unpack[QueryOptions]) -> QueryResult:
        """As KeyQueries.query_cold."""
        return await self.keys.query_cold(topic, key, **options)

    # -- bounds and times

    def min_offset(self, topic: str, queue_id: int) -> int:
        """As StoreReads.min_offset."""
        return self.reads.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """As StoreReads.max_offset."""
        return self.reads.max_offset(topic, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next message gets, whether or not consumers see the ones before it."""
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """As StoreReads.offset_by_time."""
        return self.reads.offset_by_time(topic, queue_id, timestamp_ms, upper=upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """As StoreReads.store_time."""
        return self.reads.store_time(topic, queue_id, offset)

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """As StoreReads.earliest_store_time."""
        return self.reads.earliest_store_time(topic, queue_id)

    def disk_ratios(self) -> tuple[float, float]:
        """As StoreFiles.disk_ratios."""
        return self._files.disk_ratios()
