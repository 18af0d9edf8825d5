"""Decisions of a closed gate: users with policies (ACL 2.0), or accounts of a file (ACL 1.0).

Signatures are verified for each request: the protocol signs its fields and its body, so that none can stand for another.
Decisions are cached until users or permissions change. check() finds the user, verifies the signature, then checks the
permissions, so that no client learns from a refusal what another user may do; grant() leaves the last two to the fast path, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from shlex import quote
from typing import NoReturn

from aerobee.access.admin_requests import ADMIN
from aerobee.access.config import AccessConfig, codes_of
from aerobee.access.gate import Grant, UserRefused
from aerobee.access.needs import Need, needs_of
from aerobee.access.plain_acl import Account, PlainAcl
from aerobee.access.policies import SUBJECT_PREFIX, Acl, Decision
from aerobee.access.resource import NAME_CHARS_MAX
from aerobee.access.users import User, Users, UserStatus, UserType
from aerobee.errors import AerobeeError, RemoteError
from aerobee.remoting.codes import ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import ACCESS_KEY, is_signed_with

REMEMBERED_MAX = 10_000
SHOWN_CHARS_MAX = NAME_CHARS_MAX + 80  # the longest names fit


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
        user = self._user_of(request)
        if user is None:
            return ""
        if not is_signed_with(request, user.password):
            _refuse(
                f"check signature failed: the secret key of {user.name} is another one, or the request was changed on its way"
            )
        _authorized(lambda: self._authorize(user, request, host))
        return user.name

    def grant(self, request: RemotingCommand, host: str) -> Grant:
        """As Keeper.grant."""
        user = self._user_of(request)
        if user is None:
            return Grant("")
        return Grant(user.name, user.password, lambda: self._authorize(user, request, host))

    def on_change(self, callback: Callable[[], None]) -> None:
        """As Keeper.on_change."""
        self.users.on_change(callback)

    def _user_of(self, request: RemotingCommand) -> User | None:
        """The user whose key must have signed the request; None if it needs no signature."""
        if request.code in self._unsigned:
            return None
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
        return user

    def _authorize(self, user: User, request: RemotingCommand, host: str) -> None:
        name = user.name
        if not self.config.authorization_enabled or user.kind is UserType.SUPER or request.code in self._free:
            return
        for need in _needs(request, self.cluster()):
            if self._decide(name, need, host) is not Decision.ALLOW:
                is_denied = self._decide(name, need, host) is not None
                said = "the decision is deny" if is_denied else "no matched policies"
                _refuse(
                    f"User:{name} has no permission to access {_shown(str(need.resource))} from {host}, {said}: it takes {_shown(str(need))}"
                    + ("" if is_denied else _grant_hint(name, need))
                )

    def _decide(self, name: str, need: Need, host: str) -> Decision | None:
        if self._version != self.users.version or len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
            self._version = self.users.version
        key = (name, need, host)
        if key in self._remembered:
            return self._remembered[key]
        acl = self.users.acls.get(SUBJECT_PREFIX + name) or Acl(SUBJECT_PREFIX + name)
        decision = acl.decide(need.resource, need.actions, host)
        if (
            len(need.resource.name) <= NAME_CHARS_MAX
        ):  # a longer name names no resource, and would occupy memory
            self._remembered[key] = decision
        return decision


@dataclass(slots=True)
class AccountKeeper:
    """ACL 1.0."""

    rules: PlainAcl
    cluster: Callable[[], str]
    _on_change: list[Callable[[], None]] = field(default_factory=list, init=False)

    def replace_rules(self, rules: PlainAcl) -> None:
        """Use the rules of changed files."""
        self.rules = rules
        for callback in self._on_change:
            callback()

    def on_change(self, callback: Callable[[], None]) -> None:
        """As Keeper.on_change."""
        self._on_change.append(callback)

    def check(self, request: RemotingCommand, host: str) -> str:
        """The access key, empty for a white address. Raises RemoteError."""
        account, is_signed = self._account_of(request, host)
        if account is None:
            return ""
        key = account.access_key
        if not is_signed:
            return key
        if not is_signed_with(request, account.secret_key):
            _refuse(f"Check signature failed for accessKey={key}")
        _authorized(lambda: self._authorize(account, request, host))
        return key

    def grant(self, request: RemotingCommand, host: str) -> Grant:
        """As Keeper.grant."""
        account, is_signed = self._account_of(request, host)
        if account is None:
            return Grant("")
        if not is_signed:
            return Grant(account.access_key)
        return Grant(account.access_key, account.secret_key, lambda: self._authorize(account, request, host))

    def _account_of(self, request: RemotingCommand, host: str) -> tuple[Account | None, bool]:
        """(account of the request, None for a whitelisted address; whether it must be signed)."""
        rules = self.rules
        if rules.is_white(host):
            return None, False
        key = request.field(ACCESS_KEY)
        if not key:
            _refuse(
                "no accessKey is configured: the request is not signed, give the client an access key and a secret key"
            )
        account = rules.accounts.get(key)
        if account is None:
            _refuse(f"No acl config for {_shown(key)}")
        return account, not account.white(host)

    def _authorize(self, account: Account, request: RemotingCommand, host: str) -> None:
        if account.is_admin:
            return
        if request.code in ADMIN:
            _refuse(
                f"Need admin permission for request code={request.code}, but accessKey={account.access_key} is not"
            )
        for need in _needs(request, self.cluster()):
            if not account.may(need):
                _refuse(
                    f"No default permission for {_shown(str(need.resource))} of accessKey={account.access_key} from {host}: it takes {_shown(str(need))}"
                )


def _authorized(ask: Callable[[], None]) -> None:
    """Refusals after the signature check concern the user's permissions."""
    try:
        ask()
    except RemoteError as refusal:
        raise UserRefused(refusal.code, refusal.remark) from None


def _needs(request: RemotingCommand, cluster: str) -> tuple[Need, ...]:
    try:
        return needs_of(request, cluster)
    except (AerobeeError, ValueError, TypeError, RecursionError) as error:
        _refuse(f"what {request_name(request.code)} asks for cannot be read: {_shown(str(error))}")


def _grant_hint(user: str, need: Need) -> str:
    """The command that grants a user what a request needs, quoted for a shell; "" for a name that no resource can have."""
    if len(need.resource.name) > NAME_CHARS_MAX:
        return ""
    action = min(need.actions).name.capitalize()
    command = f"aerobee acl allow {quote(user)} {quote(_shown(str(need.resource)))} --action {action}"
    return f". An administrator grants it with `{command}`"


def _shown(text: str) -> str:
    """Untrusted text, truncated: a name may be as long as a frame."""
    shown = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}… ({len(text)} characters)"
    return shown if shown.isprintable() else repr(shown)


def _refuse(remark: str) -> NoReturn:
    raise RemoteError(ResponseCode.NO_PERMISSION, remark)
