"""The gate before the handlers: whose request this is, and whether he may make it.

`open`: nobody is asked who he is, but administrators' requests come from this machine unless `adminOpen` is on. Closed by ACL
1.0 or 2.0: each request is signed, and is one of those that its user may make. A refusal is answered NO_PERMISSION (16) and says
who, what, from where.

Signatures are verified for each request: the protocol signs its fields and its body, so that none can stand for another.
Decisions are remembered until users or permissions change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from aerobee.access.addresses import is_loopback
from aerobee.access.audit import AuditLog
from aerobee.access.config import AccessConfig, codes_of
from aerobee.access.needs import ADMIN, Need, needs_of
from aerobee.access.plain_acl import Account, PlainAcl
from aerobee.access.policies import SUBJECT_PREFIX, Acl, Decision
from aerobee.access.users import Users, UserStatus, UserType
from aerobee.errors import AerobeeError, RemoteError
from aerobee.remoting.codes import ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.signature import ACCESS_KEY, is_signed_with

REMEMBERED_MAX = 10_000


class Keeper(Protocol):
    """One way to decide: it names the user of a request, and raises RemoteError for what he may not do."""

    def check(self, request: RemotingCommand, host: str) -> str: ...


class Gate:
    """What stands before the handlers of one server."""

    def __init__(
        self,
        *,
        keeper: Keeper | None,
        admin_open: bool,
        audit: AuditLog | None = None,
        exempt: Callable[[Peer], bool] = lambda peer: False,
    ) -> None:
        """Without `keeper` it is open. `exempt`: peers of whom nothing is asked, such as those of an internal listener."""
        self._keeper = keeper
        self._admin_open = admin_open
        self._audit = audit
        self._exempt = exempt
        self.refused_count = 0

    @property
    def is_closed(self) -> bool:
        """Whether each request has to prove who asks: then none may be served that has not passed check()."""
        return self._keeper is not None

    def guard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers behind the gate. An open gate stands before administrators' requests alone."""
        return {
            code: self._guarded(handler)
            if self.is_closed or (code in ADMIN and not (self._admin_open and self._audit is None))
            else handler
            for code, handler in handlers.items()
        }

    def check(self, peer: Peer, request: RemotingCommand) -> None:
        """Return when the request may be served. Raises RemoteError (16)."""
        host = peer.host_port[0]
        who = ""
        try:
            if self._keeper is not None and not self._exempt(peer):
                who = self._keeper.check(request, host)
            elif (
                self._keeper is None
                and not self._admin_open
                and request.code in ADMIN
                and not is_loopback(host)
            ):
                _refuse(
                    f"{request_name(request.code)} is an administrator's request and is served to peers on the broker's own machine "
                    f"only, not to {host}: turn on authenticationEnabled or aclEnable and sign it, or set adminOpen=true"
                )
        except RemoteError as refusal:
            self.refused_count += 1
            self._note(request, host, request.field(ACCESS_KEY) or "", f"refused: {refusal.remark}")
            raise
        if request.code in ADMIN:
            self._note(request, host, who, "passed")

    def close(self) -> None:
        """End the audit log."""
        if self._audit is not None:
            self._audit.close()

    def _guarded(self, handler: Handler) -> Handler:
        check = self.check

        def guarded(peer: Peer, request: RemotingCommand) -> Reply | object:
            check(peer, request)
            return handler(peer, request)

        return guarded  # type: ignore[return-value]

    def _note(self, request: RemotingCommand, host: str, who: str, result: str) -> None:
        if self._audit is not None:
            ext = request.ext or {}
            names = ("topic", "b", "group", "groupName", "consumerGroup", "username", "subject")
            what = " ".join(f"{name}={ext[name]}" for name in names if ext.get(name))
            self._audit.note(who=who, code=request.code, what=what, host=host, result=result)


@dataclass(slots=True)
class UserKeeper:
    """ACL 2.0."""

    users: Users
    config: AccessConfig
    cluster: Callable[[], str]
    _unsigned: frozenset[int] = field(init=False)
    _free: frozenset[int] = field(init=False)
    _remembered: dict[tuple[str, Need, str], Decision | None] = field(default_factory=dict, init=False)
    _version: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._unsigned = codes_of(self.config.authentication_whitelist, "authenticationWhitelist")
        self._free = codes_of(self.config.authorization_whitelist, "authorizationWhitelist")

    def check(self, request: RemotingCommand, host: str) -> str:
        """The user's name. Raises RemoteError."""
        if request.code in self._unsigned:
            return ""
        name = request.field(ACCESS_KEY)
        if not name:
            _refuse(
                "username cannot be null: the request is not signed, give the client an access key and a secret key"
            )
        user = self.users.users.get(name)
        if user is None:
            _refuse(f"User:{_shown(name)} is not found.")
        if user.status is UserStatus.DISABLE:
            _refuse(f"User:{name} is disabled.")
        if not is_signed_with(request, user.password):
            _refuse(
                f"check signature failed: the secret key of {name} is another one, or the request was changed on its way"
            )
        if not self.config.authorization_enabled or user.kind is UserType.SUPER or request.code in self._free:
            return name
        for need in _needs(request, self.cluster()):
            if self._decide(name, need, host) is not Decision.ALLOW:
                said = "the decision is deny" if self._decide(name, need, host) else "no matched policies"
                _refuse(
                    f"User:{name} has no permission to access {need.resource} from {host}, {said}: it takes {need}"
                )
        return name

    def _decide(self, name: str, need: Need, host: str) -> Decision | None:
        if self._version != self.users.version or len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
            self._version = self.users.version
        key = (name, need, host)
        if key not in self._remembered:
            acl = self.users.acls.get(SUBJECT_PREFIX + name) or Acl(SUBJECT_PREFIX + name)
            self._remembered[key] = acl.decide(need.resource, need.actions, host)
        return self._remembered[key]


@dataclass(slots=True)
class AccountKeeper:
    """ACL 1.0. `rules` is replaced when the files have changed."""

    rules: PlainAcl
    cluster: Callable[[], str]

    def check(self, request: RemotingCommand, host: str) -> str:
        """The access key, empty for a white address. Raises RemoteError."""
        rules = self.rules
        if rules.is_white(host):
            return ""
        key = request.field(ACCESS_KEY)
        if not key:
            _refuse(
                "no accessKey is configured: the request is not signed, give the client an access key and a secret key"
            )
        account = rules.accounts.get(key)
        if account is None:
            _refuse(f"No acl config for {_shown(key)}")
        if account.white(host):
            return key
        if not is_signed_with(request, account.secret_key):
            _refuse(f"Check signature failed for accessKey={key}")
        if account.is_admin:
            return key
        if request.code in ADMIN:
            _refuse(f"Need admin permission for request code={request.code}, but accessKey={key} is not")
        self._check_needs(account, request, host)
        return key

    def _check_needs(self, account: Account, request: RemotingCommand, host: str) -> None:
        for need in _needs(request, self.cluster()):
            if not account.may(need):
                _refuse(
                    f"No default permission for {need.resource} of accessKey={account.access_key} from {host}: it takes {need}"
                )


def _needs(request: RemotingCommand, cluster: str) -> tuple[Need, ...]:
    try:
        return needs_of(request, cluster)
    except (AerobeeError, ValueError, TypeError, RecursionError) as error:
        _refuse(f"what {request_name(request.code)} asks for cannot be read: {error}")


def _shown(text: str) -> str:
    return text[:80] if text.isprintable() else repr(text[:80])


def _refuse(remark: str) -> NoReturn:
    raise RemoteError(ResponseCode.NO_PERMISSION, remark)
