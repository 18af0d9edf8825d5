"""TopicStatsTable, the answer to GET_TOPIC_STATS_INFO: the ends of each queue. Source: TopicStatsTable, TopicOffset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_object_map


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Queue offsets from the first message to behind the last; `last_update_timestamp` is the last one's store time."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "lastUpdateTimestamp": self.last_update_timestamp,
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> TopicOffset:
        return cls(
            json_fields.integer(fields, "minOffset"),
            json_fields.integer(fields, "maxOffset"),
            json_fields.integer(fields, "lastUpdateTimestamp"),
        )


@dataclass(frozen=True, slots=True)
class TopicStatsTable:
    """`topic_put_tps` messages a second sent to the topic at this broker."""

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0

    def to_dict(self) -> dict[Any, Any]:
        return {
            "offsetTable": {queue: offsets.to_dict() for queue, offsets in self.offset_table.items()},
            "topicPutTps": self.topic_put_tps,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> TopicStatsTable:
        table = queue_object_map(fields, "offsetTable")
        return cls(
            {queue: TopicOffset.from_dict(item) for queue, item in table.items()},
            json_fields.number(fields, "topicPutTps"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> TopicStatsTable:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "TopicStatsTable"))
