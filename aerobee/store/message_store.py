"""The store of one broker: commit log, consume queues, key index, flush, retention, recovery.

The one class that a broker uses (DefaultMessageStore in RocketMQ).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from aerobee.clock import Clock
from aerobee.store.config import StoreConfig
from aerobee.store.disk import Disk
from aerobee.store.stored_message import AppendResult, GetResult, QueryResult, StoredMessage


class Watermark:
    """An offset that only grows, and callbacks that wait for it. See flush.py."""

    value: int

    def when(self, offset: int, callback: Callable[[bool], None]) -> None: ...


class ConsumeQueue:
    """One queue. See consume_queue.py."""

    topic: str
    queue_id: int
    max_offset: int  # next queue offset to be written
    readable_max: int  # consumers see entries below it

    def append_entry(self, physical_offset: int, size: int, tags_code: int) -> None: ...


class RecoveryReport: ...


class CommitLog: ...


class KeyIndex: ...


class MessageStore:
    """Single writer: every method belongs to the event loop's thread, but load(), which blocks and runs before.

    The lane's way to append a burst, the same as append() does it (names are final):

        store.check_writable()                                 # StoreFull, StoreNotWritable
        queue = store.queue(topic, queue_id)                   # ConsumeQueue, created when new
        now = store.store_time_now()                           # ms, never goes back
        if queue.max_offset >= queue.room: queue.make_room(1)  # StoreFull
        offset = log.place(size)                               # physical offset; may change segment; StoreFull
        at = offset - log.base
        log.buffer[at : at + size] = record                    # or pack_into parts
        log.end = offset + size                                # only after the bytes are there
        queue.append_entry(offset, size, tags_code)
        index.add(topic, key_texts, offset, now)               # key_texts as StoredMessage.index_keys
        store.announce(queue, tags_code)                       # readable: releases parked pulls
        ...
        store.burst_done()                                     # once: wakes the flusher
    """

    config: StoreConfig
    store_host: bytes  # packed; set by the broker when its port is known
    log: CommitLog
    index: KeyIndex
    flushed: Watermark
    queues: dict[tuple[str, int], ConsumeQueue]

    def __init__(
        self,
        config: StoreConfig,
        *,
        disk: Disk,
        clock: Clock,
        executor: Executor | None = None,
        store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
    ) -> None: ...

    def load(self) -> RecoveryReport:
        """Lock the directory, recover, become writable. Blocking. StoreLocked, StoreError, ConfigError."""
        ...

    async def start(self) -> None:
        """Start the flush, retention and checkpoint tasks. Before it, nothing is flushed on its own."""
        ...

    async def stop(self) -> None:
        """Refuse appends, flush everything, write the checkpoint, remove `abort`, unlock."""
        ...

    def append(self, message: StoredMessage) -> AppendResult:
        """Write one record, its queue entry and its index entries; all or nothing.

        Raises StoreFull, StoreNotWritable, RecordInvalid (topic, properties or body too large).
        """
        ...

    def append_batch(self, messages: Sequence[StoredMessage]) -> AppendResult:
        """Write records of one queue back to back in one log file; all or nothing. Raises as append()."""
        ...

    @property
    def appended(self) -> int:
        """The log's end, bytes."""
        ...

    @property
    def readable_offset(self) -> int:
        """Consumers see records that end at or before it: with sync flush what is durable, else all."""
        ...

    def wait_durable(self, offset: int, callback: Callable[[bool], None]) -> None:
        """With sync flush call back when the log is durable up to `offset`; with async flush at once.

        callback(False): a sync failed, nothing is known about the record. The time limit is the caller's.
        """
        ...

    def get_messages(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Callable[[bytes], bool] | None = None,
    ) -> GetResult:
        """Read up to `count_max` messages. `tag_codes` None takes all; `accept` sees whole records (SQL filter)."""
        ...

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether get_messages there would wait for the disk: then use get_messages_cold."""
        ...

    async def get_messages_cold(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        tag_codes: frozenset[int] | None = None,
        accept: Callable[[bytes], bool] | None = None,
    ) -> GetResult:
        """As get_messages, after bringing the data into memory in the executor."""
        ...

    def read_record(self, physical_offset: int) -> bytes | None:
        """The whole record that starts there, or None when none does (or it is not readable yet)."""
        ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Next offset that a consumer will see; 0 for an unknown queue."""
        ...

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """LOWER: first offset stored at or after; UPPER: last offset stored at or before. Clamped to the queue."""
        ...

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at a queue offset, ms; -1 when there is none."""
        ...

    def earliest_store_time(self, topic: str | None = None, queue_id: int | None = None) -> int:
        """Of one queue, or of the whole log; -1 when empty."""
        ...

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
        """Records indexed under the key, stored in [begin, end]. `index_type` "T" asks for a tag."""
        ...

    def on_arrival(self, callback: Callable[[str, int, int, int], None]) -> None:
        """Call back with (topic, queue_id, new max offset, tags code) when a message becomes readable."""
        ...

    def delete_topic(self, topic: str) -> int:
        """Remove the topic's queues and their files. Returns how many queues; the log keeps the records."""
        ...

    def delete_topics_except(self, topics: Iterable[str]) -> list[str]:
        """Remove queues of every topic that is not listed (cleanUnusedTopic). Returns the removed topics."""
        ...

    def delete_expired(self, *, manual: bool = True) -> int:
        """Run retention now (deleteExpiredCommitLog, cleanExpiredConsumeQueue). Returns files removed."""
        ...

    @property
    def min_physical_offset(self) -> int: ...

    @property
    def max_physical_offset(self) -> int: ...

    @property
    def is_writable(self) -> bool: ...

    @property
    def not_writable_reason(self) -> str:
        """Why appends are refused; empty when they are not."""
        ...

    def disk_ratios(self) -> tuple[float, float]:
        """Used share (0..1) of the disks of the commit log and of the queues."""
        ...
