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
    """of the group: master and slaves have the same; unset: the host's name"""
    broker_cluster_name: str = "DefaultCluster"
    """the cluster that it registers in"""
    broker_id: int = MASTER_ID
    """0: the master; a slave has its own above 0"""
    broker_ip1: str = field(default="", metadata={"key": "brokerIP1"})
    """empty: found when the broker starts"""
    broker_ip2: str = field(default="", metadata={"key": "brokerIP2"})
    """for replicas; empty: as brokerIP1"""
    bind_address: str = "0.0.0.0"
    """of the first listener; 0.0.0.0: every IPv4 address of the machine; [::]: every IPv6 address; empty: both"""
    listen_port: int = 10_911
    """of clients; the second port is 2 below, replication 1 above"""
    grpc_server_port: int = 0
    """one more port, of the first listener's address, for RocketMQ 5's own clients (8081); 0: none"""
    listeners: str = ""
    """name://host:port,…; replaces bindAddress and listenPort"""
    advertised_listeners: str = ""
    """name://host:port,…; the address that each listener advertises"""
    enable_vip_listener: bool | None = None
    """listenPort - 2; None: on, but no failure when it is taken"""
    namesrv_addr: str = ""
    """host:port of the NameServers, several with ;"""
    region_id: str = "DefaultRegion"
    """told to producers, who put it into messages"""
    broker_permission: int = PERM_READ | PERM_WRITE
    """2: takes sends, 4: takes pulls, 6: both"""
    start_accept_send_request_time_stamp: int = 0
    """ms since 1970 before which sends are refused; 0: none is"""
    server_channel_max_idle_time_seconds: int = 120
    """then a silent connection is closed"""
    server_connections_max: int = 0
    """one more is closed immediately; 0: half of the process's file limit"""
    tls_handshake_timeout_millis: int = 10_000
    """then a connection without a finished handshake is closed"""
    frame_receive_timeout_millis: int = 30_000
    """for a frame that has begun, and 1 s more for each 8 KiB"""
    # topics and groups
    default_topic_queue_nums: int = 8
    """queues of a topic that a send makes"""
    auto_create_topic_enable: bool = True
    """a send to a topic that is not there makes it"""
    auto_create_subscription_group: bool = True
    """a group that is not there is made by its first consumer"""
    cluster_topic_enable: bool = True
    """the topic with the cluster's name may be read and written"""
    broker_topic_enable: bool = True
    """the topic with the broker's name may be read and written"""
    trace_topic_enable: bool = False
    """the topic of msgTraceTopicName is made at the start"""
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    """default topic of clients' traces"""
    trace_on: bool = True
    """told to producers: their trace switch"""
    clear_retry_topic_when_delete_topic: bool = True
    """POP's retry topics of a topic go with it"""
    enable_topic_message_type_check: bool = False
    """refuse kinds that the topic's message.type does not name"""
    enable_mixed_message_type: bool = False
    """allow topics with message.type MIXED"""
    enable_retry_topic_v2: bool = field(default=False, metadata={"key": "enableRetryTopicV2"})
    """POP's retry topics are named with + instead of _"""
    # registration
    register_name_server_period: int = 30_000
    """ms between two registrations, 10,000 to 60,000"""
    register_broker_timeout_mills: int = 24_000
    """ms that a NameServer has to answer one"""
    force_register: bool = True
    """registered again although nothing changed"""
    compressed_register: bool = False
    """the table of topics is sent compressed"""
    enable_split_registration: bool = False
    """parts of splitRegistrationSize; above 2,000 topics in any case"""
    split_registration_size: int = 800
    """topics of one request"""
    # A new or changed topic is registered by REGISTER_TOPIC_IN_NAMESRV (217), not by a registration of the broker.
    enable_single_topic_register: bool = False
    """a topic that changes is registered by itself, not with the whole table"""
    broker_not_active_timeout_millis: int = 10_000
    """ms of silence after which NameServers and controllers take it for gone"""
    forward_timeout: int = 3_000
    """for the answer of another broker that has a part of a static topic's queue"""
    enable_slave_acting_master: bool = False
    """without a master the slave with the lowest id delivers what is due and serves locks"""
    enable_remote_escape: bool = False
    """an acting slave's deliveries go to other brokers; else they wait"""
    compatible_with_old_name_srv: bool = True
    """groups are watched by requests that 4.x nameservers know"""
    sync_broker_member_group_period: int = 1_000
    """ms between two looks at who is left of the group, with that"""
    # controllers
    enable_controller_mode: bool = False
    """the controllers say who is master; brokerRole and brokerId mean nothing"""
    controller_addr: str = ""
    """host:port;host:port of the controllers"""
    controller_heart_beat_timeout_mills: int = 10_000
    """a broker that is silent for so long is gone"""
    broker_heartbeat_interval: int = 1_000
    """to every controller; a master with a lease sends more often"""
    broker_election_priority: int = 2_147_483_647
    """of brokers that have equally much, the smallest becomes master"""
    sync_controller_metadata_period: int = 10_000
    """between questions who is master; hints cause one immediately"""
    check_sync_state_set_period: int = 5_000
    """ms between two looks at who is in sync, in controller mode"""
    # pulling
    long_polling_enable: bool = True
    """a pull that finds nothing waits for a message; false: for shortPollingTimeMills"""
    short_polling_time_mills: int = 1_000
    """ms that such a pull waits then"""
    slave_read_enable: bool = False
    """consumers that lag far behind are sent to a slave"""
    enable_property_filter: bool = False
    """consumers may filter by SQL92 over properties"""
    enable_calc_filter_bit_map: bool = False
    """filters are worked out when a message is stored, with enableConsumeQueueExt"""
    expect_consumer_num_use_filter: int = 32
    """groups with filters that those bits are laid out for"""
    max_error_rate_of_bloom_filter: int = 20
    """percent"""
    filter_data_clean_time_span: int = 24 * 3_600_000
    """ms for which the filter of a group that left is kept"""
    subscription_conflict_policy: str = WARN
    """or refuse: members of one group that subscribe differently"""
    lite_pull_message_enable: bool = True
    """LITE_PULL_MESSAGE (361) is served"""
    use_server_side_reset_offset: bool = True
    """a reset of offsets is kept here and handed out with pulls, so that members need not be online"""
    notify_consumer_ids_changed_enable: bool = True
    """members of a group are notified when one comes or goes"""
    estimate_accumulation: bool = True
    """of the lag of groups with a filter: what the filter takes (208)"""
    reject_pull_consumer_enable: bool = False
    """pulls only of members of groups that are pushed to, for their group"""
    # clients
    channel_expired_timeout: int = 120_000
    """ms without a heartbeat after which a client is forgotten"""
    flush_consumer_offset_interval: int = 5_000
    """ms between two writes of committed offsets to the disk"""
    server_load_balancer_enable: bool = True
    """QUERY_ASSIGNMENT gives each member its share; false: all queues, and members share them out"""
    default_message_request_mode: str = "PULL"
    """of groups that have not chosen: PULL or POP"""
    default_pop_share_queue_num: int = -1
    """with POP: next members whose shares a member reads, too; -1: any queue"""
    # popping
    pop_from_retry_probability: int = 20
    """percent of pops that look at the retry topic first"""
    pop_from_retry_probability_for_priority: int = 0
    """the same for pops that heed priorities"""
    # With it a redelivered message keeps its queue id in the retry topic, and so its priority; otherwise it
    # goes to queue 0.
    use_separate_retry_queue: bool = False
    """POP's retry topics get as many queues as their topic"""
    priority_order_asc: bool = True
    """priority that pops deliver first: the highest number, else the lowest"""
    # A new group that begins at the end receives a new queue from its start: a queue whose first message is
    # in memory.
    init_pop_offset_by_check_msg_in_mem: bool = True
    """a new POP group begins at the first message while the queue is still in memory"""
    retrieve_message_from_pop_retry_topic_v1: bool = field(
        default=True, metadata={"key": "retrieveMessageFromPopRetryTopicV1"}
    )
    """POP reads retry topics of the old name, too"""
    enable_pop_buffer_merge: bool = False
    """acknowledgements that come soon are matched in memory, before anything is written"""
    # A pending ordered pop is served when the invisible time of messages at other consumers expires; else at
    # its deadline.
    enable_notify_after_pop_order_lock_release: bool = True
    """pops that wait for an ordered queue are notified when it is free"""
    # transactions, replies, recall
    reject_transaction_message: bool = False
    """half messages are refused"""
    transaction_time_out: int = 6_000
    """ms after which a half message without a decision is checked"""
    transaction_check_max: int = 15
    """checks at its producer; then it goes to a separate topic"""
    transaction_check_interval: int = 60_000
    """RocketMQ since 5.2: 30_000"""
    transaction_op_msg_max_size: int = 4_096
    """bytes of decisions that are written as one record"""
    # RocketMQ: 3_000. A RocketMQ that continues after a crash knows of no decision that has no op record.
    transaction_op_batch_interval: int = 100
    """ms that decisions wait for others, to be written together"""
    transaction_metric_flush_interval: int = 10_000
    """ms between two writes of how many half messages each topic has"""
    store_reply_message_enable: bool = True
    """a reply to request() is stored, too"""
    recall_message_enable: bool = False
    """timer messages may be taken back (370)"""
    allow_recall_when_broker_not_writeable: bool = True
    """also while brokerPermission takes no sends"""
    # messages that are sent again with the same DEDUP_KEY
    dedup_window_millis: int = 0
    """retention of a key; 0: off"""
    dedup_keys_max: int = 1_000_000
    """keys in memory, some 400 bytes each; the oldest go first"""
    # overload
    broker_fast_failure_enable: bool = True
    """refuse sends while requests wait longer than the next setting says"""
    wait_time_mills_in_send_queue: int = 200
    """ms that the event loop may be behind before sends are refused as busy"""
    pending_reply_bytes_max: int = 256 * 1024 * 1024
    """replies that clients have not read yet, all connections"""
    # what peers may ask and occupy (bounds.py)
    heartbeat_bytes_max: int = 512 * 1024
    """of one heartbeat's body"""
    client_groups_max: int = 1_000
    """groups of one connection, of producers and consumers together"""
    group_subscriptions_max: int = 1_000
    """topics that one consumer of a group subscribes to"""
    group_members_max: int = 10_000
    """connected consumers, or producers, of one group"""
    client_members_max: int = 200_000
    """memberships of all connections, of consumers and of producers"""
    subscription_group_nums_max: int = 20_000
    """groups that there are when another one is made"""
    topic_nums_max: int = 50_000
    """topics that there are when another one is made"""
    auto_create_topic_nums_max: int = 5_000
    """the same for one that a send makes: each is written immediately"""
    topic_queue_nums_max: int = 4_096
    """queues of one topic"""
    orderly_locks_max: int = 100_000
    """queues that ordered consumers hold, of all groups"""
    consumer_offset_nums_max: int = 1_000_000
    """committed offsets, one a group, topic and queue"""
    client_polls_max: int = 10_000
    """pulls, and pops, of one connection that wait for messages"""
    config_black_list: str = "configBlackList;brokerConfigPath"
    """keys that no request changes, besides those that none ever may; ; between them"""
    # how numbers leave (exporter/); MetricsConfig has the rest
    metrics_label: str = ""
    """name:value,name:value, for every series"""
    metrics_topics_max: int = 5_000
    """by themselves; the rest is summed as topic "other" """
    metrics_lag_interval_millis: int = 10_000
    """from one measurement of all groups' lag to the next"""

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
