"""Settings of a NameServer; keys and defaults as NamesrvConfig and NettyServerConfig (RocketMQ).

Keys that only size thread pools or buffers of a JVM are not here: `aerobee.config.unknown_keys` names them, and
`IGNORED_KEYS` lists those that a namesrv.conf may carry without harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.access.addresses import networks_of
from aerobee.errors import ConfigError
from aerobee.metrics_config import METRICS_START_KEYS, MetricsConfig

# Known to RocketMQ, without a counterpart here: one event loop serves everything. Accepted silently in files.
IGNORED_KEYS = frozenset(
    {
        "bindAddressV6",
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "enableShutdownGracefully",
        "rocketmqHome",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)

# Kept and reported because RocketMQ's tools set them, without effect, and why.
WITHOUT_EFFECT_KEYS = {
    "productEnvName": "clusterTest is not there",
    "clusterTest": "routes are not requested from another environment's NameServers",
}
# Changing these in a running NameServer would have no effect.
START_ONLY_KEYS = frozenset(
    {
        "listenPort", "bindAddress", "listeners", "pendingReplyBytesMax", "serverChannelMaxIdleTimeSeconds",
        "proxyProtocolFrom", "tlsHandshakeTimeoutMillis", "frameReceiveTimeoutMillis", "enableControllerInNamesrv", "kvConfigPath",
        *METRICS_START_KEYS,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(MetricsConfig):
    """One NameServer. Its state is in memory; only the KV configuration reaches the disk."""

    listen_port: int = 9876
    """Port for clients and brokers. 0: a free port."""
    bind_address: str = "0.0.0.0"
    """Address of the listener. 0.0.0.0: every IPv4 address of the machine; [::]: every IPv6 address; empty: both."""
    listeners: str | None = None
    """name://host:port,…: replaces bindAddress and listenPort."""
    kv_config_path: str | None = None
    """Path of kvConfig.json. None: the KV configuration stays in memory."""
    config_store_path: str | None = None
    """File to which UPDATE_NAMESRV_CONFIG writes. None: changes stay in memory."""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """Keys that no request may change, separated by ;, in addition to those that can never be changed."""
    product_env_name: str = "center"
    """Accepted for compatibility and ignored, because clusterTest is not implemented."""
    cluster_test: bool = False
    """Accepted for compatibility and ignored: no requests go to the NameServers of another environment."""
    order_message_enable: bool = False
    """Add the entries of ORDER_TOPIC_CONFIG to routes."""
    return_order_topic_config_to_broker: bool = True
    """Return the topics of ORDER_TOPIC_CONFIG in the reply to a registration."""
    delete_topic_with_broker_registration: bool = False
    """Remove a broker from the topics that its registration no longer contains."""
    support_acting_master: bool = False
    """While a group has no master, return its slave with the lowest id as id 0."""
    notify_min_broker_id_changed: bool = False
    """Notify the brokers of a group when the lowest id among them changes."""
    enable_all_topic_list: bool = True
    """Serve GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
    enable_topic_list: bool = True
    """Serve the lists of a cluster's topics and of unit topics."""
    enable_controller_in_namesrv: bool = False
    """Also run a controller in this process, with the keys of ControllerConfig."""
    need_wait_for_service: bool = False
    """Refuse route queries for waitSecondsForService after the start."""
    wait_seconds_for_service: int = 45
    """Duration of needWaitForService, in seconds."""
    scan_not_active_broker_interval: int = 5_000
    """Interval between two searches for dead brokers, in ms."""
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
    registered_broker_nums_max: int = 10_000
    """Maximum number of registered broker processes."""
    broker_group_members_max: int = 64
    """Maximum number of processes with one broker name, a master and its slaves."""
    broker_address_nums_max: int = 64
    """Maximum number of addresses of one broker, of its listeners and of its filter servers."""
    broker_topic_nums_max: int = 100_000
    """Maximum number of topics of one broker name."""
    route_entry_nums_max: int = 2_000_000
    """Maximum number of pairs of topic and broker name, over all brokers."""
    kv_config_keys_max: int = 10_000
    """Maximum number of KV keys, over all namespaces."""
    kv_config_bytes_max: int = 4 * 1024 * 1024
    """Maximum size of KV keys and values, over all namespaces, in bytes. Each change writes all of them."""
    pending_reply_bytes_max: int = 256 * 1024 * 1024
    """Maximum size of the replies that peers have not read yet, over all connections, in bytes."""
    metrics_prom_exporter_port: int = 5_558
    """Port of the metrics. The default of a broker is 5557."""
    shutdown_wait_time_seconds: int = 3
    """Maximum time that stop() waits for unfinished replies, in seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port <= 65_535:
            raise ConfigError(f"listenPort is {self.listen_port}, must be 0 to 65535")
        self.check_metrics()
        networks_of(self.proxy_protocol_from, "proxyProtocolFrom")
        for key, value in (
            ("waitSecondsForService", self.wait_seconds_for_service),
            ("shutdownWaitTimeSeconds", self.shutdown_wait_time_seconds),
            ("serverConnectionsMax", self.server_connections_max),
        ):
            if value < 0:
                raise ConfigError(f"{key} is {value}, must not be negative")
        for key, value in (
            ("scanNotActiveBrokerInterval", self.scan_not_active_broker_interval),
            ("serverChannelMaxIdleTimeSeconds", self.server_channel_max_idle_time_seconds),
            ("pendingReplyBytesMax", self.pending_reply_bytes_max),
            ("tlsHandshakeTimeoutMillis", self.tls_handshake_timeout_millis),
            ("frameReceiveTimeoutMillis", self.frame_receive_timeout_millis),
            ("registeredBrokerNumsMax", self.registered_broker_nums_max),
            ("brokerGroupMembersMax", self.broker_group_members_max),
            ("brokerAddressNumsMax", self.broker_address_nums_max),
            ("brokerTopicNumsMax", self.broker_topic_nums_max),
            ("routeEntryNumsMax", self.route_entry_nums_max),
            ("kvConfigKeysMax", self.kv_config_keys_max),
            ("kvConfigBytesMax", self.kv_config_bytes_max),
        ):
            if value <= 0:
                raise ConfigError(f"{key} is {value}, must be above 0")


class LiveNameServerConfig:
    """The effective settings. A change at run time replaces the whole object; readers must read `value` each time."""

    __slots__ = ("value",)

    def __init__(self, value: NameServerConfig) -> None:
        self.value = value
