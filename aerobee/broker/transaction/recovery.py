"""Builds the table of open transactions from the half queue, the op queue and the log. Core.

RocketMQ repeatedly reads both queues from the offsets that its consumer group CID_RMQ_SYS_TRANS has committed. Aerobee
reads them once, at the start, by these rules:

1. The op records from the op offset on name half messages that are decided.
2. Every other half message from the half offset on is open, if none of these says otherwise:
   - the log holds its committed message behind the offset up to which the op records are known to be complete: a crash
     took the op record
   - it is a copy made for a check, and the index has its committed message: RocketMQ made the copy before it wrote
     the op record
3. A copy that was made for a check belongs to its transaction. A half message that was sent after the decision about
   an earlier one of the same id is a separate transaction.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Protocol

from aerobee.broker.transaction.commit_scan import commits_between
from aerobee.broker.transaction.half_message import HalfMessage, op_offsets, read_half
from aerobee.broker.transaction.transaction_table import Key, OpenTransaction, Outcome, TransactionTable
from aerobee.errors import MalformedRecord
from aerobee.message import Record, decode_record
from aerobee.property_names import PRODUCER_GROUP

log = logging.getLogger(__name__)

# RocketMQ writes op records apart from its commits: one may miss a decision that was made just before it.
OP_RECORDS_BACK = 4
RECORDS_PER_STEP = 256
SCAN_BYTES_PER_STEP = 1 << 20

Extent = tuple[int, int]  # physical offset, size


class ReadQueue(Protocol):
    """The methods of a consume queue that recovery uses."""

    min_offset: int
    max_offset: int

    def entry(self, offset: int) -> tuple[int, int, int] | None: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The data that recovery reads at start-up. A queue that was never written to is None."""

    half_queue: ReadQueue | None
    op_queue: ReadQueue | None
    read: Callable[[int, int], bytes]  # of the log: (physical offset, size), fewer bytes at a file's end
    log_start: int
    log_end: int
    half_offset: int | None  # as committed by CID_RMQ_SYS_TRANS
    op_offset: int | None
    settled_offset: int  # the log holds op records for all decisions made before it


@dataclass(frozen=True, slots=True)
class Recovered:
    """`scanned_bytes` of the log were searched for commits, of which `found_commits` had no op record."""

    table: TransactionTable
    scanned_bytes: int
    found_commits: int


def recover(source: Source, *, interval_ms: int, was_committed: Callable[[HalfMessage], bool]) -> Recovered:
    """Build the table. `was_committed` looks a transaction up in the key index; `interval_ms` lies between checks."""
    steps = recovering(source, interval_ms=interval_ms, was_committed=was_committed)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Recovered = end.value
            return found


def recovering(
    source: Source, *, interval_ms: int, was_committed: Callable[[HalfMessage], bool]
) -> Generator[list[Extent], None, Recovered]:
    """As recover(), in steps of some milliseconds: each yields the extents of the log, (physical offset, size), that the next step
    reads. Until it ends no transaction may begin or be decided."""
    half_start, half_end = _range(source.half_queue, source.half_offset)
    op_start, op_end = _range(source.op_queue, source.op_offset)
    table = TransactionTable(start=half_start, end=half_end, op_start=op_start)
    decided: set[int] = set()
    for first in range(op_start, op_end, RECORDS_PER_STEP):
        some = range(first, min(op_end, first + RECORDS_PER_STEP))
        yield _extents(source.op_queue, some)
        for op_offset in some:
            offsets = _read_ops(source, op_offset)
            table.op_written(op_offset, offsets)
            decided.update(offset for offset in offsets if offset >= half_start)
    halves: list[HalfMessage] = []
    for first in range(half_start, half_end, RECORDS_PER_STEP):
        undecided = [
            each for each in range(first, min(half_end, first + RECORDS_PER_STEP)) if each not in decided
        ]
        if undecided:
            yield _extents(source.half_queue, undecided)
        halves += [half for offset in undecided if (half := _read_half(source, offset))]
    if not halves:
        return Recovered(table, 0, 0)
    start = _scan_start(source, halves[0].record.physical_offset, op_end)
    commits: deque[tuple[int, Key]] = deque()
    at = start
    while 0 <= at < source.log_end:
        stop = min(source.log_end, at + SCAN_BYTES_PER_STEP)
        yield [(at, stop - at)]
        at = _take_all(commits, _commits(source, at, stop))
    found = len(commits)
    committed: set[Key] = set()
    for number, half in enumerate(halves):
        if half.checks and not number % RECORDS_PER_STEP:
            yield []
        _apply(table, commits, committed, half.record.physical_offset)
        if half.checks and (half.key in committed or (half.key not in table.by_key and was_committed(half))):
            found += half.key not in committed
            table.closed_copy(half.record.queue_offset, half.key, Outcome.COMMITTED)
            continue
        table.prepared(_open(half, interval_ms))
    _apply(table, commits, committed, source.log_end)
    return Recovered(table, source.log_end - start, found)


