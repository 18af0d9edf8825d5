"""The bodies of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that an orderly consumer locks.

Source: LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody. The broker name of each queue is echoed as sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.message_queue import queue_to_dict, queues


@dataclass(frozen=True, slots=True)
class LockBatchRequestBody:
    """The body of both requests. With `only_this_broker` a broker does not forward the request to its replicas."""

    client_id: str
    consumer_group: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "consumerGroup": self.consumer_group,
            "mqSet": [queue_to_dict(queue) for queue in self.mq_set],
            "onlyThisBroker": self.only_this_broker,
        }

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> LockBatchRequestBody:
        return cls(
            json_fields.text(fields, "clientId"),
            json_fields.text(fields, "consumerGroup"),
            queues(fields, "mqSet"),
            json_fields.boolean(fields, "onlyThisBroker"),
        )

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> LockBatchRequestBody:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_object(body, "LockBatchRequestBody"))


@dataclass(frozen=True, slots=True)
class LockBatchResponseBody:
    """The queues that the broker has locked for the client."""

    lock_ok_mq_set: tuple[MessageQueue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"lockOKMQSet": [queue_to_dict(queue) for queue in self.lock_ok_mq_set]}

    @classmethod
    def from_dict(cls, fields: json_fields.Fields) -> LockBatchResponseBody:
        return cls(queues(fields, "lockOKMQSet"))

    def encode(self) -> bytes:
        return fastjson.dumps(self.to_dict())

    @classmethod
    def decode(cls, body: bytes) -> LockBatchResponseBody:
        """Raises MalformedFrame."""
        return cls.from_dict(fastjson.loads_trusted(body, "LockBatchResponseBody"))
