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
    """Verify a signature of a known user on each request."""
    authorization_enabled: bool = False
    """Check that the user has permission for each request. Requires authenticationEnabled."""
    authentication_provider: str = ""
    """Class name of RocketMQ; only the last part of the name is compared."""
    authentication_metadata_provider: str = ""
    """Class name of RocketMQ; only LocalAuthenticationMetadataProvider is implemented."""
    authentication_strategy: str = ""
    """Accepted for compatibility and ignored: every request is verified."""
    authentication_whitelist: str = ""
    """Request codes that need no signature, separated by commas."""
    init_authentication_user: str = field(default="", repr=False)
    """{"username":…,"password":…}: a Super user, created at the start."""
    inner_client_authentication_credentials: str = field(default="", repr=False)
    """{"accessKey":…,"secretKey":…}: credentials with which brokers sign their own requests; created as a Super
    user.
    """
    authorization_provider: str = ""
    """Class name of RocketMQ; only DefaultAuthorizationProvider is implemented."""
    authorization_metadata_provider: str = ""
    """Class name of RocketMQ; only LocalAuthorizationMetadataProvider is implemented."""
    authorization_strategy: str = ""
    """Accepted for compatibility and ignored: the permission of every request is checked."""
    authorization_whitelist: str = ""
    """Request codes that every user may send, separated by commas."""
    acl_enable: bool = False
    """Access control 1.0: check requests against the accounts in aclFile."""
    acl_file: str = ""
    """A file, or a directory of *.yml files. Empty: plain_acl.yml next to the configuration file."""
    admin_open: bool = False
    """Without access control: also serve administrative requests from other machines."""
    auth_cluster_name: str = "DefaultCluster"
    """Cluster name in a NameServer's own permission checks. A broker uses brokerClusterName."""
    access_open_listeners: str = ""
    """Names of listeners, separated by commas, whose clients need no authentication."""
    audit_log_path: str = ""
    """File of JSON lines about administrative requests and refusals. Empty: no audit log."""
    audit_log_bytes_max: int = 100 * 1024 * 1024
    """Maximum size of the audit log, in bytes. A full file becomes auditLogPath.1, and .1 becomes .2. 0: no limit."""
    audit_log_files_max: int = 10
    """Number of rotated audit logs to keep."""

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
                raise ConfigError(f"{key} is {value!r}; only {known} is implemented")
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
