"""Determines which messages a damaged range of the log contained, from the whole records around it and from the queues.

A replica's record names its topic, queue and queue offset. QueueClaims accepts it

- where the queue's entry of that message points into the range, with the record's size (a hole has the offset, not the size);
- else where no queue says that another message was there, and its offset follows the last whole record of its queue, and
  leads to the next one, as far as the damaged bytes between them leave no space for others.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aerobee.message import decode_properties
from aerobee.store.log.dispatch import DispatchRecord, batch_size_of, is_batch_record
from aerobee.store.queue.batch_consume_queue import BatchConsumeQueue
from aerobee.store.queue.consume_queue import FILLER_SIZE
from aerobee.store.queue.queue_table import AnyQueue, is_queue_name
from aerobee.system_names import LMQ_PREFIX

Key = tuple[str, int]


class Claim(NamedTuple):
    """An entry that points into a damaged range. `size` in bytes; a hole has FILLER_SIZE."""

    physical_offset: int
    key: Key
    queue_offset: int
    size: int

    def __str__(self) -> str:
        return f"message {self.queue_offset} of queue {self.key[1]} of {self.key[0]}"


class _Seen(NamedTuple):
    """A whole record with the queue offsets [base, end)."""

    physical_offset: int
    base: int
    end: int


class QueueClaims:
    """Report whole records with saw() and damaged ranges with damaged(), both in the log's order; then call refusal()."""

    def __init__(self, queues: Mapping[Key, AnyQueue]) -> None:
        self._queues = queues
        self._seen: dict[Key, list[_Seen]] = {}  # the first and the last record between two ranges
        self._damaged: list[tuple[int, int]] = []
        self._restored: list[tuple[int, int]] = []
        self._claims: tuple[tuple[int, int], list[Claim]] = (
            (0, 0),
            [],
        )  # of the range that was looked up last

    def saw(self, record: DispatchRecord) -> None:
        """A whole record of the log."""
        if not record.has_queue_entry:
            return
        seen = self._seen.setdefault((record.topic, record.queue_id), [])
        last_damaged = self._damaged[-1][1] if self._damaged else 0
        if len(seen) >= 2 and seen[-2].physical_offset >= last_damaged:
            seen.pop()
        seen.append(self._seen_of(record))

    def damaged(self, start: int, stop: int) -> None:
        """Bytes [start, stop) are no records."""
        self._damaged.append((start, stop))

    def restored(self, record: DispatchRecord) -> None:
        """A record of a damaged range was accepted: what follows it there has to fit to it."""
        self._restored.append((record.physical_offset, record.physical_offset + record.size))
        if record.has_queue_entry:
            bisect.insort(self._seen.setdefault((record.topic, record.queue_id), []), self._seen_of(record))

    def _seen_of(self, record: DispatchRecord) -> _Seen:
        count = 1
        if is_batch_record(record.topic, record.sys_flag):
            count = batch_size_of(record.sys_flag, decode_properties(record.properties))
        return _Seen(record.physical_offset, record.queue_offset, record.queue_offset + count)

    # -- judging

    def vouching(self, start: int, damaged: tuple[int, int]) -> set[Key]:
        """The queues whose entries say which records stood in the `damaged` range from log byte `start` on."""
        return {
            claim.key
            for claim in self._claims_in(damaged)
            if claim.physical_offset >= start and claim.size != FILLER_SIZE
        }

    def has_entry(self, record: DispatchRecord) -> bool:
        """Whether the record's queue has the entry of its message, or the record needs none."""
        return not record.has_queue_entry or self._entry_of(record) == (record.physical_offset, record.size)

    def _entry_of(self, record: DispatchRecord) -> tuple[int, int] | None:
        """Physical offset and size in the queue entry of the record's message; None without an entry."""
        queue = self._queues.get((record.topic, record.queue_id)) if record.has_queue_entry else None
        return _raw(queue, record.queue_offset) if queue is not None else None

    def refusal(self, record: DispatchRecord, damaged: tuple[int, int], *, is_last: bool) -> str:
        """Reason why a record cannot be the original one of the `damaged` range, as a part of a sentence; "" when it can.

        Behind the last whole record (`is_last`) only the entries decide.
        """
        stop = record.physical_offset + record.size
        if record.has_queue_entry and (
            record.queue_offset < 0 or not is_queue_name(record.topic, record.queue_id)
        ):
            return "no queue can have it"
        entry = self._entry_of(record)
        if entry == (record.physical_offset, record.size):
            return ""
        if entry is not None and entry[1] != FILLER_SIZE:
            return f"which its queue here says is at log byte {entry[0]} with {entry[1]} bytes"
        claims = self._claims_in(damaged)
        at = bisect.bisect_left(claims, record.physical_offset, key=lambda claim: claim.physical_offset)
        for claim in claims[at:]:
            if claim.physical_offset >= stop:
                break
            is_this = claim.physical_offset == record.physical_offset and (
                (claim.key, claim.queue_offset) == ((record.topic, record.queue_id), record.queue_offset)
            )
            if claim.size != FILLER_SIZE and not (is_this and record.has_queue_entry):
                return f"but a queue here has {claim} at log byte {claim.physical_offset}"
        if is_last or not record.has_queue_entry or entry == (record.physical_offset, FILLER_SIZE):
            return ""
        return self._misfit(record, stop)

    def _misfit(self, record: DispatchRecord, stop: int) -> str:
        """Whether its offset fits between the whole records of its queue before and behind it."""
        key = record.topic, record.queue_id
        found = self._seen.get(key, [])
        at = bisect.bisect_left(found, (record.physical_offset,))
        before, behind = found[at - 1] if at else None, found[at] if at < len(found) else None
        mine = self._seen_of(record)
        # A topic that was deleted and recreated begins once more at 0.
        begins_again = behind is None or (before is not None and behind.base < before.end)
        if before is not None:
            room = self._lost_between(before.physical_offset, record.physical_offset)
            if not before.end <= mine.base <= before.end + room and not (begins_again and not mine.base):
                return f"but message {before.end - 1} of that queue is the last one before it"
        if behind is not None and not (before is not None and begins_again and mine.base >= before.end):
            room = self._lost_between(stop, behind.physical_offset)
            if not mine.end <= behind.base <= mine.end + room:
                return f"but message {behind.base} of that queue is the next one behind it"
        if before is None and behind is None and mine.base:
            queue = self._queues.get(key)
            if queue is None or not queue.min_offset <= mine.base <= queue.max_offset:
                return "but nothing here knows of such messages"
        return ""

    def _lost_between(self, start: int, stop: int) -> int:
        """Number of damaged, not restored bytes of [start, stop) that may have contained other messages."""
        return _overlap(self._damaged, start, stop) - _overlap(self._restored, start, stop)

    def _claims_in(self, damaged: tuple[int, int]) -> list[Claim]:
        """The entries that point into a range, in the order of the log."""
        if self._claims[0] != damaged:
            found = [
                claim
                for key, queue in self._queues.items()
                if not key[0].startswith(LMQ_PREFIX)  # their entries point to records of other queues
                for claim in _entries_in(key, queue, *damaged)
            ]
            self._claims = damaged, sorted(found)
        return self._claims[1]


