"""Results of client calls: one frozen dataclass per kind of reply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aerobee.message import MessageQueue
from aerobee.quick_init import quick_init


class SendStatus(Enum):
    """Durability of a stored message. The broker has the message in every case; the values are RocketMQ's names.

    SEND_OK: as durable as the broker's settings require. FLUSH_DISK_TIMEOUT: in memory, not yet on disk.
    FLUSH_SLAVE_TIMEOUT: not yet acknowledged by a replica. SLAVE_NOT_AVAILABLE: no replica is connected or in sync.
    """

    SEND_OK = "SEND_OK"
    """Stored as durably as the broker's settings require."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored in memory; not flushed to disk within the broker's time-out."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored at the master; not acknowledged by a replica within the broker's time-out."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored at the master; no replica is connected or in sync."""


@quick_init
@dataclass(slots=True, frozen=True)
class SendResult:
    """Where a message is stored.

    `message_id` is the id that the client assigned (UNIQ_KEY; msgId in Java), `offset_message_id` contains the physical
    offset, `queue_offset` counts entries of the queue.
    """

    status: SendStatus
    """How durably the broker stored the message before it replied."""
    message_id: str
    """Id that the client assigned to the message (UNIQ_KEY; msgId in Java)."""
    offset_message_id: str
    """Id of the record: address of the broker and physical offset in its log."""
    queue: MessageQueue
    """Queue that has the message."""
    queue_offset: int
    """Offset of the message in its queue, in entries."""
    transaction_id: str = ""
    """Id of the transaction, empty for other messages."""
    recall_handle: str = ""
    """Handle with which a delayed message can be recalled, empty for other messages."""
    region_id: str = ""
    """Region id of the broker, used by message trace."""
    trace_on: bool = True
    """Whether the broker requests message trace."""
    is_duplicate: bool = False
    """True: the broker stored nothing, and this is the result of the first message with the same DEDUP_KEY."""
    ack: str = ""
    """Acknowledgement level that the message or its topic requested by name, reached when `status` is SEND_OK. Empty: none, or the
    broker does not know levels."""
    epoch: int = -1
    """Epoch of the master that stored a message with an `ack` level; 0 without controllers, -1 without a level."""
    log_offset: int = -1
    """Physical offset of the record's end in the log of that master, -1 without a level."""


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueStats:
    """Ends of one queue, in entries. `last_update_ms` is the store time of its last message."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueProgress:
    """Progress of a group in one queue. `client_id` is the member that owns the queue, empty when unknown.

    `consumer_offset` is what the group committed. `member_offset` is the first unfinished offset as its owner reports
    it, -1 without a report; it is ahead of the committed offset, and known before the first commit. `wanted` is the
    estimated part of the lag that matches the group's filter; None when the group has no filter, or is not online.
    `member_worked_ms` is the last time at which the owner processed a message of the queue, 0 when unknown.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp_ms: int
    client_id: str = ""
    member_offset: int = -1
    member_worked_ms: int = 0
    wanted: int | None = None

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset

    @property
    def reached(self) -> int:
        """The group's actual position: the committed offset, or the owner's reported offset when that is higher."""
        return max(self.consumer_offset, self.member_offset)


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsumerProgress:
    """Progress of a group over all queues for which it has offsets."""

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerInfo:
    """One broker address known to a NameServer. `broker_id` 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(slots=True, frozen=True, kw_only=True)
class ClientConnection:
    """One client of a group, as a broker sees it."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(slots=True, frozen=True, kw_only=True)
class SubscriptionInfo:
    """Subscription of a group to one topic."""

    topic: str
    expression: str
    expression_type: str
    version: int


@dataclass(slots=True, frozen=True, kw_only=True)
class SubscriptionConflict:
    """Two members of a group with different subscriptions to a topic: each misses messages that only the other
    subscribes to."""

    topic: str
    client_id: str
    expression: str
    other_client_id: str
    other_expression: str


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupConnections:
    """The online members of a consumer group and their subscriptions.

    Only Aerobee's brokers report `conflicts`.
    """

    group: str
    consume_type: str
    message_model: str
    consume_from: str
    connections: tuple[ClientConnection, ...]
    subscriptions: tuple[SubscriptionInfo, ...]
    conflicts: tuple[SubscriptionConflict, ...] = ()


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupInfo:
    """A consumer group's settings at a broker (SubscriptionGroupConfig)."""

    name: str
    broker_address: str
    consume_enabled: bool
    broadcast_enabled: bool
    orderly: bool
    retry_queue_count: int
    retry_count_max: int


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicInfo:
    """A topic's settings at a broker (TopicConfig). `perm`: 2 write, 4 read, 6 both."""

    name: str
    broker_address: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    order: bool
    message_type: str
    ack: str = ""  # ack level; empty: the broker's setting applies


@dataclass(slots=True, frozen=True, kw_only=True)
class StatsRates:
    """One counter of a broker over the last minute, hour, day: sum and rate per second."""

    minute_sum: int
    minute_tps: float
    hour_sum: int
    hour_tps: float
    day_sum: int
    day_tps: float


@dataclass(slots=True, frozen=True, kw_only=True)
class DirectConsumption:
    """A member's reply to CONSUME_MESSAGE_DIRECTLY, the request to consume one message."""

    result: str
    remark: str
    spent_ms: int
