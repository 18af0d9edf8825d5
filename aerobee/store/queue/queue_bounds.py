"""Bounds of each queue at a point in time, stored in the checkpoint so that a loss is detected.

Queue files are derived from the log and do not show whether they are complete: a queue without its last file looks like
a shorter queue, and its offsets would be assigned to other messages. So the checkpoint contains the first file and the
end of every queue at a time up to which the log is durable: the queue can never be shorter later.

    header  magic 8 | boot id 16 | log min 8 | log end 8 | last record in the index 8
            | sizes of files 4 x 8 (log, queue, batch queue, index) | topic count 4
    topic   name bytes 2 | name | queue count 4
    queue   queue id 4 | is batch 1 | position of its first file 8 | max offset 8
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import CommitLog

_HEADER = struct.Struct(">8s16sqqqqqqqI")
_TOPIC = struct.Struct(">H")
_COUNT = struct.Struct(">I")
_QUEUE = struct.Struct(">iBqq")
_MAGIC = b"AEROQUE1"
_MANY_QUEUES = 2_000  # taking them down takes some milliseconds: then it is done less often
_SKIPS_OF_MANY = 60

Key = tuple[str, int]


class QueueBound(NamedTuple):
    """Bounds of one queue: `first_position` is its first file's position, `max_offset` the next message's queue
    offset.
    """

    is_batch: bool
    first_position: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """Bounds of all queues at the time when the log spanned [log_min, log_end).

    `index_end`: physical offset of the last record in the key index, -1 for none. `file_sizes`: of the log, a queue, a
    batch queue, the index, 0 for not known.
    """

    log_min: int = 0
    log_end: int = 0
    index_end: int = -1
    boot_id: bytes = b""
    file_sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
    queues: Mapping[Key, QueueBound] = field(default_factory=dict)

    def encode(self) -> bytes:
        """As the bytes that the checkpoint keeps."""
        topics: dict[str, list[tuple[int, QueueBound]]] = {}
        for (topic, queue_id), bound in self.queues.items():
            topics.setdefault(topic, []).append((queue_id, bound))
        boot_id = self.boot_id.ljust(16, b"\0")
        ends = self.log_min, self.log_end, self.index_end
        parts = [_HEADER.pack(_MAGIC, boot_id, *ends, *self.file_sizes, len(topics))]
        for topic, queues in topics.items():
            name = topic.encode(errors="surrogateescape")
            parts += (_TOPIC.pack(len(name)), name, _COUNT.pack(len(queues)))
            parts += [_QUEUE.pack(queue_id, *bound) for queue_id, bound in queues]
        return b"".join(parts)


def decode_queue_bounds(data: bytes) -> QueueBounds | None:
    """The result of encode(); None for anything else. The caller has checked a checksum."""
    try:
        magic, boot_id, log_min, log_end, index_end, *sizes, count = _HEADER.unpack_from(data, 0)
        if magic != _MAGIC:
            return None
        queues: dict[Key, QueueBound] = {}
        at = _HEADER.size
        for _ in range(count):
            (name_bytes,) = _TOPIC.unpack_from(data, at)
            at += _TOPIC.size
            topic = data[at : at + name_bytes].decode(errors="surrogateescape")
            at += name_bytes
            (queue_count,) = _COUNT.unpack_from(data, at)
            at += _COUNT.size
            for _ in range(queue_count):
                queue_id, is_batch, first, end = _QUEUE.unpack_from(data, at)
                queues[topic, queue_id] = QueueBound(bool(is_batch), first, end)
                at += _QUEUE.size
    except struct.error:
        return None
    boot = boot_id if any(boot_id) else b""
    return QueueBounds(log_min, log_end, index_end, boot, (sizes[0], sizes[1], sizes[2], sizes[3]), queues)


def with_found(bounds: QueueBounds, found: Mapping[Key, QueueBound], log_end: int = 0) -> QueueBounds:
    """The same, with queues that were found since, or continued, up to the record that ends at `log_end`."""
    queues = dict(bounds.queues)
    for key, bound in found.items():
        known = queues.get(key, bound)
        queues[key] = known._replace(max_offset=max(known.max_offset, bound.max_offset))
    return replace(bounds, queues=queues, log_end=max(bounds.log_end, log_end))


def written_sizes(data: bytes) -> tuple[int, int, int, int]:
    """QueueBounds.file_sizes of encoded bounds; zeros when there are none."""
    bounds = decode_queue_bounds(data)
    return bounds.file_sizes if bounds is not None else (0, 0, 0, 0)


class BoundedQueue(Protocol):
    """The attributes of a queue that BoundsKeeper records."""

    max_offset: int

    @property
    def is_batch(self) -> bool: ...

    @property
    def first_position(self) -> int: ...


class BoundsKeeper:
    """Records the bounds of all queues, and returns them once the log is durable up to that moment. One thread."""

    def __init__(self, *, boot_id: bytes, file_sizes: tuple[int, int, int, int]) -> None:
        self._boot_id = boot_id
        self._file_sizes = file_sizes
        self._durable = QueueBounds(boot_id=boot_id, file_sizes=file_sizes)
        self._encoded = self._durable.encode()
        self._pending: QueueBounds | None = None
        self._seen = (-1, -1, -1)
        self._skips = 0

    def encoded(
        self,
        queues: Mapping[Key, BoundedQueue],
        log: CommitLog,
        index: KeyIndex,
        flushed: int,
        *,
        now: bool,
    ) -> bytes:
        """Bounds that may be written to the checkpoint. `now`: nothing is under way, so it holds the queues as they
        are."""
        pending = self._pending
        if pending is not None and pending.log_end <= flushed:
            self._durable, self._encoded, self._pending = pending, pending.encode(), None
        state = (log.min_offset, log.end, len(queues))
        if self._pending is None and (state != self._seen or now) and (now or self._is_due(len(queues))):
            self._seen = state
            taken = self._take(queues.items(), log, index)
            if taken.log_end <= flushed:
                self._durable, self._encoded = taken, taken.encode()
            else:
                self._pending = taken
        return self._encoded

    def _is_due(self, queue_count: int) -> bool:
        self._skips += 1
        if queue_count > _MANY_QUEUES and self._skips < _SKIPS_OF_MANY:
            return False
        self._skips = 0
        return True

    def _take(
        self, queues: Iterable[tuple[Key, BoundedQueue]], log: CommitLog, index: KeyIndex
    ) -> QueueBounds:
        bounds = {
            key: QueueBound(queue.is_batch, queue.first_position, queue.max_offset)
            for key, queue in queues
            if queue.max_offset
        }
        ends = log.min_offset, log.end, index.last_physical_offset
        return QueueBounds(*ends, self._boot_id, self._file_sizes, bounds)

    def forget_all(self) -> None:
        """The end of the log was truncated: queues may end earlier now than was recorded, also in bounds that still wait for
        a flush of the log. Recovery would pad them with holes up to their former ends.
        """
        self._durable = QueueBounds(boot_id=self._boot_id, file_sizes=self._file_sizes)
        self._encoded = self._durable.encode()
        self._pending = None
        self._seen = (-1, -1, -1)

    def forget(self, keys: Iterable[Key]) -> None:
        """Forget deleted queues, so that recovery does not miss them."""
        gone = set(keys)
        self._pending = None
        self._seen = (-1, -1, -1)
        kept = {key: bound for key, bound in self._durable.queues.items() if key not in gone}
        self._durable = replace(self._durable, queues=kept)
        self._encoded = self._durable.encode()
