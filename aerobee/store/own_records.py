"""Records that a broker writes for itself, many a second: POP's check points and acknowledgements.

They belong to one queue and have no keys, no flags and both hosts IPv4, so record and entry are laid out here in one
step, a run of them with one write to the log and one to the queue. Log and queue hold afterwards what
MessageStore.append_batch would have written. Where nobody reads the queue but one part of the broker, that part is told
once a run.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Protocol

from aerobee.errors import RecordInvalid
from aerobee.message import MAGIC_V1, PROPERTIES_BYTES_MAX
from aerobee.store.commit_log import CommitLog
from aerobee.store.config import StoreConfig
from aerobee.store.consume_queue import ENTRY, ConsumeQueue
from aerobee.store.queue_table import AnyQueue

# HEAD_V4 of message.py with each host as one field.
_HEAD = struct.Struct(">IIIiiqqiq8sq8siqi")
_HOST_BYTES = 8

OwnRecord = tuple[bytes, bytes, int]  # body, properties, tags code


class OwnStore(Protocol):
    """What is needed of the store."""

    config: StoreConfig
    log: CommitLog
    store_host: bytes
    last_store_timestamp: int
    last_record_offset: int

    @property
    def queues(self) -> Mapping[tuple[str, int], AnyQueue]: ...

    def check_writable(self) -> None: ...

    def store_time_now(self) -> int: ...

    def announce(
        self, queue: AnyQueue, physical_offset: int, store_timestamp: int, tags_code: int
    ) -> None: ...

    def burst_done(self) -> None: ...


class OwnRecords:
    """Appends to one queue. Belongs to the event loop."""

    def __init__(
        self,
        store: OwnStore,
        *,
        topic: str,
        queue_id: int,
        host: bytes,
        waiting: Container[tuple[str, int]],
        came: Callable[[], None],
    ) -> None:
        """`host`: the born host, packed. `waiting` holds the queues whose messages must be announced one by one; where
        this one is not among them, `came` is called once a run instead."""
        self._store = store
        self._place = (topic, queue_id)
        self._host = host
        self._waiting = waiting
        self._came = came
        self._is_sync = store.config.is_sync_flush
        name = topic.encode()
        self._topic_part = len(name).to_bytes(1, "big") + name
        self._fixed_bytes = _HEAD.size + len(self._topic_part) + 2

    def append(self, born_ms: int, records: Sequence[OwnRecord]) -> tuple[list[int], int] | None:
        """Write records back to back; return their physical offsets and the end of the last one.

        All or nothing. None: nothing is written, append_batch() has to do it (the queue is new or of another kind, or a
        host is not IPv4). Raises StoreFull, StoreNotWritable, RecordInvalid.
        """
        store = self._store
        store.check_writable()
        queue = store.queues.get(self._place)
        host, store_host = self._host, store.store_host
        if type(queue) is not ConsumeQueue or len(host) != _HOST_BYTES or len(store_host) != _HOST_BYTES:
            return None
        now, fixed, topic_part = store.store_time_now(), self._fixed_bytes, self._topic_part
        total = fixed * len(records)
        for body, text, _ in records:
            if len(text) > PROPERTIES_BYTES_MAX:
                raise RecordInvalid(f"the properties of an own record take {len(text)} bytes")
            total += len(body) + len(text)
        first = queue_offset = queue.max_offset
        # Everything that can fail for want of space comes first; after it nothing can.
        if first + len(records) > queue.room:
            queue.ensure_room(len(records))
        log = store.log
        start = place = log.place(total)
        queue_id, pack, crc32 = self._place[1], _HEAD.pack, zlib.crc32
        parts: list[bytes] = []
        offsets: list[int] = []
        for body, text, _ in records:
            size = fixed + len(body) + len(text)
            head = pack(
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, 0, queue_offset, place, 0, born_ms, host, now,
                store_host, 0, 0, len(body),
            )  # fmt: skip
            parts += (head, body, topic_part, len(text).to_bytes(2, "big"), text)
            offsets.append(place)
            place += size
            queue_offset += 1
        at = start - log.base
        log.buffer[at : at + total] = b"".join(parts)
        log.end = place
        if self._is_sync or self._place in self._waiting or queue_offset > queue.room:
            self._add_entries(queue, records, offsets, now)
        else:
            ends = (*offsets[1:], place)
            queue.append_entries(
                b"".join(
                    [
                        ENTRY.pack(offset, end - offset, record[2])
                        for offset, end, record in zip(offsets, ends, records, strict=True)
                    ]
                ),
                start,
            )
            # What announce() does, when nobody waits.
            queue.readable_max = queue.max_offset
            store.last_store_timestamp, store.last_record_offset = now, offsets[-1]
            self._came()
        store.burst_done()
        return offsets, place

    def _add_entries(
        self, queue: ConsumeQueue, records: Sequence[OwnRecord], offsets: Sequence[int], now: int
    ) -> None:
        """Entry by entry, each announced."""
        for offset, (body, text, code) in zip(offsets, records, strict=True):
            if queue.max_offset >= queue.room:
                queue.make_room()
            queue.append_entry(offset, self._fixed_bytes + len(body) + len(text), code)
            self._store.announce(queue, offset, now, code)
