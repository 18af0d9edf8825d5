"""Delivery of messages with a delay level (ScheduleMessageService of RocketMQ).

A delayed message is stored in queue level-1 of SCHEDULE_TOPIC_XXXX; the tags code of its queue entry is the time at
which it is due. Each level is one queue in the order of its due times, so one timer per level suffices: it is set to
the due time of the next entry. A due message is stored again under REAL_TOPIC and REAL_QID; one call stores a run of
consecutive due messages (deliveries.py). The property text stays as it is. The progress of each level is stored in config/delayOffset.json:

    {"dataVersion": {...}, "offsetTable": {level: queue offset}, "aerobeeLogOffset": physical offset}

The file is written every 10 s and at the stop. After a crash RocketMQ repeats the deliveries since the last write. Here
the record of each delivery names the record it was made from (store/log/source_pointer.py): loading reads the commit
log from aerobeeLogOffset on and moves each level behind the last delivered message. RocketMQ omits that key when it
writes the file. The file never runs ahead of the log on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from typing import Protocol

from aerobee.broker.delay.delivery_lateness import DeliveryLateness
from aerobee.broker.delay.delivery_runs import RUN_MAX, DeliveryRuns
from aerobee.broker.delay.late_arrivals import LateArrivals
from aerobee.broker.delay.redelivery import ExistingQueue, Redelivery, WaitingMessage
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.message_writer import LmqDispatch
from aerobee.broker.state.config_file import ConfigFile
from aerobee.clock import Clock, Timer, wall_wait_s
from aerobee.errors import MalformedRecord, RecordInvalid, StoreError, UsageError
from aerobee.property_names import REAL_TOPIC
from aerobee.remoting.body.data_version import DataVersion
from aerobee.store.log.source_pointer import delivered_sources
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.system_names import HALF_TOPIC, SCHEDULE_TOPIC

log = logging.getLogger(__name__)

DELIVERIES_PER_PASS = 64  # messages delivered one by one before the event loop continues
ERROR_PAUSE_S = 1.0
SCAN_BYTES_MAX = 64 << 20  # a start after a crash reads at most this and 10 s of the log
SAVE_INTERVAL_S = 10.0  # flushDelayOffsetInterval
LOG_OFFSET_KEY = "aerobeeLogOffset"
VERSION_STEP = 200  # deliveries that share one data version (delayOffsetUpdateVersionStep)


class Flushed(Protocol):
    """The store's watermark of durable bytes."""

    value: int

    def when(self, offset: int, callback: Callable[[bool], None]) -> None: ...


