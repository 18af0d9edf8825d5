"""Reads of a store by topic and queue: messages, records, bounds, times.

The forms that end in _cold bring the data into memory in the executor first; where is_cold() says no, the plain ones do not
wait for the disk. Follows the reading half of DefaultMessageStore; reader.py reads one queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, Unpack

from aerobee.store.append.durability import Durability
from aerobee.store.files.config import SCATTERED_COUNT_MAX, StoreConfig
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.dispatch import scan_record
from aerobee.store.log.stored_message import GetResult
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.store.read.reader import Accept, MessageReader
from aerobee.store.read.warmer import Warmer


class GetOptions(TypedDict, total=False):
    """What get_messages() and its other forms read; those of StoreParts have the same."""

    count_max: Required[int]
    """Maximum number of messages."""
    tag_codes: frozenset[int] | None
    """Hash codes of tags; None takes all."""
    accept: Accept | None
    """Sees whole records (SQL filter)."""


class StoreReads:
    """Reads of one store. Belongs to the event loop's thread."""

    def __init__(
        self,
        config: StoreConfig,
        queues: Mapping[tuple[str, int], AnyQueue],
        log: CommitLog,
        reader: MessageReader,
        warmer: Warmer,
        durability: Durability,
    ) -> None:
        """`durability` says below which physical offset records may be shown."""
        self._hot_read_bytes = config.hot_read_bytes
        self._queues = queues
        self._log = log
        self._reader = reader
        self._warmer = warmer
        self._durability = durability

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply other limits."""
        self._hot_read_bytes = config.hot_read_bytes
        self._reader.reconfigure(config, config.memory_share_bytes())
        self._warmer.reconfigure(config)

    # -- messages of a queue

    def get_messages(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[GetOptions]
    ) -> GetResult:
        """Read messages from a queue offset on."""
        queue, accept = self._queues.get((topic, queue_id)), options.get("accept")
        return self._reader.get(queue, offset, options["count_max"], options.get("tag_codes"), accept)

    def is_cold(
        self, topic: str, queue_id: int, offset: int, *, count_max: int = SCATTERED_COUNT_MAX
    ) -> bool:
        """Whether get_messages of up to `count_max` there would wait for the disk: then use get_messages_cold."""
        return self._warmer.is_cold(self._queues.get((topic, queue_id)), offset, count_max)

    async def get_messages_cold(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[GetOptions]
    ) -> GetResult:
        """As get_messages, after bringing the data into memory."""
        queue, tag_codes = self._queues.get((topic, queue_id)), options.get("tag_codes")
        await self._warmer.warm_queue(queue, offset, tag_codes, options["count_max"])
        return self.get_messages(topic, queue_id, offset, **options)

    # -- records

    def read_record(self, physical_offset: int) -> bytes | None:
        """The whole record that starts there, or None when none does (or it is not readable yet)."""
        return self._record(physical_offset, self._durability.readable_offset)

    def stored_record(self, physical_offset: int) -> bytes | None:
        """As read_record, also of what is not readable yet, for a broker that takes up its own state again: after a restart in
        controller mode the readable offset is that of the last checkpoint."""
        return self._record(physical_offset, self._log.end)

    def _record(self, physical_offset: int, end: int) -> bytes | None:
        """The record that starts there, if it ends at or before `end`."""
        log = self._log
        if not log.min_offset <= physical_offset < end:
            return None
        if self._reader.record_time(physical_offset) < 0:
            return None
        size = int.from_bytes(log.read(physical_offset, 4), "big")
        if physical_offset + size > end:
            return None
        record = log.read(physical_offset, size)
        return record if len(record) == size else None

    def named_record(self, physical_offset: int) -> bytes | None:
        """As read_record, at an offset that comes from outside the broker: None for bytes that only look like a record.

        A sender knows where the body of his message comes to lie, and may have written a record into it, even one whose body is what
        others store next. So a record counts only when the entry in its queue points to it.
        """
        data = self.read_record(physical_offset)
        found = None if data is None else scan_record(data, physical_offset, check_crc=False).record
        if found is None:
            return None
        is_real = self.has_entry(found.topic, found.queue_id, found.queue_offset, physical_offset, found.size)
        return data if is_real else None

    def has_entry(
        self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int
    ) -> bool:
        """Whether the entry at this queue offset leads to this offset of the log, and says this size (bytes)."""
        queue = self._queues.get((topic, queue_id))
        entry = queue.entry(queue_offset) if queue is not None else None
        return entry is not None and entry[:2] == (physical_offset, size)

    async def read_record_cold(self, physical_offset: int) -> bytes | None:
        """As read_record, after bringing the record into memory."""
        log = self._log
        if log.end - physical_offset > self._hot_read_bytes:
            await self._warmer.warm([(physical_offset, 4)])
            size = int.from_bytes(log.read(physical_offset, 4), "big")
            await self._warmer.warm([(physical_offset, min(size, log.segment_size))])
        return self.read_record(physical_offset)

    async def warm_records(self, extents: Sequence[tuple[int, int]]) -> None:
        """Bring records (physical offset, size) into memory: read_record does not wait then."""
        await self._warmer.warm(extents)

    # -- bounds and times of a queue

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First offset that a consumer can read; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Next offset that a consumer will see; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return queue.readable_max if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """LOWER: first offset stored at or after; UPPER: last offset stored at or before. Clamped to the queue."""
        queue = self._queues.get((topic, queue_id))
        return self._reader.offset_by_time(queue, timestamp_ms, upper) if queue is not None else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store time of the message at a queue offset, ms; -1 when there is none."""
        queue = self._queues.get((topic, queue_id))
        return self._reader.store_time(queue, offset) if queue is not None else -1

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of a queue, or without a topic of the log; -1 when empty."""
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        return self._reader.record_time(self._log.min_offset)
