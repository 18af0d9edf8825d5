"""Settings of the client, one frozen dataclass for each part.

Defaults are RocketMQ's (ClientConfig, DefaultMQProducer, DefaultMQPushConsumer, DefaultLitePullConsumer) unless a
docstring says otherwise. Times are in seconds when a name ends in `_s`. The constructor checks each value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from aerobee.client.base.checks import check_field_types
from aerobee.errors import ConfigError
from aerobee.remoting.signature import Credentials


class Compression(Enum):
    """How bodies above the threshold are compressed. C++ and Go consumers support ZLIB only."""

    NONE = "none"
    """Send bodies as they are."""
    ZLIB = "zlib"
    """The only algorithm that RocketMQ's C++ and Go consumers support."""
    LZ4 = "lz4"
    """Fast; weaker compression than ZLIB."""
    ZSTD = "zstd"
    """Stronger compression than ZLIB at a similar cost."""


class MessageModel(Enum):
    """CLUSTERING: the members of a group share the queues. BROADCASTING: each member gets every message."""

    CLUSTERING = "CLUSTERING"
    """The members of the group share the queues: one member receives a message."""
    BROADCASTING = "BROADCASTING"
    """Each member receives every message and keeps its own offsets in a local file."""


class Blocked(Enum):
    """Handling of a message of an ordered queue whose handler fails repeatedly.

    DEAD_LETTER: after `retry_count_max` tries or `block_max_s` the message is dead-lettered and the queue continues.
    WAIT: the message is retried until the handler succeeds, and blocks its queue until then, as RocketMQ does.
    """

    DEAD_LETTER = "dead letter"
    """Dead-letter the message, and continue with the next one."""
    WAIT = "wait"
    """Retry until the handler succeeds. The queue is blocked until then, as with RocketMQ."""


