"""KVTable: text by text, for KV configuration and a broker's runtime numbers. Source: KVTable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields


@dataclass(frozen=True, slots=True)
class KVTable:
    table: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"table": self.table}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> KVTable:
        return cls(json_fields.text_map(fields, "table"))

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> KVTable:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "KVTable"))
