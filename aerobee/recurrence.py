"""The ticks of a recurring schedule: a cron expression in a time zone, or an interval, with jitter. Core.

    cron        five fields, or six with seconds first; read by cronsim (extra `schedule`), which follows Debian's cron:
                a job at a fixed time that the spring change skips runs right after the change, and one in the hour that
                the autumn change repeats runs once
    interval    every `interval_ms` from `anchor_ms` on; needs no package

A tick is a time in ms since the epoch. Its due time is the tick plus a delay below `jitter_ms`, computed from the
schedule's name and the tick: every broker computes the same one.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from aerobee.clock import MS_PER_DAY
from aerobee.errors import UsageError

INTERVAL_MS_MIN = 100
INTERVAL_MS_MAX = 3660 * MS_PER_DAY
JITTER_MS_MAX = MS_PER_DAY
CRON_BYTES_MAX = 256
ZONE_BYTES_MAX = 64
_FEW_TICKS = 8
_TICKS_KNOWN = 4_096
_STEPS_MAX = (
    10_000  # results of cronsim that may be at or before the searched time: the hour of a change of clocks
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Either `cron` or `interval_ms`. `name` only spreads the jitter."""

    name: str = ""
    cron: str = ""
    time_zone: str = "UTC"
    interval_ms: int = 0
    anchor_ms: int = 0
    jitter_ms: int = 0

    def check(self) -> None:
        """Raise UsageError for values that no broker accepts, for a cron expression without a tick in fifty years, and
        for a cron expression where cronsim is not installed."""
        if bool(self.cron) == bool(self.interval_ms):
            raise UsageError("a schedule has either a cron expression or an interval")
        if not 0 <= self.jitter_ms <= JITTER_MS_MAX:
            raise UsageError(
                f"the jitter is {self.jitter_ms} ms: 0 to {JITTER_MS_MAX} ms (a day) are possible"
            )
        if self.interval_ms:
            if not INTERVAL_MS_MIN <= self.interval_ms <= INTERVAL_MS_MAX:
                raise UsageError(
                    f"the interval is {self.interval_ms} ms: {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX} ms are possible"
                )
            return
        if len(self.cron) > CRON_BYTES_MAX:
            raise UsageError(
                f"the cron expression has {len(self.cron)} characters: at most {CRON_BYTES_MAX} are possible"
            )
        self._cron_after(self.anchor_ms)

    def next_after(self, after_ms: int) -> int:
        """The first tick behind `after_ms`. Raises UsageError as check()."""
        if not self.interval_ms:
            return self._cron_after(after_ms)
        passed = (after_ms - self.anchor_ms) // self.interval_ms
        return self.anchor_ms + (max(0, passed) + 1) * self.interval_ms

    def latest_until(self, after_ms: int, until_ms: int) -> int:
        """The last tick in (after_ms, until_ms]; the first one behind `after_ms` when none is. Raises UsageError."""
        first = self.next_after(after_ms)
        if first >= until_ms:
            return first
        if self.interval_ms:
            return until_ms - (until_ms - self.anchor_ms) % self.interval_ms
        tick, end = first, until_ms
        # A search behind the last tick is expensive where ticks are rare: up to fifty years of days. So first from tick to tick.
        for _ in range(_FEW_TICKS):
            found = self.next_after(tick)
            if found > until_ms:
                return tick
            tick = found
        # No tick lies in (end, until_ms]: the range halves with each look, however many ticks it has.
        while end - tick >= 1000:  # ticks are whole seconds
            middle = (tick + end) // 2
            found = self.next_after(middle)
            if found <= until_ms:
                tick = found
            else:
                end = middle
        return tick

    def due_ms(self, tick_ms: int) -> int:
        """When the tick is delivered."""
        if not self.jitter_ms:
            return tick_ms
        return tick_ms + zlib.crc32(f"{self.name}\0{tick_ms}".encode()) % self.jitter_ms

    def _cron_after(self, after_ms: int) -> int:
        return _tick_after(self.cron, self.time_zone, after_ms)


@lru_cache(maxsize=_TICKS_KNOWN)
def _tick_after(cron: str, time_zone: str, after_ms: int) -> int:
    """The first tick of a cron expression behind `after_ms`. Known ticks cost nothing: the search of a rare one (February 29 that
    is a Monday) reads each day of decades, some milliseconds."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise UsageError(
            "cron expressions need the package cronsim: pip install 'aerobee[schedule]'; intervals need no package"
        ) from error
    after = datetime.fromtimestamp(after_ms // 1000, zone(time_zone))
    try:
        ticks = CronSim(cron, after)
        for _ in range(_STEPS_MAX):
            tick_ms = round(next(ticks).astimezone(UTC).timestamp()) * 1000
            if tick_ms > after_ms:
                return tick_ms
    except CronSimError as error:
        raise UsageError(
            f"{cron!r} is no cron expression: {error}; it has five fields (minute, hour, day of month, month, "
            "day of week), or six with seconds first"
        ) from error
    except (StopIteration, OverflowError, ValueError) as error:
        raise UsageError(f"the cron expression {cron!r} has no tick within fifty years") from error
    raise UsageError(f"the cron expression {cron!r} has no tick behind {after_ms} ms")


def zone(name: str) -> ZoneInfo:
    """The time zone of this IANA name. Raises UsageError for an unknown name."""
    if not name or len(name) > ZONE_BYTES_MAX:
        raise UsageError(f"the time zone has {len(name)} characters: 1 to {ZONE_BYTES_MAX} are possible")
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError) as error:
        raise UsageError(
            f"the time zone {name!r} is not in this machine's time zone data: use an IANA name such as Europe/Berlin; "
            "a machine without such data needs the package tzdata"
        ) from error
