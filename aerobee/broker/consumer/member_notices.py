"""Notices to the members of consumer groups whose members changed (NOTIFY_CONSUMER_IDS_CHANGED, oneway). Core.

Members leave together, each of many groups: a connection that closes, a host that fails. A notice for each change and member would be the square of
the members for each group. A group that changes again before its notices are sent is notified once, and one event loop iteration sends at
most NOTICES_AT_ONCE, so that other connections are served in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aerobee.ordered_set import OrderedSet
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.peer import Peer

NOTICES_AT_ONCE = 256  # about a millisecond


class MemberNotices:
    """Groups whose members are to be notified. Belongs to the event loop."""

    def __init__(
        self,
        *,
        members_of: Callable[[str], Iterable[Peer]],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`members_of` gives the connections of a group that are notified; `call_soon` runs a function after what runs now."""
        self._members_of = members_of
        self._call_soon = call_soon
        self._groups: OrderedSet[str] = OrderedSet()
        self._rest: list[tuple[str, Peer]] = []  # notices under way, the next one last
        self._is_due = False

    def changed(self, group: str) -> None:
        """Notify the group's members, after what runs now."""
        self._groups.add(group)
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._run)

    def _run(self) -> None:
        left = NOTICES_AT_ONCE
        while left and (self._rest or self._groups):
            if not self._rest:
                group = next(iter(self._groups))
                self._groups.discard(group)
                self._rest = [(group, peer) for peer in self._members_of(group)][::-1]
                left -= 1  # a group without members costs a look
                continue
            group, peer = self._rest.pop()
            left -= 1
            if peer.is_open:
                peer.invoke_oneway(
                    RemotingCommand(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, flag=FLAG_ONEWAY
                    )
                )
        self._is_due = bool(self._rest or self._groups)
        if self._is_due:
            self._call_soon(self._run)
