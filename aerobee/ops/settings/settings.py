"""Sources of a server's settings: profile, file, environment, flags; later ones take precedence.

A key that is neither Aerobee's nor RocketMQ's is an error that names file, line and the most similar key. A RocketMQ key
that this version does not use is listed in a note, so that a broker.conf works unchanged.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aerobee.access.config import AccessConfig
from aerobee.broker.state.config import BrokerConfig
from aerobee.config import (
    Setting,
    build,
    environment_settings,
    read_properties,
    unknown_keys,
)
from aerobee.errors import ConfigError
from aerobee.metrics_config import DISABLE
from aerobee.nameserver.config import NameServerConfig
from aerobee.ops.settings.rocketmq_keys import BROKER_KEYS, NAMESERVER_KEYS
from aerobee.remoting.tls import ClientAuth, ServerTls, TlsFiles, TlsMode
from aerobee.store.files.config import StoreConfig

if TYPE_CHECKING:
    from aerobee.ha.controller.config import (
        ControllerConfig,  # imported only where a controller's settings are read
    )
    from aerobee.proxy.config import ProxyConfig

PROFILES: Mapping[str, Mapping[str, str]] = {
    "development": {},
    # A typing error in the name of a topic or group must not create it.
    "production": {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"},
}


def _key(name: str) -> dict[str, str]:
    return {"key": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The `tls.*` keys of TlsSystemConfig (RocketMQ). TLS is served on the same port as plain connections."""

    mode: TlsMode = field(default=TlsMode.PERMISSIVE, metadata=_key("tls.server.mode"))
    """permissive: TLS and plain connections at one port; enforcing: TLS only; disabled: plain only."""
    test_mode: bool = field(default=True, metadata=_key("tls.test.mode.enable"))
    """Without certificate files, create a self-signed certificate."""
    key_path: str = field(default="", metadata=_key("tls.server.keyPath"))
    """PEM file of the private key. It is read again when it changes."""
    key_password: str = field(default="", repr=False, metadata=_key("tls.server.keyPassword"))
    """Password of the private key. It is never shown."""
    cert_path: str = field(default="", metadata=_key("tls.server.certPath"))
    """PEM file of the certificate and its chain."""
    trust_cert_path: str = field(default="", metadata=_key("tls.server.trustCertPath"))
    """PEM file of the authorities that sign client certificates."""
    auth_client: bool = field(default=False, metadata=_key("tls.server.authClient"))
    """Verify the certificate of a client that presents one."""
    need_client_auth: ClientAuth = field(
        default=ClientAuth.NONE, metadata=_key("tls.server.need.client.auth")
    )
    """none, optional, or require: refuse clients without a certificate."""
    plain_listeners: str = field(default="", metadata=_key("tls.server.plainListeners"))
    """Names of listeners, separated by commas, that accept plain connections although the mode is enforcing."""

    def server_tls(self, listeners: Collection[str]) -> ServerTls:
        """`listeners`: names of the process's listeners. Raises ConfigError for unusable files, an unknown listener, and a name
        that two listeners share."""
        plain = frozenset(name.strip() for name in self.plain_listeners.split(",") if name.strip())
        count = Counter(listeners)
        if twice := sorted(name for name in plain if count[name] > 1):
            raise ConfigError(
                f"tls.server.plainListeners names {twice[0]}, but two listeners of this process have this name: rename the one in "
                "`listeners`"
            )
        if unknown := plain.difference(listeners):
            raise ConfigError(
                f"tls.server.plainListeners names unknown listeners: {', '.join(sorted(unknown))}; "
                f"this process has {', '.join(listeners)}"
            )
        files = TlsFiles(
            key_path=self.key_path,
            key_password=self.key_password,
            cert_path=self.cert_path,
            trust_cert_path=self.trust_cert_path,
            verify_peer=self.auth_client,
        )
        return ServerTls(
            files,
            mode=self.mode,
            client_auth=self.need_client_auth,
            test_mode=self.test_mode,
            plain_listeners=plain,
        )


BROKER_KINDS: tuple[type[Any], ...] = (BrokerConfig, StoreConfig, TlsSettings, AccessConfig)
NAMESERVER_KINDS: tuple[type[Any], ...] = (NameServerConfig, TlsSettings, AccessConfig)


def controller_kinds() -> tuple[type[Any], ...]:
    """The dataclasses of a controller's settings, as NAMESERVER_KINDS; imported on demand, because a broker needs none."""
    from aerobee.ha.controller.config import ControllerConfig

    return ControllerConfig, TlsSettings


def proxy_kinds() -> tuple[type[Any], ...]:
    """The dataclasses of a proxy's settings, as NAMESERVER_KINDS; imported on demand, because no other server needs them."""
    from aerobee.proxy.config import ProxyConfig

    return ProxyConfig, TlsSettings, AccessConfig


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """All settings of a proxy process."""

    proxy: ProxyConfig
    tls: TlsSettings
    access: AccessConfig


