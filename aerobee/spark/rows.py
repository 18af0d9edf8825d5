"""Messages as the buffers of Arrow columns. No I/O. PythonRows is the reference implementation, NativeRows
fills most columns in native code.

    fixed     queue_offset, born_ts, store_ts int64 (times in microseconds); reconsume_times int32; little-endian
    variable  offsets int32 little-endian, one more than rows; the bytes one behind the other; a bit a row that is 1
              where there is a value, None when all have one
    map       offsets as above over the pairs, and a variable column each of names and of values

Rows are added in the order of their offsets. take() of native/src/arrow_rows.rs lists the records that native code
leaves to Python (compressed, with an IPv6 host, of a retry topic, a batch in one record ...).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from aerobee.client.base.received import ReceivedMessage, decode_messages
from aerobee.errors import MalformedRecord
from aerobee.message import MessageQueue

# The columns that Rows fills, as bits of the native backend's mask; the other columns are constant within a
# range.
LAID_OUT = (
    "value",
    "key",
    "tags",
    "msg_id",
    "properties",
    "queue_offset",
    "born_ts",
    "store_ts",
    "reconsume_times",
)
_TEXTS = ("value", "key", "tags", "msg_id")
_FIXED = {"queue_offset": "<q", "born_ts": "<q", "store_ts": "<q", "reconsume_times": "<i"}
_US_PER_MS = 1000
_MS_MAX = (2**63 - 1) // _US_PER_MS
_RECORD_SIZE = struct.Struct(">I")

Variable = tuple[bytes, bytes, bytes | None]  # (offsets, bytes, validity)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Columns of `count` rows by name: bytes for fixed ones, Variable, or (offsets, Variable, Variable) for the map."""

    count: int
    # Excluded from repr(): asyncio.Runner.run formats the result of a task with each call, megabytes a batch.
    columns: dict[str, Any] = field(repr=False)


class Rows(Protocol):
    """Rows of one queue until finish()."""

    @property
    def count(self) -> int:
        """Rows since finish()."""

    @property
    def size_bytes(self) -> int:
        """Bytes of bodies and properties since finish()."""

    def take(self, data: bytes, begin: int, end: int, offset_delta: int = 0) -> None:
        """Add the messages of a pull reply with offsets from `begin` to before `end` and a matching tag.

        Raises MalformedRecord for bytes that are not whole records, MessageDamaged for a body that does not
        match its CRC.
        """

    def finish(self) -> LaidOut:
        """Return the columns, and start again without rows."""


