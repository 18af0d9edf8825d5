"""Results of client calls: one frozen dataclass per kind of reply."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aerobee.message import MessageQueue
from aerobee.quick_init import quick_init
from aerobee.remoting.version_text import version_text


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
    """The queue."""
    min_offset: int
    """Offset of the first message, in entries."""
    max_offset: int
    """Offset after the last message, in entries."""
    last_update_ms: int
    """Store time of the last message, in ms since the epoch."""


@dataclass(slots=True, frozen=True, kw_only=True)
class QueueProgress:
    """Progress of a group in one queue. `client_id` is the member that owns the queue, empty when unknown.

    `consumer_offset` is what the group committed. `member_offset` is the first unfinished offset as its owner reports
    it, -1 without a report; it is ahead of the committed offset, and known before the first commit. `wanted` is the
    estimated part of the lag that matches the group's filter; None when the group has no filter, or is not online.
    `member_worked_ms` is the last time at which the owner processed a message of the queue, 0 when unknown.
    """

    queue: MessageQueue
    """The queue."""
    broker_offset: int
    """Offset after the last message of the queue, in entries."""
    consumer_offset: int
    """Offset that the group committed."""
    pull_offset: int
    """Offset of the next message that the group pulls."""
    last_timestamp_ms: int
    """Store time of the last consumed message, in ms since the epoch; 0 when unknown."""
    client_id: str = ""
    """Member that owns the queue. Empty: unknown."""
    member_offset: int = -1
    """First unfinished offset as the owner reports it. -1: no report."""
    member_worked_ms: int = 0
    """Time at which the owner last processed a message of the queue, in ms since the epoch; 0 when unknown."""
    wanted: int | None = None
    """Estimated part of the lag that matches the group's filter. None: no filter, or no member is online."""

    @property
    def lag(self) -> int:
        """Messages of the queue behind the committed offset."""
        return self.broker_offset - self.consumer_offset

    @property
    def reached(self) -> int:
        """The group's actual position: the committed offset, or the owner's reported offset when that is higher."""
        return max(self.consumer_offset, self.member_offset)


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsumerProgress:
    """Progress of a group over all queues for which it has offsets."""

    group: str
    """Name of the group."""
    queues: tuple[QueueProgress, ...]
    """Progress in each queue for which the group has offsets, sorted."""
    consume_tps: float
    """Messages consumed a second, over the last minute."""
    members: tuple[str, ...] = ()
    """Client ids of the online members, with and without queues, sorted."""
    conflicts: tuple[SubscriptionConflict, ...] = ()
    """Members with different subscriptions. Only Aerobee's brokers report them."""

    @property
    def lag(self) -> int:
        """Lag of the group: sum over its queues."""
        return sum(queue.lag for queue in self.queues)


@dataclass(slots=True, frozen=True, kw_only=True)
class BrokerInfo:
    """One broker address known to a NameServer. `broker_id` 0 is the master."""

    cluster: str
    """Name of the cluster."""
    broker_name: str
    """Name of the broker, shared by a master and its slaves."""
    broker_id: int
    """0 for the master, above for a slave."""
    address: str
    """Address that the broker advertises, "host:port"."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ClientConnection:
    """One client of a group, as a broker sees it."""

    client_id: str
    """Id of the client."""
    address: str
    """Address from which it connects, "ip:port"."""
    language: str
    """Language of the client, such as JAVA or PYTHON."""
    version: int
    """Number of the client's version (MQVersion)."""

    @property
    def version_text(self) -> str:
        """The version as RocketMQ names it, such as "5.5.0"."""
        return version_text(self.version)

    protocol: str = "remoting"
    """Protocol of the client: remoting or grpc."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SubscriptionInfo:
    """Subscription of a group to one topic."""

    topic: str
    """Name of the topic."""
    expression: str
    """Tags joined by ||, * for all, or an SQL92 expression."""
    expression_type: str
    """TAG or SQL92."""
    version: int
    """Time at which the member made the subscription, in ms since the epoch."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SubscriptionConflict:
    """Two members of a group with different subscriptions to a topic: each misses messages that only the other
    subscribes to."""

    topic: str
    """Name of the topic."""
    client_id: str
    """Id of one member."""
    expression: str
    """Subscription of this member."""
    other_client_id: str
    """Id of the other member."""
    other_expression: str
    """Subscription of the other member."""


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupConnections:
    """The online members of a consumer group and their subscriptions.

    Only Aerobee's brokers report `conflicts`.
    """

    group: str
    """Name of the group."""
    consume_type: str
    """CONSUME_ACTIVELY for pull consumers, CONSUME_PASSIVELY for push consumers, CONSUME_POP for POP."""
    message_model: str
    """CLUSTERING or BROADCASTING."""
    consume_from: str
    """Where the group starts without a committed offset (ConsumeFromWhere)."""
    connections: tuple[ClientConnection, ...]
    """The online members."""
    subscriptions: tuple[SubscriptionInfo, ...]
    """Subscriptions of the group, one for each topic."""
    conflicts: tuple[SubscriptionConflict, ...] = ()
    """Members with different subscriptions."""


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupInfo:
    """A consumer group's settings at a broker (SubscriptionGroupConfig)."""

    name: str
    """Name of the group."""
    broker_address: str
    """Address of the broker that has these settings."""
    consume_enabled: bool
    """Whether the group may consume."""
    broadcast_enabled: bool
    """Whether the group may consume as a broadcast."""
    orderly: bool
    """Whether the group consumes in order (consumeMessageOrderly)."""
    retry_queue_count: int
    """Number of queues of its retry topic."""
    retry_count_max: int
    """Maximum number of redeliveries (retryMaxTimes). -1: unlimited."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TopicInfo:
    """A topic's settings at a broker (TopicConfig). `perm`: 2 write, 4 read, 6 both."""

    name: str
    """Name of the topic."""
    broker_address: str
    """Address of the broker that has these settings."""
    read_queue_count: int
    """Number of queues from which consumers read."""
    write_queue_count: int
    """Number of queues to which producers send."""
    perm: int
    """Permission: 2 write, 4 read, 6 both."""
    order: bool
    """Whether the topic keeps the order of its queues when a broker is lost."""
    message_type: str
    """Type of its messages, such as NORMAL or FIFO. Empty: unspecified."""
    ack: str = ""
    """Ack level of its messages. Empty: the broker's settings apply."""


@dataclass(slots=True, frozen=True, kw_only=True)
class StatsRates:
    """One counter of a broker over the last minute, hour, day: sum and rate per second."""

    minute_sum: int
    """Sum over the last minute."""
    minute_tps: float
    """Rate per second over the last minute."""
    hour_sum: int
    """Sum over the last hour."""
    hour_tps: float
    """Rate per second over the last hour."""
    day_sum: int
    """Sum over the last day."""
    day_tps: float
    """Rate per second over the last day."""


@dataclass(slots=True, frozen=True, kw_only=True)
class DirectConsumption:
    """A member's reply to CONSUME_MESSAGE_DIRECTLY, the request to consume one message."""

    result: str
    """Outcome of the handler, such as CR_SUCCESS or CR_THROW_EXCEPTION."""
    remark: str
    """Error of the handler. Empty: none."""
    spent_ms: int
    """Time that the handler took, in ms."""
