"""Schedules as a log of changes, and what is left of them. Core.

A change is JSON: {"change": "add", "schedule": {…}}, {"change": "delete", "schedule_id": "…"}, or "renew", which is an
add by a scheduler that keeps a schedule from expiring with the log. A renewal that follows a delete is void: its
scheduler had not read the delete yet.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from taskiq import ScheduledTask

from aerobee.errors import MalformedRecord

SCHEDULE_BYTES_MAX = 1 << 20
DELETED_MAX = 100_000  # number of deleted ids that are remembered; the oldest are forgotten


class Change(StrEnum):
    """What a record does to a schedule."""

    ADD = "add"
    RENEW = "renew"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Kept:
    """A schedule, and when its newest record was stored, in milliseconds since the epoch."""

    schedule: ScheduledTask
    stored_ms: int


def encode_add(schedule: ScheduledTask, change: Change = Change.ADD) -> bytes:
    """The record that adds or renews a schedule. Raises pydantic's error for arguments that JSON cannot hold."""
    return json.dumps({"change": change.value, "schedule": schedule.model_dump(mode="json")}).encode()


def encode_delete(schedule_id: str) -> bytes:
    """The record that deletes a schedule."""
    return json.dumps({"change": Change.DELETE.value, "schedule_id": schedule_id}).encode()


class ScheduleLog:
    """The schedules that are left after the records so far, applied in the order of their queue."""

    def __init__(self) -> None:
        self.kept: dict[str, Kept] = {}
        self._deleted: dict[str, None] = {}

    def apply(self, record: bytes, stored_ms: int) -> str | None:
        """Apply a record. Returns the id of a schedule that a void renewal would restore: delete it again.

        Raises MalformedRecord for a record that is no change of a schedule.
        """
        change, schedule_id, schedule = _decode(record)
        if schedule is None:
            self.kept.pop(schedule_id, None)
            self._deleted.pop(schedule_id, None)
            self._deleted[schedule_id] = None
            if len(self._deleted) > DELETED_MAX:
                del self._deleted[next(iter(self._deleted))]
            return None
        if change is Change.RENEW and schedule_id in self._deleted:
            return schedule_id
        if change is Change.ADD:
            self._deleted.pop(schedule_id, None)
        self.kept[schedule_id] = Kept(schedule, stored_ms)
        return None

    def older_than(self, stored_ms: int) -> list[ScheduledTask]:
        """Schedules whose newest record was stored before this time."""
        return [kept.schedule for kept in self.kept.values() if kept.stored_ms < stored_ms]


def _decode(record: bytes) -> tuple[Change, str, ScheduledTask | None]:
    if len(record) > SCHEDULE_BYTES_MAX:
        raise MalformedRecord(f"a schedule of {len(record)} bytes: at most {SCHEDULE_BYTES_MAX} are read")
    try:
        found = json.loads(record)
        change = Change(found["change"])
        if change is Change.DELETE:
            return change, str(found["schedule_id"]), None
        schedule = ScheduledTask.model_validate(found["schedule"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MalformedRecord(f"no change of a schedule: {error}") from error
    return change, schedule.schedule_id, schedule