class _Texts:
    """A variable column that grows."""

    def __init__(self) -> None:
        self.offsets = [0]
        self.data = bytearray()
        self.missing: list[int] = []

    def add(self, value: bytes | None) -> None:
        if value is None:
            self.missing.append(len(self.offsets) - 1)
        else:
            self.data += value
        self.offsets.append(len(self.data))

    def laid_out(self) -> Variable:
        count = len(self.offsets) - 1
        validity = None
        if self.missing:
            bits = bytearray(b"\xff" * ((count + 7) // 8))
            for row in self.missing:
                bits[row >> 3] &= ~(1 << (row & 7))
            if count & 7:
                bits[-1] &= (1 << (count & 7)) - 1
            validity = bytes(bits)
        return struct.pack(f"<{len(self.offsets)}i", *self.offsets), bytes(self.data), validity


class PythonRows:
    """The reference implementation."""

    def __init__(self, queue: MessageQueue, columns: Iterable[str], tags: frozenset[str]) -> None:
        self._queue = queue
        self._columns = frozenset(columns)
        self._tags = tags
        self._clear()

    @property
    def count(self) -> int:
        """Rows since finish()."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Bytes of bodies and properties since finish()."""
        return self._size_bytes

    def _clear(self) -> None:
        self._count = 0
        self._size_bytes = 0
        self._texts = {name: _Texts() for name in _TEXTS if name in self._columns}
        self._fixed: dict[str, list[int]] = {name: [] for name in _FIXED if name in self._columns}
        self._pair_offsets = [0]
        self._names, self._values = _Texts(), _Texts()

    def take(self, data: bytes, begin: int, end: int, offset_delta: int = 0) -> None:
        """As Rows.take."""
        for message in decode_messages(data, self._queue):
            offset = message.queue_offset + offset_delta
            if begin <= offset < end and (not self._tags or message.tag in self._tags):
                self._add(cells_of(message, offset))

    def _add(self, cells: Cells) -> None:
        self._count += 1
        self._size_bytes += len(cells.value)
        for name, column in self._texts.items():
            column.add(getattr(cells, name))
        for name, numbers in self._fixed.items():
            numbers.append(getattr(cells, name))
        if "properties" in self._columns:
            for name_, value in cells.properties:
                self._names.add(name_)
                self._values.add(value)
                self._size_bytes += len(name_) + len(value)
            self._pair_offsets.append(len(self._names.offsets) - 1)

    def finish(self) -> LaidOut:
        """As Rows.finish."""
        columns: dict[str, Any] = {name: column.laid_out() for name, column in self._texts.items()}
        for name, numbers in self._fixed.items():
            form = _FIXED[name]
            columns[name] = struct.pack(f"{form[0]}{len(numbers)}{form[1]}", *numbers)
        if "properties" in self._columns:
            offsets = struct.pack(f"<{len(self._pair_offsets)}i", *self._pair_offsets)
            columns["properties"] = (offsets, self._names.laid_out(), self._values.laid_out())
        made = LaidOut(self._count, columns)
        self._clear()
        return made


@dataclass(frozen=True, slots=True)
class Cells:
    """The column values of one message. Times in microseconds."""

    value: bytes
    key: bytes | None
    tags: bytes | None
    msg_id: bytes
    queue_offset: int
    born_ts: int
    store_ts: int
    reconsume_times: int
    properties: list[tuple[bytes, bytes]]


def cells_of(message: ReceivedMessage, offset: int) -> Cells:
    """The cells of one message. Raises MalformedRecord, MessageDamaged for an invalid record."""
    properties = message.properties
    key, tag = properties.get("KEYS"), properties.get("TAGS")
    born_ms, store_ms = message.born_timestamp, message.store_timestamp
    if max(abs(born_ms), abs(store_ms)) > _MS_MAX:
        raise MalformedRecord(
            f"message {offset} of queue {message.queue.queue_id} of {message.queue.topic} was born at {born_ms} and stored at "
            f"{store_ms} ms: no timestamp holds that"
        )
    return Cells(
        message.body,
        None if key is None else key.encode(),
        None if tag is None else tag.encode(),
        message.message_id.encode(),
        offset,
        born_ms * _US_PER_MS,
        store_ms * _US_PER_MS,
        message.reconsume_times,
        [(name.encode(), value.encode()) for name, value in properties.items()],
    )


class NativeRows:
    """PythonRows in native code (aerobee_native.ArrowRows), which returns other records (see above) to Python."""

    def __init__(
        self,
        arrow_rows: Callable[..., Any],
        queue: MessageQueue,
        columns: Iterable[str],
        tags: frozenset[str],
    ) -> None:
        wanted = frozenset(columns)
        self._queue = queue
        self._tags = tags
        mask = sum(1 << number for number, name in enumerate(LAID_OUT) if name in wanted)
        self._columns = [name for name in LAID_OUT if name in wanted]
        self._rows = arrow_rows(queue.topic.encode(), mask, sorted(tag.encode() for tag in tags))

    @property
    def count(self) -> int:
        """Rows since finish()."""
        return int(self._rows.count)

    @property
    def size_bytes(self) -> int:
        """Bytes of bodies and properties since finish()."""
        return int(self._rows.size_bytes)

    def take(self, data: bytes, begin: int, end: int, offset_delta: int = 0) -> None:
        """As Rows.take."""
        at = self._rows.take(data, 0, begin, end, offset_delta)
        while at < len(data):
            size = _RECORD_SIZE.unpack_from(data, at)[0] if at + 4 <= len(data) else len(data)
            for message in decode_messages(data[at : at + max(size, 1)], self._queue):
                offset = message.queue_offset + offset_delta
                if begin <= offset < end and (not self._tags or message.tag in self._tags):
                    cells = cells_of(message, offset)
                    self._rows.add(
                        cells.value,
                        cells.key,
                        cells.tags,
                        cells.msg_id,
                        cells.queue_offset,
                        cells.born_ts,
                        cells.store_ts,
                        cells.reconsume_times,
                        cells.properties,
                    )
            at = self._rows.take(data, at + size, begin, end, offset_delta)

    def finish(self) -> LaidOut:
        """As Rows.finish."""
        count = self.count
        return LaidOut(count, dict(zip(self._columns, self._rows.finish(), strict=True)))
