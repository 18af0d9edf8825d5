"""From settings to a gate: opens users or reads the account files, and says at the start what is open.

open_access(config, …) -> Access     gate, the requests for users, and what has to be looked at now and then
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee.access.audit import AuditLog
from aerobee.access.calls import AccessCalls
from aerobee.access.config import AccessConfig
from aerobee.access.gate import AccountKeeper, Gate, Keeper, UserKeeper
from aerobee.access.plain_acl import PlainAcl, plain_acl
from aerobee.access.rocks_table import RocksTable
from aerobee.access.users import Table, Users
from aerobee.errors import ConfigError
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)
RELOAD_S = 5.0  # between looks at the account files, as RocketMQ's
PLAIN_ACL, ACL_DIRECTORY = "plain_acl.yml", "acl"
FILE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(slots=True)
class Access:
    """The access control of one server."""

    gate: Gate
    calls: AccessCalls
    users: Users | None = None
    reload: Callable[[], None] | None = None  # to be called each RELOAD_S, in a thread

    def close(self) -> None:
        """Let go of files."""
        self.gate.close()
        if self.users is not None:
            self.users.close()


def open_access(
    config: AccessConfig,
    *,
    directory: str,
    settings_path: str | None,
    cluster: Callable[[], str],
    now_ms: Callable[[], int],
    open_table: Callable[[str], Table] = RocksTable,
    exempt: Callable[[Peer], bool] = lambda peer: False,
) -> Access:
    """`directory` is where users are kept (RocketMQ: `config` below the store); account files lie beside `settings_path`.

    Reads and makes files. Raises ConfigError, StoreError.
    """
    audit = AuditLog(config.audit_log_path, now_ms) if config.audit_log_path else None
    users: Users | None = None
    keeper: Keeper | None = None
    reload: Callable[[], None] | None = None
    if config.authentication_enabled:
        users = Users(
            open_table(os.path.join(directory, "users")), open_table(os.path.join(directory, "acls"))
        )
        for pair in (config.first_user, config.inner_credentials):
            if pair is not None:
                users.ensure_super(pair.access_key, pair.secret_key)
        keeper = UserKeeper(users, config, cluster)
    elif config.acl_enable:
        files = _AccountFiles(_account_paths(config, settings_path))
        accounts = AccountKeeper(files.read(), cluster)
        keeper = accounts

        def reload_accounts() -> None:
            found = files.changed()
            if found is not None:
                accounts.rules = found

        reload = reload_accounts
    gate = Gate(keeper=keeper, admin_open=config.admin_open, audit=audit, exempt=exempt)
    return Access(gate, AccessCalls(users), users, reload)


def say_what_is_open(config: AccessConfig, *, beyond_loopback: bool) -> None:
    """One line in the log at the start, where others than this machine reach the server."""
    if not beyond_loopback or config.is_closed:
        return
    if config.admin_open:
        log.warning("adminOpen=true: whoever reaches this port may delete topics and change settings")
    else:
        log.info(
            "administrators' requests are served to this machine only; authenticationEnabled, aclEnable or adminOpen=true change that"
        )


def _account_paths(config: AccessConfig, settings_path: str | None) -> list[Path]:
    """Files and directories that may hold accounts. Raises ConfigError when none is there."""
    if config.acl_file:
        named = [Path(config.acl_file)]
    else:
        beside = Path(settings_path).resolve().parent if settings_path else Path.cwd()
        named = [beside / PLAIN_ACL, beside / ACL_DIRECTORY]
    if not any(path.exists() for path in named):
        raise ConfigError(
            f"aclEnable reads accounts from {' or '.join(map(str, named))}, and nothing is there"
        )
    return named


class _AccountFiles:
    """The YAML files, read again when one of them has changed."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._seen: dict[str, tuple[int, int]] = {}

    def read(self) -> PlainAcl:
        """Raises ConfigError."""
        self._seen = self._state()
        return plain_acl([(name, _yaml(Path(name))) for name in self._seen])

    def changed(self) -> PlainAcl | None:
        """What the files say now, None when nothing has changed, or what is there cannot be read: the old rules stay."""
        if self._state() == self._seen:
            return None
        try:
            found = self.read()
        except ConfigError as error:
            log.error("the accounts stay as they were: %s", error)
            return None
        log.info("%d accounts were read again", len(found.accounts))
        return found

    def _state(self) -> dict[str, tuple[int, int]]:
        state = {}
        for path in self._paths:
            files = sorted(path.glob("**/*.y*ml")) if path.is_dir() else [path]
            for file in files:
                try:
                    status = file.stat()
                except OSError:
                    continue
                state[str(file)] = (status.st_mtime_ns, status.st_size)
        return state


def _yaml(path: Path) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise ConfigError("aclEnable reads YAML, which needs a package: pip install 'aerobee[acl]'") from None
    try:
        with open(path, "rb") as source:
            data = source.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes")
        return yaml.safe_load(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place is not None else ""
        raise ConfigError(f"{path}{where} is no YAML: {getattr(error, 'problem', error)}") from None
