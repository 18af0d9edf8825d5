"""Fast appends of a broker's internal records: POP's check points and acknowledgements, thousands per second.

They belong to one queue and have no keys, no flags and both hosts IPv4, so OwnRecords encodes record and entry in one
step, and writes a run of them with one write to the log and one to the queue. Log and queue hold afterwards what
MessageStore.append_batch would have written. For queues that only one part of the broker reads: that part is notified
once per run.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Protocol

from aerobee.errors import RecordInvalid
from aerobee.message import MAGIC_V1, PROPERTIES_BYTES_MAX
from aerobee.record_head import HOST_V4_BYTES, format_between
from aerobee.store.append.log_appender import LogAppender
from aerobee.store.append.visibility import Visibility
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.listeners import Listeners
from aerobee.store.queue.consume_queue import ENTRY, ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue

# HEAD_V4 of message.py with each host as one field.
_HEAD = struct.Struct(
    f">{format_between('size', 'born_timestamp')}{HOST_V4_BYTES}sq{HOST_V4_BYTES}s{format_between('reconsume_times', 'body_size')}"
)

OwnRecord = tuple[bytes, bytes, int]  # body, properties, tags code


class OwnStore(Protocol):
    """The part of the store that OwnRecords uses. A protocol, because MessageStore, which has all of it, lies above."""

    config: StoreConfig

    @property
    def store_host(self) -> bytes: ...

    @property
    def appender(self) -> LogAppender: ...

    @property
    def visibility(self) -> Visibility: ...

    @property
    def queues(self) -> Mapping[tuple[str, int], AnyQueue]: ...

    def check_writable(self) -> None: ...

    def store_time_now(self) -> int: ...

    def burst_done(self) -> None: ...


class OwnRecords:
    """Appends internal records to one queue. Belongs to the event loop."""

    def __init__(
        self,
        store: OwnStore,
        *,
        topic: str,
        queue_id: int,
        host: bytes,
        waiting: Container[tuple[str, int]],
        on_written: Callable[[], None],
    ) -> None:
        """`host`: the born host, packed. `waiting` holds the queues whose messages must be announced one by one; where
        this one is not among them, `on_written` is called once a run instead."""
        self._store = store
        self._key = (topic, queue_id)
        self._host = host
        self._waiting = waiting
        self._on_written: Listeners[()] = Listeners("the reader of own records", store.appender.clock)
        self._on_written.add(on_written)
        self._holds = store.visibility.holds
        name = topic.encode()
        self._topic_part = len(name).to_bytes(1, "big") + name
        self._fixed_bytes = _HEAD.size + len(self._topic_part) + 2

    def append(self, born_ms: int, records: Sequence[OwnRecord]) -> tuple[Sequence[int], int] | None:
        """Write records back to back; return their physical offsets and the end of the last one.

        All or nothing. None: nothing is written, append_batch() has to do it (the queue is new or of another kind, or a
        host is not IPv4). Raises StoreFull, StoreNotWritable, RecordInvalid.
        """
        store = self._store
        store.check_writable()
        queue = store.queues.get(self._key)
        host, store_host = self._host, store.store_host
        if type(queue) is not ConsumeQueue or len(host) != HOST_V4_BYTES or len(store_host) != HOST_V4_BYTES:
            return None
        now = store.store_time_now()
        total = self._fixed_bytes * len(records)
        for body, text, _ in records:
            if len(text) > PROPERTIES_BYTES_MAX:
                raise RecordInvalid(f"the properties of an own record take {len(text)} bytes")
            total += len(body) + len(text)
        is_awaited = self.is_awaited
        done = store.appender.append_run(
            queue,
            len(records),
            total,
            now,
            partial(self._lay_out, born_ms, records, now),
            is_awaited=is_awaited,
        )
        self.written(is_awaited=is_awaited)
        return done

    @property
    def is_awaited(self) -> bool:
        """Whether each record of the queue is to be announced."""
        return self._key in self._waiting

    def written(self, *, is_awaited: bool) -> None:
        """Records of the queue have been written, by append() or by native code that writes the same."""
        if not is_awaited and not self._holds:
            self._on_written.tell()  # else each record was announced
        self._store.burst_done()

    def _lay_out(
        self, born_ms: int, records: Sequence[OwnRecord], now: int, start: int, queue_offset: int
    ) -> tuple[bytes, bytes, list[int]]:
        """The records from `start` on, their queue entries, the offset of each record."""
        pack, crc32, fixed, physical_offset = _HEAD.pack, zlib.crc32, self._fixed_bytes, start
        queue_id, host, store_host = self._key[1], self._host, self._store.store_host
        parts: list[bytes] = []
        entries: list[bytes] = []
        offsets: list[int] = []
        for body, text, code in records:
            size = fixed + len(body) + len(text)
            head = pack(
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, 0, queue_offset, physical_offset, 0, born_ms, host, now,
                store_host, 0, 0, len(body),
            )  # fmt: skip
            parts += (head, body, self._topic_part, len(text).to_bytes(2, "big"), text)
            entries.append(ENTRY.pack(physical_offset, size, code))
            offsets.append(physical_offset)
            physical_offset += size
            queue_offset += 1
        return b"".join(parts), b"".join(entries), offsets
