"""HeartbeatData: one client process with its producer and consumer groups.

Source: HeartbeatData, ConsumerData, ProducerData. Java and Go write enums as names, C++ as ordinals and leaves out what is
empty; C++ ends the body in a line break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.subscription import SubscriptionData

# Names in ordinal order.
CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERES = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
CONSUME_ACTIVELY, CONSUME_PASSIVELY, CONSUME_POP = CONSUME_TYPES
BROADCASTING, CLUSTERING = MESSAGE_MODELS
CONSUME_FROM_LAST_OFFSET = CONSUME_FROM_WHERES[0]
CONSUME_FROM_FIRST_OFFSET = CONSUME_FROM_WHERES[4]
CONSUME_FROM_TIMESTAMP = CONSUME_FROM_WHERES[5]


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group as one client sees it. The enums are their names."""

    group_name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group_name,
            "messageModel": self.message_model,
            "subscriptionDataSet": [item.to_dict() for item in self.subscription_data_set],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConsumerData:
        subscriptions = json_fields.objects(fields, "subscriptionDataSet")
        return cls(
            json_fields.text(fields, "groupName"),
            json_fields.enum_name(fields, "consumeType", CONSUME_TYPES, CONSUME_PASSIVELY),
            json_fields.enum_name(fields, "messageModel", MESSAGE_MODELS, CLUSTERING),
            json_fields.enum_name(fields, "consumeFromWhere", CONSUME_FROM_WHERES, CONSUME_FROM_LAST_OFFSET),
            tuple(SubscriptionData.from_dict(item) for item in subscriptions),
            json_fields.boolean(fields, "unitMode"),
        )


@dataclass(frozen=True, slots=True)
class ProducerData:
    """One producer group."""

    group_name: str

    def to_dict(self) -> dict[str, Any]:
        return {"groupName": self.group_name}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ProducerData:
        return cls(json_fields.text(fields, "groupName"))


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """The body of HEART_BEAT. With `without_sub` it contains a fingerprint instead of the subscriptions."""

    client_id: str
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "clientID": self.client_id,
            "consumerDataSet": [item.to_dict() for item in self.consumer_data_set],
            "heartbeatFingerprint": self.heartbeat_fingerprint,
            "producerDataSet": [item.to_dict() for item in self.producer_data_set],
            "withoutSub": self.without_sub,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> HeartbeatData:
        return cls(
            json_fields.text(fields, "clientID"),
            tuple(ProducerData.from_dict(item) for item in json_fields.objects(fields, "producerDataSet")),
            tuple(ConsumerData.from_dict(item) for item in json_fields.objects(fields, "consumerDataSet")),
            json_fields.integer(fields, "heartbeatFingerprint"),
            json_fields.boolean(fields, "withoutSub"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> HeartbeatData:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_object(body, "HeartbeatData", fastjson.REQUEST_DIALECT_BYTES_MAX))
