"""ConsumerConnection, the answer to GET_CONSUMER_CONNECTION_LIST: a group's members and subscriptions.

Source: ConsumerConnection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.connection_info import ConnectionInfo
from aerobee.remoting.body.heartbeat import (
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_WHERES,
    CONSUME_PASSIVELY,
    CONSUME_TYPES,
    MESSAGE_MODELS,
)
from aerobee.remoting.body.subscription import SubscriptionData

CONFLICT_FIELDS = ("topic", "clientId", "expression", "otherClientId", "otherExpression")


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """The enums are their names, as in heartbeats. Only Aerobee's brokers send `subscription_conflicts`:
    pairs of members with different subscriptions (topic, clientId, expression, otherClientId,
    otherExpression).
    """

    connection_set: tuple[ConnectionInfo, ...] = ()
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_conflicts: tuple[dict[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        conflicts = [dict(conflict) for conflict in self.subscription_conflicts]
        return ({"subscriptionConflicts": conflicts} if conflicts else {}) | {
            "connectionSet": [item.to_dict() for item in self.connection_set],
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "messageModel": self.message_model,
            "subscriptionTable": {topic: item.to_dict() for topic, item in self.subscription_table.items()},
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConsumerConnection:
        table = json_fields.mapping(fields, "subscriptionTable")
        return cls(
            tuple(ConnectionInfo.from_dict(item) for item in json_fields.objects(fields, "connectionSet")),
            {
                topic: SubscriptionData.from_dict(
                    json_fields.as_object(item, f"the subscription of {topic[:80]!r}")
                )
                for topic, item in table.items()
            },
            json_fields.enum_name(fields, "consumeType", CONSUME_TYPES, CONSUME_PASSIVELY),
            json_fields.enum_name(fields, "messageModel", MESSAGE_MODELS, CLUSTERING),
            json_fields.enum_name(fields, "consumeFromWhere", CONSUME_FROM_WHERES, CONSUME_FROM_LAST_OFFSET),
            tuple(
                {name: json_fields.text(item, name, "") for name in CONFLICT_FIELDS}
                for item in json_fields.objects(fields, "subscriptionConflicts")
            ),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> ConsumerConnection:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ConsumerConnection"))
