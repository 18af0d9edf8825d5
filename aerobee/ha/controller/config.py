"""Settings of a controller; keys and defaults as ControllerConfig and NettyServerConfig (RocketMQ), and the quorum's times.

A controller listens at the address of its entry in `controllerDLegerPeers`, for brokers, tools and the other controllers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from aerobee.errors import ConfigError
from aerobee.ha.raft.config import RaftConfig
from aerobee.host_port import split_address
from aerobee.metrics_config import MetricsConfig
from aerobee.remoting.signature import Credentials, credentials_of

# Known to RocketMQ, without a counterpart here: one event loop serves everything. Accepted silently in files.
IGNORED_KEYS = frozenset(
    {
        "bindAddressV6",
        "controllerRequestThreadPoolQueueCapacity",
        "controllerThreadPoolNums",
        "enableShutdownGracefully",
        "isProcessReadEvent",
        "mappedFileSize",
        "metricsLabel",
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
        "useEpollNativeSelector",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
# Settings that may change while a controller runs; all others take effect only at the start.
CHANGEABLE_KEYS = frozenset(
    {
        "electMasterMaxRetryCount",
        "enableElectUncleanMaster",
        "notifyBrokerRoleChanged",
        "scanInactiveMasterInterval",
        "scanNotActiveBrokerInterval",
    }
)
_PEER = re.compile(r"([A-Za-z0-9_.]{1,64})-(.+):(\d{1,5})")
PEERS_MAX = 31
MASTER_LEASE_MS_DEFAULT = 800


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig(MetricsConfig):
    """One controller of a quorum. `controllerDLegerPeers` is the same at each: `n0-host:port;n1-host:port`."""

    controller_type: str = "DLedger"
    """Only DLedger. RocketMQ's jRaft uses other addresses and is refused."""
    controller_d_leger_group: str = ""
    """Name of the quorum, the same at all controllers."""
    controller_d_leger_peers: str = ""
    """id-host:port of every controller, separated by ;, the same at all controllers."""
    controller_d_leger_self_id: str = ""
    """Id of this controller in controllerDLegerPeers."""
    controller_store_path: str = ""
    """Data directory. Empty: controller/SELF_ID in the user's home directory."""
    controller_joins_quorum: bool = False
    """Join an existing quorum as a new controller: it votes only after it has been added."""
    listen_port: int = 0
    """Additional port for brokers and tools. 0: only the port in controllerDLegerPeers."""
    bind_address: str = "0.0.0.0"
    """Address of the listener. 0.0.0.0: every IPv4 address of the machine; [::]: every IPv6 address; empty: both."""
    enable_elect_unclean_master: bool = False
    """When no in-sync broker is alive, elect another one. Messages that it does not have are lost."""
    elect_master_max_retry_count: int = 3
    """Maximum number of attempts of one election."""
    notify_broker_role_changed: bool = True
    """Notify brokers of an election immediately. False: they find out by polling."""
    scan_not_active_broker_interval: int = 5_000
    """Interval between two searches for dead brokers, in ms."""
    scan_inactive_master_interval: int = 5_000
    """Interval between two searches for groups without a live master, in ms."""
    master_lease_millis: int = MASTER_LEASE_MS_DEFAULT
    """Duration of a master's lease, in ms. A master that requested a lease is replaced only after it has ended."""
    raft_election_timeout_millis: int = 1_000
    """Time without a leader after which a controller starts an election, in ms; up to twice as long, at random."""
    raft_heartbeat_interval_millis: int = 200
    """Interval between two heartbeats of the Raft leader, in ms."""
    raft_snapshot_interval_entries: int = 10_000
    """Number of log entries between two snapshots."""
    config_store_path: str | None = None
    """File to which UPDATE_CONTROLLER_CONFIG writes. None: changes stay in memory."""
    config_black_list: str = "configBlackList;configStorePath"
    """Keys that no request may change, separated by ;, in addition to those that can never be changed."""
    inner_client_authentication_credentials: str = field(default="", repr=False)
    """{"accessKey":…,"secretKey":…}: credentials that sign notifications of elections to brokers with access
    control.
    """
    authentication_enabled: bool = False
    """Require requests signed with innerClientAuthenticationCredentials."""
    authentication_proof_required: bool = False
    """With authenticationEnabled: refuse the signatures of RocketMQ's brokers and mqadmin, because they can be
    replayed.
    """
    admin_open: bool = False
    """Without authentication: also serve administrative requests from other machines."""
    server_channel_max_idle_time_seconds: int = 120
    """Idle time after which a connection is closed, in seconds."""
    server_connections_max: int = 0
    """Maximum number of connections; further ones are closed immediately. 0: half of the process's limit of open files."""
    shutdown_wait_time_seconds: int = 3
    """Maximum time that stop() waits for unfinished replies, in seconds."""
    metrics_prom_exporter_port: int = 5_559
    """Port of the metrics. The default of a broker is 5557, of a NameServer 5558."""

    def __post_init__(self) -> None:
        if self.controller_type.lower() != "dledger":
            raise ConfigError(
                f"controllerType is {self.controller_type}, only DLedger is there: its keys, addresses and calls are served "
                "by a Raft of Aerobee's own"
            )
        for key, value in (
            ("controllerDLegerGroup", self.controller_d_leger_group),
            ("controllerDLegerPeers", self.controller_d_leger_peers),
            ("controllerDLegerSelfId", self.controller_d_leger_self_id),
        ):
            if not value:
                raise ConfigError(f"{key} is empty: every controller names its group, its peers and itself")
        if len(self.controller_d_leger_group.encode()) > 255:
            raise ConfigError("controllerDLegerGroup has more than 255 bytes")
        peers = parse_peers(self.controller_d_leger_peers)
        if self.controller_d_leger_self_id not in peers:
            raise ConfigError(
                f"controllerDLegerSelfId is {self.controller_d_leger_self_id}, and controllerDLegerPeers has "
                f"{', '.join(peers)}"
            )
        for key, number in (
            ("scanNotActiveBrokerInterval", self.scan_not_active_broker_interval),
            ("scanInactiveMasterInterval", self.scan_inactive_master_interval),
            ("masterLeaseMillis", self.master_lease_millis),
            ("electMasterMaxRetryCount", self.elect_master_max_retry_count),
            ("serverChannelMaxIdleTimeSeconds", self.server_channel_max_idle_time_seconds),
        ):
            if number <= 0:
                raise ConfigError(f"{key} is {number}, must be above 0")
        if self.master_lease_millis > 60_000:
            raise ConfigError(
                f"masterLeaseMillis is {self.master_lease_millis}, at most 60000: a failover takes at least that long"
            )
        if not 0 <= self.listen_port <= 65_535:
            raise ConfigError(f"listenPort is {self.listen_port}, must be 0 to 65535")
        for key, number in (
            ("serverConnectionsMax", self.server_connections_max),
            ("shutdownWaitTimeSeconds", self.shutdown_wait_time_seconds),
        ):
            if number < 0:
                raise ConfigError(f"{key} is {number}, must not be negative")
        self.check_metrics()
        _ = self.raft  # its own checks
        if self.authentication_proof_required and not self.authentication_enabled:
            raise ConfigError(
                "authenticationProofRequired is true and authenticationEnabled is not: no request would need a proof"
            )
        if self.authentication_enabled and self.credentials is None:
            raise ConfigError(
                "authenticationEnabled is true and innerClientAuthenticationCredentials is empty: there is no key to ask for"
            )

    @property
    def credentials(self) -> Credentials | None:
        """Credentials that sign this controller's requests. Raises ConfigError."""
        return credentials_of(
            self.inner_client_authentication_credentials, "innerClientAuthenticationCredentials"
        )

    @property
    def peers(self) -> dict[str, str]:
        """Id to "host:port", in the order of the setting."""
        return parse_peers(self.controller_d_leger_peers)

    @property
    def own_port(self) -> int:
        return split_address(self.peers[self.controller_d_leger_self_id])[1]

    @property
    def directory(self) -> str:
        """Directory of this controller's vote, log and snapshot."""
        base = self.controller_store_path or os.path.join(os.path.expanduser("~"), "controller")
        return os.path.join(base, f"raft-{self.controller_d_leger_self_id}")

    @property
    def raft(self) -> RaftConfig:
        return RaftConfig(
            election_timeout_ms=self.raft_election_timeout_millis,
            heartbeat_interval_ms=self.raft_heartbeat_interval_millis,
            snapshot_interval_entries=self.raft_snapshot_interval_entries,
        )


class LiveControllerConfig:
    """The settings in force. A change at run time replaces the whole object; readers take `value` again each time."""

    __slots__ = ("value",)

    def __init__(self, value: ControllerConfig) -> None:
        self.value = value


def parse_peers(text: str) -> dict[str, str]:
    """Read `n0-host:port;n1-host:port`. Raises ConfigError naming the part that is wrong."""
    peers: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        found = _PEER.fullmatch(part)
        if found is None:
            raise ConfigError(
                f"controllerDLegerPeers has {part!r}, expected ID-HOST:PORT as in n0-10.0.0.1:9878"
            )
        if found[1] in peers:
            raise ConfigError(f"controllerDLegerPeers names {found[1]} twice")
        peers[found[1]] = f"{found[2]}:{found[3]}"
        split_address(peers[found[1]], "controllerDLegerPeers")
    if len(peers) > PEERS_MAX:
        raise ConfigError(f"controllerDLegerPeers has {len(peers)} entries, at most {PEERS_MAX}")
    if len(set(peers.values())) != len(peers):
        raise ConfigError("controllerDLegerPeers has one address twice")
    return peers
