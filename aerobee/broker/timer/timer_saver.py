"""Writes the timer's progress: a checkpoint after each timerFlushIntervalMs with changes, and at the stop.

A checkpoint says that messages below an offset of the timer topic have their unit, and that slots before a time are
delivered. So the save waits until the commit log is durable up to its end at that time: a power loss must not remove a
message or a delivery that the checkpoint includes. At a clean stop the present slot gets a chain of only the pending
messages, so that RocketMQ, which has no source pointers, continues without delivering a message twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from aerobee.broker.timer.pending_counts import PendingCounts, parse_counts
from aerobee.broker.timer.timer_service import TimerService
from aerobee.clock import Clock, Timer, in_step
from aerobee.errors import StoreError
from aerobee.store.files.disk import Disk, MappedFile
from aerobee.store.files.json_file import save_config_file
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_checkpoint import TimerCheckpoint
from aerobee.store.timer.timer_files import TimerFiles

log = logging.getLogger(__name__)

IDLE_SAVE_MS = 60_000  # maximum lag of the saved read time while there are no changes
READ_TIME_SAVE_MS = 3_000  # as RocketMQ's slaves
COPY_SAVE_BYTES = (
    16 << 20
)  # maximum lag of a slave's checkpoint behind its log, in bytes; about 0.1 s to read


class TimerSaver:
    """Saves the timer's progress. Belongs to the event loop; a thread writes the files."""

    def __init__(
        self,
        *,
        service: TimerService,
        files: TimerFiles,
        store: MessageStore,
        pending: PendingCounts,
        metrics_path: str,
        disk: Disk,
        clock: Clock,
        interval_ms: Callable[[], int],
        run_blocking: Callable[[Callable[[], None]], None],
    ) -> None:
        self._service = service
        self._files = files
        self._store = store
        self._pending = pending
        self._metrics_path = metrics_path
        self._disk = disk
        self._clock = clock
        self._interval_ms = interval_ms
        self._run_blocking = run_blocking
        self._timer: Timer | None = None
        self._saving = -1  # the generation of the files of which a checkpoint is on its way
        self._has_units = False
        self._failed = False  # a sync failed: the result of a later one is meaningless
        self.current = TimerCheckpoint()
        # What is delivered is known by a RocketMQ master's read time alone: it counts until all messages have been read.
        self._goes_by_time = False

    def start(self, current: TimerCheckpoint | None, marked_from: int) -> None:
        """Begin to save; `current` is the file's content. Deliveries from the physical offset `marked_from` on name their
        messages; -1: unknown.
        """
        self.current = replace(current or self.current, marked_from=marked_from)
        self._arm()

    def hold_until_all_are_read(self, held: bool) -> None:
        """Whether to write no checkpoint before all timer messages have been read: a RocketMQ master's read time alone says
        what is delivered."""
        self._goes_by_time = held

    def stop(self) -> None:
        """Save no more, nor what waits for its turn; save_last() follows at a clean stop."""
        self._files.revoke_saves()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = self._clock.call_later(in_step(self._clock, self._interval_ms() / 1000), self._tick)

    def _tick(self) -> None:
        self._arm()
        service = self._service
        service.progress.lateness.turn(self._clock.monotonic())
        if self.is_held:
            return
        is_idle = not self._files.wheel.exists or (
            not service.progress.is_changed
            and not self._has_old_file()
            and service.progress.read_time - self.current.read_time_ms < IDLE_SAVE_MS
        )
        if self._is_saving or self._failed or is_idle:
            return
        checkpoint = self.present()
        service.progress.saved()
        self._save_when_flushed(checkpoint, self._store.log.end)

    def _save_when_flushed(self, checkpoint: TimerCheckpoint, log_end: int) -> None:
        """Write it when the log is on the disk up to `log_end`, unless it is revoked before; then delete what it needs no more."""
        metrics, generation = self._pending.encode(checkpoint.timestamp), self._files.generation
        self._saving = generation
        old = self._detach_old_files()

        def done() -> None:
            if self._saving == generation:
                self._saving = -1

        def work() -> None:
            try:
                is_written = self._write(checkpoint, metrics, generation)
                for path, mapped in old:
                    mapped.close()
                    if is_written:
                        self._remove(path)
            finally:
                done()

        def flushed(is_durable: bool) -> None:
            if is_durable and generation == self._files.generation:
                self._run_blocking(work)
            else:
                for _, mapped in old:
                    mapped.close()
                done()

        self._store.flushed.when(log_end, flushed)
        self._store.want_flush()

    @property
    def is_held(self) -> bool:
        """Whether no checkpoint of this broker's own may be written or told yet: of messages without a unit it would not say which
        are delivered."""
        return self._goes_by_time and not self._service.progress.may_deliver

    @property
    def _is_saving(self) -> bool:
        return self._saving == self._files.generation

    # --- a slave's

    def save_copied(self, checkpoint: TimerCheckpoint, *, has_units: bool) -> None:
        """Save the checkpoint that a slave copied from its master. `has_units`: units were written since the last call.
        A slave saves as often as a master, and when a restart would have to read a large part of the log.
        """
        copied, last = checkpoint.copied_from, self.current
        assert copied is not None
        self._has_units = self._has_units or has_units
        is_near = (
            last.copied_from is not None
            and checkpoint.read_time_ms - last.read_time_ms < IDLE_SAVE_MS
            and checkpoint.scan_from - last.scan_from < COPY_SAVE_BYTES
        )
        if self._is_saving or self._failed or (is_near and not self._has_units and not self._has_old_file()):
            return
        self._has_units = False
        self._save_when_flushed(checkpoint, copied.log_end)

    def save_read_time(self, told: TimerCheckpoint) -> None:
        """A slave of a RocketMQ master has an empty wheel, and what its master says."""
        copied = told.copied_from
        assert copied is not None
        is_near = self.current.copied_from is not None and (
            told.read_time_ms - self.current.read_time_ms < READ_TIME_SAVE_MS
        )
        if self._is_saving or self._failed or is_near:
            return
        checkpoint = replace(told, log_flushed=0, queue_offset=0, scan_from=0)
        self._save_when_flushed(checkpoint, copied.log_end)

    def start_copying(self, current: TimerCheckpoint | None) -> None:
        """A slave's files were opened; `current` is what config/timercheck says."""
        self.current = current or TimerCheckpoint()

    def started_over(self) -> None:
        """A slave's files are empty: nothing of them is known to be unwritten."""
        self.current, self._failed, self._has_units = TimerCheckpoint(), False, False

    # --- the checkpoint

    def present(self) -> TimerCheckpoint:
        """The checkpoint of this moment."""
        service = self._service
        # Without a wheel nothing ever had a unit, so that no delivery has to be found.
        has_waited = self._files.wheel.exists or service.progress.behind_messages
        return TimerCheckpoint(
            read_time_ms=service.progress.read_time,
            log_flushed=self._files.log.end,
            queue_offset=service.progress.queue_offset,
            master_queue_offset=service.progress.queue_offset,
            state_version=self.current.state_version,
            timestamp=self._clock.now_ms(),
            counter=self.current.counter + 1,
            scan_from=service.progress.scan_from if has_waited else self._store.log.end,
            marked_from=self.current.marked_from,
        )

    def _write(self, checkpoint: TimerCheckpoint, metrics: bytes, generation: int | None = None) -> bool:
        if self._failed:
            return False
        try:
            if not self._files.save(checkpoint, generation):
                return False
        except OSError as error:
            if generation is not None and generation != self._files.generation:
                return False  # the files were closed meanwhile
            self._failed = True
            raise StoreError(
                f"the timer's files could not be synced: {error}. Timers continue; after a restart they are read again "
                "from the last checkpoint"
            ) from error
        self.current = checkpoint
        save_config_file(self._disk, self._metrics_path, metrics, parse_counts)
        return True

    def save_first(self) -> None:
        """Before anything is delivered, blocking; the log is on the disk. Raises StoreError."""
        checkpoint = self.present()
        self._write(checkpoint, self._pending.encode(checkpoint.timestamp))

    def save_last(self) -> None:
        """At a clean stop, blocking; nothing when there never was a timer message. Raises StoreError."""
        if self._failed or self.is_held or (not self._files.wheel.exists and not self.current.counter):
            return
        units = self._service.slots.waiting_of_this_slot()
        self._store.flush_now()
        if units:
            self._files.replace_slot(self._service.progress.read_time, units)
        checkpoint = replace(self.present(), is_closed=True)
        if units == []:
            checkpoint = replace(
                checkpoint,
                read_time_ms=checkpoint.read_time_ms + self._files.precision_ms,
                scan_from=self._store.log.end,
            )
        self._write(checkpoint, self._pending.encode(checkpoint.timestamp))

    # --- old files of the timer log

    def _has_old_file(self) -> bool:
        """Whether all slots of the oldest file have passed, by the checkpoint on the disk."""
        unit = self._files.log.last_unit(0)
        # No unit lies further ahead of its writing than the roll window.
        return unit is not None and unit.write_time + 2 * self._files.window_ms < self.current.read_time_ms

    def _detach_old_files(self) -> list[tuple[str, MappedFile]]:
        """Take such files out of the timer log. The checkpoint on the disk says that the log begins with them: until the next one is
        written they stay on the disk, or a start would take the timer log for a damaged one."""
        old = []
        while self._has_old_file():
            old.append(self._files.log.detach_first())
        return old

    def _remove(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except OSError as error:
            raise StoreError(f"{path} cannot be deleted: {error}", path=path) from error
