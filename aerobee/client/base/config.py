"""What a user can set, one frozen dataclass for each part of the client.

Defaults are RocketMQ's (ClientConfig, DefaultMQProducer, DefaultMQPushConsumer, DefaultLitePullConsumer) unless a
comment says otherwise. Times are in seconds when a name ends in `_s`. A value is checked where it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from aerobee.client.base.checks import check_field_types
from aerobee.errors import ConfigError
from aerobee.remoting.signature import Credentials


class Compression(Enum):
    """How bodies above the threshold are compressed. C++ and Go consumers read ZLIB only."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"


class MessageModel(Enum):
    """CLUSTERING: the members of a group share the queues. BROADCASTING: each member gets every message."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class Blocked(Enum):
    """What becomes of a message of an ordered queue whose handler fails again and again.

    DEAD_LETTER: after `retry_count_max` tries or `block_max_s` it goes to the dead letters and the queue goes on.
    WAIT: it is tried until it succeeds, and blocks its queue until then, as RocketMQ does.
    """

    DEAD_LETTER = "dead letter"
    WAIT = "wait"


class ConsumeFrom(Enum):
    """Where a group starts in a queue for which it never committed an offset.

    LAST: with what is sent from now on. RocketMQ's clients replay a topic whose first message is still in the broker's
    memory; this one does not.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


