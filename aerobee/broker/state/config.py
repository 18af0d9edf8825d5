"""A broker's settings: RocketMQ's BrokerConfig keys and defaults, and a few Aerobee-specific keys.

A key of the file is the field's name in camelCase (aerobee/config.py). Keys that name thread pools of RocketMQ have no
counterpart here: one event loop serves a broker. Storage settings are in StoreConfig.

Aerobee's own keys: `listeners`, `advertisedListeners`, `enableVipListener`, `pendingReplyBytesMax`, `dedupWindowMillis`, `dedupKeysMax`,
`subscriptionConflictPolicy`.
"""

from __future__ import annotations

import dataclasses
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aerobee.access.addresses import networks_of
from aerobee.config import changed
from aerobee.errors import ConfigError
from aerobee.host_port import join_address, split_address
from aerobee.message import LEGAL_NAME, TOPIC_BYTES_MAX
from aerobee.metrics_config import MetricsConfig
from aerobee.remoting.protocol import MASTER_ID

INTERVAL_MS_MIN = 10  # minimum of the periodic intervals: 0 would block the event loop
TIME_MS_MAX = 253_402_300_799_999  # the last moment of the year 9999: a later one cannot be written as a date
WARN, REFUSE = "warn", "refuse"  # handling of members with different subscriptions
POLICIES = (WARN, REFUSE)
PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1
_ENDPOINT = re.compile(r"(?:(?P<name>[A-Za-z][A-Za-z0-9_-]*)://)?(?P<host>\[[^\]]+\]|[^:/]*):(?P<port>\d+)\Z")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One named listener: its bind address or its advertised address. An empty host binds to every address."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """ "host:port"."""
        return join_address(self.host, self.port)


def parse_endpoints(text: str, key: str) -> tuple[Endpoint, ...]:
    """Parse `internal://host:port,external://host:port`; a single `host:port` is named "default".

    Raises ConfigError naming `key` for anything else, and for two of one name.
    """
    endpoints: list[Endpoint] = []
    for piece in text.replace(";", ",").split(","):
        piece = piece.strip()
        if not piece:
            continue
        match = _ENDPOINT.match(piece)
        if match is None or int(match["port"]) > 65_535:
            raise ConfigError(f"{key} holds {piece!r}: write name://host:port, separated by commas")
        name = match["name"] or "default"
        if any(name == other.name for other in endpoints):
            raise ConfigError(f"{key} names listener {name!r} twice")
        endpoints.append(Endpoint(name, match["host"].strip("[]"), int(match["port"])))
    return tuple(endpoints)


def parse_labels(text: str) -> dict[str, str]:
    """Parse metricsLabel, `name:value,name:value`. Raises ValueError for anything else."""
    labels = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, value = piece.partition(":")
        if not colon or not name.isidentifier() or not name.isascii() or name.startswith("__"):
            raise ValueError(f"write name:value with letters, digits and _ in the name, not {piece!r}")
        labels[name] = value
    return labels


def _host_name() -> str:
    return socket.gethostname() or "broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(MetricsConfig):
    """Settings of one broker. Defaults as BrokerConfig (RocketMQ 5.5.0); times in ms unless the name says so."""

    broker_name: str = field(default_factory=_host_name)
    """Name of the broker group, the same at its master and slaves. Unset: the host name."""
    broker_cluster_name: str = "DefaultCluster"
    """Cluster in which the broker registers."""
    broker_id: int = MASTER_ID
    """0: master. A slave has its own number above 0."""
    broker_ip1: str = field(default="", metadata={"key": "brokerIP1"})
    """Address advertised to clients. Empty: detected at the start."""
    broker_ip2: str = field(default="", metadata={"key": "brokerIP2"})
    """Address advertised to slaves. Empty: as brokerIP1."""
    bind_address: str = "0.0.0.0"
    """Address of the first listener. 0.0.0.0: every IPv4 address of the machine; [::]: every IPv6 address;
    empty: both.
    """
    listen_port: int = 10_911
    """Port for clients. The VIP listener uses the port 2 below, replication the port 1 above."""
    grpc_server_port: int = 0
    """Additional port for RocketMQ 5's gRPC clients (usually 8081), at the first listener's address. 0: none."""
    listeners: str = ""
    """name://host:port,…: replaces bindAddress and listenPort."""
    advertised_listeners: str = ""
    """name://host:port,…: the address that clients of each listener connect to."""
    enable_vip_listener: bool | None = None
    """Listen at listenPort - 2, too. None: listen if the port is free."""
    namesrv_addr: str = ""
    """host:port of the NameServers, separated by ;."""
    region_id: str = "DefaultRegion"
    """Region that the broker reports to producers, which add it to each message."""
    broker_permission: int = PERM_READ | PERM_WRITE
    """2: accept sends; 4: accept pulls; 6: both."""
    start_accept_send_request_time_stamp: int = 0
    """Time before which the broker refuses sends, in ms since 1970. 0: no limit."""
    server_channel_max_idle_time_seconds: int = 120
    """Idle time after which a connection is closed, in seconds."""
    server_connections_max: int = 0
    """Maximum number of connections; further ones are closed immediately. 0: half of the process's limit of open files."""
    proxy_protocol_from: str = ""
    """Addresses and networks of balancers whose connections may begin with a PROXY protocol header, separated by ;. Empty: none."""
    tls_handshake_timeout_millis: int = 10_000
    """Maximum duration of a TLS handshake, in ms. Then the connection is closed."""
    frame_receive_timeout_millis: int = 30_000
    """Maximum time to receive one frame, in ms, plus 1 s for each 8 KiB. Then the connection is closed."""
    # topics and groups
    default_topic_queue_nums: int = 8
    """Number of queues of a topic that a send creates."""
    auto_create_topic_enable: bool = True
    """Create a missing topic when a message is sent to it."""
    auto_create_subscription_group: bool = True
    """Create a missing consumer group when its first consumer connects."""
    cluster_topic_enable: bool = True
    """Allow reads and writes of the topic that has the cluster's name."""
    broker_topic_enable: bool = True
    """Allow reads and writes of the topic that has the broker's name."""
    trace_topic_enable: bool = False
    """Create the topic msgTraceTopicName at the start."""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """Default topic of message traces."""
    trace_on: bool = True
    """Report to producers that they should trace their messages."""
    clear_retry_topic_when_delete_topic: bool = True
    """Delete POP's retry topics of a topic together with the topic."""
    enable_topic_message_type_check: bool = False
    """Refuse messages of a type that the topic's attribute message.type does not allow."""
    enable_mixed_message_type: bool = False
    """Allow topics with message.type MIXED."""
    enable_retry_topic_v2: bool = field(default=False, metadata={"key": "enableRetryTopicV2"})
    """Separate group and topic by + instead of _ in the names of POP's retry topics."""
    # registration
    register_name_server_period: int = 30_000
    """Interval between two registrations at the NameServers, in ms, 10,000 to 60,000."""
    register_broker_timeout_mills: int = 24_000
    """Time-out of one registration request, in ms."""
    force_register: bool = True
    """Register at each interval, even if nothing has changed."""
    compressed_register: bool = False
    """Compress the topic table in registrations."""
    enable_split_registration: bool = False
    """Split a registration into requests of splitRegistrationSize topics. Above 2,000 topics it is always split."""
    split_registration_size: int = 800
    """Number of topics in one request of a split registration."""
    # A new or changed topic is registered by REGISTER_TOPIC_IN_NAMESRV (217), not by a registration of the broker.
    enable_single_topic_register: bool = False
    """Register only the changed topic after a change, not the whole table."""
    broker_not_active_timeout_millis: int = 10_000
    """Time without a heartbeat after which NameServers and controllers treat the broker as dead, in ms."""
    forward_timeout: int = 3_000
    """Time-out of a request to another broker that has a part of a static topic's queue, in ms."""
    enable_slave_acting_master: bool = False
    """While a group has no master, its slave with the lowest id delivers due messages and serves queue locks."""
    enable_remote_escape: bool = False
    """An acting master sends due messages to other brokers. False: they wait for a master."""
    compatible_with_old_name_srv: bool = True
    """Query the members of a group with requests that 4.x NameServers understand."""
    sync_broker_member_group_period: int = 1_000
    """Interval between two queries of the group's live members, in ms, with enableSlaveActingMaster."""
    # controllers
    enable_controller_mode: bool = False
    """The controllers elect the master; brokerRole and brokerId are ignored."""
    controller_addr: str = ""
    """host:port of the controllers, separated by ;."""
    controller_heart_beat_timeout_mills: int = 10_000
    """Time without a heartbeat after which the controllers treat the broker as dead, in ms."""
    broker_heartbeat_interval: int = 1_000
    """Interval between two heartbeats to each controller, in ms. A master with a lease sends them more often."""
    broker_election_priority: int = 2_147_483_647
    """Among brokers with equally complete logs, the one with the lowest number becomes master."""
    sync_controller_metadata_period: int = 10_000
    """Interval between two queries of the current master at the controllers, in ms. A notification causes a
    query immediately.
    """
    check_sync_state_set_period: int = 5_000
    """Interval between two checks of the in-sync set, in ms, in controller mode."""
    # pulling
    long_polling_enable: bool = True
    """Hold a pull that finds no message until one arrives. False: hold it for shortPollingTimeMills."""
    short_polling_time_mills: int = 1_000
    """How long a pull without a message is held, in ms, when longPollingEnable is false."""
    slave_read_enable: bool = False
    """Suggest reads from a slave to consumers whose position is no longer in memory."""
    enable_property_filter: bool = False
    """Allow consumers to filter by SQL92 expressions over message properties."""
    enable_calc_filter_bit_map: bool = False
    """Evaluate filters when a message is stored. Requires enableConsumeQueueExt."""
    expect_consumer_num_use_filter: int = 32
    """Expected number of groups with filters; it sets the size of the filter bit map."""
    max_error_rate_of_bloom_filter: int = 20
    """Maximum rate of false positives of the filter bit map, in percent."""
    filter_data_clean_time_span: int = 24 * 3_600_000
    """How long the filter of a disconnected group is kept, in ms."""
    subscription_conflict_policy: str = WARN
    """WARN or refuse when members of a group have different subscriptions."""
    lite_pull_message_enable: bool = True
    """Serve LITE_PULL_MESSAGE (361)."""
    use_server_side_reset_offset: bool = True
    """Keep a reset offset at the broker and return it with the next pull, so that consumers may be offline."""
    notify_consumer_ids_changed_enable: bool = True
    """Notify the members of a group when a member joins or leaves."""
    estimate_accumulation: bool = True
    """Estimate how many of the waiting messages match a group's filter (208)."""
    reject_pull_consumer_enable: bool = False
    """Refuse pulls of clients that are not push consumers of the group."""
    # clients
    channel_expired_timeout: int = 120_000
    """Time without a heartbeat after which a client is removed, in ms."""
    flush_consumer_offset_interval: int = 5_000
    """Interval between two writes of the committed offsets to the disk, in ms."""
    server_load_balancer_enable: bool = True
    """QUERY_ASSIGNMENT returns a member's own queues. False: it returns all queues, and the members divide them."""
    default_message_request_mode: str = "PULL"
    """PULL or POP, for groups that have not chosen a request mode."""
    default_pop_share_queue_num: int = -1
    """In POP mode: number of other members whose queues a member also reads. -1: all queues."""
    # popping
    pop_from_retry_probability: int = 20
    """Share of POP requests that read the retry topic first, in percent."""
    pop_from_retry_probability_for_priority: int = 0
    """Share of POP requests that read the retry topic first, for topics with priorities, in percent."""
    # With it a redelivered message keeps its queue id in the retry topic, and so its priority; otherwise it
    # goes to queue 0.
    use_separate_retry_queue: bool = False
    """Create POP's retry topics with as many queues as the topic."""
    priority_order_asc: bool = True
    """POP delivers the highest priority number first. False: the lowest."""
    # A new group that begins at the end receives a new queue from its start: a queue whose first message is
    # in memory.
    init_pop_offset_by_check_msg_in_mem: bool = True
    """A new POP group starts at the oldest message as long as the whole queue is in memory."""
    retrieve_message_from_pop_retry_topic_v1: bool = field(
        default=True, metadata={"key": "retrieveMessageFromPopRetryTopicV1"}
    )
    """POP also reads retry topics whose names contain _ (see enableRetryTopicV2)."""
    enable_pop_buffer_merge: bool = False
    """Match early acknowledgements with their checkpoints in memory, without writing records."""
    # A pending ordered pop is served when the invisible time of messages at other consumers expires; else at
    # its deadline.
    enable_notify_after_pop_order_lock_release: bool = True
    """Notify pending POP requests when an ordered queue is unlocked."""
    # transactions, replies, recall
    reject_transaction_message: bool = False
    """Refuse transactional messages."""
    transaction_time_out: int = 6_000
    """Age at which an undecided half message is checked, in ms."""
    transaction_check_max: int = 15
    """Maximum number of checks of a half message; then it moves to a separate topic."""
    transaction_check_interval: int = 60_000
    """Interval between two rounds of transaction checks, in ms. RocketMQ's default since 5.2 is 30,000."""
    transaction_op_msg_max_size: int = 4_096
    """Maximum size of one record of transaction decisions, in bytes."""
    # RocketMQ: 3_000. A RocketMQ that continues after a crash knows of no decision that has no op record.
    transaction_op_batch_interval: int = 100
    """Maximum time that a transaction decision waits to be written with others, in ms."""
    transaction_metric_flush_interval: int = 10_000
    """Interval between two writes of the number of half messages per topic, in ms."""
    store_reply_message_enable: bool = True
    """Also store the replies of request-reply."""
    recall_message_enable: bool = False
    """Allow producers to recall timer messages (370)."""
    allow_recall_when_broker_not_writeable: bool = True
    """Allow recalls while brokerPermission forbids sends."""
    # messages that are sent again with the same DEDUP_KEY
    dedup_window_millis: int = 0
    """How long a deduplication key is remembered, in ms. 0: no deduplication."""
    dedup_keys_max: int = 1_000_000
    """Maximum number of deduplication keys in memory, about 400 bytes each. The oldest are dropped first."""
    # overload
    broker_fast_failure_enable: bool = True
    """Refuse sends while requests wait longer than waitTimeMillsInSendQueue."""
    wait_time_mills_in_send_queue: int = 200
    """Delay of the event loop above which sends are refused as busy, in ms."""
    pending_reply_bytes_max: int = 256 * 1024 * 1024
    """Maximum size of the replies that clients have not read yet, over all connections, in bytes."""
    # what peers may ask and occupy (bounds.py)
    heartbeat_bytes_max: int = 512 * 1024
    """Maximum size of the body of one heartbeat, in bytes."""
    client_groups_max: int = 1_000
    """Maximum number of producer and consumer groups of one connection."""
    group_subscriptions_max: int = 1_000
    """Maximum number of topics that one consumer of a group subscribes to."""
    group_members_max: int = 10_000
    """Maximum number of connected consumers, or producers, of one group."""
    client_members_max: int = 200_000
    """Maximum number of memberships of all connections, consumers and producers together."""
    subscription_group_nums_max: int = 20_000
    """Maximum number of consumer groups."""
    topic_nums_max: int = 50_000
    """Maximum number of topics."""
    auto_create_topic_nums_max: int = 5_000
    """Number of topics from which on a send creates no further topic. Each created topic is written to the disk immediately."""
    topic_queue_nums_max: int = 4_096
    """Maximum number of queues of one topic."""
    orderly_locks_max: int = 100_000
    """Maximum number of queues locked by ordered consumers, over all groups."""
    consumer_offset_nums_max: int = 1_000_000
    """Maximum number of committed offsets, one per group, topic and queue."""
    client_polls_max: int = 10_000
    """Maximum number of pending pulls, and of pending POP requests, of one connection."""
    grpc_calls_max: int = 100_000
    """Maximum number of open calls of all gRPC connections. One more ends a call of the connection with the most."""
    grpc_request_bytes_max: int = 256 * 1024 * 1024
    """Maximum size of incomplete and served requests of all gRPC connections, in bytes."""
    config_black_list: str = "configBlackList;brokerConfigPath"
    """Keys that no request may change, separated by ;, in addition to those that can never be changed."""
    # how numbers leave (exporter/); MetricsConfig has the rest
    metrics_label: str = ""
    """name:value,name:value: labels of every metric."""
    metrics_topics_max: int = 5_000
    """Maximum number of topics with their own metrics. The rest is summed as topic "other"."""
    metrics_lag_interval_millis: int = 10_000
    """Interval between two measurements of the lag of all groups, in ms."""

    def __post_init__(self) -> None:
        for key, name in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            # A broker's and a cluster's name are topics too, so the rule of topics holds. Host names have dots.
            if not name or not (LEGAL_NAME.match(name) or LEGAL_NAME.match(name.replace(".", "-"))):
                raise ConfigError(f"{key} is {name!r}: letters, digits, _, -, % and | are allowed")
        if (
            not LEGAL_NAME.match(self.msg_trace_topic_name)
            or len(self.msg_trace_topic_name) > TOPIC_BYTES_MAX
        ):
            raise ConfigError(
                f"msgTraceTopicName is {self.msg_trace_topic_name!r}: letters, digits, _, -, % and | are allowed"
            )
        _between("startAcceptSendRequestTimeStamp", self.start_accept_send_request_time_stamp, 0, TIME_MS_MAX)
        if self.broker_id < 0:
            raise ConfigError(f"brokerId is {self.broker_id}, must be 0 for a master or above for a slave")
        _between("listenPort", self.listen_port, 0, 65_535)
        _between("grpcServerPort", self.grpc_server_port, 0, 65_535)
        networks_of(self.proxy_protocol_from, "proxyProtocolFrom")
        _check_metrics(self)
        _between("brokerPermission", self.broker_permission, 0, 7)
        _between("dedupWindowMillis", self.dedup_window_millis, 0, 7 * 86_400_000)
        _between("popFromRetryProbability", self.pop_from_retry_probability, 0, 100)
        if self.default_message_request_mode not in ("PULL", "POP"):
            raise ConfigError(
                f"defaultMessageRequestMode is {self.default_message_request_mode!r}, must be PULL or POP"
            )
        _between("defaultTopicQueueNums", self.default_topic_queue_nums, 1, 65_536)
        for key, value in (
            ("serverChannelMaxIdleTimeSeconds", self.server_channel_max_idle_time_seconds),
            ("registerNameServerPeriod", self.register_name_server_period),
            ("registerBrokerTimeoutMills", self.register_broker_timeout_mills),
            ("heartbeatBytesMax", self.heartbeat_bytes_max),
            ("clientGroupsMax", self.client_groups_max),
            ("groupSubscriptionsMax", self.group_subscriptions_max),
            ("groupMembersMax", self.group_members_max),
            ("clientMembersMax", self.client_members_max),
            ("subscriptionGroupNumsMax", self.subscription_group_nums_max),
            ("topicNumsMax", self.topic_nums_max),
            ("autoCreateTopicNumsMax", self.auto_create_topic_nums_max),
            ("orderlyLocksMax", self.orderly_locks_max),
            ("consumerOffsetNumsMax", self.consumer_offset_nums_max),
            ("clientPollsMax", self.client_polls_max),
            ("grpcCallsMax", self.grpc_calls_max),
            ("grpcRequestBytesMax", self.grpc_request_bytes_max),
            ("tlsHandshakeTimeoutMillis", self.tls_handshake_timeout_millis),
            ("frameReceiveTimeoutMillis", self.frame_receive_timeout_millis),
            ("splitRegistrationSize", self.split_registration_size),
            ("shortPollingTimeMills", self.short_polling_time_mills),
            ("flushConsumerOffsetInterval", self.flush_consumer_offset_interval),
            ("channelExpiredTimeout", self.channel_expired_timeout),
            ("waitTimeMillsInSendQueue", self.wait_time_mills_in_send_queue),
            ("pendingReplyBytesMax", self.pending_reply_bytes_max),
            ("dedupKeysMax", self.dedup_keys_max),
            ("brokerNotActiveTimeoutMillis", self.broker_not_active_timeout_millis),
            ("controllerHeartBeatTimeoutMills", self.controller_heart_beat_timeout_mills),
            ("forwardTimeout", self.forward_timeout),
            ("transactionOpMsgMaxSize", self.transaction_op_msg_max_size),
            ("expectConsumerNumUseFilter", self.expect_consumer_num_use_filter),
        ):
            if value <= 0:
                raise ConfigError(f"{key} is {value}, must be above 0")
        _check_paces(self)
        _between("topicQueueNumsMax", self.topic_queue_nums_max, 1, 65_536)
        _between("serverConnectionsMax", self.server_connections_max, 0, 2**31 - 1)
        _between("maxErrorRateOfBloomFilter", self.max_error_rate_of_bloom_filter, 1, 99)
        if self.subscription_conflict_policy not in POLICIES:
            raise ConfigError(
                f"subscriptionConflictPolicy is {self.subscription_conflict_policy!r}: write {' or '.join(POLICIES)}"
            )
        bound = {endpoint.name for endpoint in parse_endpoints(self.listeners, "listeners")}
        for endpoint in parse_endpoints(self.advertised_listeners, "advertisedListeners"):
            if endpoint.name not in (bound or {"default"}):
                raise ConfigError(
                    f"advertisedListeners names {endpoint.name!r}, which listeners does not have: "
                    f"{', '.join(sorted(bound)) or 'default'}"
                )
        for piece in self.nameservers:
            split_address(piece, "namesrvAddr")

    @property
    def nameservers(self) -> tuple[str, ...]:
        """The addresses in namesrvAddr, each "host:port"."""
        return tuple(
            piece.strip() for piece in self.namesrv_addr.replace(",", ";").split(";") if piece.strip()
        )

    @property
    def send_wait_limit_ms(self) -> int:
        """Maximum wait of requests, after which sends are refused; 0: never."""
        return self.wait_time_mills_in_send_queue if self.broker_fast_failure_enable else 0

    @property
    def register_period_s(self) -> float:
        """registerNameServerPeriod kept between 10 and 60 s, as RocketMQ does."""
        return min(max(self.register_name_server_period, 10_000), 60_000) / 1000

    @property
    def bound_listeners(self) -> tuple[Endpoint, ...]:
        """Listeners: the named ones, or one called "default"."""
        named = parse_endpoints(self.listeners, "listeners")
        return named or (Endpoint("default", self.bind_address, self.listen_port),)

    @property
    def advertised(self) -> Mapping[str, Endpoint]:
        """Listener name -> what to advertise for it, for those that say so."""
        return {e.name: e for e in parse_endpoints(self.advertised_listeners, "advertisedListeners")}