@dataclass(frozen=True, slots=True)
class NameServerSettings:
    """All settings of a NameServer process."""

    server: NameServerConfig
    tls: TlsSettings
    access: AccessConfig = field(default_factory=AccessConfig)
    controller: ControllerConfig | None = None
    """Settings of the controller in this process, with enableControllerInNamesrv."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """All settings of a controller process."""

    controller: ControllerConfig
    tls: TlsSettings


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """All settings of a broker process."""

    broker: BrokerConfig
    store: StoreConfig
    tls: TlsSettings
    access: AccessConfig = field(default_factory=AccessConfig)


def broker_settings(
    *,
    path: str | None = None,
    profile: str = "development",
    assignments: Sequence[str] = (),
    flags: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda _: None,
) -> BrokerSettings:
    """Read a broker's settings. `assignments` are `key=value` of --set. Raises ConfigError."""
    settings = _gather(path, profile, assignments, flags or {}, environ, BROKER_KINDS, BROKER_KEYS, note)
    return BrokerSettings(
        build(BrokerConfig, settings),
        build(StoreConfig, settings),
        build(TlsSettings, settings),
        build(AccessConfig, settings),
    )


def nameserver_settings(
    *,
    path: str | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda _: None,
) -> NameServerSettings:
    """Read a NameServer's settings. Raises ConfigError."""
    from aerobee.ha.controller.config import IGNORED_KEYS, ControllerConfig

    kinds = (NameServerConfig, ControllerConfig, TlsSettings, AccessConfig)
    keys = NAMESERVER_KEYS | IGNORED_KEYS
    settings = _gather(path, "development", assignments, flags or {}, environ, kinds, keys, note)
    server, tls = build(NameServerConfig, settings), build(TlsSettings, settings)
    access = build(AccessConfig, settings)
    if not server.enable_controller_in_namesrv:
        return NameServerSettings(server, tls, access)
    # listenPort belongs to the NameServer; the controller listens at its address in controllerDLegerPeers. The port of metrics
    # also belongs to the NameServer, which exports the controller's metrics too.
    controller = build(ControllerConfig, settings, listen_port=0, metrics_exporter_type=DISABLE)
    return NameServerSettings(server, tls, access, controller)


def controller_settings(
    *,
    path: str | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda _: None,
) -> ControllerSettings:
    """Read a controller's settings. Raises ConfigError."""
    from aerobee.ha.controller.config import IGNORED_KEYS, ControllerConfig

    settings = _gather(
        path,
        "development",
        assignments,
        flags or {},
        environ,
        controller_kinds(),
        IGNORED_KEYS,
        note,
    )
    return ControllerSettings(build(ControllerConfig, settings), build(TlsSettings, settings))


def proxy_settings(
    *,
    path: str | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Setting] | None = None,
    environ: Mapping[str, str] = os.environ,
    note: Callable[[str], None] = lambda _: None,
) -> ProxySettings:
    """Read a proxy's settings. Raises ConfigError."""
    from aerobee.proxy.config import ProxyConfig

    settings = _gather(
        path, "development", assignments, flags or {}, environ, proxy_kinds(), frozenset(), note
    )
    return ProxySettings(
        build(ProxyConfig, settings), build(TlsSettings, settings), build(AccessConfig, settings)
    )


def _gather(
    path: str | None,
    profile: str,
    assignments: Sequence[str],
    flags: Mapping[str, Setting],
    environ: Mapping[str, str],
    kinds: Iterable[type[Any]],
    rocketmq_keys: frozenset[str],
    note: Callable[[str], None],
) -> dict[str, Setting]:
    kinds = tuple(kinds)
    if profile not in PROFILES:
        raise ConfigError(f"--profile is {profile!r}, must be one of {', '.join(PROFILES)}")
    settings = {key: Setting(value, f"--profile {profile}") for key, value in PROFILES[profile].items()}
    written = read_properties(path) if path is not None else {}
    written.update(_assigned(assignments))
    _refuse_unknown(written, kinds, rocketmq_keys, note)
    in_file = {key: setting for key, setting in written.items() if setting.source != "--set"}
    settings.update(in_file)
    if "NAMESRV_ADDR" in environ:
        settings.setdefault("namesrvAddr", Setting(environ["NAMESRV_ADDR"], "environment NAMESRV_ADDR"))
    settings.update(environment_settings(environ, kinds))
    settings.update({key: setting for key, setting in written.items() if setting.source == "--set"})
    settings.update(flags)
    return settings


def _assigned(assignments: Sequence[str]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for text in assignments:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"--set {text!r}: write --set KEY=VALUE, for example --set flushDiskType=SYNC_FLUSH"
            )
        settings[key.strip()] = Setting(value.strip(), "--set")
    return settings


def _refuse_unknown(
    written: Mapping[str, Setting],
    kinds: Iterable[type[Any]],
    rocketmq_keys: frozenset[str],
    note: Callable[[str], None],
) -> None:
    server = next(iter(kinds)).__name__.removesuffix("Config").lower()  # the first kind is the server's own
    unused: list[str] = []
    for unknown in unknown_keys(written, kinds):
        if unknown.key in rocketmq_keys:
            unused.append(f"{unknown.key} ({unknown.source})")
        else:
            raise ConfigError(f"{unknown}; `aerobee {server} -p` prints every key with its value")
    if unused:
        note("RocketMQ keys without effect in this version: " + ", ".join(unused))
