"""Delivery of messages with a delay level (ScheduleMessageService of RocketMQ).

A delayed message lies in queue level-1 of SCHEDULE_TOPIC_XXXX; the tags code of its queue entry is the time at which
it is due. Each level is one queue in the order of its due times, so one timer a level is enough: it stands at the due
time of the next entry. A due message is stored again under REAL_TOPIC and REAL_QID; its property text stays as it
is. How far each level has come is kept in config/delayOffset.json:

    {"dataVersion": {...}, "offsetTable": {level: queue offset}}

The file is written each 10 s and at the stop, so after a crash what was delivered since then is delivered again, as
RocketMQ does. It never runs ahead of the log on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from aerobee.broker.config_file import ConfigFile
from aerobee.broker.delay_level import REAL_QUEUE_ID, REAL_TOPIC
from aerobee.broker.stats import BrokerStats
from aerobee.broker.topic_table import HALF_TOPIC, SCHEDULE_TOPIC
from aerobee.clock import Clock, Timer
from aerobee.errors import MalformedRecord, StoreError
from aerobee.message import Record, decode_record, encode_properties, pack_host
from aerobee.remoting.body.data_version import DataVersion
from aerobee.store.config import StoreConfig
from aerobee.store.stored_message import AppendResult, StoredMessage

log = logging.getLogger(__name__)

DELIVERIES_PER_PASS = 64  # then the event loop gets its turn
ERROR_PAUSE_S = 1.0
SAVE_INTERVAL_S = 10.0  # flushDelayOffsetInterval
VERSION_STEP = 200  # deliveries that share one data version (delayOffsetUpdateVersionStep)


class ScheduleQueue(Protocol):
    """A consume queue of the schedule topic."""

    min_offset: int
    readable_max: int

    def entry(self, offset: int) -> tuple[int, int, int] | None: ...


class Flushed(Protocol):
    """The store's watermark of what is on the disk."""

    value: int

    def when(self, offset: int, callback: Callable[[bool], None]) -> None: ...


class ScheduleStore(Protocol):
    """What delivery needs of the store."""

    config: StoreConfig

    @property
    def flushed(self) -> Flushed: ...

    @property
    def queues(self) -> Mapping[tuple[str, int], ScheduleQueue]: ...

    def read_record(self, physical_offset: int) -> bytes | None: ...

    def append(self, message: StoredMessage) -> AppendResult: ...


