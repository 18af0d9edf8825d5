"""Encodes a master's reply to GET_TIMER_CHECK_POINT (60), by which slaves copy its timers, and the request of an
Aerobee slave. Core.

RocketMQ's slaves send no fields and read the 56 bytes of the checkpoint. Aerobee's slaves name in the request the timer
log that they copy, and the end of their copy. In the reply, the next units of that timer log follow the 56 bytes, 52
bytes each:

    request   aerobeeTimerLog: number of the timer log, 0 for none | aerobeePosition: where the copy ends
              aerobeeWalk: of the answer before, while the wheel is read
    answer    the same, of the units that come | aerobeeNext: behind them | aerobeeLogEnd: where the commit log ends now
              aerobeeScanFrom, aerobeeMarkedFrom: as in TimerCheckpoint | aerobeeWhole: there are no more units now

A slave that has nothing of this timer log first receives the pending units of the wheel (store/timer/wheel_walk.py),
not the log, because most of the log's units belong to past slots. Such a reply has aerobeeWheel: first or next. Its
aerobeePosition is the position in the log from which the slave copies after the wheel. The last of these replies has no
aerobeeWalk.

Invariant: a reply with aerobeeWhole equals the checkpoint that the master would write at this moment, given all units
before aerobeeNext. So a broker that has these units, and the commit log up to aerobeeLogEnd, continues from the reply
as the master would after a crash. The timer log's number changes with each mastership, because equal positions of two
timer logs hold different units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from aerobee.errors import MalformedFrame
from aerobee.store.timer.timer_checkpoint import FIELDS, TimerCheckpoint, decode_timer_checkpoint
from aerobee.store.timer.timer_log import MAGIC_MAX, UNIT, UNIT_BYTES, TimerUnit

SOURCE, POSITION, NEXT = "aerobeeTimerLog", "aerobeePosition", "aerobeeNext"
WALK, WHEEL = "aerobeeWalk", "aerobeeWheel"
WHEEL_FIRST, WHEEL_NEXT = "first", "next"
LOG_END, SCAN_FROM, WHOLE = "aerobeeLogEnd", "aerobeeScanFrom", "aerobeeWhole"
MARKED_FROM = "aerobeeMarkedFrom"
NOT_RUNNING = {SOURCE: "0"}
_OFFSET_MAX = 2**63
UNITS_MAX = 4_096  # of one answer; 208 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerStatement:
    """One answer. `units` lie in [position, next_position) of the timer log `source`."""

    source: int
    position: int
    next_position: int
    units: bytes
    checkpoint: TimerCheckpoint
    log_end: int  # physical offset: where the commit log ended
    is_whole: bool
    wheel: str = ""  # WHEEL_FIRST and so on: the units are of the wheel
    walk: str = ""  # begin of the next part of the wheel; empty after the last part

    def encode(self) -> tuple[dict[str, str], bytes]:
        """Fields and body of the answer."""
        fields = {
            SOURCE: str(self.source),
            POSITION: str(self.position),
            NEXT: str(self.next_position),
            LOG_END: str(self.log_end),
            SCAN_FROM: str(self.checkpoint.scan_from),
        }
        if self.checkpoint.marked_from >= 0:
            fields[MARKED_FROM] = str(self.checkpoint.marked_from)
        if self.is_whole:
            fields[WHOLE] = "true"
        if self.wheel:
            fields[WHEEL] = self.wheel
        if self.walk:
            fields[WALK] = self.walk
        return fields, self.checkpoint.fields() + self.units

    def timer_units(self) -> list[TimerUnit]:
        """The units, in order. Raises MalformedFrame."""
        units: list[TimerUnit] = []
        for size, *fields in UNIT.iter_unpack(self.units):
            unit = TimerUnit(*fields)
            if size != UNIT_BYTES or not 0 < unit.magic <= MAGIC_MAX:
                raise MalformedFrame(
                    f"unit {len(units)} of the master's timer log has size {size}, magic {unit.magic}"
                )
            if not 0 <= unit.physical_offset < self.log_end or not 0 <= unit.slot_time < _OFFSET_MAX:
                raise MalformedFrame(
                    f"unit {len(units)} of the master's timer log names the record at {unit.physical_offset} and the time "
                    f"{unit.slot_time}; the log ends at {self.log_end}"
                )
            units.append(unit)
        return units


def decode_statement(fields: Mapping[str, str], body: bytes) -> TimerStatement | None:
    """Read an answer; None for one without units: RocketMQ's, or of a broker whose timer does not run (NOT_RUNNING). Raises
    MalformedFrame.
    """
    if fields.get(SOURCE, "0") == "0":
        return None
    source, position, next_position, log_end, scan_from = (
        _number(fields, name) for name in (SOURCE, POSITION, NEXT, LOG_END, SCAN_FROM)
    )
    marked_from = _number(fields, MARKED_FROM) if MARKED_FROM in fields else -1
    units = body[FIELDS.size :]
    if len(body) < FIELDS.size or len(units) % UNIT_BYTES or len(units) > UNITS_MAX * UNIT_BYTES:
        raise MalformedFrame(
            f"the master's timer checkpoint has {len(body)} bytes: it must be {FIELDS.size} plus at most {UNITS_MAX} units of {UNIT_BYTES}"
        )
    wheel, walk = fields.get(WHEEL, ""), fields.get(WALK, "")
    is_short = not wheel and next_position - position < len(units)
    if wheel not in ("", WHEEL_FIRST, WHEEL_NEXT) or len(walk) > 64:
        raise MalformedFrame(f"{WHEEL} of the master's timers is {wheel[:40]!r}, {WALK} {walk[:80]!r}")
    if not source or is_short or scan_from > log_end:
        raise MalformedFrame(
            f"the master's timer log {source} from {position} to {next_position} has {len(units)} bytes, scan from {scan_from}, "
            f"log end {log_end}"
        )
    checkpoint = decode_timer_checkpoint(body[: FIELDS.size]) or TimerCheckpoint()
    return TimerStatement(
        source=source,
        position=position,
        next_position=next_position,
        units=units,
        checkpoint=replace(checkpoint, scan_from=scan_from, marked_from=marked_from),
        log_end=log_end,
        is_whole=WHOLE in fields and not wheel,
        wheel=wheel,
        walk=walk,
    )


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise MalformedFrame(f"{name} of the master's timers is {text[:40]!r}, a number was expected")
    return int(text)
