"""SubscriptionGroupConfig: the settings of a consumer group at a broker. Source: SubscriptionGroupConfig,
SubscriptionGroupWrapper.

The retry policy, its parameters and the subscriptions that an administrator fixed are kept as parsed JSON and passed on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.errors import MalformedFrame
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.data_version import DataVersion


def _customized() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """Defaults as RocketMQ's. `consume_timeout_minute` minutes until a message counts as stuck at its consumer."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=_customized)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: tuple[dict[str, Any], ...] | None = None
    attributes: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.group_name)

    def to_dict(self) -> dict[str, Any]:
        fixed = self.subscription_data_set
        return json_fields.without_none(
            {
                "attributes": dict(self.attributes),
                "brokerId": self.broker_id,
                "consumeBroadcastEnable": self.consume_broadcast_enable,
                "consumeEnable": self.consume_enable,
                "consumeFromMinEnable": self.consume_from_min_enable,
                "consumeMessageOrderly": self.consume_message_orderly,
                "consumeTimeoutMinute": self.consume_timeout_minute,
                "groupName": self.group_name,
                "groupRetryPolicy": self.group_retry_policy,
                "groupSysFlag": self.group_sys_flag,
                "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
                "retryMaxTimes": self.retry_max_times,
                "retryQueueNums": self.retry_queue_nums,
                "subscriptionDataSet": None if fixed is None else list(fixed),
                "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
            }
        )

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> SubscriptionGroupConfig:
        has_fixed = fields.get("subscriptionDataSet") is not None
        for name in ("groupRetryPolicy", "subscriptionDataSet"):  # kept unchanged and written again
            if fastjson.is_nested_deeper(fields.get(name)):
                raise MalformedFrame(f"{name} is nested deeper than {fastjson.DEPTH_MAX}")
        return cls(
            json_fields.text(fields, "groupName"),
            json_fields.boolean(fields, "consumeEnable", True),
            json_fields.boolean(fields, "consumeFromMinEnable", True),
            json_fields.boolean(fields, "consumeBroadcastEnable", True),
            json_fields.boolean(fields, "consumeMessageOrderly", False),
            json_fields.integer(fields, "retryQueueNums", 1),
            json_fields.integer(fields, "retryMaxTimes", 16),
            json_fields.mapping(fields, "groupRetryPolicy") or _customized(),
            json_fields.integer(fields, "brokerId", 0),
            json_fields.integer(fields, "whichBrokerWhenConsumeSlowly", 1),
            json_fields.boolean(fields, "notifyConsumerIdsChangedEnable", True),
            json_fields.integer(fields, "groupSysFlag", 0),
            json_fields.integer(fields, "consumeTimeoutMinute", 15),
            tuple(json_fields.objects(fields, "subscriptionDataSet")) if has_fixed else None,
            json_fields.text_map(fields, "attributes"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> SubscriptionGroupConfig:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_object(body, "SubscriptionGroupConfig"))


@dataclass(frozen=True, slots=True)
class SubscriptionGroupWrapper:
    """Group configs by name, the groups' forbidden bits by topic, and the version of the table."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "dataVersion": self.data_version.to_dict(),
            "forbiddenTable": self.forbidden_table,
            "subscriptionGroupTable": {
                name: item.to_dict() for name, item in self.subscription_group_table.items()
            },
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> SubscriptionGroupWrapper:
        table: dict[str, SubscriptionGroupConfig] = {}
        for name, value in json_fields.mapping(fields, "subscriptionGroupTable").items():
            config = SubscriptionGroupConfig.from_dict(json_fields.as_object(value, f"group {name[:80]!r}"))
            if config.group_name != name:
                raise MalformedFrame(f"group {name[:80]!r} calls itself {config.group_name[:80]!r}")
            table[name] = config
        forbidden = {
            group: {topic: json_fields.as_integer(bits, topic) for topic, bits in _topics(value).items()}
            for group, value in json_fields.mapping(fields, "forbiddenTable").items()
        }
        version = DataVersion.from_dict(json_fields.mapping(fields, "dataVersion"))
        return cls(table, version, forbidden)

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> SubscriptionGroupWrapper:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "SubscriptionGroupWrapper"))


def _topics(value: object) -> dict[str, Any]:
    return json_fields.as_object(value, "an entry of forbiddenTable")
