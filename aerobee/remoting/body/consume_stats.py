"""ConsumeStats, the reply to GET_CONSUME_STATS: the progress of a group in each queue. Source: ConsumeStats,
OffsetWrapper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_object_map


@dataclass(frozen=True, slots=True)
class OffsetWrapper:
    """Queue offsets; `last_timestamp` is the store time (ms) of the last message consumed, 0 when unknown."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0
    wanted: int | None = (
        None  # part of the lag that matches the group's filter; None: all of it, or not reported
    )

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet."""
        return self.broker_offset - self.consumer_offset

    def to_dict(self) -> dict[str, Any]:
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_timestamp,
            "pullOffset": self.pull_offset,
            **({} if self.wanted is None else {"wantedDiff": self.wanted}),
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> OffsetWrapper:
        return cls(
            json_fields.integer(fields, "brokerOffset"),
            json_fields.integer(fields, "consumerOffset"),
            json_fields.integer(fields, "lastTimestamp"),
            json_fields.integer(fields, "pullOffset"),
            None if fields.get("wantedDiff") is None else json_fields.integer(fields, "wantedDiff"),
        )


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """`consume_tps` messages a second that the group took from this broker."""

    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0

    @property
    def total_lag(self) -> int:
        return sum(offsets.lag for offsets in self.offset_table.values())

    def to_dict(self) -> dict[Any, Any]:
        return {
            "consumeTps": self.consume_tps,
            "offsetTable": {queue: offsets.to_dict() for queue, offsets in self.offset_table.items()},
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConsumeStats:
        table = queue_object_map(fields, "offsetTable")
        return cls(
            {queue: OffsetWrapper.from_dict(item) for queue, item in table.items()},
            json_fields.number(fields, "consumeTps"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> ConsumeStats:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ConsumeStats"))
