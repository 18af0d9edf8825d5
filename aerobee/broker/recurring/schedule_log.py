"""The records of recurring schedules in the log: reads them when a master begins, appends them, and writes all of them
again in time.

See schedule_table.py for the records and what `base` is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from aerobee.broker.recurring.schedule_table import ScheduleTable, TickRecord, base_of, tick_record
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import MalformedFrame, MalformedRecord
from aerobee.message import MAGIC_BLANK, Record, decode_record, encode_properties
from aerobee.property_names import SCHEDULE_NAME, SCHEDULE_TICK
from aerobee.record_head import head_struct
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import RECURRING_TOPIC

log = logging.getLogger(__name__)

_HEAD = head_struct("size", "magic")
RECORDS_MAX = 10_000  # between two rewrites: reading them takes about 0.2 s
RECORDS_PER_STEP = 500
REWRITES_PER_STEP = 32
REWRITE_PAUSE_S = 60.0
TICK_DIGITS_MAX = 15  # of a time in ms
# The last property. No checksum covers properties: a power loss may leave zeros for a few bytes at a record's end.
END = {"WAIT": "true"}


class ScheduleLog:
    """Belongs to the event loop. Call reading() to the end before anything else."""

    def __init__(self, store: MessageStore, topics: TopicTable, clock: Clock) -> None:
        self._store = store
        self._topics = topics
        self._clock = clock
        self._base = 0
        self._base_at = 0  # physical offset of the record at `base`
        self._rewrite_from = 0  # queue offset at which the present rewrite began
        self._rewrite_at = 0
        self._rewritten_s = float("-inf")
        self._to_rewrite: list[str] = []
        self.taken_back = ""  # the schedule whose last recorded tick lacked its message when the log was read

    # --- reading

    def reading(self, table: ScheduleTable) -> Iterator[None]:
        """Fill an empty table from the topic, in steps of some milliseconds."""
        self._base, self._base_at, self._to_rewrite = 0, 0, []
        self.taken_back = ""
        queue = self._store.queues.get((RECURRING_TOPIC, 0))
        if queue is None or queue.max_offset <= queue.min_offset:
            return
        self._base = max(self._newest_base(), queue.min_offset)
        last: tuple[TickRecord, int] | None = None
        for offset in range(self._base, queue.max_offset):
            if not offset % RECORDS_PER_STEP:
                yield
            found = self._record_at(offset)
            if found is None:
                self._apply_behind(table, offset)
                continue
            record, end = found
            if offset == self._base:
                self._base_at = record.physical_offset
            try:
                tick = table.apply(record.body)
            except MalformedFrame as error:
                log.error("the record of a schedule at %d is skipped: %s", record.physical_offset, error)
                continue
            last = None if tick is None else (tick, end)
        if last is not None and not self._is_delivered(*last):
            table.take_back(last[0])
            self.taken_back = last[0].name

    def _newest_base(self) -> int:
        queue = self._store.queues[(RECURRING_TOPIC, 0)]
        for offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            found = self._record_at(offset)
            if found is None:
                continue
            try:
                return base_of(found[0].body)
            except MalformedFrame as error:
                log.error("the record of a schedule at %d is skipped: %s", found[0].physical_offset, error)
        return queue.min_offset

    def _record_at(self, offset: int) -> tuple[Record, int] | None:
        """The record of a queue entry and its end in the log; None for a damaged one."""
        entry = self._store.queues[(RECURRING_TOPIC, 0)].entry(offset)
        if not isinstance(entry, tuple):
            return None
        try:
            record = decode_record(self._store.log.read(entry[0], entry[1]))
        except MalformedRecord as error:
            log.error("the record of a schedule at %d cannot be read: %s", entry[0], error)
            return None
        return (record, entry[0] + entry[1]) if record.topic == RECURRING_TOPIC else None

    def _apply_behind(self, table: ScheduleTable, offset: int) -> None:
        """The record at `offset` is damaged: if it was a tick's, the message right behind it says which tick is delivered."""
        entry = self._store.queues[(RECURRING_TOPIC, 0)].entry(offset)
        message = self._message_behind(entry[0] + entry[1]) if isinstance(entry, tuple) else None
        if message is None:
            return
        schedule = table.schedules.get(message.properties.get(SCHEDULE_NAME, ""))
        tick = message.properties.get(SCHEDULE_TICK, "")
        is_tick = tick.isascii() and tick.isdecimal() and len(tick) <= TICK_DIGITS_MAX
        if schedule is None or schedule.topic != message.topic or not is_tick:
            return
        if int(tick) > schedule.last_tick_ms:
            table.apply(tick_record(schedule, int(tick), self._base))

    def _is_delivered(self, tick: TickRecord, end: int) -> bool:
        """Whether the first record behind `end` is the message of this tick."""
        message = self._message_behind(end)
        return (
            message is not None
            and message.topic == tick.topic
            and message.properties.get(SCHEDULE_NAME) == tick.name
            and message.properties.get(SCHEDULE_TICK) == str(tick.tick_ms)
        )

    def _message_behind(self, end: int) -> Record | None:
        """The first record of the log behind `end`; None without one, and for a damaged one."""
        store_log = self._store.log
        while (segment := store_log.segment_at(end)) is not None and end < store_log.end:
            head = store_log.read(end, _HEAD.size)
            size, magic = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, MAGIC_BLANK)
            if magic == MAGIC_BLANK:
                end = segment.base + segment.size
                continue
            try:
                return decode_record(store_log.read(end, size))
            except MalformedRecord as error:
                log.error("the record at %d, behind that of a schedule, cannot be read: %s", end, error)
                return None
        return None

    # --- writing

    @property
    def base(self) -> int:
        """For the next record."""
        return self._base

    def append(self, body: bytes) -> AppendResult:
        """Append one record. Raises StoreError."""
        self._topics.create_internal(RECURRING_TOPIC)
        result = self._store.append(
            StoredMessage(
                topic=RECURRING_TOPIC,
                queue_id=0,
                body=body,
                properties=encode_properties(END).encode(),
                born_host=self._store.store_host,
                born_timestamp=self._clock.now_ms(),
                parsed=END,
            )
        )
        if result.queue_offset == self._base:
            self._base_at = result.physical_offset
        return result

    @property
    def is_rewriting(self) -> bool:
        """Whether rewrite() has more to write."""
        return bool(self._to_rewrite)

    def rewrite(self, table: ScheduleTable) -> None:
        """Write schedules again where that is due, some of them in each call. Raises StoreError."""
        if not self._to_rewrite and table.schedules and self._is_old():
            self._to_rewrite = list(table.schedules)
            self._rewrite_from = self._store.queues[(RECURRING_TOPIC, 0)].max_offset
            self._rewrite_at = self._store.log.end
        for _ in range(min(REWRITES_PER_STEP, len(self._to_rewrite))):
            name = self._to_rewrite[-1]
            is_last = len(self._to_rewrite) == 1
            base = self._rewrite_from if is_last else self._base
            if name in table.schedules:
                self.append(table.record_of(name, base))
            self._to_rewrite.pop()
            if is_last:
                self._base, self._base_at = self._rewrite_from, self._rewrite_at
                self._rewritten_s = self._clock.monotonic()

    def _is_old(self) -> bool:
        """Whether many records follow the base, or the base is not in the newest file of the log: that is never deleted."""
        queue = self._store.queues.get((RECURRING_TOPIC, 0))
        if queue is None:
            return False
        store_log = self._store.log
        if queue.max_offset - self._base > RECORDS_MAX:
            return True
        segment = store_log.segment_at(store_log.end - 1)
        # A table that does not fit into one file must not be written without a pause.
        is_time = self._clock.monotonic() - self._rewritten_s >= REWRITE_PAUSE_S
        return segment is not None and self._base_at < segment.base and is_time
