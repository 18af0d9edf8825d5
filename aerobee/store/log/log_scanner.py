"""Reads the commit log from the disk record by record, and continues behind damaged ranges.

A record says its size, its magic and its own offset; the body has a CRC. Behind a damaged record the scanner searches
the next magic, and accepts a record there when all its fields are consistent. Reads never go through the mapping: bytes
that were never written take no space.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from aerobee.message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from aerobee.store.files.disk import MappedFile
from aerobee.store.files.zeros import is_zero
from aerobee.store.log.commit_log import BLANK_BYTES, ZERO_RUN_BYTES_MAX, CommitLog
from aerobee.store.log.dispatch import DispatchRecord, Scan, ScanKind, scan_record

_READ_BYTES = 1 << 20
_SEARCH_STEP_BYTES = 1 << 20
MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_BLANK_MAGIC = MAGIC_BLANK.to_bytes(4, "big")

OnDamage = Callable[[int, int, str], None]  # start, end, and the error


class LogScanner:
    """Scans the log, and buffers the piece that it scans. One thread."""

    def __init__(self, log: CommitLog, *, check_crc: bool) -> None:
        self._log = log
        self._check_crc = check_crc
        self._window = b""  # a piece of the log, read ahead
        self._window_base = self._window_segment = 0

    def forget(self) -> None:
        """The log's bytes were changed."""
        self._window = b""

    def at(self, offset: int) -> Scan:
        """Parse the record at an offset. Raises OSError when the disk cannot read it."""
        return scan_record(self._bytes_at(offset), offset, check_crc=self._check_crc)

    def begins_record(self, offset: int, size: int) -> bool:
        """Whether the record head at this offset has this size and this physical offset; reads nothing behind the head."""
        segment = self._log.segment_at(offset)
        if segment is None:
            return False
        at = offset - segment.base
        head = segment.file.peek(at, min(segment.size, at + 36))
        return head[:4] == size.to_bytes(4, "big") and head[28:36] == offset.to_bytes(8, "big")

    def alone(self, offset: int) -> Scan:
        """As at(), without reading ahead: for single records."""
        segment = self._log.segment_at(offset)
        if segment is None:
            return scan_record(b"", offset, check_crc=False)
        at = offset - segment.base
        size = int.from_bytes(segment.file.peek(at, min(segment.size, at + 4)), "big")
        data = segment.file.read(at, min(segment.size, at + max(size, 8)))
        return scan_record(data, offset, check_crc=self._check_crc)

    def _bytes_at(self, offset: int) -> bytes:
        """The bytes from `offset` to the end of the record that they claim to be, or of the file."""
        segment = self._log.segment_at(offset)
        if segment is None:
            return b""
        at = offset - self._window_base
        if not 0 <= at <= len(self._window) - 8 or self._window_segment != segment.base:
            stop = min(segment.size, offset - segment.base + _READ_BYTES)
            self._window = segment.file.read(offset - segment.base, stop)
            self._window_base, self._window_segment, at = offset, segment.base, 0
        size = max(8, int.from_bytes(self._window[at : at + 4], "big"))
        if self._window[at + 4 : at + 8] == _BLANK_MAGIC:
            return self._window[at : at + 8]  # its size is the rest of the file
        if at + size > len(self._window):
            return segment.file.read(
                offset - segment.base, min(segment.size, offset - segment.base + min(size, segment.size))
            )
        return self._window[at : at + size]

    def is_far_from_record(self, physical_offset: int) -> bool:
        """Whether no record can stand there, by its magic alone: the whole look costs a read of the disk."""
        segment = self._log.segment_at(physical_offset)
        if segment is None:
            return True
        at = physical_offset - segment.base
        return segment.file.peek(at, min(segment.size, at + 8))[4:] not in MAGICS

    def next_record(
        self, at: int, *, stop: int = 1 << 62, newest: int = 0, beyond: bool = True
    ) -> DispatchRecord | None:
        """The first whole record behind `at` and before `stop` that is not older than `newest`, ms; None for none.

        Without `beyond` only this file is searched, and the beginning of the next.
        """
        segment = self._log.segment_at(at)
        is_first = True
        while segment is not None and segment.base < stop:
            start = max(at + 1 - segment.base, 0)
            if not is_first:
                found = self.at(segment.base).record  # nearly always
                if found is not None and found.store_timestamp >= newest:
                    return found
                if not beyond:
                    return None
            for position in _magic_positions(segment.file, start, min(segment.size, stop - segment.base)):
                offset = segment.base + position - 4
                if offset > at:
                    found = self.at(offset).record
                    if found is not None and found.store_timestamp >= newest:
                        return found
            is_first = False
            segment = self._log.segment_at(segment.end)
        return None

    def records(self, start: int, end: int, on_damage: OnDamage) -> Iterator[DispatchRecord]:
        """The whole records of [start, end). `start` begins one, or a file. Damaged ranges go to `on_damage` and are left out."""
        at = start
        while at < end and (segment := self._log.segment_at(at)) is not None:
            scan = self.at(at)
            if scan.kind is ScanKind.BLANK and scan.size == segment.end - at:
                at = segment.end
                continue
            if scan.record is None:
                found = self.next_record(at, stop=end)
                stop = found.physical_offset if found is not None else end
                on_damage(at, stop, scan.reason or "zeros")
                at = stop
                continue
            yield scan.record
            at += scan.size
            if at + BLANK_BYTES > segment.end:
                at = segment.end

    def location(self, offset: int) -> str:
        """An offset in words: byte and file."""
        segment = self._log.segment_at(offset)
        if segment is None:
            return f"offset {offset}"
        return f"byte {offset - segment.base} of {segment.path}"

    def path(self, offset: int) -> str:
        """The file that holds an offset, else the log's directory."""
        segment = self._log.segment_at(offset)
        return segment.path if segment is not None else os.path.join(self._log.directory, "")


def _magic_positions(file: MappedFile, start: int, stop: int) -> Iterator[int]:
    """Positions of record magics in a file, in order."""
    at = zeros_from = start
    while at < stop and at - zeros_from <= ZERO_RUN_BYTES_MAX:
        part = file.peek(at, min(stop, at + _SEARCH_STEP_BYTES + 3))
        if not is_zero(part):
            zeros_from = at + _SEARCH_STEP_BYTES
            hits = []
            for magic in MAGICS:
                found = part.find(magic)
                while 0 <= found < _SEARCH_STEP_BYTES:
                    hits.append(at + found)
                    found = part.find(magic, found + 1)
            yield from sorted(hits)
        at += _SEARCH_STEP_BYTES
