"""Settings of a NameServer; keys and defaults as NamesrvConfig and NettyServerConfig (RocketMQ).

Keys that only size thread pools or buffers of a JVM are not here: `aerobee.config.unknown_keys` names them, and
`IGNORED_KEYS` lists those that a namesrv.conf may carry without harm.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        "tlsHandshakeTimeoutMillis", "frameReceiveTimeoutMillis", "enableControllerInNamesrv", "kvConfigPath",
        *METRICS_START_KEYS,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(MetricsConfig):
    """One NameServer. Its state is in memory; only the KV configuration reaches the disk."""

    listen_port: int = 9876
    """0 takes a free port"""
    bind_address: str = "0.0.0.0"
    """0.0.0.0: every IPv4 address of the machine; [::]: every IPv6 address; empty: both"""
    listeners: str | None = None
    """name://host:port,name://host:port instead of the two above"""
    kv_config_path: str | None = None
    """kvConfig.json; None keeps the KV configuration in memory only"""
    config_store_path: str | None = None
    """file to which UPDATE_NAMESRV_CONFIG writes; None keeps changes in memory"""
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    """keys that no request changes, besides those that none ever may; ; between them"""
    product_env_name: str = "center"
    """taken, without effect: clusterTest is not there"""
    cluster_test: bool = False
    """taken, without effect: no requests to another environment's NameServers"""
    order_message_enable: bool = False
    """attach ORDER_TOPIC_CONFIG entries to routes"""
    return_order_topic_config_to_broker: bool = True
    """a registration is answered with the topics of ORDER_TOPIC_CONFIG"""
    delete_topic_with_broker_registration: bool = False
    """a topic that a registration names no more loses that broker"""
    support_acting_master: bool = False
    """present the lowest slave as id 0 while a master is away"""
    notify_min_broker_id_changed: bool = False
    """notify the brokers of a group when the lowest id among them changes"""
    enable_all_topic_list: bool = True
    """GET_ALL_TOPIC_LIST_FROM_NAMESERVER is served"""
    enable_topic_list: bool = True
    """the lists of a cluster's topics and of unit topics are served"""
    enable_controller_in_namesrv: bool = False
    """this process is one of the controllers, too (ControllerConfig's keys)"""
    need_wait_for_service: bool = False
    """routes are refused for waitSecondsForService after the start"""
    wait_seconds_for_service: int = 45
    """seconds for that"""
    scan_not_active_broker_interval: int = 5_000
    """ms between looks for brokers that fell silent"""
    server_channel_max_idle_time_seconds: int = 120
    """then a silent connection is closed"""
    server_connections_max: int = 0
    """one more is closed immediately; 0: half of the process's file limit"""
    tls_handshake_timeout_millis: int = 10_000
    """then a connection without a finished handshake is closed"""
    frame_receive_timeout_millis: int = 30_000
    """for a frame that has begun, and 1 s more for each 8 KiB"""
    registered_broker_nums_max: int = 10_000
    """broker processes that are registered when another one comes"""
    broker_group_members_max: int = 64
    """processes of one broker name, a master and its slaves"""
    broker_address_nums_max: int = 64
    """addresses of one broker: of its listeners, of its filter servers"""
    broker_topic_nums_max: int = 100_000
    """topics of one broker name"""
    route_entry_nums_max: int = 2_000_000
    """pairs of topic and broker name, of all brokers"""
    kv_config_keys_max: int = 10_000
    """keys of all namespaces together"""
    kv_config_bytes_max: int = 4 * 1024 * 1024
    """of all namespaces, keys and values; each change writes them all"""
    pending_reply_bytes_max: int = 256 * 1024 * 1024
    """answers that peers have not read yet, all connections"""
    metrics_prom_exporter_port: int = 5_558
    """a broker's default is 5557"""
    shutdown_wait_time_seconds: int = 3
    """longest that stop() lets answers under way finish"""

    def __post_init__(self) -> None:
        if not 0 <= self.listen_port <= 65_535:
            raise ConfigError(f"listenPort is {self.listen_port}, must be 0 to 65535")
        self.check_metrics()
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
