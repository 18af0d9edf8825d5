"""Dependencies of a closed gate: users in a database, or the account files, which are reread after changes."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aerobee.access.calls import AccessCalls
from aerobee.access.config import AccessConfig
from aerobee.access.keepers import AccountKeeper, UserKeeper
from aerobee.access.plain_acl import PlainAcl, plain_acl
from aerobee.access.rocks_table import RocksTable
from aerobee.access.users import Table, Users
from aerobee.errors import ConfigError

log = logging.getLogger(__name__)
PLAIN_ACL, ACL_DIRECTORY = "plain_acl.yml", "acl"
FILE_BYTES_MAX = 16 * 1024 * 1024


def user_keeper(
    config: AccessConfig,
    *,
    directory: str,
    cluster: Callable[[], str],
    open_table: Callable[[str], Table] | None,
) -> tuple[Users, UserKeeper, AccessCalls]:
    """ACL 2.0: opens or makes the tables below `directory`. Raises ConfigError, StoreError."""
    open_ = open_table or RocksTable
    users = Users(open_(os.path.join(directory, "users")), open_(os.path.join(directory, "acls")))
    for pair in (config.first_user, config.inner_credentials):
        if pair is not None:
            users.ensure_super(pair.access_key, pair.secret_key)
    return users, UserKeeper(users, config, cluster), AccessCalls(users)


def account_keeper(
    config: AccessConfig, *, settings_path: str | None, cluster: Callable[[], str]
) -> tuple[AccountKeeper, Callable[[], None]]:
    """ACL 1.0: the keeper, and a function that rereads its files, for a thread. Raises ConfigError."""
    files = _AccountFiles(_account_paths(config, settings_path))
    accounts = AccountKeeper(files.read(), cluster)

    def reload() -> None:
        found = files.changed()
        if found is not None:
            accounts.replace_rules(found)

    return accounts, reload


def _account_paths(config: AccessConfig, settings_path: str | None) -> list[Path]:
    """Files and directories that may hold accounts. Raises ConfigError when none is there."""
    if config.acl_file:
        named = [Path(config.acl_file)]
    else:
        directory = Path(settings_path).resolve().parent if settings_path else Path.cwd()
        named = [directory / PLAIN_ACL, directory / ACL_DIRECTORY]
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
        """The rules of the files, None if nothing has changed or they cannot be read: the old rules stay."""
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
        position = getattr(error, "problem_mark", None)
        where = f", line {position.line + 1}" if position is not None else ""
        raise ConfigError(f"{path}{where} is not YAML: {getattr(error, 'problem', error)}") from None
