"""Truncates a slave's log, with its queues and index, at the offset where it diverged from its master's log.

Before any change an intent is written to disk (cut_intent.py), and stays until dependent state is cut, too. The removed
bytes are first stored durably in separate files: `cut/OFFSET-SIZE` holds the bytes that stood at that physical offset.
Then the checkpoint is limited to the cut, so that recovery accepts the log after a crash at any later time; then
entries are removed, and the records last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from aerobee.errors import RecordInvalid
from aerobee.store.files.checkpoint import CheckpointFile
from aerobee.store.files.disk import Disk
from aerobee.store.index.key_index import KeyIndex
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.dispatch import ScanKind
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.queue_table import QueueTable

DIRECTORY = "cut"
_PIECE_BYTES = 64 << 20  # of one file there: it is in memory while it is written


@dataclass(frozen=True, slots=True)
class LogCut:
    """The removed bytes [start, end) of the log, stored in `paths`."""

    start: int
    end: int
    entry_count: int  # number of queue entries removed with it
    paths: tuple[str, ...]


def keep_tail(log: CommitLog, disk: Disk, root: str, start: int) -> tuple[str, ...]:
    """Copy the log from `start` to its end into separate files. Durable on return. Raises OSError."""
    if start >= log.end:
        return ()
    directory = os.path.join(root, DIRECTORY)
    disk.make_dirs(directory)
    paths: list[str] = []
    at = start
    while at < log.end:
        segment = log.segment_at(at)
        assert segment is not None
        end = min(log.end, segment.end, at + _PIECE_BYTES)
        path = os.path.join(directory, f"{at:020d}-{end - at}")
        while disk.exists(path):
            path += "-again"  # the log was cut at this offset before: neither tail is lost
        disk.replace_file(path, segment.open_file().read(at - segment.base, end - segment.base))
        paths.append(path)
        at = end
    return tuple(paths)


def check_cut(log: CommitLog, start: int) -> None:
    """Raise RecordInvalid unless a record begins at the offset, or the log ends there. Raises OSError."""
    kind = LogScanner(log, check_crc=False).at(start).kind if start < log.end else ScanKind.RECORD
    is_inside = log.min_offset < start <= log.end or start == log.min_offset == 0
    if not is_inside or kind not in (ScanKind.RECORD, ScanKind.BLANK):
        raise RecordInvalid(
            f"the log {log.min_offset}..{log.end} cannot be cut at {start}: no record begins there"
        )


def cut_log(
    log: CommitLog,
    queues: QueueTable,
    index: KeyIndex,
    checkpoints: CheckpointFile,
    *,
    disk: Disk,
    root: str,
    start: int,
) -> LogCut:
    """Cut everything from `start` on, where check_cut() allows it; from 0 on nothing is left, not even a file. No sync is under
    way, and no caller appends. Blocking.

    In memory and in the files on return, but for a sync of them. Raises OSError.
    """
    end = log.end
    paths = keep_tail(log, disk, root, start)
    current = checkpoints.current
    if current.has_bounds:
        checkpoints.must_write(
            replace(
                current,
                log_timestamp=0,
                queues_timestamp=0,
                index_timestamp=0,
                queues_physical_offset=min(current.queues_physical_offset, start),
                log_flushed=min(current.log_flushed, start),
                queues_flushed=min(current.queues_flushed, start),
                queue_bounds=b"",
            )
        )
    count = queues.cut_records_from(start)
    queues.expose_all()
    _cut_index(index, start)
    if start == 0:
        log.clear()
    else:
        log.set_end(start, clear=True)
    return LogCut(start, end, count, paths)


def _cut_index(index: KeyIndex, bound: int) -> None:
    for file in [file for file in index.files if not file.is_empty]:
        if file.begin_physical_offset >= bound or (
            file.end_physical_offset >= bound and not file.cut(bound, is_trusted=True)
        ):
            index.remove(file)


def last_record(log: CommitLog) -> tuple[int, int]:
    """(offset, store time) of the newest record; (-1, 0) without any. Walks the newest file that has one."""
    scanner = LogScanner(log, check_crc=False)
    segment = log.segment_at(log.end - 1)
    while segment is not None:
        at, found = segment.base, (-1, 0)
        while at < min(log.end, segment.end):
            scan = scanner.at(at)
            if scan.record is None:
                break
            found = at, scan.record.store_timestamp
            at += scan.size
        if found[0] >= 0:
            return found
        segment = log.segment_at(segment.base - 1)
    return -1, 0
