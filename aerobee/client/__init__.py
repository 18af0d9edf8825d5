"""The client: producer, push and pull consumer, admin. Native asyncio; sync.py holds a small synchronous facade."""

from aerobee.client.admin import Admin
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
)
from aerobee.client.producer import Producer, Selector, by_key
from aerobee.client.pull_consumer import PullConsumer
from aerobee.client.push_consumer import PushConsumer
from aerobee.client.received import ReceivedMessage
from aerobee.client.results import SendResult, SendStatus
from aerobee.client.subscription import Sql
from aerobee.client.sync import SyncAdmin, SyncProducer, SyncPullConsumer
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
    "Sql",
    "SyncAdmin",
    "SyncProducer",
    "SyncPullConsumer",
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
