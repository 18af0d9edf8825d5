"""The client: producer, push and pull consumer, admin. Native asyncio; sync.py holds a small synchronous facade."""

from aerobee.client.admin import Admin
from aerobee.client.admin_offsets import OffsetMove, OffsetTarget
from aerobee.client.allocation import (
    Allocation,
    average,
    average_by_circle,
    consistent_hash,
    fixed,
    machine_room,
    machine_room_nearby,
)
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
from aerobee.client.popped import PoppedMessage
from aerobee.client.producer import Producer, Selector, by_key
from aerobee.client.pull_consumer import PullConsumer
from aerobee.client.push_consumer import PushConsumer
from aerobee.client.received import ReceivedMessage
from aerobee.client.results import SendResult, SendStatus
from aerobee.client.simple_consumer import SimpleConsumer
from aerobee.client.subscription import Sql
from aerobee.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer
from aerobee.client.transaction import TransactionResult, TransactionState
from aerobee.client.transaction_producer import TransactionConfig, TransactionProducer
from aerobee.client.verdict import Reject, RetryLater, reject, retry

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
