"""Selects the log files to delete, and decides when the disk counts as full. Follows CleanCommitLogService of RocketMQ.
Core.

    used space of the log's disk                what happens
    above diskMaxUsedSpaceRatio (75 %)          files older than fileReservedTime go at any hour
    above diskSpaceCleanForciblyRatio (85 %)    the oldest files go whatever their age
    above diskSpaceWarningLevelRatio (90 %)     also, the store takes no messages until it is at or below 85 %

Without any of these, files older than fileReservedTime go in the hours of deleteWhen. The newest file stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aerobee.store.files.config import StoreConfig


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """Delete the oldest `delete_count` files; refuse messages while `is_full`."""

    delete_count: int
    is_full: bool


class Retention:
    """Remembers only whether the disk was full, for the hysteresis."""

    def __init__(self, config: StoreConfig) -> None:
        self._config = config
        self._is_full = False
        self._hours = {int(hour) for hour in config.delete_when.split(";") if hour}

    def reconfigure(self, config: StoreConfig) -> None:
        """Apply other settings."""
        self._config = config
        self._hours = {int(hour) for hour in config.delete_when.split(";") if hour}

    def decide(
        self,
        *,
        now_ms: int,
        local_hour: int,
        file_times_ms: Sequence[int],
        used_ratio: float,
        manual: bool,
    ) -> RetentionDecision:
        """`file_times_ms`: last change of the files that may go, oldest file first, without the newest.

        `local_hour`: 0 to 23 of now_ms where the broker runs, for deleteWhen.
        """
        config = self._config
        used_percent = used_ratio * 100
        if used_percent > config.disk_space_warning_level_ratio:
            self._is_full = True
        elif used_percent <= config.disk_space_clean_forcibly_ratio:
            self._is_full = False
        is_forced = (
            config.clean_file_forcibly_enable and used_percent > config.disk_space_clean_forcibly_ratio
        )
        is_hour = local_hour in self._hours
        count = 0
        if manual or is_forced or is_hour or used_percent > config.disk_max_used_space_ratio:
            expired_before = now_ms - config.file_reserved_time * 3_600_000
            for changed_ms in _in_order(file_times_ms, now_ms)[: config.delete_file_batch_max]:
                # Only from the front: a file between two others cannot go.
                if not is_forced and changed_ms > expired_before:
                    break
                count += 1
        return RetentionDecision(count, self._is_full)


def _in_order(file_times_ms: Sequence[int], now_ms: int) -> list[int]:
    """A file that was changed at a time to come is as old as the one behind it at least: the clock was set back since."""
    times = list(file_times_ms)
    for number in range(len(times) - 2, -1, -1):
        if times[number] > now_ms:
            times[number] = min(times[number : number + 2])
    return times