def _take_all(items: deque[tuple[int, Key]], steps: Generator[tuple[int, Key], None, int]) -> int:
    """Append what a generator yields; return what it returns."""
    while True:
        try:
            items.append(next(steps))
        except StopIteration as end:
            value: int = end.value
            return value


def _extents(queue: ReadQueue | None, offsets: Iterable[int]) -> list[Extent]:
    """Physical offsets of the records of these queue offsets."""
    assert queue is not None
    return [(entry[0], entry[1]) for offset in offsets if (entry := queue.entry(offset)) is not None]


def _apply(table: TransactionTable, commits: deque[tuple[int, Key]], committed: set[Key], end: int) -> None:
    """Close the transactions whose committed record begins before `end`."""
    while commits and commits[0][0] < end:
        _, key = commits.popleft()
        committed.add(key)
        transaction = table.by_key.get(key)
        if transaction is not None:
            table.decided(transaction, Outcome.COMMITTED)


def _open(half: HalfMessage, interval_ms: int) -> OpenTransaction:
    record = half.record
    return OpenTransaction(
        half.key,
        half.topic,
        record.queue_offset,
        record.physical_offset,
        stored_ms=record.store_timestamp,
        checks=half.checks,
        immunity_ms=half.immunity_ms,
        due_ms=record.store_timestamp + interval_ms if half.checks else None,
    )


def _range(queue: ReadQueue | None, offset: int | None) -> tuple[int, int]:
    """The offsets of a queue to read: from the committed one, or the queue's first, to its end."""
    if queue is None:
        return 0, 0
    # The committed offset is beyond the queue's end: a power loss removed processed entries. The missing half
    # messages cannot be checked.
    return max(queue.min_offset, min(offset or 0, queue.max_offset)), queue.max_offset


def _read_ops(source: Source, offset: int) -> list[int]:
    assert source.op_queue is not None
    record = _read(source, source.op_queue, offset)
    if record is None:
        return []
    try:
        return op_offsets(record)
    except MalformedRecord as error:
        log.error("op queue offset %d: %s; it is left out", offset, error)
        return []


def _read_half(source: Source, offset: int) -> HalfMessage | None:
    assert source.half_queue is not None
    record = _read(source, source.half_queue, offset)
    if record is None:
        return None
    try:
        return read_half(record)
    except MalformedRecord as error:
        log.error("half queue offset %d: %s; it is left out", offset, error)
        return None


def _read(source: Source, queue: ReadQueue, offset: int) -> Record | None:
    entry = queue.entry(offset)
    if entry is None:
        return None
    try:
        return decode_record(source.read(entry[0], entry[1]))
    except MalformedRecord as error:
        log.error("offset %d of the queue: %s; it is left out", offset, error)
        return None


def _scan_start(source: Source, first_open: int, op_end: int) -> int:
    """The offset from which on commits may lack their op record: not before the oldest open half message."""
    known = max(source.settled_offset, source.log_start)
    queue = source.op_queue
    if queue is not None and op_end - queue.min_offset > OP_RECORDS_BACK:
        entry = queue.entry(op_end - OP_RECORDS_BACK)
        if entry is not None:
            known = max(known, entry[0])
    start = max(first_open, known)
    return start if start <= source.log_end else first_open


def _commits(source: Source, start: int, stop: int) -> Generator[tuple[int, Key], None, int]:
    """The committed messages that begin in [start, stop); returns as commits_between()."""
    commits = commits_between(source.read, start, stop)
    while True:
        try:
            at, size = next(commits)
        except StopIteration as end:
            value: int = end.value
            return value
        try:
            record = decode_record(source.read(at, size))
        except MalformedRecord as error:
            log.error("a committed message cannot be read: %s", error)
            continue
        yield at, (record.properties.get(PRODUCER_GROUP, ""), record.unique_id or "")
