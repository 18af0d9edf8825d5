"""Finds offsets at which records of a log begin. The search for a diverged log compares the newest ones first.
Blocking.
"""

from __future__ import annotations

from aerobee.message import MAGIC_BLANK
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.log.commit_log import CommitLog

NEAR_BYTES = 1 << 20  # of the newest file: with less in it, the file before it is walked, too


def record_starts(log: CommitLog, low: int, end: int) -> list[int]:
    """Offsets of records, ascending, from `low` on that begin before `end`: each file's first, and all of the newest.

    Reads the sizes of the records of the newest file, of 1 GiB in about a second.
    """
    segments = [segment for segment in log.segments if segment.base < end]
    if not segments:
        return []
    walked = 1 if end - segments[-1].base >= NEAR_BYTES else 2
    starts = [segment.base for segment in segments[:-walked]]
    for segment in segments[-walked:]:
        starts += _walk(log, segment.base, min(end, segment.end))
    return [start for start in starts if start >= low]


def _walk(log: CommitLog, start: int, end: int) -> list[int]:
    segment = log.segment_at(start)
    assert segment is not None
    buffer, base, at, starts = segment.file.buffer, segment.base, start, []
    while at < end:
        head = buffer[at - base : at - base + 8]
        size = int.from_bytes(head[:4], "big")
        if head[4:] == MAGIC_BLANK.to_bytes(4, "big") or size < RECORD_BYTES_MIN:
            break
        starts.append(at)
        at += size
    return starts
