"""Aerobee: a distributed message queue, interchangeable with Apache RocketMQ part by part.

The names of the client are here too: `from aerobee import Producer`. They are loaded when they are first asked for,
because a broker, which imports this package as well, has no use for a client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerobee.client.admin.admin import Admin
    from aerobee.client.config import (
        Blocked,
        ClientConfig,
        ConsumeFrom,
        ConsumerConfig,
        MessageModel,
        ProducerConfig,
        PullConsumerConfig,
        SimpleConsumerConfig,
    )
    from aerobee.client.consumer.pull_consumer import PullConsumer
    from aerobee.client.consumer.push_consumer import PushConsumer
    from aerobee.client.consumer.simple_consumer import SimpleConsumer
    from aerobee.client.consumer.subscription import Sql
    from aerobee.client.consumer.verdict import Reject, RetryLater, reject, retry
    from aerobee.client.producer.producer import Producer
    from aerobee.client.producer.transaction import TransactionState
    from aerobee.client.producer.transaction_producer import TransactionProducer
    from aerobee.client.received import ReceivedMessage
    from aerobee.client.results import SendResult, SendStatus
    from aerobee.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer
    from aerobee.errors import AerobeeError
    from aerobee.message import Message, MessageQueue

_HOME = {
    "Admin": "aerobee.client.admin.admin",
    "AerobeeError": "aerobee.errors",
    "Blocked": "aerobee.client.config",
    "ClientConfig": "aerobee.client.config",
    "ConsumeFrom": "aerobee.client.config",
    "ConsumerConfig": "aerobee.client.config",
    "Message": "aerobee.message",
    "MessageModel": "aerobee.client.config",
    "MessageQueue": "aerobee.message",
    "Producer": "aerobee.client.producer.producer",
    "ProducerConfig": "aerobee.client.config",
    "PullConsumer": "aerobee.client.consumer.pull_consumer",
    "PullConsumerConfig": "aerobee.client.config",
    "PushConsumer": "aerobee.client.consumer.push_consumer",
    "ReceivedMessage": "aerobee.client.received",
    "Reject": "aerobee.client.consumer.verdict",
    "RetryLater": "aerobee.client.consumer.verdict",
    "SendResult": "aerobee.client.results",
    "SendStatus": "aerobee.client.results",
    "SimpleConsumer": "aerobee.client.consumer.simple_consumer",
    "SimpleConsumerConfig": "aerobee.client.config",
    "Sql": "aerobee.client.consumer.subscription",
    "SyncAdmin": "aerobee.client.sync",
    "SyncProducer": "aerobee.client.sync",
    "SyncPullConsumer": "aerobee.client.sync",
    "SyncPushConsumer": "aerobee.client.sync",
    "TransactionProducer": "aerobee.client.producer.transaction_producer",
    "TransactionState": "aerobee.client.producer.transaction",
    "reject": "aerobee.client.consumer.verdict",
    "retry": "aerobee.client.consumer.verdict",
}

__all__ = [
    "Admin",
    "AerobeeError",
    "Blocked",
    "ClientConfig",
    "ConsumeFrom",
    "ConsumerConfig",
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
    if name not in _HOME:
        raise AttributeError(f"module 'aerobee' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
