"""ResetOffsetBody: new offsets of a group, pushed to its members (220) and answered to the tool (222).

Source: ResetOffsetBody and, for C++ members, ResetOffsetBodyForC:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:123}}
    {"offsetTable":[{"brokerName":"b","offset":123,"queueId":0,"topic":"t"}]}
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import offset_map, queue_from_dict, queue_to_dict


@dataclass(frozen=True, slots=True)
class ResetOffsetBody:
    """Queue -> queue offset at which the group continues."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def to_dict(self) -> dict[Any, Any]:
        return {"offsetTable": dict(self.offset_table)}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ResetOffsetBody:
        if isinstance(fields.get("offsetTable"), list):
            entries = json_fields.objects(fields, "offsetTable")
            return cls({queue_from_dict(item): json_fields.integer(item, "offset") for item in entries})
        return cls(offset_map(fields, "offsetTable"))

    def encode(self, *, for_cpp: bool = False) -> bytes:
        """Write the map, or the list that C++ clients read."""
        if not for_cpp:
            return fastjson.dumps(self.to_dict())
        entries = [{**queue_to_dict(queue), "offset": offset} for queue, offset in self.offset_table.items()]
        return fastjson.dumps({"offsetTable": [dict(sorted(entry.items())) for entry in entries]})

    @classmethod
    def decode(cls, body: bytes) -> ResetOffsetBody:
        """Read either form. Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ResetOffsetBody"))
