"""BrokerMemberGroup, the reply to GET_BROKER_MEMBER_GROUP: the brokers of one broker name.

Source: GetBrokerMemberGroupResponseBody. On the wire it is wrapped, `{"brokerMemberGroup":{…}}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.route import broker_addresses


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """Broker id -> "ip:port" of one broker name; empty when the name is unknown."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "brokerAddrs": dict(sorted(self.broker_addrs.items())),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> BrokerMemberGroup:
        return cls(
            json_fields.text(fields, "cluster"),
            json_fields.text(fields, "brokerName"),
            broker_addresses(fields),
        )

    def encode(self) -> bytes:
        return fastjson.dumps({"brokerMemberGroup": self.to_dict()})

    @classmethod
    def decode(cls, body: bytes) -> BrokerMemberGroup:
        """Raises MalformedFrame."""
        fields = fastjson.loads_trusted(body, "BrokerMemberGroup")
        return cls.from_dict(json_fields.mapping(fields, "brokerMemberGroup"))
