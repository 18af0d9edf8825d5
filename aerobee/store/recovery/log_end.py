"""Finds the end of the log at start-up: an incomplete end after a crash is truncated; damage is refused, or skipped if
configured.

A record that cannot be read where durable data must be (below the checkpoint's bound, or with newer records behind it) is
damage, not a crash: the store refuses to start and names the bytes, unless `truncateCorruptLog`.
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.errors import StoreError
from aerobee.store.files.checkpoint import Checkpoint
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import SECTOR_BYTES, Disk
from aerobee.store.files.zeros import is_zero
from aerobee.store.log.commit_log import CommitLog
from aerobee.store.log.dispatch import DispatchRecord, Scan, ScanKind
from aerobee.store.log.log_patch import DIRECTORY, patch_log
from aerobee.store.log.log_scanner import LogScanner
from aerobee.store.queue.queue_bounds import QueueBounds
from aerobee.store.recovery.recovery_report import RecoveryReport

_SIZE_BYTES = 4  # a record begins with its size


class LogEnd:
    """Decides whether the first unreadable offset of the log is its end or damage. Blocking."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        scanner: LogScanner,
        checkpoint: Checkpoint,
        bounds: QueueBounds | None,
        report: RecoveryReport,
        *,
        disk: Disk,
        before_rebuild: Callable[[], None],
        left_out: Callable[[int, int], None],
    ) -> None:
        """`bounds`: what the checkpoint knows of the queues, None of RocketMQ's. `before_rebuild` durably marks queues
        and index as untrusted; `left_out` is called with each range of the log that no longer contains a record.
        """
        self._config = config
        self._log = log
        self._scanner = scanner
        self._checkpoint = checkpoint
        self._bounds = bounds
        self._report = report
        self._disk = disk
        self._before_rebuild = before_rebuild
        self._left_out = left_out
        self.durable = checkpoint.log_flushed  # the log is known to have reached this far
        self.cuts = False  # damaged bytes at the log's end go

    def reached(self, end: int) -> None:
        """A whole record ends at `end`: the log is known to have reached that far."""
        self.durable = max(self.durable, end)

    @property
    def has_kept_all(self) -> bool:
        """Whether every page that was written is still to be expected: no power was lost since."""
        if self._bounds is None:  # RocketMQ's, or the checkpoint is gone
            return self._report.was_clean or (not self._log.segments and self._checkpoint.log_timestamp > 0)
        is_same_boot = bool(self._bounds.boot_id) and self._bounds.boot_id == self._disk.boot_id
        return is_same_boot and not self._report.was_clean

    def judge(self, at: int, scan: Scan) -> int | None:
        """Decide about `at`, where no record can be read. Say why, or refuse when that cannot be the end of the log.

        Returns where the next record begins when the log continues behind the damage; None: it ends here.
        """
        report = self._report
        is_end = scan.kind is ScanKind.END and report.was_clean and at >= self.durable
        newer = None if is_end else self._scanner.next_record(at, newest=report.last_store_timestamp)
        # A record whose parts fit its size has that size on the disk: its zeros are no sign of a sector that is not.
        unread = at + _SIZE_BYTES if scan.size else at
        durable = self.durable
        reason = scan.reason or "nothing is there"
        damage = ""
        if at < durable:
            damage = f"the log is known to be durable up to {durable}"
        elif newer is not None and (
            self.has_kept_all or not self._is_lost_write(at, unread, newer.physical_offset)
        ):
            damage = f"a newer record stands behind it at {newer.physical_offset}"
        elif (
            self._checkpoint.has_bounds
            and scan.kind is ScanKind.BAD
            and not self._is_lost_write(at, unread, None)
        ):
            damage = "the bytes are neither a record nor what a power loss leaves behind"
        if damage and not self._config.truncate_corrupt_log:
            raise self._refusal(at, newer, f"{reason}, but {damage}")
        if damage and newer is not None:
            return self._skip(at, newer.physical_offset, reason)
        if damage:
            self.cuts = True
            report.notes.append(
                f"cut the damaged log at {self._scanner.location(at)} because truncateCorruptLog is set: {reason}, but {damage}"
            )
        elif scan.kind is not ScanKind.END:
            self.cuts = True
            report.notes.append(f"the log ends at {self._scanner.location(at)}: {reason}")
        elif newer is not None:
            report.notes.append(
                f"the log ends at {self._scanner.location(at)}: zeros; records behind it, from {newer.physical_offset} on, were "
                "never acknowledged as durable and are cut"
            )
        return None

    def _refusal(self, at: int, newer: DispatchRecord | None, why: str) -> StoreError:
        stop = newer.physical_offset if newer is not None else max(self.durable, at + 1)
        loss = (
            f"continue without these {stop - at} bytes; every whole record behind them is kept"
            if newer is not None
            else f"continue without everything behind {at}, where no whole record is left"
        )
        return StoreError(
            f"the commit log is damaged at {self._scanner.location(at)} (log bytes {at} to {stop}): {why}. Acknowledged "
            f"messages are lost there. Restore the file from a replica or a copy, or start once with "
            f"truncateCorruptLog=true to {loss}",
            path=self._scanner.path(at),
            offset=at,
        )

    def _skip(self, at: int, stop: int, reason: str) -> int | None:
        """Leave the damaged bytes out and continue behind them, as truncateCorruptLog allows."""
        log, report = self._log, self._report
        where = f"{self._scanner.location(at)} (log bytes {at} to {stop})"
        self._before_rebuild()
        if patch_log(
            log, self._disk, self._config.store_path_root_dir, at, stop, report.last_store_timestamp
        ):
            self._scanner.forget()
            self._left_out(at, stop)
            report.notes.append(
                f"left out the damaged bytes at {where} because truncateCorruptLog is set: {reason}; they are kept in "
                f"{self._config.path(DIRECTORY)}, and what is behind them is served"
            )
        else:
            report.notes.append(f"passed over the damaged bytes at {where}: {reason}")
        return stop

    def _is_lost_write(self, start: int, unread: int, stop: int | None) -> bool:
        """Whether a disk sector's share of [unread, stop) was never written: a power loss, not damage.

        `stop` None: to the end that the record at `start` claims.
        """
        segment = self._log.segment_at(start)
        if segment is None:
            return True
        file, at = segment.file, start - segment.base
        if stop is None:
            size = int.from_bytes(file.peek(at, at + 4), "big")
            last = at + (size if 0 < size <= segment.size - at else 4)
        else:
            last = stop - segment.base
        last = min(last, segment.size)
        at = unread - segment.base
        while at < last:
            end = min(last, at + SECTOR_BYTES - at % SECTOR_BYTES)
            # Also when only the first bytes of a size field are in question: they may be zero by themselves, but
            # refusing to start after an ordinary power loss would be worse.
            if is_zero(file.peek(at, end)):
                return True
            at = end
        return False
