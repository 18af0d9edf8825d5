"""GroupList, the answer to QUERY_TOPIC_CONSUME_BY_WHO. Source: GroupList."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields


@dataclass(frozen=True, slots=True)
class GroupList:
    group_list: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"groupList": list(self.group_list)}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> GroupList:
        return cls(json_fields.texts(fields, "groupList"))

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> GroupList:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "GroupList"))
