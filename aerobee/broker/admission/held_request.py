"""A remoting request that a service answers later: its caller, and the refusal that it receives."""

from __future__ import annotations

from aerobee.broker.admission.pending_access import RefusalOf
from aerobee.broker.state.refusal import remote_refusal
from aerobee.errors import AerobeeError, RemoteError
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer


class HeldRequest:
    """What a service keeps of a remoting request while the request is pending."""

    __slots__ = ("caller", "request")

    def __init__(self, peer: Peer, request: RemotingCommand) -> None:
        self.caller = peer
        self.request = request

    @property
    def is_open(self) -> bool:
        """Whether a late answer can still arrive."""
        return self.caller.is_open

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        """As pending_access.Held."""
        return refusal_of(self.caller, self.request)

    def refuse(self, error: AerobeeError) -> None:
        """Answer with an error of the service, or a refusal of the gate."""
        refusal = remote_refusal(error)
        self.caller.send(self.request.reply(refusal.code, remark=refusal.remark, ext=refusal.ext or {}))
