"""Appends a master's log bytes, which arrive in arbitrary pieces, to this log as whole records. For both modes.

It keeps an incomplete record, at most one, until the rest arrives. A run of records of one log file is appended in one
step, with queue and index entries: by native code as far as they are ordinary, the others by RawAppender.append of the
store, which is the reference implementation. Records before the first one that cannot be appended stay appended.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.fastpath.choice import RawAppends
from aerobee.errors import RecordInvalid
from aerobee.message import MAGIC_BLANK
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.log.raw_records import RECORD_BYTES_MAX, WORD_BYTES
from aerobee.store.message_store import MessageStore

LOG_OFFSET_MAX = 1 << 62  # maximum begin of an empty log, so that later offsets fit into 64 bits
SPACE_BYTES = 1 << 20  # for one read of the connection
_KEPT_BYTES_MAX = 8 * SPACE_BYTES  # of a buffer that has nothing pending


class RawReceiver:
    """Appends a master's bytes, received in order. Belongs to the event loop."""

    def __init__(
        self,
        store: MessageStore,
        *,
        native: RawAppends | None = None,
        on_appended: Callable[[], None] | None = None,
    ) -> None:
        """Begins at the log's end; `on_appended` is called after each run that was appended."""
        self._store = store
        self._native = native
        # One buffer for every read: a new one would have new pages each time. Pending bytes: [_begin, _end).
        self._buffer = bytearray()
        self._begin = 0
        self._end = 0
        self._start = store.log.end  # physical offset of the first pending byte
        self._on_appended = on_appended

    @property
    def received(self) -> int:
        """Physical offset of the next bytes."""
        return self._start + self._end - self._begin

    def begin_at(self, physical_offset: int) -> None:
        """Set the begin of an empty log: the first offset of a log file. Raises RecordInvalid when the log has
        records.
        """
        if self._store.log.segments and physical_offset != self._store.log.end:
            raise RecordInvalid(f"bytes for {physical_offset} do not continue the log")
        if physical_offset > LOG_OFFSET_MAX:
            raise RecordInvalid(f"no log begins at {physical_offset}, at most {LOG_OFFSET_MAX} is accepted")
        self._begin = self._end = 0
        self._start = physical_offset

    def take(self, offset: int, body: bytes | memoryview) -> int:
        """Append all records that are whole so far; return their number of bytes.

        Raises RecordInvalid for bytes that do not continue what was received, or are no records, and what append()
        raises. Then what came before is appended, and the connection is of no more use.
        """
        if offset != self.received:
            raise RecordInvalid(f"the master sent bytes for {offset}, {self.received} was expected")
        self._make_space(len(body))
        memoryview(self._buffer)[self._end : self._end + len(body)] = body
        return self.grew(len(body))

    def space(self, size: int) -> memoryview:
        """Where the next bytes belong, at most `size` of them; grew() says how many came. Valid until the next call."""
        size = min(size, SPACE_BYTES)
        self._make_space(size)
        return memoryview(self._buffer)[self._end : self._end + size]

    def grew(self, count: int) -> int:
        """As take(), of bytes that were written into space()."""
        assert self._end + count <= len(self._buffer), "bytes were written into the space"
        self._end += count
        try:
            return self._append()
        finally:
            if self._begin == self._end:
                self._begin = self._end = 0
                if len(self._buffer) > _KEPT_BYTES_MAX:
                    self._buffer = bytearray()

    def _make_space(self, size: int) -> None:
        """For `size` further bytes. Never resizes the buffer: the caller's caller may still have a view."""
        pending = self._end - self._begin
        if self._end + size <= len(self._buffer):
            return
        old = memoryview(self._buffer)[self._begin : self._end]
        if 2 * (pending + size) > len(self._buffer):
            self._buffer = bytearray(4 * (pending + size))  # pending bytes move once in several reads
        memoryview(self._buffer)[:pending] = old
        self._begin, self._end = 0, pending

    def _append(self) -> int:
        begin = self._begin
        native, appender = self._native, self._store.raw_appender
        pending = memoryview(self._buffer)[: self._end]
        is_single = native is not None  # a run is one record: native code takes the ordinary ones behind it
        try:
            while self._end - self._begin >= WORD_BYTES:
                size = native.append(self._start, pending, self._begin) if native is not None else 0
                if not size:
                    size = self._whole(is_single=is_single)
                    if not size:
                        break
                    try:
                        appender.append(self._start, bytes(pending[self._begin : self._begin + size]))
                    except RecordInvalid:
                        if is_single:
                            raise
                        is_single = True  # again one by one, to append the records before the invalid one
                        continue
                self._begin += size
                self._start += size
        finally:
            if self._begin > begin:
                assert self._start == self._store.log.end, "what was received is what the log has"
                self._store.burst_done()
                if self._on_appended is not None:
                    self._on_appended()
        return self._begin - begin

    def _whole(self, *, is_single: bool) -> int:
        """Bytes of the longest run of whole pending records that lies in one log file, or of the first record."""
        pending, begin, end, start = self._buffer, self._begin, self._end, self._start - self._begin
        at = begin
        segment_size = self._store.log.segment_size
        while end - at >= WORD_BYTES:
            size = int.from_bytes(pending[at : at + 4], "big")
            is_blank = int.from_bytes(pending[at + 4 : at + 8], "big") == MAGIC_BLANK
            if not (WORD_BYTES if is_blank else RECORD_BYTES_MIN) <= size <= RECORD_BYTES_MAX:
                if at > begin:
                    break  # the bytes before it are valid; the next call reports the error
                raise RecordInvalid(f"the size field at {start + at} says {size}")
            if end - at < size:
                break
            at += size
            if is_single or is_blank or (start + at) % segment_size == 0:
                return at - begin
        return at - begin
