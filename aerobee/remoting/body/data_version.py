"""DataVersion: when and how often a table changed. Two are equal when all three numbers are. Source: DataVersion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields


@dataclass(frozen=True, slots=True)
class DataVersion:
    """`timestamp` milliseconds of the last change, `counter` changes so far, `state_version` the store's term."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> DataVersion:
        """Return the version after one more change."""
        term = self.state_version if state_version is None else state_version
        return DataVersion(term, now_ms, self.counter + 1)

    def to_dict(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> DataVersion:
        return cls(
            json_fields.integer(fields, "stateVersion"),
            json_fields.integer(fields, "timestamp"),
            json_fields.integer(fields, "counter"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> DataVersion:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_object(body, "DataVersion"))