def _overlap(spans: list[tuple[int, int]], start: int, stop: int) -> int:
    """Bytes of [start, stop) that are in `spans`, which are in order."""
    first = max(0, bisect.bisect_right(spans, (start,)) - 1)
    total = 0
    for begin, end in spans[first:]:
        if begin >= stop:
            break
        total += max(0, min(end, stop) - max(begin, start))
    return total


def _entries_in(key: Key, queue: AnyQueue, start: int, stop: int) -> Iterator[Claim]:
    """The entries of a queue that point into log bytes [start, stop)."""
    if isinstance(queue, BatchConsumeQueue):
        for entry in queue.entries_from(queue.min_offset, 1 << 31):
            if start <= entry.physical_offset < stop:
                yield Claim(entry.physical_offset, key, entry.base_offset, entry.size)
        return
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        found = _raw(queue, middle)
        if found is None or found[0] < start:
            low = middle + 1
        else:
            high = middle
    while low < queue.max_offset and (found := _raw(queue, low)) is not None and found[0] < stop:
        yield Claim(found[0], key, low, found[1])
        low += 1


def _raw(queue: AnyQueue, offset: int) -> tuple[int, int] | None:
    """Physical offset and size of an entry, holes too."""
    if isinstance(queue, BatchConsumeQueue):
        entry = queue.entry(offset)
        return entry[:2] if entry is not None else None
    if not queue.min_offset <= offset < queue.max_offset:
        return None
    return next(((physical, size) for physical, size, _ in queue.entries(offset, 1)), None)
