"""Aerobee: a distributed message queue, interchangeable with Apache RocketMQ part by part.

The names of the client are here too: `from aerobee import Producer`. They are imported at their first use,
because a broker, which imports this package as well, does not need a client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerobee.client import (
        Admin,
        Blocked,
        ClientConfig,
        ConsumeFrom,
        ConsumerConfig,
        LiteConsumer,
        LiteStart,
        MessageModel,
        Producer,
        ProducerConfig,
        PullConsumer,
        PullConsumerConfig,
        PushConsumer,
        ReceivedMessage,
        Reject,
        RetryLater,
        SendResult,
        SendStatus,
        SimpleConsumer,
        SimpleConsumerConfig,
        Sql,
        SyncAdmin,
        SyncProducer,
        SyncPullConsumer,
        SyncPushConsumer,
        TransactionProducer,
        TransactionState,
        reject,
        retry,
    )
    from aerobee.errors import AerobeeError
    from aerobee.message import Message, MessageQueue

# What is not of the client, which knows where its own names are.
_HOME = {"AerobeeError": "aerobee.errors", "Message": "aerobee.message", "MessageQueue": "aerobee.message"}

__all__ = [
    "Admin",
    "AerobeeError",
    "Blocked",
    "ClientConfig",
    "ConsumeFrom",
    "ConsumerConfig",
    "LiteConsumer",
    "LiteStart",
    "Message",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PushConsumer",
    "ReceivedMessage",
    "Reject",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "Sql",
    "SyncAdmin",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "TransactionProducer",
    "TransactionState",
    "reject",
    "retry",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'aerobee' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME.get(name, "aerobee.client")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
