"""Settings of the access control: RocketMQ's AuthConfig (2.0), `aclEnable` (1.0), and Aerobee's own. In force from the start on.

Aerobee's own: `adminOpen`, `auditLogPath` and what begins as it does, `aclFile`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee.errors import ConfigError
from aerobee.remoting.signature import Credentials, credentials_of

LOCAL_USERS = "LocalAuthenticationMetadataProvider"
LOCAL_ACLS = "LocalAuthorizationMetadataProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Defaults as AuthConfig (RocketMQ 5.5.0): no authentication."""

    authentication_enabled: bool = False
    """each request is signed by a user"""
    authorization_enabled: bool = False
    """and is one of those that the user may make"""
    authentication_provider: str = ""
    """a class of RocketMQ's; the end of the name is looked at"""
    authentication_metadata_provider: str = ""
    """taken by class name: LocalAuthenticationMetadataProvider alone is there"""
    authentication_strategy: str = ""
    """taken and not looked at: every request is verified"""
    authentication_whitelist: str = ""
    """request codes that need no signature, comma separated"""
    init_authentication_user: str = field(default="", repr=False)
    """{"username":…,"password":…}: made as Super"""
    inner_client_authentication_credentials: str = field(default="", repr=False)
    """{"accessKey":…,"secretKey":…}: what brokers sign with; made as Super"""
    authorization_provider: str = ""
    """taken by class name: DefaultAuthorizationProvider alone is there"""
    authorization_metadata_provider: str = ""
    """taken by class name: LocalAuthorizationMetadataProvider alone is there"""
    authorization_strategy: str = ""
    """taken and not looked at: every request is judged"""
    authorization_whitelist: str = ""
    """request codes that every user may make"""
    acl_enable: bool = False
    """ACL 1.0: accounts of acl_file"""
    acl_file: str = ""
    """a file, or a directory of *.yml; empty: plain_acl.yml next to the configuration file"""
    admin_open: bool = False
    """without either: administrators' requests from other machines are served"""
    auth_cluster_name: str = "DefaultCluster"
    """cluster of a NameServer's own requests; a broker uses brokerClusterName"""
    access_open_listeners: str = ""
    """names of listeners, comma separated, whose clients need no authentication"""
    audit_log_path: str = ""
    """JSON lines of administrators' requests and refusals; empty: no audit log"""
    audit_log_bytes_max: int = 100 * 1024 * 1024
    """of that file; a fuller one becomes auditLogPath.1, and .1 becomes .2; 0: never"""
    audit_log_files_max: int = 10
    """such older files that are kept"""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled asks what a user may do, authenticationEnabled who he is: it needs to be on, too"
            )
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError(
                "aclEnable (ACL 1.0) and authenticationEnabled (ACL 2.0) are both on: choose one"
            )
        for key, value, known in (
            ("authenticationMetadataProvider", self.authentication_metadata_provider, LOCAL_USERS),
            ("authorizationMetadataProvider", self.authorization_metadata_provider, LOCAL_ACLS),
            ("authenticationProvider", self.authentication_provider, "DefaultAuthenticationProvider"),
            ("authorizationProvider", self.authorization_provider, "DefaultAuthorizationProvider"),
        ):
            if value and not value.endswith(known):
                raise ConfigError(f"{key} is {value!r}; there is {known} alone")
        for key, value in (
            ("authenticationWhitelist", self.authentication_whitelist),
            ("authorizationWhitelist", self.authorization_whitelist),
        ):
            codes_of(value, key)
        if self.audit_log_bytes_max < 0:
            raise ConfigError(f"auditLogBytesMax is {self.audit_log_bytes_max}, must not be negative")
        if self.audit_log_files_max < 1:
            raise ConfigError(f"auditLogFilesMax is {self.audit_log_files_max}, must be above 0")
        first = self.first_user  # both are read, so that errors are reported at the start
        if self.authentication_enabled and first is None and self.inner_credentials is None:
            raise ConfigError(
                'authenticationEnabled needs a first user: initAuthenticationUser={"username":"…","password":"…"}'
            )

    @property
    def is_closed(self) -> bool:
        """Whether each request must be authenticated."""
        return self.authentication_enabled or self.acl_enable

    @property
    def open_listeners(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.access_open_listeners.split(",") if name.strip())

    @property
    def first_user(self) -> Credentials | None:
        return credentials_of(self.init_authentication_user, "initAuthenticationUser", "username", "password")

    @property
    def inner_credentials(self) -> Credentials | None:
        """Credentials that sign this server's own requests."""
        return credentials_of(
            self.inner_client_authentication_credentials, "innerClientAuthenticationCredentials"
        )


def codes_of(text: str, key: str) -> frozenset[int]:
    """Request codes, comma separated. Raises ConfigError."""
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not all(piece.isascii() and piece.isdigit() for piece in pieces):
        raise ConfigError(f"{key} is {text!r}: write request codes separated by commas")
    return frozenset(int(piece) for piece in pieces)
