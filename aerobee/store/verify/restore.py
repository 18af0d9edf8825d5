"""Restores damaged records of a store that no broker has open, from a replica of its log.

A replica has the same bytes at the same physical offsets. Records in the ranges that verify() finds, and those that an earlier
repair left out, are taken when all of this holds:

- the record is whole: size, magic, its own offset, and the CRC of its body;
- it begins where the last one ended, and ends inside the damaged range;
- its queue and its queue offset are those of the message that was there (queue_claims.py); behind the last whole record the
  queue has to have an entry that says so;
- the whole records before and behind the range are the same, byte for byte, at the replica: else it is another log.

The bytes that were there are kept in `damaged/`. Queues that had lost the entries of restored records are rebuilt;
repair handles all others, and the indexes, afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.errors import StoreError
from aerobee.message import TRANSACTION_PREPARED
from aerobee.record_head import RECORD_BYTES_MIN
from aerobee.store.files.checkpoint import CheckpointFile
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk, RealDisk
from aerobee.store.files.store_lock import StoreLock
from aerobee.store.log.commit_log import BLANK_BYTES, CommitLog
from aerobee.store.log.dispatch import DispatchRecord, ScanKind, scan_record
from aerobee.store.log.log_patch import DIRECTORY, TOPIC
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.queue_bounds import Key, decode_queue_bounds
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.queue.queue_table import QueueTable
from aerobee.store.recovery.queue_rebuild import QueueRebuild
from aerobee.store.verify.checker import ReadOnlyDisk
from aerobee.store.verify.queue_claims import QueueClaims

_logger = logging.getLogger(__name__)
RecordAt = Callable[[int], bytes | None]  # physical offset to the replica's record there, None without one
_Taken = tuple[DispatchRecord, bytes]
RECORD_BYTES_MAX = 16 << 20
FILE_NAME_DIGITS = 20


@dataclass(slots=True)
class Restored:
    """Result of restore(). `refused` are sentences: a range, and why its record was not taken."""

    records: int = 0
    bytes: int = 0
    ranges: int = 0
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _DamagedRange:
    """Bytes [start, stop) that are no records, with the whole records on both sides."""

    start: int
    stop: int
    before: DispatchRecord | None
    behind: DispatchRecord | None


def restore(config: StoreConfig, record_at: RecordAt, *, disk: Disk | None = None) -> Restored:
    """Write the accepted records, durable on return. Raises StoreLocked, StoreError, ConfigError, and what `record_at`
    raises.

    It decides about all records before it writes. Then a process that dies at any point leaves a store whose next
    start, or next run, brings every message that is in the log.
    """
    disk = disk or RealDisk()
    lock = StoreLock(config, disk)
    lock.take()
    log, pool = CommitLog(config, disk), FilePool(ReadOnlyDisk())
    done = Restored()
    try:
        log.load()
        table = QueueTable(config, pool)
        table.load()
        claims = QueueClaims(table.queues)
        ranges, end = _damaged_ranges(log, claims)
        taken: list[_Taken] = []
        for damaged in ranges:
            done.ranges += 1
            refused_before = len(done.refused)
            found = _judge(damaged, log, claims, record_at, done.refused)
            taken += found
            if damaged.behind is None and len(done.refused) > refused_before:
                taken = _without_those_that_cost_the_end(damaged, found, taken, claims, done.refused)
        stale = {(record.topic, record.queue_id) for record, _ in taken if not claims.has_entry(record)}
        ends = {key: table.queues[key].max_offset for key in stale if key in table.queues}
        # Queues with entries first: after the last whole record only entries prove a record, and they are
        # removed with the files.
        with_entry = [each for each in taken if claims.has_entry(each[0])]
        without = [each for each in taken if not claims.has_entry(each[0])]
        for record, data in with_entry:
            _write(log, record.physical_offset, data, config.path(DIRECTORY), disk)
        # Before the others, and durably: a queue without files is rebuilt at the next start, while a queue
        # with a gap would keep it and never serve the restored message.
        for key in ends:
            _remove_files(table.queues[key].path, disk)
        for record, data in without:
            _write(log, record.physical_offset, data, config.path(DIRECTORY), disk)
        for record, data in taken:
            done.records += 1
            done.bytes += len(data)
            end = max(end, record.physical_offset + record.size)
        if stale:
            _build_again(config, log, disk, ends, stale, end)
    except OSError as error:
        raise StoreError(
            f"{config.commit_log_dir} cannot be written: {error}", path=config.commit_log_dir
        ) from error
    finally:
        log.close()
        pool.close()
        lock.release()
    return done


def records_of_directory(directory: Path) -> RecordAt:
    """Reads a copy of a replica's store: `directory` is its root, or its `commitlog`. Nothing in it is changed.

    Raises StoreError when there is no commit log in it.
    """
    found = directory / "commitlog" if (directory / "commitlog").is_dir() else directory
    files = sorted(path for path in found.iterdir() if _is_log_file(path)) if found.is_dir() else []
    if not files:
        raise StoreError(f"{directory} holds no commit log to take records from", path=str(directory))

    def record_at(offset: int) -> bytes | None:
        path = next((path for path in reversed(files) if int(path.name) <= offset), None)
        if path is None:
            return None
        with path.open("rb") as file:
            file.seek(offset - int(path.name))
            head = file.read(4)
            size = int.from_bytes(head, "big")
            return head + file.read(size - 4) if RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX else None

    return record_at


def _is_log_file(path: Path) -> bool:
    return (
        len(path.name) == FILE_NAME_DIGITS and path.name.isascii() and path.name.isdigit() and path.is_file()
    )


def _damaged_ranges(log: CommitLog, claims: QueueClaims) -> tuple[list[_DamagedRange], int]:
    """Damaged ranges, including the bytes after the last record, and records that replace damaged bytes.

    Returns them and where the last whole record ends. `claims` receives the records.
    """
    scanner = LogScanner(log, check_crc=True)
    ranges: list[_DamagedRange] = []
    open_start = -1  # of a range whose end is not known yet
    before: DispatchRecord | None = None
    starts: list[int] = []

    def damaged(start: int, _stop: int, _reason: str) -> None:
        starts.append(start)

    def close(stop: int, behind: DispatchRecord | None) -> None:
        ranges.append(_DamagedRange(open_start, stop, before, behind))
        claims.damaged(open_start, stop)

    for record in scanner.records(log.min_offset, log.end, damaged):
        if open_start < 0 and starts:
            open_start = starts[0]
        starts.clear()
        if _stands_for_damage(record):
            open_start = record.physical_offset if open_start < 0 else open_start
            continue
        if open_start >= 0:
            close(record.physical_offset, record)
            open_start = -1
        claims.saw(record)
        before = record
    if open_start < 0 and starts:
        open_start = starts[0]
    if open_start >= 0:
        close(log.end, None)
    return ranges, before.physical_offset + before.size if before is not None else log.min_offset


def _stands_for_damage(record: DispatchRecord) -> bool:
    """Whether an earlier repair wrote it over damaged bytes (log_patch.py)."""
    room = record.size - RECORD_BYTES_MIN
    return record.sys_flag == TRANSACTION_PREPARED and room > 0 and record.topic == TOPIC[:room]


def _judge(
    damaged: _DamagedRange, log: CommitLog, claims: QueueClaims, record_at: RecordAt, refused: list[str]
) -> list[_Taken]:
    """The consecutive records of the replica that are accepted for a damaged range. The reason against the next record
    is added to `refused`.
    """
    taken: list[_Taken] = []
    for neighbour in (damaged.before, damaged.behind):
        if neighbour is not None and not _is_same(log, neighbour, record_at):
            refused.append(
                f"log bytes {damaged.start} to {damaged.stop}: the replica has something else at log byte "
                f"{neighbour.physical_offset}, where a whole record stands here, so its log is another one"
            )
            return taken
    at = damaged.start
    while at < damaged.stop:
        segment = log.segment_at(at)
        if segment is None or at + BLANK_BYTES > segment.end:
            at = segment.end if segment is not None else damaged.stop
            continue
        data = record_at(at)
        if data is None:
            if damaged.behind is None or at > damaged.start:
                return taken  # the file's end, or no record here: repair skips this range
            refused.append(f"log byte {at}: the replica has no record there")
            return taken
        scan = scan_record(data, at, check_crc=True)
        record = scan.record
        if scan.kind is not ScanKind.RECORD or record is None or record.size != len(data):
            refused.append(
                f"log byte {at}: what the replica has there is no whole record ({scan.reason or 'its size'})"
            )
            return taken
        if at + record.size > min(damaged.stop, segment.end):
            refused.append(f"log byte {at}: the replica's record reaches beyond the damaged range")
            return taken
        reason = claims.refusal(record, (damaged.start, damaged.stop), is_last=damaged.behind is None)
        if reason:
            refused.append(
                f"log byte {at}: the replica has message {record.queue_offset} of queue {record.queue_id} of {record.topic} "
                f"there, {reason}"
            )
            return taken
        if damaged.behind is None and not (record.has_queue_entry and claims.has_entry(record)):
            # behind the last whole record: the replica may have stored it later, and no queue here has an
            # entry for it
            return taken
        claims.restored(record)
        taken.append((record, data))
        at += len(data)
    return taken


def _without_those_that_cost_the_end(
    damaged: _DamagedRange, found: list[_Taken], taken: list[_Taken], claims: QueueClaims, refused: list[str]
) -> list[_Taken]:
    """The log's end was only partly restored: skip records whose queue would lose the entries that identify them.

    Such a queue is built again, with holes for the end; a better replica could no longer fill them. `found` are the records that
    are taken for the end, `refused` gets the others.
    """
    start = found[-1][0].physical_offset + found[-1][0].size if found else damaged.start
    vouching = claims.vouching(start, (damaged.start, damaged.stop))
    kept = []
    for record, data in taken:
        if (record.topic, record.queue_id) not in vouching or claims.has_entry(record):
            kept.append((record, data))
            continue
        refused.append(
            f"log byte {record.physical_offset}: message {record.queue_offset} of queue {record.queue_id} of {record.topic} can be "
            f"taken back once the log's end, from byte {start} on, came back from another replica or is left out: only that queue's "
            "entries say which messages belong there, and it has to be built again for this one"
        )
    return kept


def _is_same(log: CommitLog, record: DispatchRecord, record_at: RecordAt) -> bool:
    segment = log.segment_at(record.physical_offset)
    if segment is None:
        return False
    begin = record.physical_offset - segment.base
    return record_at(record.physical_offset) == bytes(segment.file.read(begin, begin + record.size))


def _remove_files(directory: str, disk: Disk) -> None:
    """Remove a queue's files, durably."""
    for name in disk.list_dir(directory):
        disk.remove(os.path.join(directory, name))
    disk.sync_dir(directory)


