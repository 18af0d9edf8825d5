"""Connected producers by group.

Source: ProducerManager (RocketMQ). A producer is identified by its connection; it leaves by an unregister request, when
its connection closes, or 120 s after its last heartbeat (checked every 10 s). The broker asks a producer of a group
what became of a transaction, so any live member of the group will do.

Answers of request-reply go to a client by its id (connection_of), which clients say themselves: to the connection of
its last heartbeat. With signed heartbeats a client id belongs to its signer while the signer's connection is a member:
another client with this id joins its groups, but receives no replies. The same signer takes the id over with its next
heartbeat from any connection, because it has reconnected. In RocketMQ 5.5.0 the client that joined last receives the
replies.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aerobee.broker.state.closed_peers import ClosedPeers
from aerobee.clock import Clock
from aerobee.log_throttle import LogThrottle
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

CHANNEL_EXPIRY_S = 120.0  # channelExpiredTimeout


@dataclass(slots=True)
class ClientChannel:
    """One member of one group. `language` and `version` as its heartbeats give them."""

    peer: Peer
    client_id: str
    language: int
    version: int
    seen: float  # monotonic seconds of the last heartbeat
    seen_ms: int  # the same by the wall clock
    principal: str = ""  # signer of that heartbeat


class ProducerRegistry:
    """Producer groups and their members. Plain calls; belongs to the broker's event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], object],
        knows: Callable[[str, Peer], bool] = lambda principal, peer: True,
    ) -> None:
        """`knows` says whether who signed a peer's heartbeat may send one still. `call_soon` runs a function after what runs now."""
        self._clock = clock
        self._closed = ClosedPeers(self._leave_one, call_soon)
        self._knows = knows
        self._groups: dict[str, dict[Peer, ClientChannel]] = {}
        self._groups_of: dict[Peer, set[str]] = {}
        self._member_count = 0
        # Connection and signer of its last heartbeat. A connection has an id for as long as a channel of it
        # has.
        self._client_ids: dict[str, tuple[Peer, str]] = {}
        self._channel_counts: Counter[tuple[Peer, str]] = Counter()
        self._former: dict[str, Peer] = {}  # the connection that had an id before, while both are open
        self._shared: set[str] = set()  # ids that two living clients have: each is logged once
        self._taken = LogThrottle(log, clock.monotonic)
        self._turn = itertools.count()

    def register(
        self, group: str, peer: Peer, client_id: str, *, language: int, version: int, principal: str = ""
    ) -> bool:
        """Record a heartbeat, signed by `principal`; return whether the member is new."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        members = self._groups.setdefault(group, {})
        self._claim(client_id, peer, principal)
        channel = members.get(peer)
        if channel is not None and channel.client_id == client_id:
            channel.language, channel.version, channel.seen, channel.seen_ms = language, version, now, now_ms
            channel.principal = principal
            return False
        if channel is None:
            self._member_count += 1
        else:
            self._drop_id(channel.client_id, peer)  # it calls itself otherwise now
        self._channel_counts[peer, client_id] += 1
        members[peer] = ClientChannel(peer, client_id, language, version, now, now_ms, principal)
        groups = self._groups_of.get(peer)
        if groups is None:
            groups = self._groups_of[peer] = set()
            peer.on_close(self.connection_closed)
        groups.add(group)
        return True

    def unregister(self, group: str, peer: Peer) -> None:
        """The member leaves."""
        members = self._groups.get(group)
        left = members.pop(peer, None) if members is not None else None
        if members is None or left is None:
            return
        self._member_count -= 1
        if not members:
            del self._groups[group]
        groups = self._groups_of.get(peer)
        if groups is not None:
            groups.discard(group)
        self._drop_id(left.client_id, peer)

    def connection_closed(self, peer: Peer) -> None:
        """Forget every producer behind a connection, of very many groups in slices."""
        self._closed.add(peer)

    def _leave_one(self, peer: Peer) -> bool:
        groups = self._groups_of.get(peer)
        if not groups:
            self._groups_of.pop(peer, None)
            return False
        self.unregister(groups.pop(), peer)
        return True

    def scan(self, expiry_s: float = CHANNEL_EXPIRY_S) -> list[tuple[Peer, str]]:
        """Remove members without a heartbeat for `expiry_s`. Returns their connections and why, for close_silent_clients()."""
        now = self._clock.monotonic()
        expired: list[tuple[Peer, str]] = []
        for group, members in list(self._groups.items()):
            for channel in list(members.values()):
                if now - channel.seen > expiry_s:
                    self.unregister(group, channel.peer)
                    why = f"producer {channel.client_id} of {group}: no heartbeat for {expiry_s:.0f} s"
                    expired.append((channel.peer, why))
        return expired

    @property
    def member_count(self) -> int:
        """Members of all groups, counted once a group."""
        return self._member_count

    def size_of(self, group: str) -> int:
        """Number of members of a group."""
        return len(self._groups.get(group, ()))

    def groups_of(self, peer: Peer) -> set[str]:
        """Names of the groups that a peer is a member of."""
        return self._groups_of.get(peer, set())

    def members(self, group: str) -> list[ClientChannel]:
        """The group's members; empty when none of it is connected."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> dict[str, list[ClientChannel]]:
        """Group to its producers that are connected now."""
        return {group: list(members.values()) for group, members in self._groups.items()}

    def connection_of(self, client_id: str) -> Peer | None:
        """The open connection of a client that is a member of any group, and whose signer is a user still, or None."""
        peer, signer = self._client_ids.get(client_id, (None, ""))
        return peer if peer is not None and peer.is_open and self._knows(signer, peer) else None

    def _claim(self, client_id: str, peer: Peer, principal: str) -> None:
        """The peer calls itself so; another signer's id stays where it is."""
        holder, signer = self._client_ids.get(client_id, (peer, principal))
        if holder is not peer and signer != principal and holder.is_open and self._knows(signer, holder):
            self._taken.warn(
                principal,
                "%s signs as %r and calls itself %.200r, which is the client of %r at %s: that one gets the answers to its requests",
                peer.address, principal, client_id, signer, holder.address,
            )  # fmt: skip
            return
        if holder is not peer:
            # A client that reconnects takes its id over once; two clients take it from each other again and again.
            if self._former.get(client_id) is peer and holder.is_open and client_id not in self._shared:
                self._shared.add(client_id)
                log.warning(
                    "clients at %s and %s have one client id, %.200r: replies to requests of the one may go to the other. Give each "
                    "client a separate instance name (instanceName; ClientConfig.instance)",
                    peer.address, holder.address, client_id,
                )  # fmt: skip
            self._former[client_id] = holder
        self._client_ids[client_id] = (peer, principal)

    def _drop_id(self, client_id: str, peer: Peer) -> None:
        """A channel of the peer that had this id is gone."""
        self._channel_counts[peer, client_id] -= 1
        if self._channel_counts[peer, client_id] <= 0:
            del self._channel_counts[peer, client_id]
            self._shared.discard(client_id)
            if self._former.get(client_id) is peer:
                del self._former[client_id]
            if self._client_ids.get(client_id, (None, ""))[0] is peer:
                del self._client_ids[client_id]
                self._former.pop(client_id, None)

    def channel_of(
        self, group: str, may: Callable[[ClientChannel], bool] = lambda channel: True
    ) -> ClientChannel | None:
        """Return an open member of the group that `may`, another one each time, or None."""
        members = [channel for channel in self._groups.get(group, {}).values() if channel.peer.is_open]
        begin = next(self._turn) % len(members) if members else 0
        return next((channel for channel in (*members[begin:], *members[:begin]) if may(channel)), None)
