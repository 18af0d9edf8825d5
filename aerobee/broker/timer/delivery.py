"""Delivers timer messages to their real topics: the due messages of the present slot, then the next slot
(TimerDequeueGetService).

RocketMQ empties a slot when the clock has passed it, a second late, and gives up after three tries. Here each message
is delivered at its exact millisecond, and retried until the store accepts it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from aerobee.broker.delay.delivery_runs import RUN_MAX, DeliveryRuns
from aerobee.broker.delay.redelivery import ExistingQueue, Redelivery, WaitingMessage
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.message_writer import LmqDispatch
from aerobee.broker.send.timer_properties import number, slot_time
from aerobee.broker.timer.clock_set_back import ClockSetBack
from aerobee.broker.timer.delete_key import waiting_keys
from aerobee.broker.timer.slots_at_hand import LOADS_PER_PASS, SlotsAtHand, TimerMessages
from aerobee.broker.timer.timer_progress import TimerProgress
from aerobee.broker.timer.waiting_slot import OFFSET_BITS, OFFSET_MASK, WaitingSlot
from aerobee.clock import Clock, Timer, wall_wait_s
from aerobee.errors import RecordInvalid, StoreError, UsageError
from aerobee.message import encode_properties
from aerobee.property_names import (
    REAL_TOPIC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
)
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.system_names import WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)

DELIVERIES_PER_PASS = 64  # one by one
FAR_SLOTS = (
    2  # a message that is due more than this number of slots after the present one does not wait in it
)
EMPTY_SLOTS_PER_PASS = 512  # then the wheel is searched for the next one that is not
ERROR_PAUSE_S = 1.0
_PAUSE_MS = round(ERROR_PAUSE_S * 1000)


class TimerDelivery:
    """Delivers slots of the wheel between start() and stop(). Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        progress: TimerProgress,
        slots: SlotsAtHand,
        messages: TimerMessages,
        files: TimerFiles,
        runs: DeliveryRuns,
        stats: BrokerStats,
        clock: Clock,
        existing_queue: ExistingQueue,
        set_back: ClockSetBack,
        lmqs: LmqDispatch | None = None,
    ) -> None:
        self._set_back = set_back
        self._store = store
        self._redelivery = Redelivery(store, existing_queue=existing_queue, lmqs=lmqs)
        self._progress = progress
        self._slots = slots
        self._messages = messages
        self._files = files
        self._runs = runs
        self._stats = stats
        self._clock = clock
        self._precision_ms = files.precision_ms
        self._running = False
        self._timer: Timer | None = None
        self.trouble = ""  # error of the last pass, while it is retried
        self._due_ms = 0  # the time to which the timer is set
        self._filters: dict[str, Callable[[str, bytes], bool]] = {}
        self._settled: dict[str, Callable[[int], bool]] = {}

    def set_filter(
        self,
        topic: str,
        is_wanted: Callable[[str, bytes], bool],
        is_settled: Callable[[int], bool] = lambda physical_offset: False,
    ) -> None:
        """Leave out due messages for `topic` that no group needs: is_settled(physical offset) is called
        first, before the message is read, then is_wanted(tag, body).
        """
        self._filters[topic] = is_wanted
        self._settled[topic] = is_settled

    def start(self, newest_stored_ms: int) -> None:
        """Continue with the slot that an earlier run was delivering. `newest_stored_ms`: when the newest record was
        stored.
        """
        self._running = True
        if self._files.wheel.exists:
            now = self._clock.now_ms()
            self._slots.enter(self._progress.read_time or self._slots.slot_start(now))
            self._set_back.start(newest_stored_ms)
            self.wake(now)

    def stop(self) -> None:
        """Deliver nothing more."""
        self._running = False
        self._set_back.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self, due_ms: int) -> None:
        """Schedule a pass for a message that is due at this time."""
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self._clock.call_later(wall_wait_s(self._clock, due_ms), self._run)

    def _run(self) -> None:
        """Deliver the due messages, and set the timer for the next one."""
        self._timer = None
        if not self._running or self._slots.slot is None:
            return
        slot, self.trouble = self._slots.slot, ""
        try:
            if slot.is_loaded:
                self._set_back.step(slot)
            due_ms = self._work(slot)
            if self._set_back.is_busy:
                due_ms = self._clock.now_ms()
        except StoreError as error:
            self.trouble = str(error)
            log.error("timer messages are due and cannot be stored: %s; trying again", error)
            due_ms = self._clock.now_ms() + _PAUSE_MS
        except Exception as error:
            self.trouble = f"{type(error).__name__}: {error}"
            # No single message may stop the delivery of the others: the error is logged at each try, and
            # shown in the metrics.
            log.exception("the delivery of timer messages failed; trying again")
            due_ms = self._clock.now_ms() + _PAUSE_MS
        self.wake(due_ms)

    def _work(self, slot: WaitingSlot) -> int:
        """One pass. Returns when the next one is due. Raises StoreError; nothing is lost then."""
        budget = DELIVERIES_PER_PASS
        skips = EMPTY_SLOTS_PER_PASS
        progress, slots = self._progress, self._slots
        while budget > 0 and skips > 0:
            now = self._clock.now_ms()
            if not progress.may_deliver:
                return now + _PAUSE_MS  # enqueue wakes us earlier
            if not slot.load(LOADS_PER_PASS):
                return now
            while budget > 0 and slot.rolls and now >= slot.time_ms:
                self._roll(slot.rolls[-1])
                slot.rolls.pop()
                budget -= 1
            while budget > 0 and (due := slot.next_due_ms) is not None and due <= now:
                if self._deliver_run(slot, now):
                    budget = 0
                    break
                self._deliver(slot, slot.next_offset, due, now)
                slot.pop()
                budget -= 1
                if not budget & 15:
                    now = self._clock.now_ms()
            if budget <= 0:
                return now
            end = slot.time_ms + self._precision_ms
            due = slot.next_due_ms
            is_far = due is not None and due > max(now, end) + FAR_SLOTS * self._precision_ms
            if is_far and slots.has_other_slot(now, due or 0):
                # It got the present slot because no other was free while the clock was ahead. All others would wait for it.
                self._roll(slot.next_offset, slot)
                slot.pop()
                budget -= 1
                continue
            if not slot.is_done or now < end:
                slots.load_next()
                due = slot.next_due_ms
                return min(end, due or end) if now < end else due or end
            if not progress.may_leave_slot:
                return now + _PAUSE_MS
            skips -= 1
            if not skips and self._files.slot(end) is None:
                end = slots.next_used(end, now)
            slot = slots.enter(end)
        return self._clock.now_ms()

    def _deliver_run(self, slot: WaitingSlot, now: int) -> bool:
        """Deliver a run of due messages; returns whether it made progress."""
        progress = self._progress
        if slot.deleted or progress.has_handled:
            return False  # each message must be checked separately
        progress.touch()
        waiting = slot.take_due(now, RUN_MAX)
        count = settled = 0
        try:
            for topic, is_settled in self._settled.items():
                wanted = [key for key in waiting if not is_settled(key & OFFSET_MASK)]
                if len(wanted) < len(waiting):
                    settled += len(waiting) - len(wanted)
                    progress.count_unwanted(topic, len(waiting) - len(wanted), now)
                    waiting = wanted
            sources = [key & OFFSET_MASK for key in waiting]
            result = self._runs.run(sources, (self._precision_ms, now))
            count, fault = result.delivered_count, result.fault
        finally:
            slot.put_back(waiting[count:])
        if count:
            counts: Counter[str] = Counter()
            for topic, message_count, *_ in result.appended:
                counts[topic] += message_count
            progress.count_delivered_run(counts, [now - (key >> OFFSET_BITS) for key in waiting[:count]], now)
        if fault is not None:
            self.wake(now + _PAUSE_MS)
            raise fault
        return count + settled > 0

    def _deliver(self, slot: WaitingSlot, physical_offset: int, due: int, now: int) -> None:
        progress = self._progress
        progress.touch()
        if progress.take_handled(physical_offset):
            return
        for topic, is_settled in self._settled.items():
            if is_settled(physical_offset):
                progress.count_unwanted(topic, 1, now)
                return
        message = self._messages.read(physical_offset)
        if message is None:
            return
        properties = message.properties
        topic = properties.get(REAL_TOPIC, "")
        if slot.deleted and _is_deleted(slot, message):
            progress.count_gone(topic, now)
            return
        is_wanted = self._filters.get(topic)
        if is_wanted is not None and not is_wanted(properties.get("TAGS", ""), message.body):
            progress.count_unwanted(topic, 1, now)
            return
        enqueued = self._slots.slot_start(message.store_timestamp)
        added = f"{TIMER_ENQUEUE_MS}\x01{enqueued}\x02{TIMER_DEQUEUE_MS}\x01{now}\x02"
        try:
            topic, size = self._redelivery.deliver(message, added.encode())
        except (ValueError, UsageError, RecordInvalid) as error:
            log.error(
                "the timer message at %d cannot be delivered and is skipped: %s", physical_offset, error
            )
            progress.count_gone(topic, now)
            return
        self._stats.topic_put(topic, 1, size)
        progress.count_delivered(topic, now - due, now)

    def _roll(self, physical_offset: int, slot: WaitingSlot | None = None) -> None:
        """Store a message again whose time is beyond the window of its last enqueue. `slot`: unless the slot's requests to delete
        messages name it."""
        progress = self._progress
        progress.touch()
        if progress.take_handled(physical_offset):
            return
        message = self._messages.read(physical_offset)
        if message is None:
            return
        properties = message.properties
        if slot is not None and slot.deleted and _is_deleted(slot, message):
            progress.count_gone(properties.get(REAL_TOPIC, ""), self._clock.now_ms())
            return
        due_ms = self._messages.due_time(message, number(properties.get(TIMER_OUT_MS)) or 0)
        new_due_ms = self._set_back.new_due(message, due_ms, self._clock.now_ms())
        if new_due_ms is not None:
            properties[TIMER_DELIVER_MS] = str(new_due_ms)
            properties[TIMER_OUT_MS] = str(slot_time(new_due_ms, self._precision_ms))
        elif TIMER_DELIVER_MS not in properties and TIMER_ROLL_TIMES not in properties:
            # From here on a delay can no longer be counted from the time of storing.
            properties[TIMER_DELIVER_MS] = str(due_ms)
        properties[TIMER_ROLL_TIMES] = str((number(properties.get(TIMER_ROLL_TIMES)) or 0) + 1)
        text = encode_properties(properties).encode(errors="surrogateescape")
        self._store.append(message.message(WHEEL_TIMER_TOPIC, 0, text))
        progress.stored_again()
        progress.count_gone(properties.get(REAL_TOPIC, ""), self._clock.now_ms())


def _is_deleted(slot: WaitingSlot, message: WaitingMessage) -> bool:
    return not slot.deleted.isdisjoint(waiting_keys(message.properties, message.physical_offset))
