"""ProducerConnection, the answer to GET_PRODUCER_CONNECTION_LIST: a producer group's members. Source: ProducerConnection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.connection_info import ConnectionInfo


@dataclass(frozen=True, slots=True)
class ProducerConnection:
    connection_set: tuple[ConnectionInfo, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"connectionSet": [item.to_dict() for item in self.connection_set]}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ProducerConnection:
        return cls(
            tuple(ConnectionInfo.from_dict(item) for item in json_fields.objects(fields, "connectionSet"))
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> ProducerConnection:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ProducerConnection"))
