"""Configuration of the console: address, cluster, users."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from aerobee.errors import ConfigError
from aerobee.host_port import is_loopback

PORT = 8_080
CLUSTERS_MAX = 32
CLUSTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """One console. Raises ConfigError for settings that would admit unauthenticated clients of other machines."""

    nameserver: str
    """Addresses of the NameServers, separated by ;."""
    further_clusters: tuple[tuple[str, str], ...] = ()
    """Further clusters that the pages show: name and addresses of the NameServers of each. The console uses the same keys for them."""
    host: str = "127.0.0.1"
    """Address of the listener."""
    port: int = PORT
    """Port of the listener. 0: a free port."""
    listen_descriptor: int = -1
    """File descriptor of an inherited listening socket, instead of host and port. -1: none."""
    read_only: bool = False
    """Refuse every change."""
    users_file: Path | None = None
    """File of users and passwords. Without it every browser is an administrator, and the console listens on
    loopback only.
    """
    cluster_users: bool = False
    """Also accept logins of users of the cluster's access control."""
    audit_file: Path | None = None
    """File of JSON lines about changes. Without it they go to the log of the process."""
    host_names: tuple[str, ...] = field(default=())
    """Further host names under which browsers may open the console."""
    user_header: str = ""
    """Header in which a reverse proxy passes the user name."""
    client_header: str = ""
    """Header in which a reverse proxy passes the browser's address, such as X-Forwarded-For."""
    proxy_addresses: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses of the reverse proxies whose headers are trusted."""
    plan_file: Path | None = None
    """Plan of `aerobee spark placement` to show."""
    schemas: tuple[str, ...] = ()
    """Schema files of topics for the message browser: TOPIC=FILE of Avro, TOPIC=FILE#MESSAGE of Protocol Buffers."""
    masks: tuple[str, ...] = ()
    """Fields of bodies that the pages hide: TOPIC=FIELD[,FIELD…]."""
    prometheus_url: str = ""
    """a Prometheus server that scrapes the brokers, for charts over a day and a month"""
    refresh_s: float = 2.0
    """Interval between two snapshots of the cluster while a page is open, in seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"the console's port is {self.port}, must be 0 to 65535")
        names = [name for name, _ in self.further_clusters]
        for name, nameserver in self.further_clusters:
            if not CLUSTER_NAME.fullmatch(name) or not nameserver:
                raise ConfigError(
                    f"--also {name}={nameserver}: write NAME=HOST:PORT, the name of letters, digits, ., _ and -"
                )
        if len(set(names)) < len(names) or len(names) > CLUSTERS_MAX:
            raise ConfigError(f"--also names each cluster once, and at most {CLUSTERS_MAX}")
        if self.refresh_s < 0.2:
            raise ConfigError(f"the console's refresh interval is {self.refresh_s} s, must be at least 0.2 s")
        if self.prometheus_url and not self.prometheus_url.startswith(("http://", "https://")):
            raise ConfigError(f"--prometheus is {self.prometheus_url!r}, must begin with http:// or https://")
        if self.user_header and self.users_file is None:
            raise ConfigError("--user-header needs --users, the file with the roles of the users")
        if not self.has_login and not is_loopback(self.host):
            raise ConfigError(
                f"the console would listen at {self.host} without a login: use --users FILE or --cluster-users, or listen "
                f"at 127.0.0.1"
            )

    @property
    def has_login(self) -> bool:
        """Whether users must log in. Without a login every client of the console is admin."""
        return self.users_file is not None or self.cluster_users

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Names that the Host header may have. Others come from foreign pages whose names resolve to this console."""
        own = () if self.host in ("", "0.0.0.0", "::") else (self.host,)
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *own, *self.host_names))
