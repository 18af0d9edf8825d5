"""GetConsumerStatusBody: the current offsets of the members of a group (221 from a client, 223 collected by
the broker).

Source: GetConsumerStatusBody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import offset_map


@dataclass(frozen=True, slots=True)
class ConsumerStatusBody:
    """`message_queue_table` one client's offsets, `consumer_table` those of every client by client id."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[Any, Any]:
        return {
            "consumerTable": {client: dict(table) for client, table in self.consumer_table.items()},
            "messageQueueTable": dict(self.message_queue_table),
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConsumerStatusBody:
        clients = json_fields.mapping(fields, "consumerTable")
        return cls(
            offset_map(fields, "messageQueueTable"),
            {client_id: offset_map(clients, client_id) for client_id in clients},
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> ConsumerStatusBody:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ConsumerStatusBody"))
