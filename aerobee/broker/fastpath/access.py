"""Adapts the handlers' access control (access/gate.py) to the fast path's guard (guard.py): which frames are checked,
and the permissions of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aerobee.access.gate import Gate, Grant
from aerobee.broker.fastpath.seam import GuardSettings, OptionHooks
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.store.queue.consume_queue import ConsumeQueue

UNCHECKED_HOST = ""  # host of a peer that the guard does not check

# The fields that name what a request needs permission for (access/needs.py), by the codes that the fast path serves.
_TOPIC_AND_GROUP = ("topic", "consumerGroup")
GUARDED_FIELDS: Mapping[int, tuple[str, ...]] = {
    RequestCode.SEND_MESSAGE.value: ("topic",),
    RequestCode.SEND_MESSAGE_V2.value: ("b",),
    RequestCode.SEND_BATCH_MESSAGE.value: ("b",),
    RequestCode.PULL_MESSAGE.value: _TOPIC_AND_GROUP,
    RequestCode.LITE_PULL_MESSAGE.value: _TOPIC_AND_GROUP,
    RequestCode.POP_MESSAGE.value: _TOPIC_AND_GROUP,
    RequestCode.ACK_MESSAGE.value: _TOPIC_AND_GROUP,
    RequestCode.END_TRANSACTION.value: ("topic",),
}


class FrameAccess:
    """The gate as the fast path uses it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.settings = GuardSettings(self._find_grant, GUARDED_FIELDS)

    def host_of(self, peer: Peer) -> str | None:
        """The peer's host, UNCHECKED_HOST for one that the gate exempts; None for a peer without a known address, such
        as one that reset the connection before it was accepted."""
        return UNCHECKED_HOST if self._gate.exempts(peer) else peer.host_port[0] or None

    def on_change(self, callback: Callable[[], None]) -> None:
        """As Gate.on_change."""
        self._gate.on_change(callback)

    def _find_grant(self, code: int, fields: dict[str, str], host: str) -> Grant | None:
        if code == RequestCode.END_TRANSACTION and not fields.get("topic"):
            return None  # clients before 5.3 send no topic: the handler uses the half message's
        return self._gate.grant(RemotingCommand(code, fields), host)


class WithoutLmqs:
    """The hooks of sends with options behind a guard, which looks at a message's topic alone: each LMQ needs a separate permission, so
    the handlers get messages that name LMQs.
    """

    def __init__(self, hooks: OptionHooks) -> None:
        self.epoch, self.is_new, self.stored = hooks.epoch, hooks.is_new, hooks.stored

    def lmq(self, name: str) -> ConsumeQueue | None:
        """As OptionHooks.lmq: None."""
        return None
