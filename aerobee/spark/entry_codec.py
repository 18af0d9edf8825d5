"""Rows of record batches as bodies of batch requests, encoded by native code where possible. No I/O.

sink_rows.outgoing_row() and send_header.encode_batch_entry() are the reference implementation of the encoding. LaidOutBatches
passes the columns of eligible rows to aerobee_native.BatchEntries as they are in memory, without a Python object per row; other
rows (a null, several keys, text with control characters, a property that the client sets ...), rows with a time, a message group
or a dedup key, and all rows without the native module are left to the reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from aerobee.client.session.send_header import RESERVED_PROPERTIES
from aerobee.errors import UsageError
from aerobee.message import RETRY_PREFIX, check_topic_name
from aerobee.property_names import DEDUP_KEY
from aerobee.system_names import NOT_SENDABLE

native: ModuleType | None
try:
    import aerobee_native as native
except ImportError:
    native = None

ALONE = ("deliver_at", "message_group", "dedup_key")  # columns that exclude a row from batches
REFERENCE_ROWS = 64  # rows that the reference implementation encodes from an ineligible row on


@dataclass(frozen=True, slots=True)
class LaidOutBatch:
    """`row_count` messages for one topic as the body of a batch request; they are within rows `first` to `last` of the task."""

    topic: str
    first: int
    last: int
    row_count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class OtherRows:
    """Rows `begin` to before `end` of the record batch, for the reference implementation."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicRows:
    """A record batch of rows for one topic, and their numbers in the task. `topic` is empty for the reference implementation."""

    topic: str
    batch: Any
    numbers: Sequence[int]


class _Buffers(Protocol):
    """The part of a pyarrow array that is used here. A protocol, because PyArrow has no types."""

    type: Any
    offset: int
    null_count: int

    def buffers(self) -> list[Any]: ...
    def __len__(self) -> int: ...


class BatchLayout:
    """Lays out rows for one producer. `ids`: the producer's. `now_ms`: the wall clock."""

    def __init__(
        self, ids: object, now_ms: Callable[[], int], *, rows_max: int, bytes_max: int, body_bytes_max: int
    ) -> None:
        self._ids = ids
        self._now_ms = now_ms
        self._entries: Any = None
        entries = getattr(native, "BatchEntries", None)
        if native is not None and entries is not None and isinstance(ids, native.UniqueIds):
            left = sorted(name.encode() for name in RESERVED_PROPERTIES | {DEDUP_KEY})
            self._entries = entries(rows_max, bytes_max, body_bytes_max, left)

    def takes(self, part: TopicRows) -> bool:
        """Whether these rows may be laid out at all."""
        batch = part.batch
        names = set(batch.schema.names)
        if batch.num_rows == 1:  # a separate message may be compressed
            return False
        if self._entries is None or not _is_eligible_topic(part.topic) or "value" not in names:
            return False
        if any(name in names and batch.column(name).null_count < batch.num_rows for name in ALONE):
            return False
        kinds = {name: str(batch.column(name).type) for name in names & {"value", "key", "tags"}}
        known = kinds["value"] in ("binary", "string") and {kinds.get("key"), kinds.get("tags")} <= {
            "string",
            None,
        }
        return known and ("properties" not in names or _is_text_map(batch.column("properties").type))

    def lay_out(self, part: TopicRows) -> Iterator[LaidOutBatch | OtherRows]:
        """Lay out rows that takes() accepts."""
        count, numbers, entries = part.batch.num_rows, part.numbers, self._entries
        columns = _columns(part.batch) if count else ()
        row = begin = 0
        while row < count:
            row = entries.take(self._ids, self._now_ms(), row, count, *columns)
            if not entries.is_full and row < count:
                end = min(count, row + REFERENCE_ROWS)
                yield OtherRows(row, end)
                row = end
            if entries.count and (entries.is_full or row == count):
                done = entries.count
                yield LaidOutBatch(part.topic, numbers[begin], numbers[row - 1], done, entries.finish())
                begin = row


def _is_eligible_topic(topic: str) -> bool:
    """Whether a batch may go to this topic; the reference implementation raises the error for others."""
    if topic in NOT_SENDABLE or topic.startswith(RETRY_PREFIX):
        return False
    try:
        check_topic_name(topic)
    except UsageError:
        return False
    return True


def _is_text_map(kind: Any) -> bool:
    return str(kind).startswith("map<") and str(kind.key_type) == str(kind.item_type) == "string"


def _columns(batch: Any) -> tuple[Any, Any, Any, Any]:
    """value, key, tags and properties as BatchEntries.take() reads them; None for a missing column."""
    names = set(batch.schema.names)
    value, key, tags = (
        _texts(batch.column(name)) if name in names else None for name in ("value", "key", "tags")
    )
    return value, key, tags, _pairs(batch.column("properties")) if "properties" in names else None


def _texts(array: _Buffers) -> tuple[Any, ...]:
    """(offsets, bytes, validity, first) of a variable column."""
    validity, offsets, data = array.buffers()
    return _view(offsets), _view(data), _view(validity) if array.null_count else None, array.offset


def _pairs(array: Any) -> tuple[Any, ...]:
    """(offsets, validity, first, names, values) of a map. Names and values are whole: the offsets are positions in them."""
    validity, offsets = array.buffers()[:2]
    valid = _view(validity) if array.null_count else None
    return _view(offsets), valid, array.offset, _texts(array.keys), _texts(array.items)


def _view(buffer: Any) -> memoryview:
    """The bytes of a pyarrow buffer; None for an empty column."""
    return memoryview(b"" if buffer is None else buffer).cast("B")
