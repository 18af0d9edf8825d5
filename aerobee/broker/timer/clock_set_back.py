"""Corrects the due times of pending messages after the clock ran ahead and was set back. RocketMQ has no such class:
its timers wait until the clock reaches the wrong time again.

A delay is a duration: a message with a delay of 5 s, sent while the clock showed 2050, is due 5 s after the clock shows
2026 again, not in 24 years. A point in time (TIMER_DELIVER_MS) is the sender's, and does not change. Records of POP are
delays: their due time is the end of the invisible time.

Such units are in slots from the timer's read time on. Their write time is in the future now, so they are the newest
units of their slot's chain. ClockSetBack moves each to the slot of its new time: it adds a unit there, and gives the
old slot a chain without the unit. It does both in one event loop iteration, so that a checkpoint has both or neither.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.send.timer_properties import number, slot_time
from aerobee.broker.timer.slots_at_hand import SlotsAtHand, TimerMessages
from aerobee.broker.timer.timer_progress import TimerProgress
from aerobee.broker.timer.waiting_slot import WaitingSlot
from aerobee.clock import Clock, WallSteps
from aerobee.property_names import (
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_OUT_MS,
)
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DELETE, TimerUnit
from aerobee.store.timer.timer_wheel import TimerSlot
from aerobee.system_names import REVIVE_PREFIX

log = logging.getLogger(__name__)

LOOKS_PER_PASS = 256  # records, after which other tasks of the event loop run
NOTICE_MS = 2_000  # a clock that is set back by less makes nothing late by more than that


def delay_ms(properties: Mapping[str, str], due_ms: int, born_ms: int) -> int | None:
    """Requested delay of a message; None for an absolute delivery time."""
    if properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX):
        return max(0, due_ms - born_ms)
    for name, unit_ms in ((TIMER_DELAY_SEC, 1_000), (TIMER_DELAY_MS, 1)):
        if name in properties:
            value = number(properties[name])
            return None if value is None else max(0, value * unit_ms)
    return None


class ClockSetBack:
    """Moves the affected units, a few per step(), which each pass of delivery calls. Belongs to the event loop."""

    def __init__(
        self,
        *,
        slots: SlotsAtHand,
        messages: TimerMessages,
        files: TimerFiles,
        progress: TimerProgress,
        clock: Clock,
    ) -> None:
        self._slots = slots
        self._messages = messages
        self._files = files
        self._progress = progress
        self._clock = clock
        self._steps = WallSteps(clock, NOTICE_MS)
        self._is_noticed = False
        # Records of the timer topic before this physical offset may have times of the clock that was ahead.
        self.suspect_until = 0
        self._listing: Iterator[list[TimerSlot]] | None = None  # while the slots to check are searched
        self._found: list[int] = []  # by then
        self._left: list[int] = []  # slots to check, the last one first
        self._at_hand: list[
            tuple[int, int]
        ] = []  # messages of the present slot to check: due ms and physical offset
        self._new_dues: dict[int, int] = {}  # messages of the present slot: physical offset -> new due time
        self._is_slot_due = self._has_listed = False
        self.moved_count = 0

    def start(self, newest_stored_ms: int) -> None:
        """The timer starts: its clock may have been set back before."""
        slot = self._slots.slot
        self._is_noticed = self._clock.now_ms() + NOTICE_MS < max(
            newest_stored_ms, slot.time_ms if slot is not None else 0
        )
        self.suspect_until = self._progress.log_end() if self._is_noticed else 0

    def look(self) -> None:
        """Notice that the clock was set back since the last call."""
        if self._steps.went_back():
            self._is_noticed = True
            self.suspect_until = self._progress.log_end()

    def stop(self) -> None:
        """start() repeats unfinished work."""
        self._listing, self._found = None, []
        self._left, self._at_hand, self._new_dues = [], [], {}
        self._is_slot_due = self._has_listed = False

    @property
    def is_busy(self) -> bool:
        """Whether step() has more to do."""
        return self._is_noticed or self._is_slot_due or self._listing is not None or bool(self._left)

    def step(self, slot: WaitingSlot) -> None:
        """Check some of the pending messages. `slot` is the present slot, loaded. Raises StoreFull; the next step()
        then retries.
        """
        self.look()
        if self._is_noticed:
            self._begin()
        if self._is_slot_due:
            self._step_at_hand(slot)
            return
        if self._listing is not None:
            self._list(self._listing, slot)
            return
        budget = LOOKS_PER_PASS
        while self._left and budget > 0:
            budget -= self._move_from(self._left[-1])
            self._left.pop()
            if not self._left:
                self._progress.handled_is_at_hand()

    def _begin(self) -> None:
        self._is_noticed = False
        self._listing, self._found, self._left = self._files.wheel.slot_pieces(), [], []
        self._at_hand, self._new_dues = [], {}
        self._is_slot_due, self._has_listed = True, False

    def _list(self, pieces: Iterator[list[TimerSlot]], slot: WaitingSlot) -> None:
        """Find the used slots of the next piece. Later messages of a slot were written with the present clock."""
        piece = next(pieces, None)
        if piece is not None:
            self._found += [each.time_ms for each in piece if each.time_ms > slot.time_ms]
            return
        self._left, self._found, self._listing = sorted(self._found, reverse=True), [], None
        log.warning(
            "the clock was set back: delays that began before count from now; %d slots of the timer are looked at",
            len(self._left) + 1,
        )

    def _step_at_hand(self, slot: WaitingSlot) -> None:
        now = self._clock.now_ms()
        if not self._has_listed:
            self._at_hand, self._has_listed = slot.waiting_after(now), True
        for due_ms, physical_offset in self._at_hand[-LOOKS_PER_PASS:]:
            new_due = self._new_due_of(physical_offset, due_ms, now)
            if new_due is not None:
                self._new_dues[physical_offset] = new_due
        del self._at_hand[-LOOKS_PER_PASS:]
        if not self._at_hand:
            self.moved_count += slot.move(self._new_dues)
            self._new_dues, self._is_slot_due, self._has_listed = {}, False, False

    def _new_due_of(self, physical_offset: int, due_ms: int, now_ms: int) -> int | None:
        """Due time of a message by the new clock; None to leave it where it is. `due_ms` 0: its record says it."""
        message = self._messages.read(physical_offset)
        out_ms = number(message.properties.get(TIMER_OUT_MS)) if message is not None else None
        if message is None or out_ms is None:
            return None
        return self.new_due(message, self._messages.due_time(message, out_ms), now_ms, due_ms)

    def new_due(self, message: WaitingMessage, first_due_ms: int, now_ms: int, due_ms: int = 0) -> int | None:
        """New due time of a message that was first due at `first_due_ms`, and now at `due_ms`; None for no change."""
        delay = delay_ms(message.properties, first_due_ms, message.born_timestamp)
        if delay is None or (due_ms or first_due_ms) <= now_ms + delay + NOTICE_MS:
            return None
        return now_ms + delay

    def _move_from(self, time_ms: int) -> int:
        """Move what of a slot was written by the clock that was ahead. Returns how many records were read."""
        now, files, progress = self._clock.now_ms(), self._files, self._progress
        found, at_hand = files.slot(time_ms), self._slots.slot
        if found is None or at_hand is None or time_ms <= at_hand.time_ms:
            return 0
        chain = [unit for _, unit in files.log.chain(found.last, time_ms, files.precision_ms)]
        looked = 0
        moved: list[TimerUnit] = []
        gone: set[int] = set()  # messages that an earlier run delivered while the clock was ahead
        for unit in chain:
            if not unit.magic & DELETE and progress.was_handled(unit.physical_offset):
                gone.add(unit.physical_offset)
                continue
            if unit.write_time <= now and not progress.has_handled:
                break  # it and those before it were written before the clock ran ahead
            if unit.write_time <= now or unit.magic & DELETE:
                continue
            looked += 1
            new_due = self._new_due_of(unit.physical_offset, unit.due_ms, now)
            if new_due is None:
                continue
            out_ms = slot_time(new_due, files.precision_ms)
            again = self._slots.unit(
                now, out_ms, new_due, unit.physical_offset, unit.message_size, unit.topic_hash
            )
            # A message that will be stored again before its delivery gets its new time then.
            if again.slot_time != time_ms:
                moved.append(again)
        gone.update(unit.physical_offset for unit in moved)
        if gone:
            left = [unit for unit in chain[::-1] if unit.physical_offset not in gone or unit.magic & DELETE]
            files.move(time_ms, moved, left or [_no_unit(chain[0])])
            self._slots.moved(time_ms, moved)
            self.moved_count += len(moved)
        return looked


def _no_unit(unit: TimerUnit) -> TimerUnit:
    """For a chain without any message, in the slot of `unit`: with no chain the old units would be found again after a crash."""
    return unit._replace(magic=DELETE)