def _write(log: CommitLog, at: int, data: bytes, directory: str, disk: Disk) -> None:
    """Over the bytes there, which are kept in `directory` first. Durable on return. Raises OSError."""
    segment = log.segment_at(at)
    assert segment is not None
    begin, end = at - segment.base, at - segment.base + len(data)
    disk.make_dirs(directory)
    path = os.path.join(directory, f"{at:020d}-{len(data)}")
    if not disk.exists(path):  # the bytes stored by an earlier try are the original ones
        disk.replace_file(path, segment.file.read(begin, end))
    segment.file.reserve(end)
    segment.file.buffer[begin:end] = data
    segment.file.sync(begin, end)


def _build_again(
    config: StoreConfig,
    log: CommitLog,
    disk: Disk,
    ends: Mapping[Key, int],
    keys: Collection[Key],
    log_end: int,
) -> None:
    """Give the queues their entries from the log, up to where each of them ended. Durable on return."""
    pool = FilePool(disk)
    try:
        bounds = decode_queue_bounds(CheckpointFile(disk, config.path("checkpoint")).read().queue_bounds)
        table = QueueTable(config, pool)
        table.load()
        rebuild = QueueRebuild(table, LogScanner(log, check_crc=True), bounds, _logger.info)
        rebuild.keep_ends(ends)
        for key in keys:
            rebuild.suspect(key, 0, "records of it came back")
        rebuild.run(log.min_offset, log_end)
        files = pool.take_dirty()
        for directory in pool.take_dirty_dirs():
            disk.sync_dir(directory)
        for file in files:
            pool.sync_file(file)
        pool.unpin(files)
    finally:
        pool.close()
