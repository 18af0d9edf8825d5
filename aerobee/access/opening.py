"""Creates a gate from settings: opens the tables of users or reads the account files, and logs unprotected
access at start.

open_access(config, …) -> Access     the gate, the handlers of requests about users, and the periodic reload
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aerobee.access.audit import AuditLog
from aerobee.access.config import AccessConfig
from aerobee.access.gate import Gate, is_of_this_machine
from aerobee.access.no_users import NoUsers
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer

if TYPE_CHECKING:
    from aerobee.access.users import Table, Users

log = logging.getLogger(__name__)
RELOAD_S = 5.0  # interval of the checks of the account files, as RocketMQ's


class Calls(Protocol):
    """Serves the requests for users and permissions."""

    def handlers(self) -> Mapping[int, Handler]: ...


@dataclass(slots=True)
class Access:
    """The access control of one server."""

    gate: Gate
    calls: Calls
    users: Users | None = None
    reload: Callable[[], None] | None = None  # call it every RELOAD_S, in a thread

    def close(self) -> None:
        """Close the files."""
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
    open_table: Callable[[str], Table] | None = None,
    exempt: Callable[[Peer], bool] = lambda peer: False,
) -> Access:
    """`directory` is where users are kept (RocketMQ: `config` below the store), in RocksDB unless `open_table` says otherwise;
    account files are next to `settings_path`.

    Reads and creates files. Raises ConfigError, StoreError.
    """
    audit = _audit_log(config, now_ms) if config.audit_log_path else None
    if not config.is_closed:
        return Access(Gate(keeper=None, admin_open=config.admin_open, audit=audit, exempt=exempt), NoUsers())
    # A server without access control does not import the code that decides.
    from aerobee.access.closed import account_keeper, user_keeper

    if config.authentication_enabled:
        users, keeper, calls = user_keeper(
            config, directory=directory, cluster=cluster, open_table=open_table
        )
        gate = Gate(keeper=keeper, admin_open=config.admin_open, audit=audit, exempt=exempt)
        return Access(gate, calls, users)
    accounts, reload = account_keeper(config, settings_path=settings_path, cluster=cluster)
    gate = Gate(keeper=accounts, admin_open=config.admin_open, audit=audit, exempt=exempt)
    return Access(gate, NoUsers(), None, reload)


def _audit_log(config: AccessConfig, now_ms: Callable[[], int]) -> AuditLog:
    return AuditLog(
        config.audit_log_path,
        now_ms,
        bytes_max=config.audit_log_bytes_max,
        files_max=config.audit_log_files_max,
    )


def guard_of(
    admin_open: bool,
) -> Callable[[Mapping[int, Handler], Callable[[Peer, RemotingCommand], bool]], dict[int, Handler]]:
    """An open gate for a controller, which has no AccessConfig; it also decides which peers count as this machine."""

    def guard(
        handlers: Mapping[int, Handler], is_own: Callable[[Peer, RemotingCommand], bool]
    ) -> dict[int, Handler]:
        gate = Gate(
            keeper=None,
            admin_open=admin_open,
            is_own=lambda peer, request: is_of_this_machine(peer, request) or is_own(peer, request),
            closed_by="authenticationEnabled",  # controllers have no ACL 1.0
        )
        return gate.guard(handlers)

    return guard


def who_may_administer(config: AccessConfig) -> str:
    """A sentence about the access control of a server that other machines can reach."""
    if config.is_closed:
        return "users whom access control permits"
    if config.admin_open:
        return "everyone who reaches these ports (adminOpen=true): they may delete topics and change settings"
    return "from this machine only; authenticationEnabled, aclEnable or adminOpen=true change that"


def say_what_is_open(config: AccessConfig, *, beyond_loopback: bool) -> None:
    """Write one log line at the start if other machines can reach the server."""
    if not beyond_loopback or config.is_closed:
        return
    if config.admin_open:
        log.warning("adminOpen=true: everyone who reaches this port may delete topics and change settings")
    else:
        log.info(
            "administrators' requests are served to this machine only; authenticationEnabled, aclEnable or adminOpen=true change that"
        )
