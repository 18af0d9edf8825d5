"""The pending timers of a slave, read from its copy of the master's timer wheel.

A master that returns, or a slave that becomes master, continues from a checkpoint; a slave that acts for its master delivers
pending timers without changing the timer files. The units of the wheel name the messages that wait; only the messages of the
timer topic behind the checkpoint have no unit, and only the log behind `scan_from` has deliveries that the wheel does not
reflect. So the reading does not grow with the log.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aerobee.store.timer.timer_checkpoint import ROCKETMQ, TimerCheckpoint
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.store.timer.timer_log import DELETE
from aerobee.store.timer.wheel_walk import pending_units


@dataclass(slots=True)
class PendingTimers:
    """What a slave's timer files say about pending timers. Offsets in the log are physical offsets, times ms since 1970."""

    queue_offset: int = 0  # messages of the timer topic from here on may have no unit
    scan_from: int | None = None  # deliveries from here on may be of these messages; None: unknown
    due_from_ms: int = 0  # messages that were due before are delivered, without a record that names them
    due: dict[int, int] = field(
        default_factory=dict
    )  # of each message with a unit: offset -> time, 0 for unknown
    cancelling: list[int] = field(default_factory=list)  # offsets of messages that cancel others


async def pending_timers(
    files: TimerFiles, copied: TimerCheckpoint | None, *, log_end: int
) -> PendingTimers | None:
    """Read the units of all pending timers, in steps of a millisecond; None when only the timer topic itself shows them.

    `copied` is the checkpoint that the files match now; without one, that on the disk counts: the wheel may have units of later
    messages then, which are in the timer topic behind it. Raises OSError.
    """
    checkpoint = copied if copied is not None else files.saved_checkpoint()
    if checkpoint is None or checkpoint.scan_from < 0:
        return None
    source = checkpoint.copied_from
    if source is not None and source.log_end > log_end:
        return None  # of a longer log than this one is now
    if source is not None and source.source == ROCKETMQ:
        return PendingTimers(due_from_ms=checkpoint.read_time_ms)
    pending = PendingTimers(queue_offset=checkpoint.queue_offset, scan_from=checkpoint.scan_from)
    for units in pending_units(files, read_time_ms=checkpoint.read_time_ms):
        for unit in units:
            if unit.magic & DELETE:
                pending.cancelling.append(unit.physical_offset)
            else:
                pending.due[unit.physical_offset] = unit.due_ms
        await asyncio.sleep(0)
    return pending
