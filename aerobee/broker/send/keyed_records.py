"""Finds the records of a part of the log that carry a DEDUP_KEY. Core.

A search for the property's bytes passes over everything else at the speed of memory; only from the last known beginning of a
record to a hit records are stepped over one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from aerobee.errors import MalformedRecord
from aerobee.message import BORN_HOST_V6, MAGIC_BLANK, Record, decode_record
from aerobee.property_names import DEDUP_KEY
from aerobee.record_head import FIXED_HEAD, HEAD_V4, HOST_V4_BYTES, HOST_V6_BYTES, field_at, head_struct
from aerobee.store.files.disk import WritableBuffer
from aerobee.store.log.commit_log import CommitLog, Segment

log = logging.getLogger(__name__)

PIECE_BYTES = 4 << 20  # of the log, searched between two pauses: about a millisecond
STEPS_PER_PIECE = 4_096  # records
RECORDS_PER_PIECE = 64  # with a key
_SYS_FLAG, _SYS_FLAG_AT = head_struct("sys_flag"), field_at("sys_flag")
_KEY_PREFIX = f"{DEDUP_KEY}\x01".encode()
_SIZE_AND_MAGIC = head_struct("size", "magic")


def keyed_records(log_files: CommitLog, start: int, end: int, *, since_ms: int) -> Iterator[Record | None]:
    """Yield the records of [start, end) stored at `since_ms` or later in whose bytes the property stands; None after each piece, so
    that the caller can pause.

    `start` begins a record, `end` is where the log ends now. The log may lose files at its beginning meanwhile, and grow; after a cut
    the iterator must not be used any more. A record that cannot be read is logged and left out.
    """
    at = start
    while at < end:
        at = max(at, log_files.min_offset)
        segment = log_files.segment_at(at)
        if segment is None:
            return
        stop = min(segment.size, end - segment.base)
        yield from _of_segment(segment, at - segment.base, stop, since_ms)
        at = segment.end


def _of_segment(segment: Segment, at: int, stop: int, since_ms: int) -> Iterator[Record | None]:
    """The same of one file, from a record that begins at `at` in it."""
    searched, count = at, 0
    while searched < stop:
        if segment.is_removed:
            return
        data = segment.file.buffer  # asked again after each pause
        piece_end = min(stop, searched + PIECE_BYTES)
        hit = data.find(_KEY_PREFIX, searched, min(stop, piece_end + len(_KEY_PREFIX) - 1))
        if hit < 0:
            searched = piece_end
            yield None
            continue
        steps = 0
        while True:
            if at + HEAD_V4.size > stop:
                return
            size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
            if magic == MAGIC_BLANK or size < HEAD_V4.size:
                return
            if hit < at + size:
                break
            at += size
            steps += 1
            if not steps % STEPS_PER_PIECE:
                yield None
                if segment.is_removed:
                    return
                data = segment.file.buffer
        count += 1
        if _stored_ms(data, at) >= since_ms:
            try:
                yield decode_record(bytes(data[at : at + size]), check_crc=False)
            except MalformedRecord as error:
                log.warning("a record at %d is left out: %s", segment.base + at, error)
        if not count % RECORDS_PER_PIECE:
            yield None
        at += size
        searched = at


def _stored_ms(data: WritableBuffer, at: int) -> int:
    """The store time of the record at `at`."""
    (sys_flag,) = _SYS_FLAG.unpack_from(data, at + _SYS_FLAG_AT)
    position = at + FIXED_HEAD.size + (HOST_V6_BYTES if sys_flag & BORN_HOST_V6 else HOST_V4_BYTES)
    return int.from_bytes(data[position : position + 8], "big")


def window_start(log_files: CommitLog, begin_ms: int) -> int:
    """Start of the first file that may contain records stored at `begin_ms` or later; the log's end without any."""
    start = log_files.end
    for segment in reversed(log_files.segments):
        if segment.base >= log_files.end:
            continue
        start = max(segment.base, log_files.min_offset)
        size, _ = _SIZE_AND_MAGIC.unpack_from(segment.file.buffer, 0)
        try:
            first = decode_record(bytes(segment.file.buffer[:size]), check_crc=False)
        except MalformedRecord:
            continue  # only a blank: a file of one record that did not fit
        if first.store_timestamp < begin_ms:
            break
    return start
