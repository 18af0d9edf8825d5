"""Revival of popped messages goes back when a cut of the log took off the copies that it had stored.

A check point in the revive topic is dealt with when its unacknowledged messages were copied to the group's retry topic. The offset of
CID_RMQ_SYS_REVIVE_GROUP moves past it, and both are separate records: a cut may take the copy and leave the check point. Then the offset
must not stay past it, or no broker hands these messages out again. The check point is found by going back in the revive queues from where
they are settled. What is read there a second time does no harm: acknowledgements lie behind their check point, and copies that were left name
their source (source_pointer.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import CK_TAG, CheckPoint, decode_check_point
from aerobee.broker.pop.retry import retry_topic_of
from aerobee.broker.pop.revive_log import REVIVE_QUEUES
from aerobee.errors import MalformedFrame, MalformedRecord
from aerobee.message import RETRY_PREFIX, Record, decode_record, decode_records
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import GetResult
from aerobee.system_names import REVIVE_GROUP

log = logging.getLogger(__name__)

STEP_RECORDS = 128  # some milliseconds
WINDOW_MS = 600_000  # a check point is copied within seconds of its record in the revive topic
RECORDS_MAX = 300_000  # of one queue

Copied = tuple[str, str, int, int]  # retry topic; topic, queue id and offset of the message


class RevivalStore(Protocol):
    """What going back needs of the store."""

    def get_messages(self, topic: str, queue_id: int, offset: int, *, count_max: int) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    def read_record(self, offset: int, /) -> bytes | None: ...


@dataclass(slots=True)
class CutRevivals:
    """Collects the copies that a cut took off, and takes the revive queues back to their check points."""

    store: RevivalStore
    offsets: ConsumerOffsets
    topic: str  # the cluster's revive topic
    _copied: set[Copied] = field(default_factory=set)
    _since_ms: int = 0

    def add(self, record: Record, log_offset: int) -> None:
        """Note a record that was cut off, if it is such a copy of a message that is left before `log_offset`."""
        source_offset = source_pointer(record.prepared_transaction_offset)  # its own inverse
        if not (record.topic.startswith(RETRY_PREFIX) and 0 <= source_offset < log_offset):
            return
        data = self.store.read_record(source_offset)
        try:
            source = decode_record(data, check_crc=False) if data is not None else None
        except MalformedRecord:
            return  # damaged, or no record begins there: it cannot be copied again either
        if source is not None:
            if not self._copied:
                self._since_ms = record.store_timestamp - WINDOW_MS
            self._copied.add((record.topic, source.topic, source.queue_id, source.queue_offset))

    def lowering(self) -> Iterator[None]:
        """Settle nothing that is not in the log, and nothing whose copies were cut off. Yields after some milliseconds of work."""
        for queue_id in range(REVIVE_QUEUES):
            settled = self.offsets.query(REVIVE_GROUP, self.topic, queue_id)
            if settled is None:
                continue
            # The last one that was dealt with, where other groups' offsets name the next one.
            last = min(settled, self.store.max_offset(self.topic, queue_id) - 1)
            left = set(self._copied)
            for offset, point in self._check_points(queue_id, last):
                if not left:
                    break
                if point is None:
                    yield
                elif found := {each for each in left if _is_of(point, each)}:
                    left -= found
                    last = offset - 1
            if last < settled:
                self._go_back(queue_id, last)

    def _go_back(self, queue_id: int, last: int) -> None:
        if last < 0:
            self.offsets.remove_queue(REVIVE_GROUP, self.topic, queue_id)
        else:
            self.offsets.commit(REVIVE_GROUP, self.topic, queue_id, last)
        log.warning(
            "%s queue %d is read again from %d: what was copied for it was cut off",
            *(self.topic, queue_id, last + 1),
        )

    def _check_points(self, queue_id: int, last: int) -> Iterator[tuple[int, CheckPoint | None]]:
        """The check points up to `last`, the newest first, with their offsets; (…, None) before each piece that is read."""
        low = max(self.store.min_offset(self.topic, queue_id), last + 1 - RECORDS_MAX)
        end = last + 1
        while end > low:
            begin = max(low, end - STEP_RECORDS)
            yield begin, None
            records = self._records(queue_id, begin, end)
            for record in reversed(records):
                if record.tag == CK_TAG:
                    try:
                        yield record.queue_offset, decode_check_point(record.body)
                    except MalformedFrame:
                        continue  # told when it is read in the revive topic
            if records and records[0].store_timestamp < self._since_ms:
                return
            end = begin

    def _records(self, queue_id: int, at: int, end: int) -> list[Record]:
        """One read may give less than requested: it ends with a file, or is large."""
        records: list[Record] = []
        while at < end:
            result = self.store.get_messages(self.topic, queue_id, at, count_max=end - at)
            if result.body:
                records += decode_records(result.body, check_crc=False)
            if result.next_offset <= at:
                break
            at = result.next_offset
        return records


def _is_of(point: CheckPoint, copied: Copied) -> bool:
    retry_topic, topic, queue_id, offset = copied
    return (
        (point.topic, point.queue_id) == (topic, queue_id)
        and offset in point.offsets
        and retry_topic in (retry_topic_of(point, v2=True), retry_topic_of(point, v2=False))
    )
