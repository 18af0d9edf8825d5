"""The client: producer, push and pull consumer, admin. Native asyncio; sync.py holds a small synchronous facade."""

from aerobee.client.admin.admin import Admin
from aerobee.client.admin.offsets import OffsetMove, OffsetTarget
from aerobee.client.config import (
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
from aerobee.client.consumer.allocation import (
    Allocation,
    average,
    average_by_circle,
    consistent_hash,
    fixed,
    machine_room,
    machine_room_nearby,
)
from aerobee.client.consumer.popped import PoppedMessage
from aerobee.client.consumer.pull_consumer import PullConsumer
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.consumer.simple_consumer import SimpleConsumer
from aerobee.client.consumer.subscription import Sql
from aerobee.client.consumer.verdict import Reject, RetryLater, reject, retry
from aerobee.client.producer.producer import Producer, Selector, by_key
from aerobee.client.producer.transaction import TransactionResult, TransactionState
from aerobee.client.producer.transaction_producer import TransactionConfig, TransactionProducer
from aerobee.client.received import ReceivedMessage
from aerobee.client.results import SendResult, SendStatus
from aerobee.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer, SyncPushConsumer

__all__ = [
    "Admin",
    "AdminConfig",
    "Allocation",
    "Blocked",
    "ClientConfig",
    "Compression",
    "ConsumeFrom",
    "ConsumerConfig",
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
    "by_key",
    "consistent_hash",
    "fixed",
    "machine_room",
    "machine_room_nearby",
    "reject",
    "retry",
]
