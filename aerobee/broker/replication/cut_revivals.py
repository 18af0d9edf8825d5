"""Lowers the progress of revival after a truncation of the log removed copies that it had stored.

A check point in the revive topic is settled when its unacknowledged messages were copied to the group's retry topic.
The offset of CID_RMQ_SYS_REVIVE_GROUP moves past it, and both are separate records: a cut may take the copy and leave
the check point. Then the offset must not stay past it, or no broker redelivers these messages. The check points are
found by reading the revive queues back from their ends, in the order of the log. The time between a check point and its
copy is unbounded, because the whole group may have been down in between. Reading a record twice does no harm:
acknowledgements lie behind their check point, and copies that were left name their source (source_pointer.py).

A copy whose check point was cut off too needs no search: either the timer's record of that check point remains and the
timer delivers it again, or it was cut off as well and the group's offset is lowered (cut_progress.py).
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Protocol

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_TAG,
    CheckPoint,
    CheckPointKey,
    decode_acks,
    decode_check_point,
)
from aerobee.broker.pop.retry import FIRST_POP_TIME, retry_topic_of
from aerobee.broker.pop.revive_log import REVIVE_QUEUES
from aerobee.errors import MalformedFrame, MalformedRecord
from aerobee.message import RETRY_PREFIX, Record, decode_records
from aerobee.store.log.stored_message import GetResult
from aerobee.system_names import REVIVE_GROUP, SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)

STEP_RECORDS = 128  # some milliseconds
RECORDS_MAX = 1_000_000  # read back of all queues together: some 12 s in steps
CUT_MESSAGES_MAX = (
    100_000  # of check points that were cut off, in memory; a copy of an older one is searched for
)
BEFORE_ALL = -(1 << 63)

Message = tuple[str, int, int]  # topic, queue id, queue offset


class Copy(NamedTuple):
    """A copy of a message that was cut off."""

    retry_topic: str
    pop_time: (
        int | None
    )  # of its check point, ms; None: the message has its first one's, from an earlier copy


class RevivalStore(Protocol):
    """The part of the store that is used here."""

    def get_messages(self, topic: str, queue_id: int, offset: int, *, count_max: int) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(slots=True)
class CutRevivals:
    """Collects the copies that a cut removed, and moves the revive queues back to their check points."""

    store: RevivalStore
    offsets: ConsumerOffsets
    topic: str  # the cluster's revive topic
    _copies: dict[Message, set[Copy]] = field(default_factory=dict)  # that no check point was found for
    _cut_points: dict[Message, list[CheckPoint]] = field(default_factory=dict)
    _acked: set[tuple[CheckPointKey, int]] = field(default_factory=set)  # of messages in `_copies`
    _first: dict[int, int] = field(default_factory=dict)  # revive queue -> first offset to process again

    def add_check_point(self, point: CheckPoint) -> None:
        """Record a check point that was cut off from the revive topic."""
        for offset in point.offsets:
            self._cut_points.setdefault((point.topic, point.queue_id, offset), []).append(point)
        while len(self._cut_points) > CUT_MESSAGES_MAX:
            del self._cut_points[next(iter(self._cut_points))]

    def add(self, record: Record, source: Record) -> None:
        """Record a cut-off record, if it is a copy that revival made of `source`, a remaining record."""
        # A delayed message that was delivered to a retry topic names its source, too.
        if not record.topic.startswith(RETRY_PREFIX) or source.topic in (SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC):
            return
        message = source.topic, source.queue_id, source.queue_offset
        copy = Copy(record.topic, _pop_time(record, source))
        if not any(_may_have_made(point, copy) for point in self._cut_points.get(message, ())):
            self._copies.setdefault(message, set()).add(copy)

    def lowering(self) -> Iterator[None]:
        """Lower the settled offsets to the log's end and before cut-off copies. Yields after some milliseconds of
        work."""
        yield from self._search()
        for queue_id in range(REVIVE_QUEUES):
            settled = self.offsets.query(REVIVE_GROUP, self.topic, queue_id)
            # The last settled offset, whereas other groups' offsets are the next one.
            last = self._first.get(queue_id, self.store.max_offset(self.topic, queue_id)) - 1
            if settled is not None and last < settled:
                self._go_back(queue_id, last)

    def _search(self) -> Iterator[None]:
        """Read back until each copy's check point is found. What may make a copy and is not settled counts as found."""
        reached: dict[int, int] = {}
        count = 0
        for _, queue_id, record in heapq.merge(
            *map(self._newest_first, range(REVIVE_QUEUES)), key=itemgetter(0)
        ):
            if not self._copies:
                return
            if record is None:
                yield
                continue
            if count == RECORDS_MAX:
                log.warning(
                    "%s is read again as far as it was searched, %d records: the check points of %d messages whose copies were cut off "
                    "lie before them or are deleted",
                    *(self.topic, count, len(self._copies)),
                )
                self._first.update(reached)
                return
            count += 1
            if count % STEP_RECORDS == 0:
                yield
            reached[queue_id] = record.queue_offset
            if self._is_found(record):
                self._first[queue_id] = record.queue_offset

    def _is_found(self, record: Record) -> bool:
        """Whether a record is the check point of copies that were searched for; they no longer are. The order is from new to old."""
        try:
            if record.tag in (ACK_TAG, BATCH_ACK_TAG):
                acks = decode_acks(record.body)
                for offset in acks.offsets:
                    if (acks.topic, acks.queue_id, offset) in self._copies:
                        self._acked.add((acks.key, offset))
            if record.tag != CK_TAG:
                return False
            point = decode_check_point(record.body)
        except MalformedFrame:
            return False  # logged when revival reads it
        is_found = False
        for offset in point.unacked:
            message = point.topic, point.queue_id, offset
            copies = self._copies.get(message)
            if copies is None:
                continue
            is_acked = (point.key, offset) in self._acked
            made = {
                copy
                for copy in copies
                if _may_have_made(point, copy) and not (is_acked and copy.pop_time is None)
            }
            if made:
                is_found = True
                copies -= made
                if not copies:
                    del self._copies[message]
        return is_found

    def _go_back(self, queue_id: int, last: int) -> None:
        if last < 0:
            self.offsets.remove_queue(REVIVE_GROUP, self.topic, queue_id)
        else:
            self.offsets.commit(REVIVE_GROUP, self.topic, queue_id, last)
        log.warning(
            "%s queue %d is read again from %d: what was copied for it was cut off",
            *(self.topic, queue_id, last + 1),
        )

    def _newest_first(self, queue_id: int) -> Iterator[tuple[int, int, Record | None]]:
        """The records of a revive queue: a number that is smaller for later records of the log, the queue id, the record; None in place
        of the record before each piece that is read."""
        order = BEFORE_ALL
        low, end = self.store.min_offset(self.topic, queue_id), self.store.max_offset(self.topic, queue_id)
        while end > low:
            yield order, queue_id, None
            begin = max(low, end - STEP_RECORDS)
            for record in reversed(self._records(queue_id, begin, end)):
                order = -record.physical_offset
                yield order, queue_id, record
            end = begin

    def _records(self, queue_id: int, at: int, end: int) -> list[Record]:
        """One read may give less than requested: it ends with a file, or is large."""
        records: list[Record] = []
        while at < end:
            result = self.store.get_messages(self.topic, queue_id, at, count_max=end - at)
            try:
                for record in decode_records(result.body or b"", check_crc=False):
                    records.append(record)  # those before a damaged one count
            except MalformedRecord as error:
                log.error("%s queue %d is damaged behind offset %d: %s", self.topic, queue_id, at, error)
            if result.next_offset <= at:
                break
            at = result.next_offset
        return records


def _pop_time(copy: Record, source: Record) -> int | None:
    """Pop time of a copy's source message; None if the copy does not contain it."""
    text = copy.properties.get(FIRST_POP_TIME, "")
    try:
        return int(text) if FIRST_POP_TIME not in source.properties else None
    except ValueError:
        return None


def _may_have_made(point: CheckPoint, copy: Copy) -> bool:
    """Whether revival may have made a copy of one of a check point's messages."""
    return copy.pop_time in (None, point.pop_time) and copy.retry_topic in (
        retry_topic_of(point, v2=True),
        retry_topic_of(point, v2=False),
    )
