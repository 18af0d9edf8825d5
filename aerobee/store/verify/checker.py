"""Verifies every record of the commit log and every queue entry, read-only.

It can run while a broker has the store open; it ignores data that the broker writes meanwhile.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field

from aerobee.message import decode_properties
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import MappedFile, RealDisk
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.dispatch import ScanKind
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.queue_files import FilePool
from aerobee.store.queue.queue_table import QueueTable

LISTED_MAX = 1_000  # of one kind that are listed; all are counted


class _ReadOnlyFile:
    """A file mapped for reading. Writing to it, or taking space, is an internal error."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._descriptor).st_size
        self.buffer: mmap.mmap | bytearray = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._descriptor, max(0, end - start), start)

    peek = read

    def fileno(self) -> int:
        return self._descriptor

    def will_need(self, start: int, end: int) -> None:
        return

    def is_resident(self, start: int, end: int) -> bool:
        return True

    def prefault(self, start: int, end: int) -> None:
        return

    def reserve(self, end: int) -> None:
        raise OSError(f"{self.path} is open for reading only")

    def fill(self, start: int, end: int) -> None:
        raise OSError(f"{self.path} is open for reading only")

    def write(self, start: int, data: memoryview) -> None:
        raise OSError(f"{self.path} is open for reading only")

    def rewrite(self, start: int, end: int) -> None:
        raise OSError(f"{self.path} is open for reading only")

    def sync(self, start: int, end: int) -> None:
        return

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            if isinstance(self.buffer, mmap.mmap):
                self.buffer.close()


class ReadOnlyDisk(RealDisk):
    """The machine's files, read-only: no file is created, changed or removed."""

    def open_mapped(self, path: str) -> MappedFile:
        return _ReadOnlyFile(path)

    def remove(self, path: str) -> None:
        return


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [start, stop) of the log that are no records."""

    start: int
    stop: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class WrongEntry:
    """A record whose queue has a wrong entry, or none, for it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


@dataclass(slots=True)
class StoreReport:
    """Result of verify(). `faults` are sentences about whole files."""

    log_min: int = 0
    log_end: int = 0
    records: int = 0
    damaged_count: int = 0
    damaged_bytes: int = 0
    wrong_count: int = 0
    queues: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    wrong: list[WrongEntry] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.damaged_count or self.wrong_count or self.faults)


def verify(config: StoreConfig) -> StoreReport:
    """Read the whole log and every entry of its records. Raises StoreError or ConfigError when the verification cannot
    begin.
    """
    disk = ReadOnlyDisk()
    log, pool = CommitLog(config, disk), FilePool(disk)
    report = StoreReport()
    try:
        log.load()
        table = QueueTable(config, pool)
        table.load()
        report.queues = len(table.queues)
        report.faults = [f"{queue.path}: {queue.fault}" for queue in table.queues.values() if queue.fault]
        _look(config, log, table, report)
    finally:
        log.close()
        pool.close()
    return report


def _look(config: StoreConfig, log: CommitLog, table: QueueTable, report: StoreReport) -> None:
    report.log_min = report.log_end = log.min_offset
    scanner = LogScanner(log, check_crc=True)
    ranges: list[DamagedRange] = []

    def damaged(start: int, stop: int, reason: str) -> None:
        ranges.append(DamagedRange(start, stop, scanner.path(start), reason))

    for record in scanner.records(log.min_offset, log.end, damaged):
        report.records += 1
        report.log_end = record.physical_offset + record.size
        if not record.has_queue_entry:
            continue
        for each in (record, *table.light_records(record, decode_properties(record.properties))):
            queue = table.queues.get((each.topic, each.queue_id))
            entry = queue.entry(each.queue_offset) if queue is not None else None
            if entry is None or entry[:2] != (record.physical_offset, record.size):
                report.wrong_count += 1
                if len(report.wrong) < LISTED_MAX:
                    report.wrong.append(
                        WrongEntry(each.topic, each.queue_id, each.queue_offset, record.physical_offset)
                    )
    if ranges and ranges[-1].stop >= log.end and scanner.at(ranges[-1].start).kind is ScanKind.END:
        ranges.pop()  # nothing was written there yet
    report.damaged_count = len(ranges)
    report.damaged_bytes = sum(each.stop - each.start for each in ranges)
    report.damaged = ranges[:LISTED_MAX]
