"""Cluster and connection settings of a client: options, environment, and a file of named contexts.

The file is `~/.config/aerobee/client.toml` ($XDG_CONFIG_HOME/aerobee/client.toml, or what AEROBEE_CLIENT_CONFIG names):

    current = "staging"

    [context.staging]
    nameserver = "ns1.example.com:9876;ns2.example.com:9876"
    controller = "ctl1.example.com:9878;ctl2.example.com:9878"
    tls = true
    tls_ca_file = "/etc/aerobee/ca.pem"
    tls_cert_file = "/home/me/me.pem"
    tls_key_file = "/home/me/me.key"
    access_key = "alice"
    secret_key = "…"

Sources in order of precedence: an option, a context named by an option, the environment, the file's current context, the
defaults. A context is one cluster: a command with another NameServer, by option or environment, does not get
the TLS settings of the current context, unless the context is named explicitly.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from aerobee.client.base.config import ClientConfig
from aerobee.client.session.nameservers import parse_addresses
from aerobee.errors import ConfigError
from aerobee.host_port import CONTROLLER_DEFAULT, NAMESERVER_DEFAULT
from aerobee.system import sync_directory, sync_file

FILE_VARIABLE = "AEROBEE_CLIENT_CONFIG"
CONTEXT_VARIABLE = "AEROBEE_CONTEXT"
NAMESERVER_VARIABLES = ("AEROBEE_NAMESRV_ADDR", "NAMESRV_ADDR")
CONTROLLER_VARIABLE = "AEROBEE_CONTROLLER_ADDR"
TLS_VARIABLES = {
    "tls": "AEROBEE_TLS",
    "tls_ca_file": "AEROBEE_TLS_CA_FILE",
    "tls_insecure": "AEROBEE_TLS_INSECURE",
    "tls_cert_file": "AEROBEE_TLS_CERT_FILE",
    "tls_key_file": "AEROBEE_TLS_KEY_FILE",
    "tls_key_password": "AEROBEE_TLS_KEY_PASSWORD",
}
KEY_VARIABLES = {"access_key": "AEROBEE_ACCESS_KEY", "secret_key": "AEROBEE_SECRET_KEY"}
VARIABLES = (
    FILE_VARIABLE,
    CONTEXT_VARIABLE,
    *NAMESERVER_VARIABLES,
    CONTROLLER_VARIABLE,
    *TLS_VARIABLES.values(),
    *KEY_VARIABLES.values(),
)
SECRET_KEYS = frozenset({"secret_key", "tls_key_password"})  # stored in the file, never displayed
_SWITCHES = ("tls", "tls_insecure")
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings of a context, the options or the environment; None: not set."""

    nameserver: str | None = None
    """Addresses of the NameServers: "host:port;host:port"."""
    controller: str | None = None
    """Addresses of the controllers: "host:port;host:port"."""
    tls: bool | None = None
    """Whether connections use TLS."""
    tls_ca_file: str | None = None
    """PEM file of the authorities that sign the servers' certificates. None: the system's authorities."""
    tls_insecure: bool | None = None
    """Whether certificates and host names are not verified."""
    tls_cert_file: str | None = None
    """PEM file of the client's certificate."""
    tls_key_file: str | None = None
    """PEM file of the client's key."""
    tls_key_password: str | None = None
    """Password of the client's key."""
    access_key: str | None = None
    """User name of access control."""
    secret_key: str | None = None
    """Password of access control, which signs requests."""

    def over(self, other: Context) -> Context:
        """These settings, with the settings of `other` where they are None."""
        merged = Context(
            **{
                each.name: getattr(other if getattr(self, each.name) is None else self, each.name)
                for each in fields(Context)
            }
        )
        # Whom to trust is one decision: an authority replaces tls_insecure of the other, and the reverse.
        if self.tls_insecure and self.tls_ca_file is None:
            return replace(merged, tls_ca_file=None)
        if self.tls_ca_file is not None and self.tls_insecure is None:
            return replace(merged, tls_insecure=None)
        return merged

    def as_document(self) -> dict[str, Any]:
        """The settings that are set."""
        values = {each.name: getattr(self, each.name) for each in fields(Context)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ContextFile:
    """The contexts of a file. `current` is "" when none is chosen."""

    path: Path
    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """The context of this name. Raises ConfigError, which lists the existing ones."""
        try:
            return self.contexts[name]
        except KeyError:
            names = ", ".join(sorted(self.contexts)) or "none"
            raise ConfigError(f"{self.path} has no context {name!r}; it has: {names}") from None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Addresses and connection settings: `Producer(cluster.nameservers, client=cluster.client)`."""

    nameservers: str
    """Addresses of the NameServers: "host:port;host:port"."""
    client: ClientConfig
    """TLS, credentials and the other settings of connections."""
    context: str = ""
    """Name of the selected context, empty without one."""
    controllers: str = CONTROLLER_DEFAULT
    """Addresses of the controllers, for `aerobee ha`."""


def cluster(
    *,
    context: str | None = None,
    given: Context | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Cluster:
    """Combine options (`context`, `given`), environment and file. Raises ConfigError, which names the source of the
    error."""
    given = given or Context()
    from_environment = _environment(environ)
    file = read_contexts(contexts_path(environ))
    name, chosen = "", Context()
    if context:
        name, settings = context, given.over(file.get(context).over(from_environment))
    else:
        said = given.over(from_environment)
        name = environ.get(CONTEXT_VARIABLE, "")
        if name:
            chosen = file.get(name)
        elif said.nameserver is None and file.current:
            name, chosen = file.current, file.get(file.current)
        settings = said.over(chosen)
    nameservers = settings.nameserver if settings.nameserver is not None else NAMESERVER_DEFAULT
    parse_addresses(nameservers)
    controllers = settings.controller if settings.controller is not None else CONTROLLER_DEFAULT
    return Cluster(nameservers, _client(settings), name, controllers)


def contexts_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Path of the file, which may not exist."""
    named = environ.get(FILE_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "aerobee" / "client.toml"


def read_contexts(path: Path) -> ContextFile:
    """Read a file of contexts; a missing file has none. Raises ConfigError with the file's path."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ContextFile(path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from error
    contexts: dict[str, Context] = {}
    for key in document:
        if key not in ("current", "context"):
            raise ConfigError(f"{path}: unknown key {key}; it has `current` and tables [context.NAME]")
    tables, current = document.get("context", {}), document.get("current", "")
    if not isinstance(tables, dict) or not isinstance(current, str):
        raise ConfigError(f"{path}: `current` is a name and [context.NAME] a table")
    for name, table in tables.items():
        contexts[name] = _context_of(table, f"{path}: context {name}")
    return ContextFile(path, current, contexts)


def write_contexts(file: ContextFile) -> None:
    """Replace the file, readable only by its owner because it may contain a key's password. Raises OSError,
    ConfigError."""
    lines = [f"current = {_toml(file.current)}", ""] if file.current else []
    for name, context in sorted(file.contexts.items()):
        lines.append(f"[context.{_toml(name)}]")
        lines += [f"{key} = {_toml(value)}" for key, value in context.as_document().items()]
        lines.append("")
    file.path.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.path.with_suffix(".tmp")
    # Created exclusively: an existing file may be readable by others, or a link to another file.
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as target:
        target.write("\n".join(lines))
        target.flush()
        sync_file(target.fileno())  # a power loss must not replace the old file by an empty one
    os.replace(temporary, file.path)
    sync_directory(file.path.parent)


def _toml(value: str | bool) -> str:
    """A value as TOML text: JSON's form without surrogate pairs and DEL. Raises ConfigError."""
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("a name or a value holds bytes that are no UTF-8") from None
    return text


def _context_of(table: object, where: str) -> Context:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is not a table")
    known = {each.name for each in fields(Context)}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key}; known are {', '.join(sorted(known))}")
        wanted = bool if key in _SWITCHES else str
        if not isinstance(value, wanted):
            said = "no text" if key in SECRET_KEYS else repr(value)
            raise ConfigError(
                f"{where}: {key} is {said}, must be {'true or false' if wanted is bool else 'text'}"
            )
    return Context(**table)


def _environment(environ: Mapping[str, str]) -> Context:
    values: dict[str, Any] = {
        name: environ[variable]
        for name, variable in (TLS_VARIABLES | KEY_VARIABLES).items()
        if environ.get(variable)
    }
    for name in _SWITCHES:
        if name in values:
            text = values[name].lower()
            if text not in _TRUE + _FALSE:
                raise ConfigError(f"{TLS_VARIABLES[name]} is {values[name]!r}: it must be true or false")
            values[name] = text in _TRUE
    for variable in NAMESERVER_VARIABLES:
        if environ.get(variable):
            values["nameserver"] = environ[variable]
            break
    if environ.get(CONTROLLER_VARIABLE):
        values["controller"] = environ[CONTROLLER_VARIABLE]
    return Context(**values)


def _client(settings: Context) -> ClientConfig:
    """TLS is on when one of its files is configured, unless `tls` is false."""
    access_key, secret_key = settings.access_key or "", settings.secret_key or ""
    if settings.tls is False:
        return ClientConfig(access_key=access_key, secret_key=secret_key)
    files = (settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file)
    ca_file, cert_file, key_file = (str(Path(path).expanduser()) if path else "" for path in files)
    return ClientConfig(
        tls=bool(settings.tls or settings.tls_insecure) or any(files),
        tls_ca_file=ca_file,
        tls_insecure=bool(settings.tls_insecure),
        tls_cert_file=cert_file,
        tls_key_file=key_file,
        tls_key_password=settings.tls_key_password or "",
        access_key=access_key,
        secret_key=secret_key,
    )
