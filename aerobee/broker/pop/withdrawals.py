"""AEROBEE_WITHDRAW_POP 910055: ends a pending POP_MESSAGE or POP_LITE_MESSAGE of the same connection.

A proxy sends it when the client for which it pops has left, so that another client gets the next message. A pop that may be withdrawn
names itself by POP_ID_FIELD.
"""

from __future__ import annotations

from abc import abstractmethod

from aerobee.broker.admission.held_request import HeldRequest
from aerobee.errors import AerobeeError
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.remoting.protocol import POP_ID_FIELD

POP_ID_CHARS_MAX = 64


class Withdrawals:
    """The pending pops that have an id, by connection. One table serves both requests, whose ids share one namespace."""

    def __init__(self) -> None:
        self._pops: dict[Peer, dict[str, WithdrawablePop]] = {}

    def note_pending(self, pop: WithdrawablePop) -> None:
        """A pop waits from now on."""
        if not (pop_id := pop.pop_id):
            return
        named = self._pops.get(pop.caller)
        if named is None:
            named = self._pops[pop.caller] = {}
            pop.caller.on_close(self._connection_closed)
        named[pop_id] = pop

    def ended(self, pop: WithdrawablePop) -> None:
        """A pop is answered."""
        named = self._pops.get(pop.caller)
        if named is not None and named.get(pop.pop_id) is pop:
            del named[pop.pop_id]

    def withdraw(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """End a pending pop of this connection. One that is no longer pending has been answered, or is now."""
        pop = self._pops.get(peer, {}).get(request.text(POP_ID_FIELD))
        if pop is not None and pop.drop():
            self.ended(pop)
            peer.send(pop.request.reply(ResponseCode.POLLING_TIMEOUT, remark="withdrawn"))
        return request.reply()

    def _connection_closed(self, peer: Peer) -> None:
        self._pops.pop(peer, None)


class WithdrawablePop(HeldRequest):
    """One pop by remoting while a service serves it."""

    __slots__ = ("_withdrawals",)

    def __init__(self, peer: Peer, request: RemotingCommand, withdrawals: Withdrawals) -> None:
        super().__init__(peer, request)
        self._withdrawals = withdrawals

    @property
    def pop_id(self) -> str:
        """By which its connection may withdraw it; empty: not at all."""
        pop_id = self.request.field(POP_ID_FIELD) or ""
        return pop_id if len(pop_id) <= POP_ID_CHARS_MAX else ""

    @abstractmethod
    def drop(self) -> bool:
        """Have the service forget the pop. False for a pop that is not pending."""

    def refuse(self, error: AerobeeError) -> None:
        """As HeldRequest."""
        self._withdrawals.ended(self)
        super().refuse(error)
