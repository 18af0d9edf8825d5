"""Overwrites a damaged range of the commit log with valid records, so that a scan can pass it and no record behind it
is lost.

The range becomes records that no consumer receives: prepared messages, which have no queue entry, with the damaged
bytes as their body; or a blank when the range reaches the file's end. RocketMQ skips both. A separate file keeps the
original bytes.
"""

from __future__ import annotations

import os

from aerobee.message import MAGIC_BLANK, TRANSACTION_PREPARED
from aerobee.record_head import RECORD_BYTES_MIN, field_at, field_end
from aerobee.store.files.disk import Disk
from aerobee.store.log.commit_log import BLANK, BLANK_BYTES, CommitLog, Segment
from aerobee.store.log.record_layout import lay_out
from aerobee.store.log.stored_message import StoredMessage

DIRECTORY = "damaged"
TOPIC = "AEROBEE_DAMAGED"
_PIECE_BYTES = 1 << 20
_HOST = bytes(8)
_OWN_OFFSET_AT, _OWN_OFFSET_END = field_at("physical_offset"), field_end("physical_offset")


def patch_log(log: CommitLog, disk: Disk, root: str, start: int, stop: int, timestamp: int) -> bool:
    """Write over [start, stop); `stop` begins a record. Durable on return. Raises OSError.

    Returns False, and changes nothing, when it is too short for a record.
    """
    parts: list[tuple[Segment, int, int]] = []
    at = start
    while at < stop:
        segment = log.segment_at(at)
        assert segment is not None
        end = min(stop, segment.end)
        room = end - at
        if room < (BLANK_BYTES if end == segment.end else RECORD_BYTES_MIN + 1):
            return False
        parts.append((segment, at - segment.base, end - segment.base))
        at = end
    directory = os.path.join(root, DIRECTORY)
    disk.make_dirs(directory)
    for segment, begin, end in parts:
        name = f"{segment.base + begin:020d}-{end - begin}"
        disk.replace_file(os.path.join(directory, name), segment.file.read(begin, end))
        segment.file.reserve(end)
        if end == segment.size:
            BLANK.pack_into(segment.file.buffer, begin, end - begin, MAGIC_BLANK)
        else:
            _fill(segment, begin, end, timestamp)
        segment.file.sync(begin, end)
    return True


def _fill(segment: Segment, begin: int, end: int, timestamp: int) -> None:
    at = begin
    while at < end:
        size = end - at
        if size > 2 * _PIECE_BYTES:
            size = _PIECE_BYTES
        topic = TOPIC[: size - RECORD_BYTES_MIN]
        body = segment.file.read(at, at + size - RECORD_BYTES_MIN - len(topic))
        message = StoredMessage(
            topic=topic,
            queue_id=0,
            body=body,
            properties=b"",
            born_host=_HOST,
            sys_flag=TRANSACTION_PREPARED,
        )
        record = bytearray(lay_out(message, 0, timestamp, store_host=_HOST, body_bytes_max=2 * _PIECE_BYTES))
        record[_OWN_OFFSET_AT:_OWN_OFFSET_END] = (segment.base + at).to_bytes(8, "big")
        assert len(record) == size
        segment.file.buffer[at : at + size] = bytes(record)
        at += size
