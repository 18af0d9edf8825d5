"""Settings of a proxy: keys of its configuration file. Core.

Names are those that brokers have for the same (`grpcServerPort` is also RocketMQ's of rmq-proxy.json). Access control and TLS have the keys
of every other server.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee.access.addresses import networks_of
from aerobee.access.config import AccessConfig
from aerobee.client.base.config import ClientConfig
from aerobee.errors import ConfigError
from aerobee.metrics_config import MetricsConfig

PORT = 8_081


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig(MetricsConfig):
    """Settings of one proxy."""

    nameservers: str = field(default="localhost:9876", metadata={"key": "namesrvAddr"})
    """NameServers of the cluster, separated by ;."""
    name: str = field(default="", metadata={"key": "proxyName"})
    """Name in metrics. Empty: the host's name."""
    host: str = field(default="0.0.0.0", metadata={"key": "bindAddress"})
    """Address of the listener. 0.0.0.0: every IPv4 address of the machine; [::]: every IPv6 address."""
    port: int = field(default=PORT, metadata={"key": "grpcServerPort"})
    """Port for clients. 0: a free port."""
    trusts_clients: bool = field(default=False, metadata={"key": "trustClients"})
    """Without access control, serve every client with the permissions of the proxy's own user."""
    proxied_from: str = field(default="", metadata={"key": "proxyProtocolFrom"})
    """Balancers whose connections may begin with a PROXY protocol header, separated by ;."""
    calls_max: int = field(default=100_000, metadata={"key": "grpcCallsMax"})
    """Maximum number of open calls of all connections."""
    request_bytes_max: int = field(default=256 * 1024 * 1024, metadata={"key": "grpcRequestBytesMax"})
    """Maximum size of the requests of all connections that are incomplete or being served, in bytes."""
    pending_reply_bytes_max: int = 256 * 1024 * 1024
    """Maximum size of the responses that clients do not read, in bytes."""
    users_path: str = ""
    """Directory of users and permissions, with authenticationEnabled."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        networks_of(self.proxied_from, "proxy protocol")
        self.check_metrics()
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"grpcServerPort is {self.port}, must be 0 to 65535")
        for key, value in (
            ("grpcCallsMax", self.calls_max),
            ("grpcRequestBytesMax", self.request_bytes_max),
            ("pendingReplyBytesMax", self.pending_reply_bytes_max),
        ):
            if value <= 0:
                raise ConfigError(f"{key} is {value}, must be above 0")


def check_trust(config: ProxyConfig, access: AccessConfig, client: ClientConfig) -> None:
    """Raise ConfigError for a proxy that would lend its user: it signs its requests to the cluster, and serves clients without a check.

    A listener at a loopback address is no exception: a balancer on the same machine reaches it for clients of every address.
    """
    if access.authentication_enabled and not config.users_path:
        raise ConfigError("authenticationEnabled stores users in usersPath, which is not set")
    if access.open_listeners:
        raise ConfigError("accessOpenListeners has no effect at a proxy, which has one listener: remove it")
    if client.access_key and not access.is_closed and not config.trusts_clients:
        raise ConfigError(
            f"the proxy signs its requests as {client.access_key} and would serve every client with that user's permissions. Check "
            "its clients' users with aclEnable or authenticationEnabled in --config, or pass --trust-clients where the network keeps others "
            "away"
        )
