"""The property of a delivered delayed message that names the stored message from which it was created.

A message that waited (a delay level, the timer) is delivered by storing it again under its real topic. The record
of the delivery has in its field prepared_transaction_offset

    -1 - physical offset of the delayed message's record

RocketMQ leaves 0 there and does not read it; offsets of half messages, which it does read, are never negative. So the
log itself records the deliveries, and after a crash no message is delivered twice, however old the saved position is.
"""

from __future__ import annotations

from aerobee.message import BORN_HOST_V6, MAGIC_BLANK, STORE_HOST_V6
from aerobee.record_head import field_at, head_struct
from aerobee.store.log.commit_log import CommitLog

_HEAD = head_struct("size", "magic", "sys_flag")
_POINTER, _POINTER_AT = head_struct("prepared_transaction_offset"), field_at("prepared_transaction_offset")


def source_pointer(source_offset: int) -> int:
    """The value of prepared_transaction_offset for a delivery of the record at `source_offset`."""
    return -1 - source_offset


def delivered_sources(log: CommitLog, start: int, end: int) -> set[int]:
    """Physical offsets of the delayed messages that the records of [start, end) deliver. `start` begins a record, or is
    `end`.

    Blocking; about a microsecond a record.
    """
    sources: set[int] = set()
    take_sources(log, start, end, sources)
    return sources


def take_sources(log: CommitLog, start: int, end: int, sources: set[int]) -> int:
    """As delivered_sources() for the records that begin in [start, end), into `sources`. Returns where the next record begins, or
    `end` when no record can be read there."""
    at = max(start, log.min_offset)
    while at < end and (segment := log.segment_at(at)) is not None:
        base, size, buffer = segment.base, segment.size, segment.file.buffer
        position, stop = at - base, min(size, end - base)
        while position < stop and position + _HEAD.size <= size:
            total, magic, sys_flag = _HEAD.unpack_from(buffer, position)
            if magic == MAGIC_BLANK or total < _POINTER_AT + _POINTER.size:
                position = size
                break
            pointer_at = position + _POINTER_AT
            if sys_flag & (BORN_HOST_V6 | STORE_HOST_V6):
                pointer_at += (12 if sys_flag & BORN_HOST_V6 else 0) + (12 if sys_flag & STORE_HOST_V6 else 0)
            (pointer,) = _POINTER.unpack_from(buffer, pointer_at)
            if pointer < 0:
                sources.add(-1 - pointer)
            position += total
        at = base + (size if position + _HEAD.size > size else position)
    return max(at, end)
