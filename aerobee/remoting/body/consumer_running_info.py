"""ConsumerRunningInfo, a consumer's answer to GET_CONSUMER_RUNNING_INFO. Brokers pass it on unread.

Source: ConsumerRunningInfo, ProcessQueueInfo, PopProcessQueueInfo, ConsumeStatus. `droped` is the wire's spelling; Go
clients write `dropped`. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_object_map
from aerobee.remoting.body.subscription import SubscriptionData

# Keys of `properties` that tools read.
PROP_NAMESERVER_ADDR = "PROP_NAMESERVER_ADDR"
PROP_CONSUME_TYPE = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"
PROP_THREADPOOL_CORE_SIZE = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY = "PROP_CONSUMEORDERLY"


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo:
    """A consumer's state of one queue: cached messages, offsets, lock, last times."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "cachedMsgCount": self.cached_msg_count,
            "cachedMsgMaxOffset": self.cached_msg_max_offset,
            "cachedMsgMinOffset": self.cached_msg_min_offset,
            "cachedMsgSizeInMiB": self.cached_msg_size_in_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "transactionMsgCount": self.transaction_msg_count,
            "transactionMsgMaxOffset": self.transaction_msg_max_offset,
            "transactionMsgMinOffset": self.transaction_msg_min_offset,
            "tryUnlockTimes": self.try_unlock_times,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ProcessQueueInfo:
        def number(name: str) -> int:
            return json_fields.integer(fields, name)

        return cls(
            number("commitOffset"),
            number("cachedMsgMinOffset"),
            number("cachedMsgMaxOffset"),
            number("cachedMsgCount"),
            number("cachedMsgSizeInMiB"),
            number("transactionMsgMinOffset"),
            number("transactionMsgMaxOffset"),
            number("transactionMsgCount"),
            json_fields.boolean(fields, "locked"),
            number("tryUnlockTimes"),
            number("lastLockTimestamp"),
            json_fields.boolean(fields, "droped") or json_fields.boolean(fields, "dropped"),
            number("lastPullTimestamp"),
            number("lastConsumeTimestamp"),
        )


@dataclass(frozen=True, slots=True)
class ConsumeStatus:
    """Rates of one topic: times in ms, TPS a second, `consume_failed_msgs` within the last hour."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "consumeFailedMsgs": self.consume_failed_msgs,
            "consumeFailedTPS": self.consume_failed_tps,
            "consumeOKTPS": self.consume_ok_tps,
            "consumeRT": self.consume_rt,
            "pullRT": self.pull_rt,
            "pullTPS": self.pull_tps,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConsumeStatus:
        return cls(
            json_fields.number(fields, "pullRT"),
            json_fields.number(fields, "pullTPS"),
            json_fields.number(fields, "consumeRT"),
            json_fields.number(fields, "consumeOKTPS"),
            json_fields.number(fields, "consumeFailedTPS"),
            json_fields.integer(fields, "consumeFailedMsgs"),
        )


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """`mq_pop_table` and `user_consumer_info` are parsed JSON; `jstack` is the stack dump, if it was requested."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: tuple[SubscriptionData, ...] = ()
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, dict[str, Any]] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, Any] = field(default_factory=dict)
    jstack: str | None = None

    def to_dict(self) -> dict[Any, Any]:
        return json_fields.without_none(
            {
                "jstack": self.jstack,
                "mqPopTable": dict(self.mq_pop_table),
                "mqTable": {queue: info.to_dict() for queue, info in self.mq_table.items()},
                "properties": self.properties,
                "statusTable": {topic: status.to_dict() for topic, status in self.status_table.items()},
                "subscriptionSet": [item.to_dict() for item in self.subscription_set],
                "userConsumerInfo": self.user_consumer_info,
            }
        )

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> ConsumerRunningInfo:
        statuses = json_fields.mapping(fields, "statusTable")
        tables = queue_object_map(fields, "mqTable")
        subscriptions = json_fields.objects(fields, "subscriptionSet")
        return cls(
            json_fields.text_map(fields, "properties"),
            tuple(SubscriptionData.from_dict(item) for item in subscriptions),
            {queue: ProcessQueueInfo.from_dict(item) for queue, item in tables.items()},
            queue_object_map(fields, "mqPopTable"),
            {
                topic: ConsumeStatus.from_dict(json_fields.as_object(item, "a status"))
                for topic, item in statuses.items()
            },
            json_fields.mapping(fields, "userConsumerInfo"),
            json_fields.optional_text(fields, "jstack"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> ConsumerRunningInfo:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "ConsumerRunningInfo"))
