"""Damaged records of a store that no broker has open, taken back from a replica of its log.

A replica has the same bytes at the same physical offsets. Records at the places that verify() finds, and those that an earlier
repair left out, are taken when all of this holds:

- the record is whole: size, magic, its own offset, and the CRC of its body;
- it begins where the last one ended, and ends inside the damaged place;
- the queue's entry of its message says this offset and this size, where there is an entry; behind the last whole record there
  has to be one;
- the whole records before and behind the place are the same, byte for byte, at the replica: else it is another log.

The bytes that were there are kept in `damaged/`. Queues and indexes are repair's work, afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.errors import StoreError
from aerobee.message import RECORD_BYTES_MIN, TRANSACTION_PREPARED
from aerobee.store.commit_log import BLANK_BYTES, CommitLog
from aerobee.store.config import StoreConfig
from aerobee.store.consume_queue import FILLER_SIZE
from aerobee.store.disk import RealDisk
from aerobee.store.dispatch import DispatchRecord, ScanKind, scan_record
from aerobee.store.log_patch import DIRECTORY, TOPIC
from aerobee.store.log_scanner import LogScanner
from aerobee.store.queue_files import FilePool
from aerobee.store.queue_table import QueueTable
from aerobee.store.store_lock import StoreLock
from aerobee.store.verify.checker import ReadOnlyDisk

RecordAt = Callable[[int], bytes | None]  # physical offset to the replica's record there, None without one
RECORD_BYTES_MAX = 16 << 20
FILE_NAME_DIGITS = 20


@dataclass(slots=True)
class Restored:
    """What restore() did. `refused` are sentences: a place, and why its record was not taken."""

    records: int = 0
    bytes: int = 0
    places: int = 0
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """Bytes [start, stop) that are no records, with the whole records on both sides."""

    start: int
    stop: int
    before: DispatchRecord | None
    behind: DispatchRecord | None


def restore(config: StoreConfig, record_at: RecordAt) -> Restored:
    """Write what is taken, durable on return. Raises StoreLocked, StoreError, ConfigError, and what `record_at` raises."""
    disk = RealDisk()
    lock = StoreLock(config, disk)
    lock.take()
    log, pool = CommitLog(config, disk), FilePool(ReadOnlyDisk())
    done = Restored()
    try:
        log.load()
        table = QueueTable(config, pool)
        table.load()
        stale: set[str] = set()
        for place in list(_places(log)):
            done.places += 1
            _restore_place(place, log, table, record_at, done, stale, config.path(DIRECTORY))
        # A batch queue's hole has no room for the entries of what came back: the queue is built again, from the log.
        for directory in stale:
            for path in Path(directory).iterdir():
                disk.remove(str(path))
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


def _places(log: CommitLog) -> Iterator[_Place]:
    """Damaged places, what lies behind the last record among them, and records that stand for damaged bytes."""
    scanner = LogScanner(log, check_crc=True)
    open_start = -1  # of a place whose end is not known yet
    before: DispatchRecord | None = None
    starts: list[int] = []

    def damaged(start: int, _stop: int, _reason: str) -> None:
        starts.append(start)

    for record in scanner.records(log.min_offset, log.end, damaged):
        if open_start < 0 and starts:
            open_start = starts[0]
        starts.clear()
        if _stands_for_damage(record):
            open_start = record.physical_offset if open_start < 0 else open_start
            continue
        if open_start >= 0:
            yield _Place(open_start, record.physical_offset, before, record)
            open_start = -1
        before = record
    if open_start < 0 and starts:
        open_start = starts[0]
    if open_start >= 0:
        yield _Place(open_start, log.end, before, None)


def _stands_for_damage(record: DispatchRecord) -> bool:
    """Whether an earlier repair wrote it over damaged bytes (log_patch.py)."""
    room = record.size - RECORD_BYTES_MIN
    return record.sys_flag == TRANSACTION_PREPARED and room > 0 and record.topic == TOPIC[:room]


def _restore_place(
    place: _Place,
    log: CommitLog,
    table: QueueTable,
    record_at: RecordAt,
    done: Restored,
    stale: set[str],
    kept: str,
) -> None:
    for neighbour in (place.before, place.behind):
        if neighbour is not None and not _is_same(log, neighbour, record_at):
            done.refused.append(
                f"log bytes {place.start} to {place.stop}: the replica has something else at log byte "
                f"{neighbour.physical_offset}, where a whole record stands here, so its log is another one"
            )
            return
    at = place.start
    while at < place.stop:
        segment = log.segment_at(at)
        if segment is None or at + BLANK_BYTES > segment.end:
            at = segment.end if segment is not None else place.stop
            continue
        data = record_at(at)
        if data is None:
            if place.behind is None or at > place.start:
                return  # the file's end, or nothing is there: what repair leaves out
            done.refused.append(f"log byte {at}: the replica has no record there")
            return
        scan = scan_record(data, at, check_crc=True)
        record = scan.record
        if scan.kind is not ScanKind.RECORD or record is None or record.size != len(data):
            done.refused.append(
                f"log byte {at}: what the replica has there is no whole record ({scan.reason or 'its size'})"
            )
            return
        if at + record.size > min(place.stop, segment.end):
            done.refused.append(f"log byte {at}: the replica's record reaches beyond the damaged place")
            return
        queue = table.queues.get((record.topic, record.queue_id)) if record.has_queue_entry else None
        entry = queue.entry(record.queue_offset) if queue is not None else None
        if queue is not None and entry is not None and entry[1] == FILLER_SIZE:
            stale.add(queue.path)  # an earlier repair said that the message is lost
            entry = None
        if entry is None and place.behind is None:
            return  # behind the last whole record: it may have come after us, and no queue here knows of it
        if entry is not None and entry[:2] != (record.physical_offset, record.size):
            done.refused.append(
                f"log byte {at}: the replica has message {record.queue_offset} of queue {record.queue_id} of {record.topic} "
                f"there, which its queue here says is at log byte {entry[0]} with {entry[1]} bytes"
            )
            return
        _write(log, at, data, kept)
        done.records += 1
        done.bytes += len(data)
        at += len(data)


def _is_same(log: CommitLog, record: DispatchRecord, record_at: RecordAt) -> bool:
    segment = log.segment_at(record.physical_offset)
    if segment is None:
        return False
    begin = record.physical_offset - segment.base
    return record_at(record.physical_offset) == bytes(segment.file.read(begin, begin + record.size))


def _write(log: CommitLog, at: int, data: bytes, directory: str) -> None:
    """Over the bytes there, which are kept in `directory` first. Durable on return. Raises OSError."""
    segment = log.segment_at(at)
    assert segment is not None
    begin, end = at - segment.base, at - segment.base + len(data)
    disk = RealDisk()
    disk.make_dirs(directory)
    path = os.path.join(directory, f"{at:020d}-{len(data)}")
    if not disk.exists(path):  # what an earlier try kept is what was there at first
        disk.replace_file(path, segment.file.read(begin, end))
    segment.file.reserve(end)
    segment.file.buffer[begin:end] = data
    segment.file.sync(begin, end)
