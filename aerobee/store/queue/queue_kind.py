"""Kind of a queue, SimpleCQ or BatchCQ, and entries of records in a queue of the other kind. Core.

The record of a batch belongs to a batch queue; a single message may belong to either kind, and its record does not
contain which. A queue begins again at offset 0 when its topic was deleted and created again, perhaps with another
`queue.type`. A replica meets the records before it has the topic's settings, so the records decide and the settings
only say what no record says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aerobee.store.log.dispatch import DispatchRecord, is_batch_record
from aerobee.store.queue.batch_consume_queue import NO_SIZE, BatchConsumeQueue, BatchEntry
from aerobee.store.queue.consume_queue import ConsumeQueue

RecordAt = Callable[[int], DispatchRecord | None]


class Kind(NamedTuple):
    """Required kind and bounds of a queue for its next record. `restarts`: its entries belong to a deleted topic of the
    same name."""

    is_batch: bool
    restarts: bool


def kind_for(record: DispatchRecord, *, is_batch: bool, start: int, end: int, is_batch_topic: bool) -> Kind:
    """The kind for a record behind all records of a queue, which has the kind `is_batch` and the offsets [start, end)."""
    restarts = record.queue_offset == 0 and end > 0
    if is_batch_record(record.topic, record.sys_flag):
        return Kind(True, restarts)
    return Kind(is_batch_topic if restarts or start == end else is_batch, restarts)


def copy_to_batch(source: ConsumeQueue, target: BatchConsumeQueue, record_at: RecordAt) -> None:
    """Write an entry of one message for each entry of `source`, a hole for one without a record. Raises StoreFull, OSError."""
    target.start_at(source.min_offset)
    for offset in range(source.min_offset, source.max_offset):
        entry = source.entry(offset)
        record = None if entry is None else record_at(entry[0])
        if entry is None or record is None:
            offsets = [found[0] for found in source.entries(offset, 1)]
            target.append_batch_entry(BatchEntry(offsets[0] if offsets else 0, NO_SIZE, 0, 0, offset, 1))
        else:
            target.append_batch_entry(
                BatchEntry(entry[0], entry[1], entry[2], record.store_timestamp, offset, 1)
            )


def copy_to_simple(source: BatchConsumeQueue, target: ConsumeQueue, record_at: RecordAt) -> None:
    """Write an entry for each entry of `source`, all of which hold one message (holds_single_messages()). As copy_to_batch()."""
    target.start_at(source.min_offset)
    for entry in source.all_entries():
        if target.max_offset >= target.room:
            target.make_room()
        record = record_at(entry.physical_offset) if entry.size != NO_SIZE else None
        if record is None:
            target.append_entry(entry.physical_offset, NO_SIZE, 0)
        else:
            text = record.properties.encode(errors="surrogateescape")
            target.append_message(
                entry.physical_offset, entry.size, entry.tags_code, record.store_timestamp, text
            )
