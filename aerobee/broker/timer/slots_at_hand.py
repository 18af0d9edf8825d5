"""The slots of the wheel that are in memory: the present one, which is delivered, and the next. All others are on the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.send.timer_properties import due_time, number
from aerobee.broker.timer.delete_key import cancelled_key
from aerobee.broker.timer.timer_progress import TimerProgress
from aerobee.broker.timer.waiting_slot import WaitingSlot
from aerobee.errors import MalformedRecord
from aerobee.property_names import TIMER_OUT_MS
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DEFAULT, DELETE, ROLL, TimerUnit

log = logging.getLogger(__name__)

LOADS_PER_PASS = 1_024
SLOTS_PER_LOOK = 16_384  # at most 2 ms
_DELAY_MAX = 2**31 - 1  # of a unit, ms


class TimerMessages:
    """Reads the messages that units of the timer log point to."""

    def __init__(self, store: MessageStore, precision_ms: int) -> None:
        self._store = store
        self._precision_ms = precision_ms

    def read(self, physical_offset: int) -> WaitingMessage | None:
        """The message, or None, which is logged, when it is gone or cannot be read."""
        data = self._store.read_record(physical_offset)
        if data is None:
            log.warning("the record of the timer message at %d is gone; it is skipped", physical_offset)
            return None
        try:
            return WaitingMessage(data)
        except MalformedRecord as error:
            log.error("the timer message at %d cannot be read and is skipped: %s", physical_offset, error)
            return None

    def due_of(self, unit: TimerUnit) -> int:
        """Due time of a unit that RocketMQ wrote, read from the message."""
        end = unit.slot_time - unit.slot_time % self._precision_ms + self._precision_ms
        data = self._store.read_record(unit.physical_offset)
        if data is None:
            return end
        try:
            message = WaitingMessage(data)
        except MalformedRecord:
            return end
        out_ms = number(message.properties.get(TIMER_OUT_MS))
        return end if out_ms is None else self.due_time(message, out_ms)

    def due_time(self, message: WaitingMessage, out_ms: int) -> int:
        """The millisecond at which a message with this TIMER_OUT_MS is due."""
        return due_time(
            message.properties,
            out_ms,
            store_timestamp=message.store_timestamp,
            precision_ms=self._precision_ms,
        )

    def delete_key_of(self, unit: TimerUnit) -> str | None:
        """The message that a unit cancels; None when that cannot be read."""
        message = self.read(unit.physical_offset)
        return None if message is None else cancelled_key(message.properties)


def first_slot(out_ms: int, write_time: int, window_ms: int) -> int:
    """Time, ms, of the slot in which a message for `out_ms` waits first: beyond the roll window it is an intermediate
    slot.
    """
    rest = out_ms - write_time - window_ms
    if rest < 0:
        return out_ms
    return write_time + (window_ms // 2 if rest < window_ms // 3 else window_ms)


class SlotsAtHand:
    """The present slot and its successor. `slot` is being delivered (None before enter()) while its successor is
    prepared.
    """

    def __init__(
        self,
        files: TimerFiles,
        messages: TimerMessages,
        progress: TimerProgress,
        warm: Callable[[list[int]], None],
    ) -> None:
        """`warm` is given the physical offsets of the next slot, to bring their records into memory."""
        self._files = files
        self._messages = messages
        self._progress = progress
        self._warm = warm
        self._precision_ms = files.precision_ms
        self.slot: WaitingSlot | None = None
        self.beyond_count = 0  # number of units that unit() gave a slot further ahead than the wheel reaches
        self._next: WaitingSlot | None = None

    def forget(self) -> None:
        """Forget the slots in memory, so that the present slot is read again."""
        self.slot = self._next = None

    def slot_start(self, time_ms: int) -> int:
        """The beginning of the slot of a time."""
        return time_ms - time_ms % self._precision_ms

    def enter(self, time_ms: int) -> WaitingSlot:
        """Make the slot of a time the one that is delivered."""
        following = self._next
        self.slot = (
            following if following is not None and following.time_ms == time_ms else self._open(time_ms)
        )
        self._next = self._open(time_ms + self._precision_ms)
        self._progress.enter(time_ms)
        return self.slot

    def _open(self, time_ms: int) -> WaitingSlot:
        slot = self._files.slot(time_ms)
        chain = None if slot is None else self._files.log.chain(slot.last, time_ms, self._precision_ms)
        return WaitingSlot(
            time_ms,
            chain,
            latest_ms=time_ms + 2 * self._precision_ms,
            due_of=self._messages.due_of,
            delete_key_of=self._messages.delete_key_of,
        )

    def add(self, units: Iterable[TimerUnit]) -> None:
        """These units were added to the wheel: add those of slots in memory here, too."""
        for unit in units:
            for slot in (self.slot, self._next):
                if slot is not None and slot.time_ms == unit.slot_time:
                    slot.add(unit)

    def unit(
        self,
        now: int,
        out_ms: int,
        due_ms: int,
        physical_offset: int,
        size: int,
        topic_hash: int,
        *,
        magic: int = DEFAULT,
    ) -> TimerUnit:
        """The unit of one message, in the slot in which it waits first.

        The time of writing goes back as little as RocketMQ's: while the clock is behind the slot at hand, everything that
        is due before that slot's end waits in it. While the clock is further ahead of it than the wheel reaches,
        nothing is put where another time's messages still wait.
        """
        if self.slot is None:
            self.enter(self.slot_start(now))
        files, read_time = self._files, self._progress.read_time
        window = files.window_ms
        write_time = max(self.slot_start(now), read_time)
        time_ms = max(self.slot_start(out_ms), read_time)
        if time_ms - write_time >= window:
            magic |= ROLL
            time_ms = self.slot_start(first_slot(time_ms, write_time, window))
        if time_ms - read_time >= files.span_ms:
            self.beyond_count += 1
            if not files.wheel.is_free(time_ms, read_time):
                time_ms, magic = self._free_slot(time_ms, write_time + self._precision_ms, magic)
        delay = max(-_DELAY_MAX, min(_DELAY_MAX, time_ms - write_time))
        return TimerUnit(-1, magic, time_ms - delay, delay, physical_offset, size, topic_hash, due_ms)

    def has_other_slot(self, now: int, due_ms: int) -> bool:
        """Whether a message that is due at this time would wait in another slot than the present one now."""
        unit = self.unit(now, self.slot_start(due_ms), due_ms, 0, 0, 0)
        return unit.slot_time != self._progress.read_time

    def _free_slot(self, time_ms: int, soon_ms: int, magic: int) -> tuple[int, int]:
        """Slot of a message whose regular slot is occupied: an earlier one, from which it is stored again, or the
        present slot when the message is due or no slot is free. Returns the slot's time and the unit's magic.
        """
        wheel, read_time = self._files.wheel, self._progress.read_time
        for earlier in range(time_ms - self._precision_ms, soon_ms, -self._precision_ms):
            if wheel.is_free(earlier, read_time):
                return earlier, magic | ROLL
        return read_time, magic

    def moved(self, time_ms: int, units: Iterable[TimerUnit]) -> None:
        """These units were moved from the slot of a time, not the present one, to the slots of their times."""
        following = self._next
        if following is not None and following.time_ms == time_ms:
            self._next = self._open(time_ms)
        self.add(unit for unit in units if unit.slot_time != time_ms)

    def load_next(self) -> None:
        """Read the next slot from the disk, while no message is due."""
        following = self._next
        if following is not None and not following.is_loaded and following.load(LOADS_PER_PASS):
            self._warm(following.offsets())

    def next_used(self, time_ms: int, now_ms: int) -> int:
        """The first used slot from a time on, or an empty one before it after a search of SLOTS_PER_LOOK slots; the
        present slot when none is before it.
        """
        wheel, present = self._files.wheel, self.slot_start(now_ms)
        if present - time_ms < self._files.span_ms:
            found = wheel.first_used(time_ms, SLOTS_PER_LOOK)
        else:  # the last look is longer ago than the wheel reaches
            found = min((slot.time_ms for slot in wheel.slots() if slot.time_ms >= time_ms), default=present)
        return max(time_ms, min(present, found))

    def waiting_in(self, slot_time: int) -> set[int] | None:
        """Physical offsets of the messages that wait in the present slot; None for another slot, or before it is
        loaded.
        """
        slot = self.slot
        if slot is None or slot.time_ms != slot_time or not slot.is_loaded:
            return None
        return self._progress.without_handled({*slot.offsets(), *slot.rolls})

    def waiting_of_this_slot(self) -> list[TimerUnit] | None:
        """Units of the undelivered messages of the present slot, for a new chain without the delivered ones.

        None when the slot is not loaded or was empty: then its chain is right as it is.
        """
        slot, read_time = self.slot, self._progress.read_time
        found = self._files.slot(read_time)
        if slot is None or not slot.is_loaded or found is None:
            return None
        left = self.waiting_in(read_time) or set()
        units = [
            unit
            for _, unit in self._files.log.chain(found.last, slot.time_ms, self._precision_ms)
            if unit.physical_offset in left or unit.magic & DELETE
        ]
        return units[::-1]
