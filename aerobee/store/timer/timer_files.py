"""The timer's files: wheel, log and checkpoint, and their recovery to a consistent state after a crash.

Follows the recovery of TimerMessageStore of RocketMQ, with one difference: recovery drops units behind the checkpoint's
log position and reads their messages again from the timer topic, because any subset of their pages may survive a power
loss. A checkpoint that RocketMQ wrote does not say exactly which messages have their unit; then recovery keeps whole
units behind it, as RocketMQ does.

Data covered by a checkpoint is written to disk before it: units, then slots, then the checkpoint file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from aerobee.errors import StoreFull
from aerobee.store.files.config import TIMER_WHEEL_SLOTS, StoreConfig
from aerobee.store.files.disk import Disk
from aerobee.store.timer.timer_checkpoint import ROCKETMQ, CopiedFrom, TimerCheckpoint, TimerCheckpointFile
from aerobee.store.timer.timer_log import (
    DELETE,
    UNIT,
    UNIT_BYTES,
    UNIT_TIMES,
    UNITS_PER_STEP,
    TimerLog,
    TimerUnit,
)
from aerobee.store.timer.timer_wheel import TimerSlot, TimerWheel

_NO_POSITION = -1
_logger = logging.getLogger(__name__)


class TimerFiles:
    """The timer's files. `slot_count` is the wheel's size in slots, half of the file's slots. One thread, except
    save().
    """

    def __init__(self, config: StoreConfig, disk: Disk, *, slot_count: int = TIMER_WHEEL_SLOTS) -> None:
        self.precision_ms = config.timer_precision_ms
        self.window_ms = config.timer_roll_window_slot * self.precision_ms
        self.wheel = TimerWheel(
            config.path("timerwheel"), disk, precision_ms=self.precision_ms, slot_count=slot_count
        )
        self.span_ms = self.wheel.slot_count * self.precision_ms  # after which a slot is used again
        self.log = TimerLog(config.path("timerlog"), config.mapped_file_size_timer_log, disk)
        self._checkpoints = TimerCheckpointFile(disk, config.path("config", "timercheck"))
        self._synced = 0
        self._writing = threading.Lock()  # of the checkpoint
        self.generation = 0  # of what the files say: a checkpoint of an earlier one is not written any more
        self.rebuilt_from: TimerCheckpoint | None = None  # the one of a timer log that was damaged

    def load(
        self, *, log_end: int, queue_max: int, queue_offset_of: Callable[[int], int | None]
    ) -> TimerCheckpoint | None:
        """As opening(), blocking."""
        steps = self.opening(log_end=log_end, queue_max=queue_max, queue_offset_of=queue_offset_of)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                checkpoint: TimerCheckpoint | None = end.value
                return checkpoint

    def opening(
        self, *, log_end: int, queue_max: int, queue_offset_of: Callable[[int], int | None]
    ) -> Generator[None, None, TimerCheckpoint | None]:
        """Open the files and recover them, in steps of some milliseconds. Returns None when there never was a timer
        message.

        Nothing else uses the files meanwhile. An incomplete write leaves the same state as a crash: call close(), then
        start again.

        `log_end` and `queue_max` are the ends of the commit log and of the timer topic's queue; `queue_offset_of`
        returns the queue offset of the timer record at a physical offset. Raises ConfigError, StoreError, OSError.
        """
        self.rebuilt_from = None
        self._synced = 0
        checkpoint = self._checkpoints.read()
        if (
            checkpoint is not None
            and (copied := checkpoint.copied_from) is not None
            and copied.log_end > log_end
        ):
            _logger.warning(
                "the copied timer checkpoint belongs to a log of %d bytes, and this log has %d: timer messages are read again",
                copied.log_end, log_end,
            )  # fmt: skip
            self._checkpoints.remove()
            checkpoint = None
        if (
            checkpoint is not None
            and checkpoint.copied_from is not None
            and checkpoint.copied_from.source == ROCKETMQ
        ):
            return (yield from self._of_rocketmq(checkpoint, checkpoint.copied_from, log_end))
        self.log.load(checkpoint.log_file_size if checkpoint is not None else self.log.file_size)
        wheel_fault = self.wheel.load()
        fault = "" if checkpoint is None else (yield from self._log_fault(checkpoint))
        if checkpoint is not None and fault:
            _logger.warning(
                "the timer log is damaged (%s): every timer message in the commit log is read "
                "again, and delivered ones are skipped",
                fault,
            )
            # First the checkpoint, then the files: a start that ends in between begins this again.
            self.rebuilt_from = checkpoint
            fresh = replace(
                TimerCheckpoint(read_time_ms=checkpoint.read_time_ms, scan_from=0),
                log_file_size=self.log.file_size,
                marked_from=checkpoint.marked_from,
            )
            self._checkpoints.write(fresh)
            self.log.clear()
            yield from self._mend(0, log_end)
            return fresh
        if checkpoint is None:
            # No message is known to have a unit: all are read again from the queue.
            if self.log.fault:
                self.log.clear()
            yield from self.log.setting_end(self.log.min_position)
            yield from self._mend(0, log_end)
            return None
        end = max(self.log.min_position, checkpoint.log_flushed)
        queue_offset = checkpoint.queue_offset
        if checkpoint.scan_from < 0:
            end, queue_offset = yield from self._adopt(end, queue_offset, queue_offset_of)
        yield from self.log.setting_end(end)
        settled = replace(
            checkpoint, log_flushed=end, queue_offset=min(queue_offset, queue_max), is_closed=False
        )
        changed = yield from self._mend(checkpoint.read_time_ms, log_end)
        if checkpoint.is_closed and queue_offset <= queue_max:
            self._checkpoints.write(settled)  # from here on slots change
            if changed or wheel_fault:
                _logger.warning(
                    "the timer wheel was damaged (%s): %d of its slots were written again from the timer log",
                    wheel_fault or "slots did not match the timer log",
                    changed,
                )
        else:
            yield from self.wheel.rewriting()
        return settled

    def _of_rocketmq(
        self, told: TimerCheckpoint, copied: CopiedFrom, log_end: int
    ) -> Generator[None, None, TimerCheckpoint]:
        """There is no wheel: only the checkpoint that a RocketMQ master sent describes its timers."""
        self.log.load(self.log.file_size)
        self.wheel.load()
        self.log.clear()
        yield from self._mend(0, log_end)
        self.rebuilt_from = replace(told, queue_offset=copied.position)
        return replace(
            TimerCheckpoint(read_time_ms=told.read_time_ms, scan_from=0),
            log_file_size=self.log.file_size,
            copied_from=copied,
        )

    def _log_fault(self, checkpoint: TimerCheckpoint) -> Generator[None, None, str]:
        """Error in the part of the timer log that the checkpoint covers; empty when it is valid."""
        log, end = self.log, checkpoint.log_flushed
        if not end:
            return ""
        if log.fault:
            return log.fault
        if not log.file_count:
            return f"it is gone, though config/timercheck counts {end} bytes of it"
        if 0 <= checkpoint.log_min < log.min_position:
            return f"it began at {checkpoint.log_min}, and its first file is that of {log.min_position} now"
        whole = yield from log.finding_whole(end)
        return "" if whole >= end else f"what stands at {whole} of {end} is no unit"

    def _adopt(
        self, end: int, queue_offset: int, queue_offset_of: Callable[[int], int | None]
    ) -> Generator[None, None, tuple[int, int]]:
        """RocketMQ's units behind its checkpoint: where they end, and the next message to read."""
        last = -1
        for count, (position, unit) in enumerate(self.log.units(end), 1):
            if not count % UNITS_PER_STEP:
                yield
            end, last = position + UNIT_BYTES, unit.physical_offset
        known = queue_offset_of(last) if last >= 0 else None
        return end, max(queue_offset, known + 1) if known is not None else queue_offset

    def _mend(self, read_time_ms: int, log_end: int) -> Generator[None, None, int]:
        """Returns how many slots were changed. Make every slot still to come point to its last unit. Half a microsecond a unit, in
        steps; 2 us where slots are behind.

        A power loss keeps any of the slots written since the checkpoint, and any of those written here: nothing but
        the units says which are missing. Dying in the middle leaves work for the next start, nothing else.
        """
        changed: set[int] = set()
        for piece in self.wheel.slot_pieces():
            for slot in piece:
                unit = self.log.read(slot.last)
                if slot.time_ms >= read_time_ms and (unit is None or self._slot_of(unit) != slot.time_ms):
                    self.wheel.clear(slot.time_ms)
                    changed.add(slot.time_ms)
            yield
        if self.log.end == self.log.min_position:
            return len(changed)
        self.wheel.make()
        for position, data in self.log.unit_pieces(self.log.min_position):
            yield
            if position >= self.log.end:
                break
            if self._is_ahead_of_wheel(position, data, read_time_ms):
                yield from self._link(position, data, read_time_ms, log_end, changed)
        return len(changed)

    def _is_ahead_of_wheel(self, position: int, data: bytes, read_time_ms: int) -> bool:
        """Whether some slot may point to an older unit than its last one in these bytes of the timer log."""
        precision_ms = self.precision_ms
        positions = range(position, position + len(data), UNIT_BYTES)
        # The last unit of each slot number counts.
        last = {
            (write_time + delay_ms) // precision_ms: at
            for at, (write_time, delay_ms) in zip(positions, UNIT_TIMES.iter_unpack(data), strict=True)
        }
        for number, at in last.items():
            slot_time = number * precision_ms
            if slot_time < read_time_ms:
                continue
            known = self.wheel.get(slot_time)
            if known is None or known.last < at:
                return True
        return False

    def _link(
        self, position: int, data: bytes, read_time_ms: int, log_end: int, changed: set[int]
    ) -> Iterator[None]:
        """Link these units into slots that point to older ones, in steps; adds such slots to `changed`."""
        for count, (_, *fields) in enumerate(UNIT.iter_unpack(data)):
            if count and not count % UNITS_PER_STEP:
                yield
            at, unit = position + count * UNIT_BYTES, TimerUnit(*fields)
            if at >= self.log.end:
                return
            slot_time = self._slot_of(unit)
            if slot_time < read_time_ms or unit.physical_offset >= log_end:
                continue
            known = self.wheel.get(slot_time)
            if known is None or known.last < at:
                self.wheel.add(slot_time, at, -1 if unit.magic & DELETE else 1)
                changed.add(slot_time)

    def _slot_of(self, unit: TimerUnit) -> int:
        return unit.slot_time - unit.slot_time % self.precision_ms

    # -- use

    def add(self, slot_time: int, unit: TimerUnit) -> None:
        """Write a unit and link it into its slot; its `previous` is set here. Raises StoreFull, changing nothing."""
        self.wheel.make()
        slot = self.wheel.get(slot_time)
        position = self.log.append(unit._replace(previous=slot.last if slot is not None else _NO_POSITION))
        self.wheel.add(slot_time, position, -1 if unit.magic & DELETE else 1)

    def add_run(self, units: Sequence[TimerUnit]) -> int:
        """add() for each unit, in the slot of its time; units of one slot that follow one another are linked together.

        Returns how many were added: fewer than all when space is missing, which add() of the next one reports.
        """
        self.wheel.make()
        count = 0
        while count < len(units):
            slot_time = units[count].slot_time
            end = count + 1
            while end < len(units) and units[end].slot_time == slot_time:
                end += 1
            slot = self.wheel.get(slot_time)
            previous = slot.last if slot is not None else _NO_POSITION
            try:
                positions = self.log.append_chain(units[count:end], previous)
            except StoreFull:
                break
            added = units[count : count + len(positions)]
            step = sum(-1 if unit.magic & DELETE else 1 for unit in added)
            if slot is None:
                self.wheel.put(slot_time, positions[0], positions[-1], step)
            else:
                self.wheel.put(slot_time, slot.first, positions[-1], slot.number + step)
            count += len(added)
        return count

    def move(self, slot_time: int, moved: Sequence[TimerUnit], left: Sequence[TimerUnit]) -> None:
        """Take messages out of a slot: `moved` are their units for other slots, `left` what stays, the oldest first, one
        at least. Raises StoreFull, changing nothing.
        """
        log_end = self.log.end
        touched = {unit.slot_time for unit in moved} | {slot_time}
        slots = {time_ms: self.wheel.get(time_ms) for time_ms in touched}
        try:
            for unit in moved:
                self.add(unit.slot_time, unit)
            self.replace_slot(slot_time, list(left))
        except StoreFull:
            for time_ms, slot in slots.items():
                self.wheel.clear(time_ms)
                if slot is not None:
                    self.wheel.put(time_ms, slot.first, slot.last, slot.number)
            self.log.set_end(log_end)
            raise

    def slot(self, slot_time: int) -> TimerSlot | None:
        """The slot of a time; None when it is empty or belongs to another revolution of the wheel."""
        return self.wheel.get(slot_time)

    def replace_slot(self, slot_time: int, units: list[TimerUnit]) -> None:
        """Give a slot a chain of just these units, in this order. Raises StoreFull."""
        self.wheel.clear(slot_time)
        for unit in units:
            self.add(slot_time, unit)

    def save(self, checkpoint: TimerCheckpoint, generation: int | None = None) -> bool:
        """Make units and slots durable, then the checkpoint. Any thread, one at a time. Returns whether the checkpoint
        was written. It is not when revoke_saves() has ended its `generation` since. Raises OSError.
        """
        generation = self.generation if generation is None else generation
        if generation != self.generation:
            return False
        self.log.sync(self._synced, checkpoint.log_flushed)
        self.wheel.sync()
        log_min, file_size = self.log.min_position, self.log.file_size
        with self._writing:
            if generation != self.generation:
                return False
            self._checkpoints.write(replace(checkpoint, log_min=log_min, log_file_size=file_size))
            # The last unit's page is synced again with its adjacent pages.
            self._synced = checkpoint.log_flushed
        return True

    def saved_checkpoint(self) -> TimerCheckpoint | None:
        """The checkpoint on the disk; None without a usable one. Raises OSError."""
        return self._checkpoints.read()

    def revoke_saves(self) -> None:
        """Cancel writes of save() that have not begun. Waits for one small file at most."""
        with self._writing:
            self.generation += 1

    def starting_over(self) -> Iterator[None]:
        """Remove all files durably, the checkpoint first, in steps. If it is interrupted, opening() removes the
        remaining files. Raises OSError.
        """
        self.revoke_saves()
        self._checkpoints.remove()
        self.rebuilt_from = None  # what comes is of another master
        self.wheel.remove()
        yield
        yield from self.log.clearing()
        self._synced = 0

    def take(self, units: Sequence[TimerUnit], *, is_of_wheel: bool = False) -> None:
        """Add units of another broker's timer log, in its order: one without a previous unit begins a new chain of its slot. Units of
        its wheel have any order, and continue the chain of their slot. Raises StoreFull; some of them are added then.
        """
        if is_of_wheel:
            self._add_all(units)
            return
        begin = 0
        run_slots: set[int] = set()
        for number, unit in enumerate(units):
            slot_time = self._slot_of(unit)
            if unit.previous == _NO_POSITION and (slot_time in run_slots or self.slot(slot_time) is not None):
                self._add_all(units[begin:number])
                self.wheel.clear(slot_time)
                begin = number
                run_slots.clear()
            run_slots.add(slot_time)
        self._add_all(units[begin:])

    def _add_all(self, units: Sequence[TimerUnit]) -> None:
        while units:
            count = self.add_run(units)
            if not count:
                self.add(self._slot_of(units[0]), units[0])
                count = 1
            units = units[count:]

    def close(self) -> None:
        """Unmap wheel and log."""
        self.wheel.close()
        self.log.close()