def _require(condition: bool, name: str, value: object, reason: str) -> None:
    if not condition:
        raise ConfigError(f"{name} is {value!r}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What every client needs: names, timers, TLS."""

    instance: str = ""  # part of the client id; empty: process id and a random number, so ids never collide
    client_ip: str = (
        ""  # part of the client id and of message ids; empty: the address that dials the nameserver
    )
    route_refresh_s: float = 30.0
    heartbeat_s: float = 30.0
    request_timeout_s: float = 3.0  # one call to a nameserver or broker, unless said
    tls: bool = (
        False  # brokers and nameservers; the host's name is not compared, for routes name IP addresses
    )
    tls_ca_file: str = ""  # PEM; empty: any certificate is accepted, as RocketMQ's tls.test.mode
    tls_cert_file: str = ""  # PEM, a certificate of our own for servers that ask for one
    tls_key_file: str = ""
    tls_key_password: str = field(default="", repr=False)
    access_key: str = ""  # the user's name at a cluster with access control
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    unit_name: str = ""

    def __post_init__(self) -> None:
        check_field_types(self, "client")
        for name in ("route_refresh_s", "heartbeat_s", "request_timeout_s"):
            value = getattr(self, name)
            _require(value > 0, f"client.{name}", value, "must be above 0 seconds")
        for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"):
            value = getattr(self, name)
            _require(self.tls or not value, f"client.{name}", value, "it has no effect without tls=True")
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
        """What requests are signed with, None for nothing. Raises ConfigError."""
        if not self.access_key:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer sends."""

    send_timeout_s: float = 3.0  # one send in total, retries included
    # Tries after the first one that may have stored the message; what surely stored nothing counts not, and is tried again until
    # send_timeout_s is over. 0: one try, nothing is waited for.
    retry_count_max: int = 2
    retry_when_not_stored_ok: bool = False  # also retry FLUSH_DISK_TIMEOUT and its like (makes duplicates)
    in_flight_max: int = 10_000  # sends that wait for an answer; further ones wait their turn
    compression: Compression = Compression.ZLIB
    compress_over_bytes: int = 4096
    compression_level: int = 5
    body_bytes_max: int = 4 * 1024 * 1024
    batch_bytes_max: int = 1024 * 1024  # a batch is split so that each request stays below
    default_topic: str = "TBW102"  # template for a topic that does not exist
    default_topic_queue_count: int = 4
    latency_fault: bool = False  # avoid brokers that answered slowly or failed
    delay_level_max: int = 18  # brokers deliver a higher one at their last; raise it with messageDelayLevel

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
    """How a push consumer pulls, hands over and keeps its place."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_timestamp_ms: int = 0  # with ConsumeFrom.TIMESTAMP; 0: half an hour before the start
    concurrency: int = 20  # handler calls that run at the same time
    batch_size: int = 1  # messages handed to one handler call; above 1 the handler gets a list
    pull_batch_count: int = 32
    pull_batch_bytes: int = 256 * 1024
    pull_hold_s: float = 15.0  # longest hold of a pull at the broker
    pull_timeout_s: float = 30.0
    pull_interval_s: float = 0.0
    pull_pause_after_error_s: float = 1.0  # RocketMQ waits 3 s after a code, 1 s after an exception
    cached_count_max: int = 1000  # per queue; pulling waits above
    cached_bytes_max: int = 100 * 1024 * 1024  # per queue
    span_max: int = 2000  # per queue, offsets between the oldest unfinished message and the newest
    rebalance_s: float = 20.0
    persist_offsets_s: float = 5.0
    consume_timeout_s: float = 900.0  # longest handler call when not orderly; 0: any; RocketMQ's 15 minutes
    retry_count_max: int = -1  # deliveries after the first one; -1: the group's setting (retryMaxTimes)
    orderly: bool = False  # one message of a queue at a time, in order, under a lock at the broker
    suspend_s: float = 1.0  # orderly: pause before a message that failed is tried again in its place
    block_max_s: float = 0.0  # orderly: longest that a failing message blocks its queue; 0: any time
    blocked: Blocked = Blocked.DEAD_LETTER  # orderly: what follows then, or after retry_count_max tries
    lock_lease_s: float = 30.0  # orderly: a lock that is not renewed for so long counts as lost
    local_retry_s: float = 5.0  # before a message that could not be sent back is handed over again
    drain_s: float = 10.0  # longest that close() waits for handlers that run
    local_offsets_directory: str = str(Path("~/.rocketmq_offsets").expanduser())  # broadcasting only
    post_subscription: bool = False  # send the expression with each pull; needed without a heartbeat only
    client_rebalance: bool = (
        True  # False: a broker shares out the queues, and says which to pop (request mode)
    )
    pop_invisible_s: float = 60.0  # how long a popped message is hidden from the other members
    pop_batch_count: int = 32

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
    """How a pull consumer fetches ahead and keeps its place."""

    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    consume_timestamp_ms: int = 0
    pull_batch_count: int = 32  # RocketMQ's lite pull asks for 10
    pull_hold_s: float = 20.0
    pull_timeout_s: float = 30.0
    pull_pause_after_error_s: float = 1.0
    cached_count_max: int = 1000
    cached_bytes_max: int = 100 * 1024 * 1024
    poll_count_max: int = 10_000  # messages that one poll() returns at most
    auto_commit: bool = True  # commit what poll() handed out, when the next poll() begins
    auto_commit_s: float = 5.0
    rebalance_s: float = 20.0

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
    """How admin calls are made."""

    request_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        check_field_types(self, "admin")
        _require(
            self.request_timeout_s > 0, "admin.request_timeout_s", self.request_timeout_s, "must be above 0"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerConfig:
    """How a simple consumer receives."""

    invisible_s: float = 60.0  # how long a received message is hidden from the other members
    wait_s: float = 15.0  # longest wait of one receive()
    from_begin: bool = (
        True  # a group that is new to a topic begins with its oldest message, else with the next one
    )
    retry_count_max: int = -1  # deliveries after the first one; -1: the group's setting (retryMaxTimes)

    def __post_init__(self) -> None:
        check_field_types(self, "simple_consumer")
        _require(
            self.invisible_s > 0, "simple_consumer.invisible_s", self.invisible_s, "must be above 0 seconds"
        )
        _require(0 <= self.wait_s <= 300, "simple_consumer.wait_s", self.wait_s, "must be 0 to 300 seconds")
