"""The recurring schedules of a broker, as the records of their topic state them. Core.

Queue 0 of `rmq_sys_aerobee_schedules` is the only store of schedules: a master reads it when it begins to lead, so they
are as durable as messages, and a truncation of the log takes back what it removes. Bodies of the records, JSON:

    {"kind": "schedule", "base": n, "schedule": {...}, "body": base64}   the whole state of one schedule
    {"kind": "tick", "base": n, "name": s, "tick": ms, "delivered": n}   this tick is delivered by the next record
    {"kind": "deleted", "base": n, "name": s}

`base` is a queue offset: the records from it on give every schedule. The master writes all schedules again and moves
`base` before the log's first files expire, so it reads few records, and none that may be deleted.

A tick's record and the message that delivers it are written one after the other, with no record between them. So of all
ticks only the last one may lack its message, when the log ends or was cut between the two: the next master looks at one
record to know, records the state before the tick ahead of any other record of this topic, and delivers the tick. When
a tick's record is damaged, the message behind it says that the tick is delivered.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any, NamedTuple

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.recurring_schedule import LATEST, RecurringSchedule

SCHEDULES_MAX = 1_000
SCHEDULE, TICK, DELETED = "schedule", "tick", "deleted"


class TickRecord(NamedTuple):
    """A tick whose message is the next record of the log."""

    name: str
    topic: str
    tick_ms: int
    before: RecurringSchedule  # the schedule before this tick


class ScheduleTable:
    """Schedules by name, with the bodies of their messages. `apply()` is the only change."""

    def __init__(self) -> None:
        self.schedules: dict[str, RecurringSchedule] = {}
        self.bodies: dict[str, bytes] = {}
        self._next: dict[str, tuple[int, int]] = {}  # tick, due time

    def apply(self, data: bytes) -> TickRecord | None:
        """Apply one record; return the tick when it is one of a known schedule. Raises MalformedFrame."""
        fields = fastjson.loads_trusted(data, "a record of a schedule")
        kind = json_fields.text(fields, "kind")
        if kind == SCHEDULE:
            schedule = RecurringSchedule.from_dict(json_fields.mapping(fields, "schedule"))
            self._put(schedule, _body(fields))
        elif kind == DELETED:
            self._remove(json_fields.text(fields, "name"))
        elif kind == TICK:
            return self._tick(fields)
        else:
            raise MalformedFrame(f"a record of a schedule has the kind {kind[:40]!r}")
        return None

    def take_back(self, tick: TickRecord) -> None:
        """The message of this tick is not in the log: it is still to be delivered."""
        if tick.name in self.schedules:
            self._put(tick.before, self.bodies[tick.name])

    def next_tick(self, name: str) -> tuple[int, int]:
        """The next tick of a schedule and its due time, ms. Raises UsageError (no cronsim, no such time zone)."""
        found = self._next.get(name)
        if found is None:
            schedule = self.schedules[name]
            recurrence = schedule.recurrence
            tick_ms = recurrence.next_after(schedule.last_tick_ms)
            found = self._next[name] = tick_ms, recurrence.due_ms(tick_ms)
        return found

    def tick_at(self, name: str, now_ms: int) -> int:
        """The tick to deliver now that the next one is due: with `missed` latest the last one. Raises UsageError."""
        schedule = self.schedules[name]
        tick_ms, _ = self.next_tick(name)
        if schedule.missed != LATEST:
            return tick_ms
        # A later tick may have a jitter that has not passed.
        return schedule.recurrence.latest_until(schedule.last_tick_ms, now_ms - schedule.jitter_ms)

    def record_of(self, name: str, base: int) -> bytes:
        """The record of the whole state of a schedule."""
        return schedule_record(self.schedules[name], self.bodies[name], base)

    def _put(self, schedule: RecurringSchedule, body: bytes) -> None:
        self.schedules[schedule.name] = schedule
        self.bodies[schedule.name] = body
        self._next.pop(schedule.name, None)

    def _remove(self, name: str) -> None:
        self.schedules.pop(name, None)
        self.bodies.pop(name, None)
        self._next.pop(name, None)

    def _tick(self, fields: dict[str, Any]) -> TickRecord | None:
        name, tick_ms = json_fields.text(fields, "name"), json_fields.integer(fields, "tick")
        before = self.schedules.get(name)
        if before is None:
            return None
        delivered = json_fields.integer(fields, "delivered")
        self.schedules[name] = replace(before, last_tick_ms=tick_ms, delivered=delivered)
        self._next.pop(name, None)
        return TickRecord(name, before.topic, tick_ms, before)


def schedule_record(schedule: RecurringSchedule, body: bytes, base: int) -> bytes:
    """The record of the whole state of a schedule."""
    return fastjson.dumps(
        {
            "kind": SCHEDULE,
            "base": base,
            "schedule": schedule.to_dict(),
            "body": b64encode(body).decode(),
        }
    )


def tick_record(schedule: RecurringSchedule, tick_ms: int, base: int) -> bytes:
    """The record before the message of a tick."""
    return fastjson.dumps(
        {
            "kind": TICK,
            "base": base,
            "name": schedule.name,
            "tick": tick_ms,
            "delivered": schedule.delivered + 1,
        }
    )


def deleted_record(name: str, base: int) -> bytes:
    """The record of a deletion."""
    return fastjson.dumps({"kind": DELETED, "base": base, "name": name})


def base_of(data: bytes) -> int:
    """The queue offset from which the schedules are read, from any record. Raises MalformedFrame."""
    return json_fields.integer(fastjson.loads_trusted(data, "a record of a schedule"), "base")


def _body(fields: dict[str, Any]) -> bytes:
    try:
        return b64decode(json_fields.text(fields, "body"), validate=True)
    except binascii.Error as error:
        raise MalformedFrame(f"the body of a schedule is no base64: {error}") from error
