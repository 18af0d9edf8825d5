"""Where the console listens, which cluster it shows, and who may do what."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aerobee.errors import ConfigError
from aerobee.host_port import is_loopback

PORT = 8_080
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """One console. Raises ConfigError for what would let strangers in."""

    nameserver: str
    host: str = "127.0.0.1"
    port: int = PORT  # 0: a free one
    listen_descriptor: int = (
        -1
    )  # a listening socket that this process has inherited, instead of host and port
    read_only: bool = False
    users_file: Path | None = None  # without one everybody who reaches it is admin: loopback only
    cluster_users: bool = False  # users of the cluster's access control log in, too
    audit_file: Path | None = None  # JSON lines; without one the log of the process takes them
    host_names: tuple[str, ...] = field(default=())  # further names by which browsers may ask for it
    user_header: str = ""  # a reverse proxy's header with the name of whoever it has logged in
    client_header: str = ""  # a reverse proxy's header with the browser's address, such as X-Forwarded-For
    proxy_addresses: tuple[str, ...] = ("127.0.0.1", "::1")  # from where those headers are believed
    plan_file: Path | None = None  # a plan of `aerobee spark placement`, to be shown
    refresh_s: float = 2.0  # between two looks at the cluster while somebody watches

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"the console's port is {self.port}, must be 0 to 65535")
        if self.refresh_s < 0.2:
            raise ConfigError(f"the console's refresh is {self.refresh_s} s, at least 0.2 s")
        if self.user_header and self.users_file is None:
            raise ConfigError(
                "--user-header names who asks; what they may do stands in --users: give it, too"
            )
        if not self.has_login and not is_loopback(self.host):
            raise ConfigError(
                f"the console would listen at {self.host} for everybody: name who may with --users FILE or --cluster-users, or stay "
                f"at 127.0.0.1"
            )

    @property
    def has_login(self) -> bool:
        """Whether somebody has to log in. Without it everybody who reaches the console is admin."""
        return self.users_file is not None or self.cluster_users

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Names that a request's Host header may have. Others come from a page that had its name point here."""
        own = () if self.host in ("", "0.0.0.0", "::") else (self.host,)
        return frozenset(name.lower() for name in (*LOOPBACK_NAMES, *own, *self.host_names))