class Schedule:
    """Delivers due messages of every level. Belongs to the event loop; only a master runs it."""

    def __init__(
        self,
        *,
        store: MessageStore,
        deliveries: DeliveryRuns | None = None,
        file: ConfigFile | None,
        clock: Clock,
        stats: BrokerStats,
        existing_queue: ExistingQueue,
        escaped: Container[int] = (),
        lmqs: LmqDispatch | None = None,
    ) -> None:
        """`deliveries` stores runs of due messages; without `deliveries` they are delivered one by one.

        Records at the physical offsets in `escaped` were delivered by another broker: they are passed over.
        """
        self._store = store
        self._redelivery = Redelivery(store, existing_queue=existing_queue, lmqs=lmqs)
        self._deliveries = deliveries
        self._escaped = escaped
        self._file = file
        self._clock = clock
        self._stats = stats
        self._delays_ms = store.config.delay_levels_ms()
        self._arrivals = [LateArrivals(delay_ms, clock) for delay_ms in self._delays_ms]
        self._timers: dict[int, Timer] = {}
        self._due_ms: dict[int, int] = {}  # level -> time of its timer
        self._save_timer: Timer | None = None
        self._running = False
        self._count = 0  # deliveries since the start
        self._saved: dict[int, int] = {}
        self._saved_end = 0
        self.lateness = DeliveryLateness()
        self.offsets: dict[int, int] = {}  # level -> next queue offset to deliver
        self._copied_from: int | None = (
            None  # at a slave: the log's end when it received the master's offsets
        )
        self.data_version = DataVersion(0, clock.now_ms(), 0)

    def start(self) -> None:
        """Start delivering. Call load() first; at a broker that followed a master also skip_delivered()."""
        self._running = True
        self._copied_from = None
        for level in range(1, len(self._delays_ms) + 1):
            self._run(level)
        self._save_timer = self._clock.call_later(SAVE_INTERVAL_S, self._save_again)

    @property
    def copied_from(self) -> int | None:
        """At a slave: log offset from which on deliveries may not be included in `offsets`."""
        return self._copied_from

    def follow(self) -> None:
        """Another broker delivers from now on: until its offsets are copied, its deliveries are only in the log."""
        if self._copied_from is None:
            self._copied_from = self._store.log.end

    def stop(self) -> None:
        """Cancel the timers; nothing is written."""
        self._running = False
        for timer in (*self._timers.values(), *((self._save_timer,) if self._save_timer else ())):
            timer.cancel()
        self._timers.clear()

    def on_appended(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable; only those of the schedule topic matter."""
        if topic == SCHEDULE_TOPIC and self._running:
            level = queue_id + 1
            if 1 <= level <= len(self._delays_ms):
                self._arrivals[level - 1].add(max_offset, tags_code - self._clock.now_ms())
            due = self._due_ms.get(level)
            if due is None or tags_code < due:
                self._arm(level, self._clock.now_ms() if due is None else tags_code)

    # --- delivery

    def _arm(self, level: int, due_ms: int) -> None:
        timer = self._timers.pop(level, None)
        if timer is not None:
            timer.cancel()
        self._due_ms[level] = due_ms
        self._timers[level] = self._clock.call_later(wall_wait_s(self._clock, due_ms), self._run, level)

    def _run(self, level: int) -> None:
        """Deliver the due messages of a level and set its timer for the next one."""
        self._timers.pop(level, None)
        self._due_ms.pop(level, None)
        if not self._running or not 1 <= level <= len(self._delays_ms):
            return
        queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
        if queue is None:
            return
        offset = max(self.offsets.get(level, 0), queue.min_offset)
        if self._run_at_once(level, queue, offset):
            self._arm(level, self._clock.now_ms())
            return
        try:
            for _ in range(DELIVERIES_PER_PASS):
                if offset >= queue.readable_max:
                    return
                entry = queue.entry(offset)
                if entry is not None and entry[0] not in self._escaped:
                    now = self._clock.now_ms()
                    # A due time beyond the level's whole delay comes from a clock that was set back: its delay counts
                    # from when the message came; what came before that is known is delivered now.
                    if now < entry[2] <= now + self._delays_ms[level - 1]:
                        self._arm(level, entry[2])
                        return
                    if entry[2] > now and (left_ms := self._arrivals[level - 1].left_ms(offset)) > 0:
                        self._arm(level, now + left_ms)
                        return
                    self._deliver(level, offset, entry[0])
                    self.lateness.add(now - entry[2])
                offset += 1
                self._advance(level, offset)
        except StoreError as error:
            log.error(
                "level %d: message %d is due and cannot be stored: %s; trying again", level, offset, error
            )
            self._arm(level, self._clock.now_ms() + round(ERROR_PAUSE_S * 1000))
            return
        self._arm(level, self._clock.now_ms())

    def _run_at_once(self, level: int, queue: AnyQueue, offset: int) -> bool:
        """Deliver a run of due messages from `offset` on; returns whether there was any."""
        deliveries = self._deliveries
        count = min(RUN_MAX, queue.readable_max - offset)
        if deliveries is None or count <= 0 or not isinstance(queue, ConsumeQueue):
            return False
        now = self._clock.now_ms()
        latest = now + self._delays_ms[level - 1]
        sources: list[int] = []
        late: list[int] = []
        arrivals = self._arrivals[level - 1]
        for at, (physical_offset, size, due_ms) in enumerate(queue.entries(offset, count), offset):
            if now < due_ms <= latest or size <= 0 or (size == FILLER_SIZE and not physical_offset):
                break
            if physical_offset in self._escaped or (due_ms > latest and arrivals.left_ms(at) > 0):
                break
            sources.append(physical_offset)
            late.append(now - due_ms)
        result = deliveries.run(sources)
        delivered, fault = result.delivered_count, result.fault
        if delivered:
            self.lateness.add_all(late[:delivered])
            self._advance(level, offset + delivered, delivered)
        if fault is not None:
            self._arm(
                level, now + round(ERROR_PAUSE_S * 1000)
            )  # later messages must not wait for the next arrival
            raise fault
        return delivered > 0

    def _deliver(self, level: int, offset: int, physical_offset: int) -> None:
        data = self._store.read_record(physical_offset)
        if data is None:
            log.warning("level %d: the record of message %d is gone; it is skipped", level, offset)
            return
        try:
            message = WaitingMessage(data)
            if message.properties.get(REAL_TOPIC) == HALF_TOPIC:
                raise ValueError(f"its REAL_TOPIC {HALF_TOPIC} is the broker's own")
            topic, size = self._redelivery.deliver(message)
        except (MalformedRecord, ValueError, UsageError, RecordInvalid) as error:
            log.error("level %d: message %d cannot be delivered and is skipped: %s", level, offset, error)
            return
        self._stats.topic_put(topic, 1, size)

    def _advance(self, level: int, offset: int, count: int = 1) -> None:
        self.offsets[level] = offset
        before, self._count = self._count, self._count + count
        if before // VERSION_STEP != self._count // VERSION_STEP:
            self.data_version = self.data_version.next(self._clock.now_ms())

    def copy_from(self, offsets: dict[int, int], log_offset: int) -> None:
        """Apply a master's offsets; its later deliveries are in the log from `log_offset` on. The file follows soon."""
        self._copied_from = log_offset
        if offsets != self.offsets:
            self.offsets = offsets
            self.save_soon()

    def delivered_elsewhere(self, offsets: Mapping[int, int]) -> None:
        """Another broker has delivered each level up to these offsets, limited to the local queues. The file follows
        soon."""
        for level, offset in offsets.items():
            queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is not None:
                self._advance(level, max(self.offsets.get(level, 0), min(offset, queue.max_offset)))
        self.save_soon()

    # --- the file

    def load(self) -> None:
        """Read delayOffset.json; a level that is not in it begins at its queue's start. The store is open."""
        tree = self._file.read() if self._file is not None else None
        scan_from: object = None
        if tree is not None:
            table = tree.get("offsetTable") or {}
            self.offsets = {int(level): int(offset) for level, offset in table.items()}
            if isinstance(tree.get("dataVersion"), dict):
                self.data_version = DataVersion.from_dict(tree["dataVersion"])
            scan_from = tree.get(LOG_OFFSET_KEY)
        else:
            scan_from = self._first_record()
        if isinstance(scan_from, int):
            store = self._store
            self.skip_delivered(delivered_sources(store.log, scan_from, store.log.end))
        elif tree is not None:
            # RocketMQ wrote the file. After a later crash the file must contain the log offset.
            self.save()

    def _first_record(self) -> int | None:
        """Physical offset of the oldest delayed message; None without any."""
        entries = [
            queue.entry(queue.min_offset)
            for (topic, _), queue in self._store.queues.items()
            if topic == SCHEDULE_TOPIC
        ]
        return min((entry[0] for entry in entries if entry is not None), default=None)

    def skip_delivered(self, delivered: set[int]) -> None:
        """Move each level behind its last message in this set of physical offsets, whose deliveries are in the log, and
        remove them from the set. A level delivers in order."""
        store = self._store
        newest = max(delivered, default=-1)
        for level in range(1, len(self._delays_ms) + 1):
            queue = store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None or not delivered:
                continue
            at = max(self.offsets.get(level, 0), queue.min_offset)
            while at < queue.max_offset and delivered:
                entry = queue.entry(at)
                at += 1
                if entry is not None and entry[0] > newest:
                    # Nor the following ones. A due time does not prove the delivery, because the clock may
                    # have been ahead at that time.
                    break
                if entry is not None and entry[0] in delivered:
                    delivered.discard(entry[0])
                    self.offsets[level] = at

    def save(self) -> None:
        """Write delayOffset.json with the present offsets."""
        if self._file is not None:
            self._file.write(self._file_tree())

    def save_soon(self) -> None:
        """Schedule a write of delayOffset.json with the present offsets."""
        tree, file = self._file_tree(), self._file
        if file is not None:
            file.write_soon(lambda: file.write(tree))

    def _file_tree(self) -> dict[str, object]:
        log_offset = self._store.log.end if self._copied_from is None else self._copied_from
        return {**self.to_json(), LOG_OFFSET_KEY: log_offset}

    def to_json(self) -> dict[str, object]:
        """RocketMQ's part of the file; also the body of GET_ALL_DELAY_OFFSET (45)."""
        return {"dataVersion": self.data_version.to_dict(), "offsetTable": dict(self.offsets)}

    def _save_again(self) -> None:
        self._save_timer = self._clock.call_later(SAVE_INTERVAL_S, self._save_again)
        self.lateness.turn(self._clock.monotonic())
        log_end = self._store.log.end
        if self._file is not None and (
            self.offsets != self._saved or log_end - self._saved_end > SCAN_BYTES_MAX
        ):
            tree, self._saved, self._saved_end = self._file_tree(), dict(self.offsets), log_end
            # The file must not record a delivery whose record a power loss can remove.
            self._store.flushed.when(self._store.log.end, lambda ok: self._write(tree) if ok else None)

    def _write(self, tree: dict[str, object]) -> None:
        file = self._file
        if file is not None and self._running:
            file.write_soon(lambda: file.write(tree))
