"""The timer at work: from the timer topic into the wheel, from the wheel to the real topics (TimerMessageStore).

Enqueue reads queue 0 of rmq_sys_wheel_timer and gives each message a unit in the slot of its TIMER_OUT_MS; beyond the
roll window it goes to a slot on the way, from which it is stored again. Delivery takes the slots one after the other.
The slot of the present second and the next one are in memory, all others on the disk only; within a slot each
message is delivered at its own millisecond.

RocketMQ empties a slot when the clock has passed it, a second late, gives up after three tries, and after a crash
delivers again what it had delivered of a slot. Here a message is tried until the store takes it, and the marks in the
commit log tell what was delivered (docs/decisions/0010-timers.md).

What always holds: slots before `read_time` are delivered; messages below `queue_offset` have their unit; what was
delivered of the slots from `read_time` on lies in the commit log behind `scan_from`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aerobee.broker.delay.delivery_lateness import DeliveryLateness
from aerobee.broker.delay.delivery_runs import RUN_MAX, DeliveryRuns
from aerobee.broker.delay.redelivery import Redelivery, RedeliveryStore, WaitingMessage
from aerobee.broker.property_names import (
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_DELETE_OFFSET,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
)
from aerobee.broker.send.timer_properties import due_time, number
from aerobee.broker.stats import BrokerStats
from aerobee.broker.timer.delete_key import cancelled_key, waiting_key
from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.broker.timer.waiting_slot import OFFSET_BITS, OFFSET_MASK, WaitingSlot
from aerobee.broker.topic_table import WHEEL_TIMER_TOPIC
from aerobee.clock import Clock, Timer
from aerobee.errors import MalformedRecord, RecordInvalid, StoreError, UsageError
from aerobee.message import encode_properties, java_hash
from aerobee.store.consume_queue import ConsumeQueue
from aerobee.store.timer_files import TimerFiles
from aerobee.store.timer_log import DEFAULT, DELETE, ROLL, TimerUnit

log = logging.getLogger(__name__)

ENQUEUES_PER_PASS = 256  # then the event loop gets its turn
DELIVERIES_PER_PASS = 64  # one by one
LOADS_PER_PASS = 1_024
EMPTY_SLOTS_PER_PASS = 512  # then the wheel is searched for the next one that is not
ERROR_PAUSE_S = 1.0
_DELAY_MAX = 2**31 - 1


class TimerQueue(Protocol):
    """The consume queue of the timer topic."""

    min_offset: int
    max_offset: int
    readable_max: int

    def entry(self, offset: int) -> tuple[int, int, int] | None: ...


class TimerStore(RedeliveryStore, Protocol):
    """What the timer needs of the store."""

    @property
    def queues(self) -> Mapping[tuple[str, int], TimerQueue]: ...

    @property
    def appended(self) -> int: ...

    def read_record(self, physical_offset: int) -> bytes | None: ...


class TimerService:
    """Belongs to the event loop; only a master starts it."""

    def __init__(
        self,
        *,
        store: TimerStore,
        files: TimerFiles,
        clock: Clock,
        stats: BrokerStats,
        pending: PendingCounts,
        runs: DeliveryRuns,
        warm: Callable[[list[int]], None] = lambda offsets: None,
    ) -> None:
        """`warm` is given the physical offsets of the next slot, to bring their records into memory."""
        self._store = store
        self._redelivery = Redelivery(store)
        self._runs = runs
        self._files = files
        self._clock = clock
        self._stats = stats
        self._warm = warm
        self._precision_ms = files.precision_ms
        self._slot: WaitingSlot | None = None
        self._next: WaitingSlot | None = None
        self._timer: Timer | None = None
        self._due_ms = 0  # for when the timer stands
        self._enqueuing: Timer | None = None
        self._pause_s = 0.0  # how much of its delay waits for nothing but company
        self._is_full = False
        # A message that cancels, or one that was stored again for a later slot, must be in its slot before that is
        # delivered. So nothing is delivered before what an earlier run left has its units, and no slot is left
        # before what was stored again from it has.
        self._first_needed_offset = self._needed_offset = 0
        self._running = False
        self._filters: dict[str, Callable[[str, bytes], bool]] = {}
        self._settled: dict[str, Callable[[int], bool]] = {}
        self._handled: set[int] = set()  # delivered by an earlier run since the checkpoint
        self._handled_until = 0
        self.pending = pending
        self.lateness = DeliveryLateness()
        self.queue_offset = 0
        self.read_time = 0
        self.scan_from = 0
        self.enqueued = self.dequeued = 0
        self.is_changed = False  # since the last checkpoint
        self._is_slot_touched = False  # something of the slot at hand was delivered

    # --- life

    def settle(self, *, queue_offset: int, read_time: int, scan_from: int, handled: set[int]) -> None:
        """Take over where an earlier run ended; `handled` are the physical offsets of what it delivered since."""
        self.queue_offset = queue_offset
        self.read_time = read_time - read_time % self._precision_ms
        self.scan_from = scan_from
        self._handled = handled
        self._handled_until = self._clock.now_ms() if handled else 0

    def set_filter(
        self,
        topic: str,
        is_wanted: Callable[[str, bytes], bool],
        is_settled: Callable[[int], bool] = lambda physical_offset: False,
    ) -> None:
        """Leave out messages for `topic` that are due and that nobody wants: is_settled(physical offset) is asked
        first, before the message is read, then is_wanted(tag, body).
        """
        self._filters[topic] = is_wanted
        self._settled[topic] = is_settled

    def start(self) -> None:
        self._running = True
        self._first_needed_offset = self._needed_offset = self._queue_end
        if self._files.wheel.exists:
            self._enter(self.read_time or self._floor(self._clock.now_ms()))
            self._arm(self._clock.now_ms())
        self._want_enqueue()

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- enqueue

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A message became readable; of interest are those of the timer topic."""
        if topic == WHEEL_TIMER_TOPIC:
            self.messages_came()

    def messages_came(self, pause_s: float = 0.0) -> None:
        """There are new messages in the timer topic; they may be readable only after this. None of them is due
        within `pause_s`: so long they may wait for others, to be given their units together."""
        if self._running:
            self._want_enqueue(pause_s, pause_s)

    def _want_enqueue(self, delay_s: float = 0.0, pause_s: float = 0.0) -> None:
        """`pause_s` of the delay is given up when somebody asks for less."""
        if self._enqueuing is None:
            self._enqueuing = self._clock.call_later(delay_s, self._enqueue)
        elif pause_s < self._pause_s:
            self._enqueuing.cancel()
            self._enqueuing = self._clock.call_later(delay_s, self._enqueue)
        else:
            return
        self._pause_s = pause_s

    def _enqueue(self) -> None:
        """Give the messages that arrived their units."""
        if self._enqueuing is not None:
            self._enqueuing.cancel()
            self._enqueuing = None
        queue = self._store.queues.get((WHEEL_TIMER_TOPIC, 0))
        if queue is None or not self._running:
            return
        self.queue_offset = max(self.queue_offset, queue.min_offset)
        if isinstance(queue, ConsumeQueue) and self._enqueue_run(queue):
            if self.queue_offset < queue.readable_max:
                self._want_enqueue()
            return
        for _ in range(ENQUEUES_PER_PASS):
            if self.queue_offset >= queue.readable_max:
                return
            entry = queue.entry(self.queue_offset)
            if entry is not None:
                try:
                    self._enqueue_one(entry[0], entry[1])
                except StoreError as error:
                    if not self._is_full:
                        log.error("timer messages wait for their place in the wheel: %s; trying again", error)
                    self._is_full = True
                    self._want_enqueue(ERROR_PAUSE_S)
                    return
                self._is_full = False
            self.queue_offset += 1
            self.is_changed = True
            if self.queue_offset == self._needed_offset and self._slot is not None:
                self._arm(self._clock.now_ms())
        self._want_enqueue()

    def _enqueue_run(self, queue: ConsumeQueue) -> bool:
        """Give a run of messages their units, as far as they are ordinary; returns whether there was any."""
        count = min(ENQUEUES_PER_PASS, queue.readable_max - self.queue_offset)
        if self._handled or count <= 0:
            return False
        entries = queue.entries(self.queue_offset, count)
        looked = self._runs.look([entry[0] for entry in entries], self._precision_ms)
        now = self._clock.now_ms()
        units = [
            self._unit(now, out_ms, due_ms, cancels, physical_offset, size, topic_hash)
            for (physical_offset, size, _), (out_ms, due_ms, cancels, _, topic_hash) in zip(
                entries, looked, strict=False
            )
        ]
        added = self._files.add_run(units) if units else 0
        if not added:
            return False
        self._note(units[:added], [look[3] for look in looked], now)
        before, self.queue_offset = self.queue_offset, self.queue_offset + added
        self._is_full = False
        self.is_changed = True
        if before < self._needed_offset <= self.queue_offset:
            self._arm(now)
        return True

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
        """The unit of one message, in the slot in which it waits first."""
        write_time = self._floor(now)
        if self._slot is None:
            self._enter(write_time)
        magic, slot_time = DEFAULT, self._floor(out_ms)
        window = self._files.window_ms
        if slot_time - write_time >= window:
            magic |= ROLL
            rest = slot_time - write_time - window
            slot_time = self._floor(write_time + (window // 2 if rest < window // 3 else window))
        if cancels:
            magic |= DELETE
        slot_time = max(slot_time, self.read_time)
        delay = max(-_DELAY_MAX, slot_time - write_time)
        return TimerUnit(-1, magic, slot_time - delay, delay, physical_offset, size, topic_hash, due_ms)

    def _note(self, units: Sequence[TimerUnit], topics: Sequence[str], now: int) -> None:
        """These units are in the wheel: count them, and have them delivered in time."""
        self.enqueued += len(units)
        first_due = self.read_time + self._precision_ms
        counts: dict[str, int] = {}
        for unit, topic in zip(units, topics, strict=False):
            if not unit.magic & DELETE:
                counts[topic] = counts.get(topic, 0) + 1
            slot_time = unit.slot_time
            for slot in (self._slot, self._next):
                if slot is not None and slot.time_ms == slot_time:
                    slot.add(unit)
            if slot_time == self.read_time:
                first_due = min(first_due, unit.due_ms) if unit.magic == DEFAULT else now
        for topic, count in counts.items():
            self.pending.add(topic, count, now)
        self._arm(max(now, first_due))

    @property
    def _queue_end(self) -> int:
        queue = self._store.queues.get((WHEEL_TIMER_TOPIC, 0))
        return queue.max_offset if queue is not None else 0

    def _enqueue_one(self, physical_offset: int, size: int) -> None:
        if physical_offset in self._handled:
            return  # stored again or delivered since the checkpoint, before its unit was safe
        message = self._read(physical_offset)
        if message is None:
            return
        out_ms = number(message.properties.get(TIMER_OUT_MS))
        if out_ms is None:
            log.error("the timer message at %d has no %s; it is skipped", physical_offset, TIMER_OUT_MS)
            return
        due = due_time(
            message.properties,
            out_ms,
            store_timestamp=message.store_timestamp,
            precision_ms=self._precision_ms,
        )
        topic = message.properties.get(REAL_TOPIC, "")
        cancels = TIMER_DELETE_KEY in message.properties
        now = self._clock.now_ms()
        unit = self._unit(now, out_ms, due, cancels, physical_offset, size, java_hash(topic))
        self._files.add(unit.slot_time, unit)
        self._note((unit,), (topic,), now)

    def _read(self, physical_offset: int) -> WaitingMessage | None:
        data = self._store.read_record(physical_offset)
        if data is None:
            log.warning("the record of the timer message at %d is gone; it is skipped", physical_offset)
            return None
        try:
            return WaitingMessage(data)
        except MalformedRecord as error:
            log.error("the timer message at %d cannot be read and is skipped: %s", physical_offset, error)
            return None

    def _floor(self, time_ms: int) -> int:
        return time_ms - time_ms % self._precision_ms

    # --- the slots in memory

    def _enter(self, time_ms: int) -> None:
        """Make the slot of a time the one that is delivered."""
        following = self._next
        self._slot = (
            following if following is not None and following.time_ms == time_ms else self._open(time_ms)
        )
        self._next = self._open(time_ms + self._precision_ms)
        if time_ms != self.read_time:
            self.read_time = time_ms
            # What was delivered of a slot is behind the read time only now: RocketMQ goes by that alone.
            self.is_changed = self.is_changed or self._is_slot_touched
            self._is_slot_touched = False
            if self._handled_until and time_ms > self._handled_until and not self.behind_messages:
                self._handled.clear()
                self._handled_until = 0
            if not self._handled_until:
                self.scan_from = self._store.appended

    def _open(self, time_ms: int) -> WaitingSlot:
        slot = self._files.slot(time_ms)
        chain = None if slot is None else self._files.log.chain(slot.last, time_ms, self._precision_ms)
        return WaitingSlot(
            time_ms,
            chain,
            latest_ms=time_ms + 2 * self._precision_ms,
            due_of=self._due_of,
            delete_key_of=self._delete_key_of,
        )

    def _due_of(self, unit: TimerUnit) -> int:
        """For units that RocketMQ wrote: look into the message."""
        end = self._floor(unit.slot_time) + self._precision_ms
        data = self._store.read_record(unit.physical_offset)
        if data is None:
            return end
        try:
            message = WaitingMessage(data)
        except MalformedRecord:
            return end
        out_ms = number(message.properties.get(TIMER_OUT_MS))
        if out_ms is None:
            return end
        return due_time(
            message.properties,
            out_ms,
            store_timestamp=message.store_timestamp,
            precision_ms=self._precision_ms,
        )

    def _delete_key_of(self, unit: TimerUnit) -> str | None:
        message = self._read(unit.physical_offset)
        if message is None:
            return None
        offset = message.properties.get(TIMER_DELETE_OFFSET)
        return f"@{offset}" if offset else cancelled_key(message.properties)

    # --- delivery

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        self._due_ms = due_ms
        self._timer = self._clock.call_later(max(0, due_ms - self._clock.now_ms()) / 1000, self._run)

    def _run(self) -> None:
        """Deliver what is due and set the timer for the rest."""
        self._timer = None
        if not self._running or self._slot is None:
            return
        try:
            due_ms = self._work()
        except StoreError as error:
            log.error("timer messages are due and cannot be stored: %s; trying again", error)
            due_ms = self._clock.now_ms() + round(ERROR_PAUSE_S * 1000)
        self._arm(due_ms)

    def _work(self) -> int:
        """One pass. Returns when the next one is due. Raises StoreError; nothing is lost then."""
        budget = DELIVERIES_PER_PASS
        skips = EMPTY_SLOTS_PER_PASS
        while budget > 0 and skips > 0:
            slot, now = self._slot, self._clock.now_ms()
            assert slot is not None
            if self.queue_offset < self._first_needed_offset:
                return now + round(ERROR_PAUSE_S * 1000)  # _enqueue() comes back earlier
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
            if not slot.is_done or now < end:
                self._load_next()
                due = slot.next_due_ms
                return min(end, due or end) if now < end else due or end
            if self.queue_offset < self._needed_offset:
                return now + round(ERROR_PAUSE_S * 1000)
            skips -= 1
            if not skips and self._files.slot(end) is None:
                end = self._next_used(end, now)
            self._enter(end)
        return self._clock.now_ms()

    def _next_used(self, time_ms: int, now: int) -> int:
        """The first slot from a time on that was ever used; the present one when none is before it."""
        later = (slot.time_ms for slot in self._files.wheel.slots() if slot.time_ms >= time_ms)
        return max(time_ms, min(self._floor(now), *later, self._floor(now)))

    def _load_next(self) -> None:
        """While nothing is due: read the next slot from the disk."""
        following = self._next
        if following is not None and not following.is_loaded and following.load(LOADS_PER_PASS):
            self._warm(following.offsets())

    def _deliver_run(self, slot: WaitingSlot, now: int) -> bool:
        """Deliver a run of what is due; returns whether anything was done."""
        if slot.deleted or self._handled:
            return False  # each message is to be looked at
        self.is_changed = self._is_slot_touched = True
        waiting = slot.take_due(now, RUN_MAX)
        count = settled = 0
        try:
            for topic, is_settled in self._settled.items():
                wanted = [key for key in waiting if not is_settled(key & OFFSET_MASK)]
                if len(wanted) < len(waiting):
                    settled += len(waiting) - len(wanted)
                    self.pending.add(topic, len(wanted) - len(waiting), now)
                    waiting = wanted
            sources = [key & OFFSET_MASK for key in waiting]
            result = self._runs.run(sources, (self._precision_ms, now))
            count, fault = result.delivered_count, result.fault
        finally:
            slot.put_back(waiting[count:])
        self.dequeued += count + settled
        if count:
            self.lateness.add_all([now - (key >> OFFSET_BITS) for key in waiting[:count]])
            for topic, message_count, _, _ in result.appended:
                self.pending.add(topic, -message_count, now)
        if fault is not None:
            self._arm(now + round(ERROR_PAUSE_S * 1000))
            raise fault
        return count + settled > 0

    def _deliver(self, slot: WaitingSlot, physical_offset: int, due: int, now: int) -> None:
        self.is_changed = self._is_slot_touched = True
        if physical_offset in self._handled:
            self._handled.discard(physical_offset)
            return
        for topic, is_settled in self._settled.items():
            if is_settled(physical_offset):
                self.dequeued += 1
                self.pending.add(topic, -1, now)
                return
        message = self._read(physical_offset)
        if message is None:
            return
        properties = message.properties
        topic = properties.get(REAL_TOPIC, "")
        if slot.deleted and self._is_deleted(slot, message):
            self.pending.add(topic, -1, now)
            return
        is_wanted = self._filters.get(topic)
        if is_wanted is not None and not is_wanted(properties.get("TAGS", ""), message.body):
            self.dequeued += 1
            self.pending.add(topic, -1, now)
            return
        enqueued = self._floor(message.store_timestamp)
        added = f"{TIMER_ENQUEUE_MS}\x01{enqueued}\x02{TIMER_DEQUEUE_MS}\x01{now}\x02"
        try:
            topic, size = self._redelivery.deliver(message, added.encode())
        except (ValueError, UsageError, RecordInvalid) as error:
            log.error(
                "the timer message at %d cannot be delivered and is skipped: %s", physical_offset, error
            )
            self.pending.add(topic, -1, now)
            return
        self._stats.topic_put(topic, 1, size)
        self.dequeued += 1
        self.lateness.add(now - due)
        self.pending.add(topic, -1, now)

    @staticmethod
    def _is_deleted(slot: WaitingSlot, message: WaitingMessage) -> bool:
        return not slot.deleted.isdisjoint((waiting_key(message.properties), f"@{message.physical_offset}"))

    def _roll(self, physical_offset: int) -> None:
        """Store a message again whose time is beyond the window of its last enqueue."""
        self.is_changed = self._is_slot_touched = True
        if physical_offset in self._handled:
            self._handled.discard(physical_offset)
            return
        message = self._read(physical_offset)
        if message is None:
            return
        properties = message.properties
        if TIMER_DELIVER_MS not in properties and TIMER_ROLL_TIMES not in properties:
            # From here on a delay can no longer be counted from the time of storing.
            out_ms = number(properties.get(TIMER_OUT_MS)) or 0
            properties[TIMER_DELIVER_MS] = str(
                due_time(
                    properties,
                    out_ms,
                    store_timestamp=message.store_timestamp,
                    precision_ms=self._precision_ms,
                )
            )
        properties[TIMER_ROLL_TIMES] = str((number(properties.get(TIMER_ROLL_TIMES)) or 0) + 1)
        text = encode_properties(properties).encode(errors="surrogateescape")
        self._store.append(message.message(WHEEL_TIMER_TOPIC, 0, text))
        self._needed_offset = self._queue_end
        self.pending.add(properties.get(REAL_TOPIC, ""), -1, self._clock.now_ms())

    # --- the end

    def waiting_in(self, slot_time: int) -> set[int] | None:
        """Physical offsets of what waits in the slot at hand; None for another one, or before it is loaded."""
        slot = self._slot
        if slot is None or slot.time_ms != slot_time or not slot.is_loaded:
            return None
        return {*slot.offsets(), *slot.rolls} - self._handled

    def waiting_of_this_slot(self) -> list[TimerUnit] | None:
        """Units for what is not delivered yet of the slot at hand, for a chain without what was delivered.

        None when the slot is not loaded or was empty: then its chain is right as it is.
        """
        slot = self._slot
        found = self._files.slot(self.read_time)
        if slot is None or not slot.is_loaded or found is None:
            return None
        left = self.waiting_in(self.read_time) or set()
        units = [
            unit
            for _, unit in self._files.log.chain(found.last, slot.time_ms, self._precision_ms)
            if unit.physical_offset in left or unit.magic & DELETE
        ]
        return units[::-1]

    # --- numbers

    @property
    def behind_messages(self) -> int:
        """Messages of the timer topic without a unit."""
        queue = self._store.queues.get((WHEEL_TIMER_TOPIC, 0))
        return max(0, queue.readable_max - self.queue_offset) if queue is not None else 0

    def delivered_until(self) -> int:
        """Everything that was due before this time, ms, is delivered; 0 while messages are without a unit."""
        if self._enqueuing is not None and self._pause_s:
            self._enqueue()  # what only waits for company
        if self.behind_messages:
            return 0
        slot = self._slot
        if slot is None:
            return self._clock.now_ms()
        if not slot.is_loaded:
            return slot.time_ms
        return slot.next_due_ms or slot.time_ms + self._precision_ms

    @property
    def behind_ms(self) -> int:
        """By how much delivery is late: since when the slot at hand should have been done."""
        if self._slot is None:
            return 0
        due = self._slot.next_due_ms
        now = self._clock.now_ms()
        late = 0 if due is None else now - due
        return max(0, late, now - self.read_time - self._precision_ms)