def _check_metrics(config: BrokerConfig) -> None:
    config.check_metrics()
    _between("metricsTopicsMax", config.metrics_topics_max, 0, 1_000_000)
    _between("metricsLagIntervalMillis", config.metrics_lag_interval_millis, 100, 3_600_000)
    try:
        parse_labels(config.metrics_label)
    except ValueError as error:
        raise ConfigError(f"metricsLabel is {config.metrics_label!r}: {error}") from error


def _check_paces(config: BrokerConfig) -> None:
    """Raise ConfigError for what would be done again and again without a pause, and for times that are none."""
    for key, value in (
        ("syncBrokerMemberGroupPeriod", config.sync_broker_member_group_period),
        ("brokerHeartbeatInterval", config.broker_heartbeat_interval),
        ("syncControllerMetadataPeriod", config.sync_controller_metadata_period),
        ("checkSyncStateSetPeriod", config.check_sync_state_set_period),
        ("filterDataCleanTimeSpan", config.filter_data_clean_time_span),
        ("transactionCheckInterval", config.transaction_check_interval),
        ("transactionMetricFlushInterval", config.transaction_metric_flush_interval),
    ):
        if value < INTERVAL_MS_MIN:
            raise ConfigError(f"{key} is {value}, must be at least {INTERVAL_MS_MIN} (ms)")
    _between("transactionOpBatchInterval", config.transaction_op_batch_interval, 0, 2**31 - 1)
    _between("transactionTimeOut", config.transaction_time_out, 0, 2**53)


def _between(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{key} is {value}, must be between {low} and {high}")


class LiveConfig:
    """The settings in force. A change at run time swaps the whole object; the parts that subscribed are notified."""

    def __init__(self, value: BrokerConfig) -> None:
        self.value = value
        self._watchers: list[Callable[[BrokerConfig], None]] = []

    def on_change(self, callback: Callable[[BrokerConfig], None]) -> None:
        """Call back with the new settings after each change."""
        self._watchers.append(callback)

    def replace(self, **changes: object) -> BrokerConfig:
        """Swap in a copy with these fields (snake_case) changed. Raises ConfigError and changes nothing."""
        self._swap(dataclasses.replace(self.value, **changes))  # type: ignore[arg-type]
        return self.value

    def update(self, properties: Mapping[str, str], source: str = "update") -> BrokerConfig:
        """Swap in a copy with these file keys changed; keys of other parts are left alone. Raises ConfigError."""
        self._swap(changed(self.value, properties, source))
        return self.value

    def _swap(self, value: BrokerConfig) -> None:
        self.value = value
        for watcher in self._watchers:
            watcher(value)
