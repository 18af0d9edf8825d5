"""Adds the timer topic's messages to the wheel: each message of queue 0 of rmq_sys_wheel_timer gets a unit
(TimerEnqueueGetService).

The unit stands in the slot of its TIMER_OUT_MS; beyond the roll window in a slot on the way, from which the message is
stored again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from aerobee.broker.delay.delivery_runs import DeliveryRuns
from aerobee.broker.send.timer_properties import number, slot_time
from aerobee.broker.timer.clock_set_back import ClockSetBack
from aerobee.broker.timer.slots_at_hand import SlotsAtHand, TimerMessages
from aerobee.broker.timer.timer_progress import TimerProgress
from aerobee.clock import Clock, Timer
from aerobee.errors import StoreError
from aerobee.message import java_hash
from aerobee.property_names import REAL_TOPIC, TIMER_DELETE_KEY, TIMER_OUT_MS
from aerobee.store.queue.consume_queue import ConsumeQueue
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DEFAULT, DELETE, TimerUnit
from aerobee.system_names import WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)

ENQUEUES_PER_PASS = 256  # then other tasks of the event loop run
ERROR_PAUSE_S = 1.0


class TimerEnqueue:
    """Adds messages to the wheel between start() and stop(). Belongs to the event loop."""

    def __init__(
        self,
        *,
        progress: TimerProgress,
        slots: SlotsAtHand,
        messages: TimerMessages,
        files: TimerFiles,
        runs: DeliveryRuns,
        clock: Clock,
        set_back: ClockSetBack,
        wake: Callable[[int], None],
    ) -> None:
        """`wake` is called with the time, ms, at which delivery has something to do."""
        self._progress = progress
        self._slots = slots
        self._messages = messages
        self._files = files
        self._runs = runs
        self._clock = clock
        self._set_back = set_back
        self._wake = wake
        self._precision_ms = files.precision_ms
        self._running = False
        self._timer: Timer | None = None
        self._pause_s = 0.0  # part of its delay that only serves to collect more messages
        self._is_full = False
        self.trouble = ""  # error of the last messages without a unit, while it is retried

    def start(self) -> None:
        """Start with the messages in the topic."""
        self._running = True
        self._want()

    def stop(self) -> None:
        """Give no more units."""
        self._running = False

    def on_appended(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable; of interest are those of the timer topic."""
        if topic == WHEEL_TIMER_TOPIC:
            self.on_messages()

    def on_messages(self, pause_s: float = 0.0) -> None:
        """The timer topic has new messages. They may become readable only after this call. None of the messages is due
        within `pause_s`, so enqueuing may wait that long for others, and add their units together.
        """
        if self._running:
            self._want(pause_s, pause_s)

    def end_pause(self) -> None:
        """Enqueue now the messages that only wait for others."""
        if self._timer is not None and self._pause_s:
            self._enqueue()

    def _want(self, delay_s: float = 0.0, pause_s: float = 0.0) -> None:
        """`pause_s` of the delay is given up when a caller needs a shorter one."""
        if self._timer is None:
            self._timer = self._clock.call_later(delay_s, self._enqueue)
        elif pause_s < self._pause_s:
            self._timer.cancel()
            self._timer = self._clock.call_later(delay_s, self._enqueue)
        else:
            return
        self._pause_s = pause_s

    def _enqueue(self) -> None:
        """Give the messages that arrived their units."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue = self._progress.queue
        if queue is None or not self._running:
            return
        self.trouble = ""
        try:
            self._enqueue_from(queue)
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
            # No single message may stop the enqueuing of the others: the error is logged at each try, and
            # shown in the metrics.
            log.exception("timer messages could not be put into the wheel; trying again")
            self._want(ERROR_PAUSE_S)

    def _enqueue_from(self, queue: AnyQueue) -> None:
        progress = self._progress
        self._set_back.look()
        progress.skip_to(queue.min_offset)
        if isinstance(queue, ConsumeQueue) and self._enqueue_run(queue):
            if progress.queue_offset < queue.readable_max:
                self._want()
            return
        for _ in range(ENQUEUES_PER_PASS):
            if progress.queue_offset >= queue.readable_max:
                return
            entry = queue.entry(progress.queue_offset)
            if entry is not None:
                try:
                    self._enqueue_one(entry[0], entry[1])
                except StoreError as error:
                    if not self._is_full:
                        log.error("timer messages wait for their slot in the wheel: %s; trying again", error)
                    self._is_full, self.trouble = True, str(error)
                    self._want(ERROR_PAUSE_S)
                    return
                self._is_full = False
            if progress.has_units_to(progress.queue_offset + 1) and self._slots.slot is not None:
                self._wake(self._clock.now_ms())
        self._want()

    def _enqueue_run(self, queue: ConsumeQueue) -> bool:
        """Add units for a run of ordinary messages; returns whether it added any."""
        progress = self._progress
        count = min(ENQUEUES_PER_PASS, queue.readable_max - progress.queue_offset)
        if progress.has_handled or count <= 0:
            return False
        entries = queue.entries(progress.queue_offset, count)
        if entries and entries[0][0] < self._set_back.suspect_until:
            return False  # each message must be checked separately
        looked = self._runs.look([entry[0] for entry in entries], self._precision_ms)
        now, beyond_count = self._clock.now_ms(), self._slots.beyond_count
        units = [
            self._unit(now, out_ms, due_ms, cancels, physical_offset, size, topic_hash)
            for (physical_offset, size, _), (out_ms, due_ms, cancels, _, topic_hash) in zip(
                entries, looked, strict=False
            )
        ]
        if self._slots.beyond_count != beyond_count:
            return False  # two of these may have the same slot of the wheel: each looks at the one before it
        added = self._files.add_run(units) if units else 0
        if not added:
            return False
        self._note(units[:added], [look[3] for look in looked], now)
        self._is_full = False
        if progress.has_units_to(progress.queue_offset + added):
            self._wake(now)
        return True

    def _enqueue_one(self, physical_offset: int, size: int) -> None:
        if self._progress.was_handled(physical_offset):
            return  # stored again or delivered since the checkpoint, before its unit was safe
        message = self._messages.read(physical_offset)
        if message is None:
            return
        out_ms = number(message.properties.get(TIMER_OUT_MS))
        if out_ms is None:
            log.error("the timer message at %d has no %s; it is skipped", physical_offset, TIMER_OUT_MS)
            return
        due = self._messages.due_time(message, out_ms)
        topic = message.properties.get(REAL_TOPIC, "")
        cancels = TIMER_DELETE_KEY in message.properties
        now = self._clock.now_ms()
        if physical_offset < self._set_back.suspect_until and not cancels:
            new_due = self._set_back.new_due(message, due, now)
            if new_due is not None:
                due, out_ms = new_due, slot_time(new_due, self._precision_ms)
        unit = self._unit(now, out_ms, due, cancels, physical_offset, size, java_hash(topic))
        self._files.add(unit.slot_time, unit)
        self._note((unit,), (topic,), now)

    def _unit(
        self,
        now: int,
        out_ms: int,
        due_ms: int,
        cancels: bool,
        physical_offset: int,
        size: int,
        topic_hash: int,
    ) -> TimerUnit:
        magic = DEFAULT | DELETE if cancels else DEFAULT
        return self._slots.unit(now, out_ms, due_ms, physical_offset, size, topic_hash, magic=magic)

    def _note(self, units: Sequence[TimerUnit], topics: Sequence[str], now: int) -> None:
        """These units are in the wheel: count them, and have them delivered in time."""
        progress = self._progress
        read_time = progress.read_time
        first_due = read_time + self._precision_ms
        self._slots.add(units)
        counts: dict[str, int] = {}
        for unit, topic in zip(units, topics, strict=False):
            if not unit.magic & DELETE:
                counts[topic] = counts.get(topic, 0) + 1
                progress.delays.add(max(0, unit.due_ms - now) // 1000)
            if unit.slot_time == read_time:
                first_due = min(first_due, unit.due_ms) if unit.magic == DEFAULT else now
        progress.count_enqueued(counts, len(units), now)
        self._wake(max(now, first_due))
