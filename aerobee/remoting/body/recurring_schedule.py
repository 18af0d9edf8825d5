"""A recurring schedule: what an operator defines, and how far its broker is. Shared by client and broker.

    {"name", "topic", "cron", "timeZone", "intervalMs", "jitterMs", "missed": "all"|"latest", "tag", "keys",
     "properties": {name: value}, "createdMs", "lastTickMs", "isPaused", "delivered"}

Exactly one of `cron` and `intervalMs` is set. `lastTickMs` is the last delivered tick, at first the time of creation;
after a resume it is at least the time of the resume. `delivered` counts the delivered ticks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from aerobee.errors import UsageError
from aerobee.recurrence import Recurrence
from aerobee.remoting.body import json_fields

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
ALL, LATEST = "all", "latest"
MISSED = (ALL, LATEST)
TEXT_BYTES_MAX = 16_384  # tag, keys and properties together
SCHEDULE_BODY_BYTES_MAX = 16_384  # all schedules together are written again now and then
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurringSchedule:
    """One schedule. Times in ms since the epoch."""

    name: str
    topic: str
    cron: str = ""
    time_zone: str = "UTC"
    interval_ms: int = 0
    jitter_ms: int = 0
    missed: str = ALL
    tag: str = ""
    keys: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    created_ms: int = 0
    last_tick_ms: int = 0
    is_paused: bool = False
    delivered: int = 0

    @property
    def recurrence(self) -> Recurrence:
        """Its ticks."""
        return Recurrence(
            name=self.name,
            cron=self.cron,
            time_zone=self.time_zone,
            interval_ms=self.interval_ms,
            anchor_ms=self.created_ms,
            jitter_ms=self.jitter_ms,
        )

    def check(self) -> None:
        """Raise UsageError for a definition that no broker accepts. The topic's existence is not checked."""
        if not NAME.match(self.name):
            raise UsageError(
                f"the schedule's name is {self.name[:80]!r}: 1 to 64 letters, digits, '.', '_' and '-' are possible"
            )
        if self.missed not in MISSED:
            raise UsageError(f"missed is {self.missed[:40]!r}: it must be {' or '.join(MISSED)}")
        texts = [self.tag, self.keys, *self.properties, *self.properties.values()]
        if any(_CONTROL.search(text) for text in texts):
            raise UsageError(f"tag, keys or properties of schedule {self.name} contain a control character")
        if sum(len(text.encode(errors="replace")) + 1 for text in texts) > TEXT_BYTES_MAX:
            raise UsageError(
                f"tag, keys and properties of schedule {self.name} have more than {TEXT_BYTES_MAX} bytes"
            )
        self.recurrence.check()

    def to_dict(self) -> dict[str, Any]:
        """As in the broker's records and in the list of schedules."""
        return {
            "name": self.name,
            "topic": self.topic,
            "cron": self.cron,
            "timeZone": self.time_zone,
            "intervalMs": self.interval_ms,
            "jitterMs": self.jitter_ms,
            "missed": self.missed,
            "tag": self.tag,
            "keys": self.keys,
            "properties": self.properties,
            "createdMs": self.created_ms,
            "lastTickMs": self.last_tick_ms,
            "isPaused": self.is_paused,
            "delivered": self.delivered,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> RecurringSchedule:
        """Read such an object. Raises MalformedFrame for a field of another type."""
        return cls(
            name=json_fields.text(fields, "name"),
            topic=json_fields.text(fields, "topic"),
            cron=json_fields.text(fields, "cron"),
            time_zone=json_fields.text(fields, "timeZone", "UTC"),
            interval_ms=json_fields.integer(fields, "intervalMs"),
            jitter_ms=json_fields.integer(fields, "jitterMs"),
            missed=json_fields.text(fields, "missed", ALL),
            tag=json_fields.text(fields, "tag"),
            keys=json_fields.text(fields, "keys"),
            properties=json_fields.text_map(fields, "properties"),
            created_ms=json_fields.integer(fields, "createdMs"),
            last_tick_ms=json_fields.integer(fields, "lastTickMs"),
            is_paused=json_fields.boolean(fields, "isPaused"),
            delivered=json_fields.integer(fields, "delivered"),
        )
