"""The client: producer, push and pull consumer, admin. Native asyncio; sync.py holds a small synchronous facade.

Each name is imported at its first use, so that an admin client does not load the consumers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aerobee.client.admin.admin import Admin
    from aerobee.client.admin.offsets import OffsetMove, OffsetTarget
    from aerobee.client.base.config import (
        AdminConfig,
        Blocked,
        ClientConfig,
        Compression,
        ConsumeFrom,
        ConsumerConfig,
        MessageModel,
        ProducerConfig,
        PullConsumerConfig,
        SimpleConsumerConfig,
    )
    from aerobee.client.base.received import ReceivedMessage
    from aerobee.client.base.results import SendResult, SendStatus
    from aerobee.client.base.verdict import Reject, RetryLater, reject, retry
    from aerobee.client.consumer.allocation import (
        Allocation,
        average,
        average_by_circle,
        consistent_hash,
        fixed,
        machine_room,
        machine_room_nearby,
    )
    from aerobee.client.consumer.lite_consumer import LiteConsumer, LiteStart
    from aerobee.client.consumer.popped import PoppedMessage
    from aerobee.client.consumer.pull_consumer import PullConsumer
    from aerobee.client.consumer.push_consumer import PushConsumer
    from aerobee.client.consumer.simple_consumer import SimpleConsumer
    from aerobee.client.consumer.subscription import Sql
    from aerobee.client.producer.message_group import Selector, by_message_group
    from aerobee.client.producer.producer import Producer
    from aerobee.client.producer.transaction import TransactionResult, TransactionState
    from aerobee.client.producer.transaction_producer import TransactionConfig, TransactionProducer
    from aerobee.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer

_HOME = {
    "Admin": "aerobee.client.admin.admin",
    "AdminConfig": "aerobee.client.base.config",
    "Allocation": "aerobee.client.consumer.allocation",
    "Blocked": "aerobee.client.base.config",
    "ClientConfig": "aerobee.client.base.config",
    "Compression": "aerobee.client.base.config",
    "ConsumeFrom": "aerobee.client.base.config",
    "ConsumerConfig": "aerobee.client.base.config",
    "LiteConsumer": "aerobee.client.consumer.lite_consumer",
    "LiteStart": "aerobee.client.consumer.lite_consumer",
    "MessageModel": "aerobee.client.base.config",
    "OffsetMove": "aerobee.client.admin.offsets",
    "OffsetTarget": "aerobee.client.admin.offsets",
    "PoppedMessage": "aerobee.client.consumer.popped",
    "Producer": "aerobee.client.producer.producer",
    "ProducerConfig": "aerobee.client.base.config",
    "PullConsumer": "aerobee.client.consumer.pull_consumer",
    "PullConsumerConfig": "aerobee.client.base.config",
    "PushConsumer": "aerobee.client.consumer.push_consumer",
    "ReceivedMessage": "aerobee.client.base.received",
    "Reject": "aerobee.client.base.verdict",
    "RetryLater": "aerobee.client.base.verdict",
    "Selector": "aerobee.client.producer.message_group",
    "SendResult": "aerobee.client.base.results",
    "SendStatus": "aerobee.client.base.results",
    "SimpleConsumer": "aerobee.client.consumer.simple_consumer",
    "SimpleConsumerConfig": "aerobee.client.base.config",
    "Sql": "aerobee.client.consumer.subscription",
    "SyncAdmin": "aerobee.client.sync",
    "SyncProducer": "aerobee.client.sync",
    "SyncPullConsumer": "aerobee.client.sync",
    "SyncPushConsumer": "aerobee.client.sync",
    "TransactionConfig": "aerobee.client.producer.transaction_producer",
    "TransactionProducer": "aerobee.client.producer.transaction_producer",
    "TransactionResult": "aerobee.client.producer.transaction",
    "TransactionState": "aerobee.client.producer.transaction",
    "average": "aerobee.client.consumer.allocation",
    "average_by_circle": "aerobee.client.consumer.allocation",
    "by_message_group": "aerobee.client.producer.message_group",
    "consistent_hash": "aerobee.client.consumer.allocation",
    "fixed": "aerobee.client.consumer.allocation",
    "machine_room": "aerobee.client.consumer.allocation",
    "machine_room_nearby": "aerobee.client.consumer.allocation",
    "reject": "aerobee.client.base.verdict",
    "retry": "aerobee.client.base.verdict",
}

__all__ = [
    "Admin",
    "AdminConfig",
    "Allocation",
    "Blocked",
    "ClientConfig",
    "Compression",
    "ConsumeFrom",
    "ConsumerConfig",
    "LiteConsumer",
    "LiteStart",
    "MessageModel",
    "OffsetMove",
    "OffsetTarget",
    "PoppedMessage",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullConsumerConfig",
    "PushConsumer",
    "ReceivedMessage",
    "Reject",
    "RetryLater",
    "Selector",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleConsumerConfig",
    "Sql",
    "SyncAdmin",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "TransactionConfig",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "average",
    "average_by_circle",
    "by_message_group",
    "consistent_hash",
    "fixed",
    "machine_room",
    "machine_room_nearby",
    "reject",
    "retry",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'aerobee.client' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