class Schedule:
    """Delivers due messages of every level. Belongs to the event loop; only a master runs it."""

    def __init__(
        self,
        *,
        store: ScheduleStore,
        file: ConfigFile | None,
        clock: Clock,
        stats: BrokerStats,
        run_blocking: Callable[[Callable[[], None]], object],
    ) -> None:
        """`run_blocking` runs a function in a thread where it may block, one after the other, and logs its failure."""
        self._store = store
        self._file = file
        self._clock = clock
        self._stats = stats
        self._run_blocking = run_blocking
        self._delays_ms = store.config.delay_levels_ms()
        self._timers: dict[int, Timer] = {}
        self._due_ms: dict[int, int] = {}  # level -> for when its timer stands
        self._save_timer: Timer | None = None
        self._running = False
        self._delivered_end = 0
        self._deliveries = 0
        self._saved: dict[int, int] = {}
        self.offsets: dict[int, int] = {}  # level -> next queue offset to deliver
        self.data_version = DataVersion(0, clock.now_ms(), 0)

    def start(self) -> None:
        """Begin with what is due. load() comes first."""
        self._running = True
        for level in range(1, len(self._delays_ms) + 1):
            self._run(level)
        self._save_timer = self._clock.call_later(SAVE_INTERVAL_S, self._save_again)

    def stop(self) -> None:
        self._running = False
        for timer in (*self._timers.values(), *((self._save_timer,) if self._save_timer else ())):
            timer.cancel()
        self._timers.clear()

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable; of interest are those of the schedule topic."""
        if topic == SCHEDULE_TOPIC and self._running:
            level = queue_id + 1
            due = self._due_ms.get(level)
            if due is None or tags_code < due:
                self._arm(level, self._clock.now_ms() if due is None else tags_code)

    # --- delivery

    def _arm(self, level: int, due_ms: int) -> None:
        timer = self._timers.pop(level, None)
        if timer is not None:
            timer.cancel()
        self._due_ms[level] = due_ms
        self._timers[level] = self._clock.call_later(
            max(0, due_ms - self._clock.now_ms()) / 1000, self._run, level
        )

    def _run(self, level: int) -> None:
        """Deliver what is due at a level and set its timer for the rest."""
        self._timers.pop(level, None)
        self._due_ms.pop(level, None)
        if not self._running or not 1 <= level <= len(self._delays_ms):
            return
        queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
        if queue is None:
            return
        offset = max(self.offsets.get(level, 0), queue.min_offset)
        try:
            for _ in range(DELIVERIES_PER_PASS):
                if offset >= queue.readable_max:
                    return
                entry = queue.entry(offset)
                if entry is not None:
                    now = self._clock.now_ms()
                    # A due time beyond the level's whole delay comes from a clock that was set back: deliver now.
                    if now < entry[2] <= now + self._delays_ms[level - 1]:
                        self._arm(level, entry[2])
                        return
                    self._deliver(level, offset, entry[0])
                offset += 1
                self._advance(level, offset)
        except StoreError as error:
            log.error(
                "level %d: message %d is due and cannot be stored: %s; trying again", level, offset, error
            )
            self._arm(level, self._clock.now_ms() + round(ERROR_PAUSE_S * 1000))
            return
        self._arm(level, self._clock.now_ms())

    def _deliver(self, level: int, offset: int, physical_offset: int) -> None:
        data = self._store.read_record(physical_offset)
        if data is None:
            log.warning("level %d: the record of message %d is gone; it is skipped", level, offset)
            return
        try:
            record = decode_record(data)
            message = restored(record)
        except (MalformedRecord, ValueError) as error:
            log.error("level %d: message %d cannot be delivered and is skipped: %s", level, offset, error)
            return
        result = self._store.append(message)
        self._delivered_end = result.end
        self._stats.topic_put(message.topic, 1, result.size)

    def _advance(self, level: int, offset: int) -> None:
        self.offsets[level] = offset
        self._deliveries += 1
        if self._deliveries % VERSION_STEP == 0:
            self.data_version = self.data_version.next(self._clock.now_ms())

    # --- the file

    def load(self) -> None:
        """Read delayOffset.json; a level that is not in it begins at its queue's start."""
        tree = self._file.read() if self._file is not None else None
        if tree is None:
            return
        table = tree.get("offsetTable") or {}
        self.offsets = {int(level): int(offset) for level, offset in table.items()}
        if isinstance(tree.get("dataVersion"), dict):
            self.data_version = DataVersion.from_dict(tree["dataVersion"])

    def save(self) -> None:
        """Write delayOffset.json with where each level stands now."""
        if self._file is not None:
            self._file.write(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The file's content; also the body of GET_ALL_DELAY_OFFSET (45)."""
        return {"dataVersion": self.data_version.to_dict(), "offsetTable": dict(self.offsets)}

    def _save_again(self) -> None:
        self._save_timer = self._clock.call_later(SAVE_INTERVAL_S, self._save_again)
        if self._file is not None and self.offsets != self._saved:
            tree, self._saved = self.to_json(), dict(self.offsets)
            # The file must not say that a message was delivered whose record a power loss can take back.
            self._store.flushed.when(self._delivered_end, lambda ok: self._write(tree) if ok else None)

    def _write(self, tree: dict[str, object]) -> None:
        file = self._file
        if file is not None and self._running:
            self._run_blocking(lambda: file.write(tree))


def restored(record: Record) -> StoredMessage:
    """The message as it goes to its real topic. Raises ValueError when its properties do not tell where that is."""
    topic, queue_text = record.properties.get(REAL_TOPIC, ""), record.properties.get(REAL_QUEUE_ID, "")
    if not topic or not queue_text.isdigit():
        raise ValueError(f"REAL_TOPIC is {topic!r} and REAL_QID {queue_text!r}")
    if topic in (SCHEDULE_TOPIC, HALF_TOPIC):
        raise ValueError(f"its REAL_TOPIC {topic} is the broker's own")
    return StoredMessage(
        topic=topic,
        queue_id=int(queue_text),
        body=record.body,
        properties=encode_properties(record.properties).encode(errors="surrogateescape"),
        born_host=pack_host(*record.born_host),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        reconsume_times=record.reconsume_times,
    )
