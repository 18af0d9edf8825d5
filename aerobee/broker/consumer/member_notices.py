"""Notices to the members of consumer groups whose members changed (NOTIFY_CONSUMER_IDS_CHANGED, oneway). Core.

Members leave together, each of many groups: a connection that closes, a host that fails. A notice for each change and member would be the square of
the members for each group. A group that changes again before its notices are sent is notified once, and one event loop iteration sends at
most NOTICES_AT_ONCE, so that other connections are served in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from aerobee.ordered_set import OrderedSet
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

NOTICES_AT_ONCE = 256  # about a millisecond


class MemberNotices:
    """Pending notices of groups. Belongs to the event loop."""

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
        self._rest: list[tuple[str, Peer]] = []  # notices to send, the next one last
        self._is_due = False

    def changed(self, group: str) -> None:
        """Notify the group's members, after what runs now."""
        self._groups.add(group)
        self._arm()

    def _arm(self) -> None:
        if not self._is_due and (self._rest or self._groups):
            self._is_due = True
            self._call_soon(self._run)

    def _run(self) -> None:
        left = NOTICES_AT_ONCE
        try:
            while left and (self._rest or self._groups):
                left -= 1  # an iteration also processes a group without members
                if self._rest:
                    self._notify(*self._rest.pop())
                else:
                    self._begin(next(iter(self._groups)))
        finally:
            self._is_due = False
            self._arm()

    def _begin(self, group: str) -> None:
        self._groups.discard(group)
        try:
            self._rest = [(group, peer) for peer in self._members_of(group)][::-1]
        except Exception:
            # An error of one group must not stop the notices to others.
            log.exception("the members of group %s are not notified of a change of its members", group)

    def _notify(self, group: str, peer: Peer) -> None:
        if not peer.is_open:
            return
        try:
            peer.invoke_oneway(
                RemotingCommand(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, flag=FLAG_ONEWAY
                )
            )
        except Exception:
            log.exception("%s is not notified of a change of the members of group %s", peer.address, group)
