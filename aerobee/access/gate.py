"""The gate before the handlers: authenticates and authorizes each request.

`open`: no authentication; administrators' requests are accepted only from this machine unless `adminOpen` is on. Closed by ACL
1.0 or 2.0: each request must be signed by a user with the permission for it. A refusal is NO_PERMISSION (16) and names
user, request and address.

keepers.py implements the decisions of a closed gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aerobee.access.admin_requests import ADMIN, ASKED_AT_AN_OPEN_GATE, is_admin
from aerobee.access.audit import AuditLog
from aerobee.errors import AerobeeError, RemoteError
from aerobee.host_port import is_loopback
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.signature import ACCESS_KEY


@dataclass(frozen=True, slots=True)
class Grant:
    """The user, and the remaining checks in this order: the key that must have signed the request, None for none;
    then the permission for it."""

    name: str
    signing_key: str | None = field(default=None, repr=False)
    authorize: Callable[[], None] = field(default=lambda: None, repr=False)

    def allows(self) -> bool:
        """Whether the user may make the request. Call it after the signature check: unsigned requests must not learn the answer."""
        try:
            self.authorize()
        except AerobeeError:
            return False  # undecidable: the handler replies with the error
        return True


class UserRefused(RemoteError):
    """A refusal of an authenticated user. The audit log treats all others as unauthenticated."""


class Keeper(Protocol):
    """One access control: it finds the user of a request, and raises RemoteError for a missing permission."""

    def check(self, request: RemotingCommand, host: str) -> str: ...

    def grant(self, request: RemotingCommand, host: str) -> Grant:
        """The first step of check(); the caller checks signature and permission. Raises RemoteError."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """`callback` is called after each change of users or permissions, from any thread."""
        ...


def is_of_this_machine(peer: Peer, request: RemotingCommand) -> bool:
    """Whether the peer has a loopback address."""
    return is_loopback(peer.host_port[0])


class Gate:
    """The access check before the handlers of one server."""

    def __init__(
        self,
        *,
        keeper: Keeper | None,
        admin_open: bool,
        audit: AuditLog | None = None,
        exempt: Callable[[Peer], bool] = lambda peer: False,
        is_own: Callable[[Peer, RemotingCommand], bool] = is_of_this_machine,
        closed_by: str = "authenticationEnabled or aclEnable",
    ) -> None:
        """Without `keeper` it is open. `exempt`: peers that need no authentication, such as those of an internal listener. `is_own`:
        whether an open gate without `admin_open` accepts this administrator's request of this peer. `closed_by`: the settings
        that enable authentication, for the text of the refusal."""
        self._keeper = keeper
        self._admin_open = admin_open
        self._audit = audit
        self._exempt = exempt
        self._is_own = is_own
        self._closed_by = closed_by
        self.refused_count = 0

    @property
    def is_closed(self) -> bool:
        """Whether each request must be authenticated: serve only requests that check() accepted."""
        return self._keeper is not None

    def guard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Wrap handlers with the check. An open gate checks only administrators' requests."""
        return {
            code: self._guarded(handler)
            if self.is_closed
            or (code in ASKED_AT_AN_OPEN_GATE and not (self._admin_open and self._audit is None))
            else handler
            for code, handler in handlers.items()
        }

    def check(self, peer: Peer, request: RemotingCommand, *, trusts_own: bool = True) -> None:
        """Return if the request may be served, and set the peer's `principal` to its user. Raises RemoteError (16).

        `trusts_own`: an open gate accepts administrators' requests of this machine.
        """
        host = peer.host_port[0]
        who = ""
        try:
            if self._keeper is not None and not self._exempt(peer):
                who = self._keeper.check(request, host)
            elif (
                self._keeper is None
                and not self._admin_open
                and is_admin(request)
                and not (trusts_own and self._is_own(peer, request))
            ):
                served_to = (
                    f"peers on this server's own machine only, not to {host}" if trusts_own else "no client"
                )
                raise RemoteError(
                    ResponseCode.NO_PERMISSION,
                    f"{request_name(request.code)} is an administrator's request and is served to {served_to}: turn on {self._closed_by} "
                    "and sign it, or set adminOpen=true",
                )
        except RemoteError as refusal:
            self.refused_count += 1
            self._note(
                request,
                host,
                request.field(ACCESS_KEY) or "",
                f"refused: {refusal.remark}",
                is_unauthenticated=not isinstance(refusal, UserRefused),
            )
            raise
        if self._keeper is not None:
            peer.principal = who
        if request.code in ADMIN:
            self._note(request, host, who, "passed")

    def look_again(self, peer: Peer, request: RemotingCommand) -> RemoteError | None:
        """The refusal of a pending request that check() accepted earlier and would refuse now; None if still accepted."""
        if self.exempts(peer):
            return None
        host = peer.host_port[0]
        try:
            assert self._keeper is not None
            self._keeper.check(request, host)
        except AerobeeError as error:
            if not isinstance(error, RemoteError):
                error = RemoteError(ResponseCode.SYSTEM_ERROR, str(error))  # undecidable, so refused
            self.refused_count += 1
            self._note(request, host, request.field(ACCESS_KEY) or "", f"refused: {error.remark}")
            return error
        return None

    def exempts(self, peer: Peer) -> bool:
        """Whether this peer needs no authentication, because of its listener."""
        return self._keeper is None or self._exempt(peer)

    def grant(self, request: RemotingCommand, host: str) -> Grant | None:
        """The steps of check(), for a caller that performs them itself; None for a request that check() would refuse immediately.

        For requests that need no administrator: nothing is written to the audit log. The result is valid until on_change().
        """
        if self._keeper is None or request.code in ADMIN:
            return None
        try:
            return self._keeper.grant(request, host)
        except AerobeeError:
            return None

    def signing_key(self, request: RemotingCommand, peer: Peer) -> str | None:
        """The key of the user that `request` names, for a caller that verifies another proof than the
        signature; None if check() needs no signature. Raises RemoteError and logs it as check() does, for an
        unknown user.
        """
        assert self._keeper is not None
        try:
            return self._keeper.grant(request, peer.host_port[0]).signing_key
        except RemoteError:
            self.check(peer, request)
            raise

    def may_ask(self, peer: Peer, request: RemotingCommand, code: int, fields: Mapping[str, str]) -> bool:
        """Whether the sender of `request`, which check() accepted, may also make a request of `code` with these fields. For handlers of
        requests that name a record by its offset: the permission depends on the topic of the record."""
        if self._keeper is None or self._exempt(peer):
            return True
        asked = RemotingCommand(code, {**fields, ACCESS_KEY: request.field(ACCESS_KEY) or ""})
        try:
            return self._keeper.grant(asked, peer.host_port[0]).allows()
        except AerobeeError:
            return False

    def may_send(self, principal: str, peer: Peer, topic: str) -> bool:
        """Whether this peer, whose heartbeat `principal` signed, may send to the topic: a check of a half message
        reveals its content, and any client can claim to be in the producer group."""
        if self.exempts(peer):
            return True
        if not principal:  # heartbeats that need no signature have no principal
            return self.knows(principal, peer)
        send = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {ACCESS_KEY: principal, "b": topic})
        grant = self.grant(send, peer.host_port[0])
        return grant is not None and grant.allows()

    def knows(self, principal: str, peer: Peer) -> bool:
        """Whether `principal`, who signed this peer's heartbeat, still exists and is enabled."""
        fields = {ACCESS_KEY: principal} if principal else {}
        heartbeat = RemotingCommand(RequestCode.HEART_BEAT, fields)
        return self.exempts(peer) or self.grant(heartbeat, peer.host_port[0]) is not None

    def on_change(self, callback: Callable[[], None]) -> None:
        """As Keeper.on_change; an open gate never changes."""
        if self._keeper is not None:
            self._keeper.on_change(callback)

    def close(self) -> None:
        """Close the audit log."""
        if self._audit is not None:
            self._audit.close()

    def _guarded(self, handler: Handler) -> Handler:
        check = self.check

        def guarded(peer: Peer, request: RemotingCommand) -> Reply | object:
            check(peer, request)
            return handler(peer, request)

        return guarded  # type: ignore[return-value]

    def _note(
        self, request: RemotingCommand, host: str, who: str, result: str, *, is_unauthenticated: bool = False
    ) -> None:
        if self._audit is not None:
            ext = request.ext or {}
            names = ("topic", "b", "group", "groupName", "consumerGroup", "username", "subject")
            what = " ".join(f"{name}={ext[name]}" for name in names if ext.get(name))
            self._audit.note(
                who=who,
                code=request.code,
                what=what,
                host=host,
                result=result,
                is_unauthenticated=is_unauthenticated,
            )