class ConsumeFrom(Enum):
    """Where a group starts in a queue for which it never committed an offset.

    LAST: with messages sent after the start. RocketMQ's clients replay a topic whose first message is still in the
    broker's memory; this client does not.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    """Start with messages sent after the start of the consumer."""
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """Start with the oldest stored message."""
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    """Start with the first message stored at or after `consume_timestamp_ms`."""


def _require(condition: bool, name: str, value: object, reason: str) -> None:
    if not condition:
        raise ConfigError(f"{name} is {value!r}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of every client: names, timers, TLS."""

    instance: str = ""
    """Part of the client id. Empty: process id and a random number, which makes client ids unique."""
    client_ip: str = ""
    """Part of the client id and of message ids. Empty: the address that connects to the NameServer."""
    route_refresh_s: float = 30.0
    """Interval between two queries of the routes at the NameServer, in seconds."""
    heartbeat_s: float = 30.0
    """Interval between two heartbeats to each broker, in seconds."""
    request_timeout_s: float = 3.0
    """Time-out of one request to a NameServer or broker, in seconds, unless the call has its own."""
    require_nameserver: bool = True
    """start() fails when no NameServer answers. False: a producer or pull consumer starts without one, and its calls fail
    until one answers."""
    tls: bool = False
    """Connect to brokers and NameServers with TLS. Their certificates must be signed by a trusted authority and name the
    address to which the client connects; routes name brokers by `brokerIP1`, usually an IP address."""
    tls_ca_file: str = ""
    """PEM file of the trusted authorities. Empty: those of the operating system."""
    tls_insecure: bool = False
    """Accept any certificate, of any host, as RocketMQ's clients do with tls.test.mode. Excludes `tls_ca_file`."""
    tls_cert_file: str = ""
    """PEM file of the client certificate, for servers that require one. Set together with `tls_key_file`."""
    tls_key_file: str = ""
    """PEM file of the client certificate's private key."""
    tls_key_password: str = field(default="", repr=False)
    """Password of `tls_key_file`. Empty: the key is not encrypted."""
    access_key: str = ""
    """User name at a cluster with access control. Set together with `secret_key`."""
    secret_key: str = field(default="", repr=False)
    """Password of the user: requests are signed with it, and it is never sent."""
    security_token: str = field(default="", repr=False)
    """Token of a temporary credential, sent with each request. Empty: none."""
    unit_name: str = ""
    """Unit name of RocketMQ's client; part of the client id when set."""

    def __post_init__(self) -> None:
        check_field_types(self, "client")
        for name in ("route_refresh_s", "heartbeat_s", "request_timeout_s"):
            value = getattr(self, name)
            _require(value > 0, f"client.{name}", value, "must be above 0 seconds")
        for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
            value = getattr(self, name)
            _require(self.tls or not value, f"client.{name}", value, "it has no effect without tls=True")
        _require(
            self.tls or not self.tls_insecure,
            "client.tls_insecure",
            True,
            "it has no effect without tls=True",
        )
        _require(
            not (self.tls_insecure and self.tls_ca_file),
            "client.tls_insecure",
            True,
            f"it excludes tls_ca_file, which is {self.tls_ca_file!r}: give one of both",
        )
        _require(
            bool(self.tls_cert_file) == bool(self.tls_key_file),
            "client.tls_cert_file",
            self.tls_cert_file,
            f"tls_key_file is {self.tls_key_file!r}: give both, or neither",
        )
        _require(
            bool(self.access_key) == bool(self.secret_key),
            "client.access_key",
            self.access_key,
            "access_key and secret_key belong together: give both, or neither",
        )

    @property
    def credentials(self) -> Credentials | None:
        """Credentials that sign requests, None without access control. Raises ConfigError."""
        if not self.access_key:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer sends."""

    send_timeout_s: float = 3.0
    """Time-out of one send, retries included, in seconds."""
    retry_count_max: int = 2
    """Maximum number of retries after attempts that may have stored the message. An attempt that surely stored nothing does not
    count and is repeated until `send_timeout_s` has passed. 0: a single attempt."""
    retry_when_not_stored_ok: bool = False
    """Also retry FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE. Such a retry stores duplicates."""
    in_flight_max: int = 10_000
    """Maximum number of sends without a reply; further sends wait."""
    compression: Compression = Compression.ZLIB
    """Algorithm for bodies larger than `compress_over_bytes`."""
    compress_over_bytes: int = 4096
    """Body size above which a body is compressed, in bytes."""
    compression_level: int = 5
    """Compression level, 1 (fast) to 9 (small)."""
    body_bytes_max: int = 4 * 1024 * 1024
    """Maximum size of a message body, in bytes. A larger one raises UsageError."""
    batch_bytes_max: int = 1024 * 1024
    """Maximum size of one batch request, in bytes. A larger batch is split."""
    linger_ms: float = 0
    """Duration in ms for which a send waits for others of its topic, to share a request with them. 0: no wait, each send is a
    request."""
    default_topic: str = "TBW102"
    """Topic whose settings serve as the template of a topic that does not exist."""
    default_topic_queue_count: int = 4
    """Number of queues of a topic that a send creates."""
    latency_fault: bool = False
    """Avoid brokers that replied slowly or failed."""
    delay_level_max: int = 18
    """Highest delay level. Brokers deliver a higher level at their last one; raise it together with `messageDelayLevel`."""

    def __post_init__(self) -> None:
        check_field_types(self, "producer")
        _require(self.send_timeout_s > 0, "producer.send_timeout_s", self.send_timeout_s, "must be above 0")
        _require(
            self.retry_count_max >= 0,
            "producer.retry_count_max",
            self.retry_count_max,
            "must not be negative",
        )
        _require(self.in_flight_max > 0, "producer.in_flight_max", self.in_flight_max, "must be above 0")
        _require(
            0 < self.batch_bytes_max <= 15 * 1024 * 1024,
            "producer.batch_bytes_max",
            self.batch_bytes_max,
            "must be above 0 and below the frame limit of 16 MiB",
        )
        _require(
            0 <= self.linger_ms < self.send_timeout_s * 1000,
            "producer.linger_ms",
            self.linger_ms,
            "must not be negative, and must be below send_timeout_s",
        )
        _require(
            1 <= self.compression_level <= 9,
            "producer.compression_level",
            self.compression_level,
            "must be 1 to 9",
        )
        _require(
            self.delay_level_max >= 1, "producer.delay_level_max", self.delay_level_max, "must be above 0"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a push consumer pulls, delivers and commits offsets.

    Two defaults may surprise. `consume_from` is LAST: a new group gets no message that was sent
    before its first start. `retry_count_max` is -1: the group's `retryMaxTimes` at the broker decides, 16 by default.
    """

    model: MessageModel = MessageModel.CLUSTERING
    """Whether the members of the group share the queues or each receive every message."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where the group starts in a queue without a committed offset. LAST, the default: a new group gets only messages
    sent after its first start. FIRST: it begins with the oldest stored message."""
    consume_timestamp_ms: int = 0
    """Start time for ConsumeFrom.TIMESTAMP, ms since the epoch. 0: 30 minutes before the start."""
    concurrency: int = 20
    """Maximum number of handler calls that run at the same time."""
    batch_size: int = 1
    """Maximum number of messages of one handler call. Above 1 the handler receives a list."""
    pull_batch_count: int = 32
    """Maximum number of messages of one pull, 1 to 1024."""
    pull_batch_bytes: int = 256 * 1024
    """Maximum size of one pull's messages, in bytes."""
    pull_hold_s: float = 15.0
    """Longest time that a broker keeps a pull pending while it has no message, in seconds."""
    pull_timeout_s: float = 30.0
    """Time-out of a pull request, in seconds. Must be above `pull_hold_s`."""
    pull_interval_s: float = 0.0
    """Pause between two pulls of a queue, in seconds."""
    pull_pause_after_error_s: float = 1.0
    """Pause after a failed pull, in seconds. RocketMQ waits 3 s after an error code and 1 s after an exception."""
    cached_count_max: int = 1000
    """Maximum number of cached messages per queue. The consumer pulls no more above it."""
    cached_bytes_max: int = 100 * 1024 * 1024
    """Maximum size of the cached messages per queue, in bytes. The consumer pulls no more above it."""
    span_max: int = 2000
    """Maximum distance per queue, in offsets, between the oldest unfinished and the newest cached message."""
    rebalance_s: float = 20.0
    """Interval between two rebalances, in seconds."""
    persist_offsets_s: float = 5.0
    """Interval between two commits of offsets to the brokers, in seconds."""
    consume_timeout_s: float = 900.0
    """Longest handler call of a consumer that is not orderly, in seconds; then the message is redelivered. 0: no limit."""
    retry_count_max: int = -1
    """Maximum number of redeliveries of a message; then it is dead-lettered. -1, the default: the group's setting
    `retryMaxTimes` decides, 16 unless an operator changed it."""
    orderly: bool = False
    """Deliver the messages of a queue one at a time and in order, under a lock at the broker."""
    suspend_s: float = 1.0
    """Orderly: pause before a failed message is delivered to the handler again, in seconds."""
    block_max_s: float = 0.0
    """Orderly: longest time that a failing message blocks its queue, in seconds. 0: no limit."""
    blocked: Blocked = Blocked.DEAD_LETTER
    """Orderly: what becomes of a message after `block_max_s` or `retry_count_max` attempts."""
    lock_lease_s: float = 30.0
    """Orderly: age above which a lock that was not renewed counts as lost, in seconds, 1 to 50."""
    local_retry_s: float = 5.0
    """Pause before a message that could not be sent back to its broker is delivered to the handler again, in seconds."""
    drain_s: float = 10.0
    """Longest time that `close()` waits for running handlers, in seconds."""
    local_offsets_directory: str = str(Path("~/.rocketmq_offsets").expanduser())
    """Directory of the offsets of a broadcasting consumer."""
    post_subscription: bool = False
    """Send the filter expression with each pull. Needed only for a consumer without heartbeats."""
    client_rebalance: bool = True
    """Let the members assign the queues. False: a broker assigns them and chooses between pull and POP (request mode)."""
    pop_invisible_s: float = 60.0
    """How long a popped message is hidden from the other members, in seconds, 5 to 300."""
    pop_batch_count: int = 32
    """Maximum number of messages of one POP request, 1 to 32."""

    def __post_init__(self) -> None:
        check_field_types(self, "consumer")
        _require(
            self.client_rebalance or not self.orderly,
            "consumer.client_rebalance",
            self.client_rebalance,
            "must be on for an orderly consumer",
        )
        _require(
            5 <= self.pop_invisible_s <= 300,
            "consumer.pop_invisible_s",
            self.pop_invisible_s,
            "must be 5 to 300 seconds",
        )
        _require(
            1 <= self.pop_batch_count <= 32,
            "consumer.pop_batch_count",
            self.pop_batch_count,
            "must be 1 to 32",
        )
        for name in ("concurrency", "batch_size", "pull_batch_count", "cached_count_max", "span_max"):
            value = getattr(self, name)
            _require(value > 0, f"consumer.{name}", value, "must be above 0")
        _require(
            self.pull_batch_count <= 1024, "consumer.pull_batch_count", self.pull_batch_count, "at most 1024"
        )
        for name in ("pull_hold_s", "pull_timeout_s", "rebalance_s", "persist_offsets_s", "suspend_s"):
            value = getattr(self, name)
            _require(value > 0, f"consumer.{name}", value, "must be above 0 seconds")
        for name in ("consume_timeout_s", "block_max_s"):
            value = getattr(self, name)
            _require(value >= 0, f"consumer.{name}", value, "must not be negative; 0 is without a bound")
        _require(
            1 <= self.lock_lease_s <= 50,
            "consumer.lock_lease_s",
            self.lock_lease_s,
            "must be 1 to 50 seconds: RocketMQ's brokers give a queue to another client after 60",
        )
        _require(
            self.pull_timeout_s > self.pull_hold_s,
            "consumer.pull_timeout_s",
            self.pull_timeout_s,
            f"must be above pull_hold_s ({self.pull_hold_s}), or each quiet pull would time out",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerConfig:
    """How a pull consumer prefetches and commits offsets."""

    model: MessageModel = MessageModel.CLUSTERING
    """Whether the members of the group share the queues or each receive every message."""
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    """Where the group starts in a queue without a committed offset. LAST, the default: a new group gets only messages
    sent after its first start. FIRST: it begins with the oldest stored message."""
    consume_timestamp_ms: int = 0
    """Start time for ConsumeFrom.TIMESTAMP, ms since the epoch. 0: 30 minutes before the start."""
    pull_batch_count: int = 32
    """Maximum number of messages of one pull. RocketMQ's lite pull consumer requests 10."""
    pull_hold_s: float = 20.0
    """Longest time that a broker keeps a pull pending while it has no message, in seconds."""
    pull_timeout_s: float = 30.0
    """Time-out of a pull request, in seconds. Must be above `pull_hold_s`."""
    pull_pause_after_error_s: float = 1.0
    """Pause after a failed pull, in seconds."""
    cached_count_max: int = 1000
    """Maximum number of cached messages per queue. The consumer pulls no more above it."""
    cached_bytes_max: int = 100 * 1024 * 1024
    """Maximum size of the cached messages per queue, in bytes. The consumer pulls no more above it."""
    poll_count_max: int = 10_000
    """Maximum number of messages that one `poll()` returns."""
    auto_commit: bool = True
    """Commit the messages that `poll()` returned when the next `poll()` begins."""
    auto_commit_s: float = 5.0
    """Interval between two automatic commits to the brokers, in seconds."""
    rebalance_s: float = 20.0
    """Interval between two rebalances, in seconds."""

    def __post_init__(self) -> None:
        check_field_types(self, "pull_consumer")
        for name in ("pull_batch_count", "cached_count_max", "poll_count_max"):
            value = getattr(self, name)
            _require(value > 0, f"pull_consumer.{name}", value, "must be above 0")
        _require(
            self.pull_timeout_s > self.pull_hold_s,
            "pull_consumer.pull_timeout_s",
            self.pull_timeout_s,
            f"must be above pull_hold_s ({self.pull_hold_s}), or each quiet pull would time out",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig:
    """Settings of admin calls."""

    request_timeout_s: float = 5.0
    """Time-out of one administrative request, in seconds."""

    def __post_init__(self) -> None:
        check_field_types(self, "admin")
        _require(
            self.request_timeout_s > 0, "admin.request_timeout_s", self.request_timeout_s, "must be above 0"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerConfig:
    """How a simple consumer receives."""

    invisible_s: float = 60.0
    """How long a received message is hidden from the other members, in seconds."""
    wait_s: float = 15.0
    """Longest wait of one `receive()`, in seconds, 0 to 300."""
    from_begin: bool = True
    """Start a group that is new to a topic with its oldest message. False: with the next message sent."""
    retry_count_max: int = -1
    """Maximum number of redeliveries of a message; then it is dead-lettered. -1, the default: the group's setting
    `retryMaxTimes` decides, 16 unless an operator changed it."""

    def __post_init__(self) -> None:
        check_field_types(self, "simple_consumer")
        _require(
            self.invisible_s > 0, "simple_consumer.invisible_s", self.invisible_s, "must be above 0 seconds"
        )
        _require(0 <= self.wait_s <= 300, "simple_consumer.wait_s", self.wait_s, "must be 0 to 300 seconds")
