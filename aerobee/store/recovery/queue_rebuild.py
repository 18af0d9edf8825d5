"""Rebuilds queues that lost entries from the log: determines the queues, and from which entry on, and restores the
original queue offsets.

Queues are derived. An entry that is missing or wrong is written again from its record; where the record itself is
damaged the queue gets a hole, so that every other message keeps its offset and none is given twice. A hole is an
entry of size 0x7FFFFFFF that points to the next record: readers pass over it.

Entries before the first lost one are kept, and the log is read from the record of the last valid entry on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from aerobee.message import decode_properties
from aerobee.store.log.dispatch import DispatchRecord, message_count
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.batch_consume_queue import NO_SIZE, BatchConsumeQueue
from aerobee.store.queue.consume_queue import QUEUE_OFFSET_MAX
from aerobee.store.queue.queue_bounds import Key, QueueBounds
from aerobee.store.queue.queue_table import AnyQueue, QueueTable
from aerobee.system_names import LMQ_PREFIX

HOLE_MAX = 1_000_000  # entries: a record that says it is further on than that is damaged itself
_LOOKS_MAX = 4_096  # queues: each file's first record is read, at random positions of the disk
_NOTES_MAX = 1_000  # sentences about single records


class QueueRebuild:
    """The queues to rebuild, and their rebuild. Blocking."""

    def __init__(
        self, queues: QueueTable, scanner: LogScanner, bounds: QueueBounds | None, note: Callable[[str], None]
    ) -> None:
        self._queues = queues
        self._scanner = scanner
        self._bounds = bounds
        self._note = note
        self._from: dict[Key, int] = {}  # queue: its first entry that is not to be trusted
        self._why: dict[Key, str] = {}
        self._held: dict[Key, DispatchRecord] = {}
        self._ends: dict[Key, int] = {}
        self._log_damage = 0  # ranges of the log that could not be read
        self._notes = 0

    @property
    def wanted(self) -> bool:
        """Whether queues are to be built again from the log."""
        return bool(self._from)

    def suspect(self, key: Key, offset: int, why: str) -> None:
        """Entries from this queue offset on are missing or wrong; 0: all of them may be."""
        if key not in self._from or offset < self._from[key]:
            self._from[key] = max(0, offset)
            self._why[key] = why

    def keep_ends(self, ends: Mapping[Key, int]) -> None:
        """These queues continued to these offsets, also where the log is cut now: no offset is given a second time."""
        self._ends.update(ends)

    def _end_of(self, key: Key) -> int:
        bound = self._bounds.queues.get(key) if self._bounds is not None else None
        return max(self._ends.get(key, 0), bound.max_offset if bound is not None else 0)

    def tell_damage(self) -> None:
        """A range of the log was left out: messages are missing in their queues."""
        self._log_damage += 1

    def forget_suspects(self) -> None:
        """This start is refused: partially rebuilt queues whose files were missing are removed, so that the next start
        detects the loss again."""
        for key, offset in self._from.items():
            if not offset:
                self._queues.any(*key).clear()

    # -- looking

    def look(self, log_min: int, log_end: int) -> None:
        """Find what can be seen without reading the log: files that are gone or of another's content, and losses since
        the checkpoint took down where each queue ends.
        """
        for key, queue in self._queues.queues.items():
            if queue.fault:
                self.suspect(key, queue.max_offset, queue.fault)
                continue
            bad = queue.first_bad_file(log_end)
            if bad is None and len(self._queues.queues) <= _LOOKS_MAX:
                bad = self._first_of_another(key, queue)
            if bad is not None:
                self.suspect(key, bad, f"a file of {queue.path} does not hold entries of this queue")
        for key, end in self._ends.items():
            queue = self._queues.any(*key)
            if queue.max_offset < end:
                self._log_damage += 1
                self.suspect(key, queue.max_offset, f"it ended at {queue.max_offset} of {end}")
        bounds = self._bounds
        if bounds is None:
            return
        # The messages of that time are lost, or were removed by retention: their offsets stay used.
        self._log_damage += log_end < bounds.log_end or log_min > bounds.log_end
        for key, bound in bounds.queues.items():
            found = self._queues.queues.get(key)
            if found is None:
                if bound.is_batch:
                    self._queues.batch_topics.add(key[0])
                self._queues.any(*key)
                self.suspect(key, 0, "its files are gone")
            elif found.max_offset < bound.max_offset:
                self.suspect(key, found.max_offset, f"it ended at {found.max_offset} of {bound.max_offset}")
            elif (
                found.is_batch == bound.is_batch
                and found.first_position > bound.first_position
                and log_min == bounds.log_min
            ):
                self.suspect(key, 0, "its first file is gone")

    def _first_of_another(self, key: Key, queue: AnyQueue) -> int | None:
        """Queue offset at which a file begins whose first entry is that of another queue or another message."""
        if isinstance(queue, BatchConsumeQueue):
            wrong = any(
                entry.size != NO_SIZE and not self._scanner.begins_record(entry.physical_offset, entry.size)
                for entry in queue.entries_from(queue.min_offset, 1 << 31)
            )
            return 0 if wrong else None
        if key[0].startswith(LMQ_PREFIX):
            return None
        for offset, physical_offset in queue.first_entries():
            if self._scanner.is_far_from_record(physical_offset):
                continue  # reading determines which of the two is damaged
            record = self._scanner.alone(physical_offset).record
            if record is not None and (record.topic, record.queue_id, record.queue_offset) != (*key, offset):
                return offset
        return None

    # -- building

    def run(self, log_min: int, log_end: int) -> None:
        """Rebuild the suspected queues."""
        starts: dict[Key, int] = {}
        for key, offset in sorted(self._from.items()):
            starts[key] = self._keep_before(key, offset, log_min)
        for record in self._scanner.records(min(starts.values()), log_end, self._damaged):
            if not record.has_queue_entry:
                continue
            properties = decode_properties(record.properties)
            for each in (record, *self._queues.light_records(record, properties)):
                if record.physical_offset >= starts.get((each.topic, each.queue_id), 1 << 62):
                    self._give(each, properties)
        for held in list(self._held.values()):
            self._settle(held)
        for key in sorted(self._from):
            self._finish(key, log_end)

    def _keep_before(self, key: Key, offset: int, log_min: int) -> int:
        """Drop the entries from `offset` on, and those before it that are not right either: the log is read from the end of
        the last good one's record on. Returns where that is."""
        queue = self._queues.any(*key)
        if not isinstance(queue, BatchConsumeQueue):
            for last in range(min(offset, queue.max_offset) - 1, queue.min_offset - 1, -1):
                entry = queue.entry(last)
                if entry is not None and self._is_right(key, last, entry):
                    queue.drop_from(offset)
                    return entry[0] + entry[1]
                if not queue.is_hole(last):
                    offset = last
        queue.clear()
        return log_min

    def _is_right(self, key: Key, offset: int, entry: tuple[int, int, int]) -> bool:
        """Whether an entry points to the record of its message."""
        if self._scanner.is_far_from_record(entry[0]):
            return False
        record = self._scanner.alone(entry[0]).record
        if record is None or record.size != entry[1]:
            return False
        is_light = key[0].startswith(LMQ_PREFIX)  # its entries point to records of other queues
        return is_light or (record.topic, record.queue_id, record.queue_offset) == (*key, offset)

    def _damaged(self, start: int, stop: int, reason: str) -> None:
        self._log_damage += 1
        self._say(
            f"the commit log is damaged at {self._scanner.location(start)} (log bytes {start} to"
            f" {stop}): {reason}; the messages there are left out of their queues, later "
            "messages are served"
        )

    def _say(self, text: str) -> None:
        self._notes += 1
        if self._notes <= _NOTES_MAX:
            self._note(text)

    def _give(self, record: DispatchRecord, properties: dict[str, str]) -> None:
        """Give a record its entry. A record that skips entries must be confirmed by the next one."""
        key = record.topic, record.queue_id
        queue = self._queues.any(*key)
        held = self._held.pop(key, None)
        if held is not None:
            if record.queue_offset >= self._next_of(held):  # the records between them are lost as well
                self._fill(held)
            else:
                self._leave_out(held)
        if (
            queue.max_offset == queue.min_offset
            and record.queue_offset
            and not queue.is_batch
            and held is None
        ):
            self._held[key] = record
            return
        outcome = self._queues.redispatch(record, properties)
        if outcome == "gap":
            self._held[key] = record
        elif outcome == "other":
            self._leave_out(record)

    def _next_of(self, record: DispatchRecord) -> int:
        properties = decode_properties(record.properties)
        return record.queue_offset + message_count(record.topic, record.sys_flag, properties)

    def _settle(self, record: DispatchRecord) -> None:
        """The last record of a queue waits: nothing behind it says whether its offset is right."""
        queue = self._queues.any(record.topic, record.queue_id)
        end = self._end_of((record.topic, record.queue_id))
        is_first = queue.max_offset == queue.min_offset
        limit = max(end, queue.max_offset) + HOLE_MAX if self._log_damage else end
        if is_first and not end:
            limit = QUEUE_OFFSET_MAX
        # The limit itself is what the first message after the checkpoint had.
        if record.queue_offset <= limit and (self._log_damage or is_first or end):
            self._fill(record)
        else:
            self._leave_out(record)

    def _fill(self, record: DispatchRecord) -> None:
        """Holes up to the record's offset, then its entry."""
        queue = self._queues.any(record.topic, record.queue_id)
        gap = record.queue_offset - queue.max_offset
        if queue.max_offset > queue.min_offset:
            if not 0 <= gap <= HOLE_MAX:
                self._leave_out(record)
                return
            queue.pad_to(record.queue_offset, record.physical_offset)
            if gap:
                self._say(
                    f"queue {record.topic} {record.queue_id}: the records of the messages {record.queue_offset - gap} to "
                    f"{record.queue_offset - 1} are not in the log; the queue has a hole there"
                )
        self._queues.redispatch(record, decode_properties(record.properties), after_gap=True)

    def _leave_out(self, record: DispatchRecord) -> None:
        queue = self._queues.any(record.topic, record.queue_id)
        self._say(
            f"the record at {self._scanner.location(record.physical_offset)} (log bytes {record.physical_offset} to "
            f"{record.physical_offset + record.size}) says that it is message {record.queue_offset} of queue "
            f"{record.queue_id} of {record.topic}, but {queue.max_offset} is next there: it is left out of its queue"
        )

    def _finish(self, key: Key, log_end: int) -> None:
        """Let the queue end where it did, also when the last records are damaged or deleted."""
        queue = self._queues.any(*key)
        end = self._end_of(key)
        if queue.max_offset < end:
            if queue.max_offset == queue.min_offset:
                queue.start_at(end)
            elif self._log_damage and end - queue.max_offset <= HOLE_MAX:
                # Holes count as entries of the last record, so that the next start does not truncate them
                # like entries after the log's end.
                queue.pad_to(end, max(0, log_end - 1))
        self._note(
            f"queue {key[0]} {key[1]} had lost entries ({self._why[key]}) and was built again from the log, from offset "
            f"{self._from[key]} on: it holds the messages {queue.min_offset} to {queue.max_offset - 1}, in "
            f"{os.path.join(queue.path, '')}"
        )
