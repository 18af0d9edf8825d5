"""The client ids of one group's members, and detection of ids that several connected clients share. Core.

Clients choose their own ids. In containers two clients easily get the same one (same address, process id and instance
name), and each computes the share of that id: all its messages are delivered twice without an error (apache/rocketmq
2760 and others).

A reconnecting client also has two connections for a while, but the old one is idle. So an id counts as shared when an
older connection is active (a heartbeat, a request for the member list) after a newer one has joined, and the two are
different clients: their hosts differ, or the versions of their subscriptions, which are the times at which they
subscribed.

All brokers order the clients of a shared id in the same way: by subscription time, then by host. The first owns the
id's queues; the others receive a member list without their own id, and own no queues until the first leaves. They could
have separate queues only where the broker computes the shares (QUERY_ASSIGNMENT 400), which counts each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerobee.remoting.body.member_list import held_by
from aerobee.remoting.body.subscription import SubscriptionData
from aerobee.remoting.peer import Peer

TEXT_CHARS_MAX = 1_000


@dataclass(slots=True, eq=False)
class _Life:
    """One connection with a client id. `joined` and `seen` are numbers of the registry's events."""

    peer: Peer
    client_id: str
    joined: int
    seen: int
    subscribed_ms: int = 0  # 0: not known

    @property
    def order(self) -> tuple[int, str]:
        return self.subscribed_ms, self.peer.host_port[0]


@dataclass(frozen=True, slots=True)
class SharedId:
    """An id that several connected clients share. The first of `addresses` owns its queues."""

    group: str
    client_id: str
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        first, *others = self.addresses
        return (
            f"clients at {first} and {', '.join(others)} share membership of group {self.group} under the client id "
            f"{self.client_id}: the queues of this id go to {first}, the other gets none. Give each client its own instance name "
            "its own (instanceName; ClientConfig.instance)"
        )[:TEXT_CHARS_MAX]

    def to_dict(self) -> dict[str, object]:
        """The form in the answer to GET_CONSUMER_CONNECTION_LIST."""
        return {"clientId": self.client_id, "addresses": list(self.addresses)}


class ClientIds:
    """Client ids of one group. Callers may read `shared`; it is empty while all ids are unique."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lives: dict[Peer, _Life] = {}
        self._by_id: dict[str, list[_Life]] = {}
        self.shared: dict[str, list[_Life]] = {}  # by client id, in the order of their claims

    def joined(self, client_id: str, peer: Peer, turn: int) -> None:
        """A connection joined with this id."""
        self.left(peer)
        life = self._lives[peer] = _Life(peer, client_id, turn, turn)
        self._by_id.setdefault(client_id, []).append(life)

    def left(self, peer: Peer) -> None:
        """The connection left."""
        life = self._lives.pop(peer, None)
        if life is None:
            return
        same = self._by_id[life.client_id]
        same.remove(life)
        if not same:
            del self._by_id[life.client_id]
        sharing = self.shared.get(life.client_id, [])
        if life in sharing:
            sharing.remove(life)
            if len(sharing) < 2:
                del self.shared[life.client_id]

    def subscribed(self, peer: Peer, subscriptions: Iterable[SubscriptionData]) -> None:
        """The subscriptions in a heartbeat of this member."""
        life = self._lives.get(peer)
        if life is not None:
            life.subscribed_ms = min((item.sub_version for item in subscriptions), default=0)

    def alive(self, peer: Peer, turn: int) -> SharedId | None:
        """The member is active. Returns the id if it is newly detected as shared."""
        life = self._lives.get(peer)
        if life is None:
            return None
        before, life.seen = life.seen, turn
        same = self._by_id[life.client_id]
        if len(same) < 2:
            return None
        sharing = self.shared.get(life.client_id, [])
        newer = [
            other
            for other in same
            if other.joined > before
            and other.peer.is_open
            and other.order != life.order
            and other not in sharing
        ]
        if not newer:
            return None
        found = [*sharing, *(each for each in (life, *newer) if each not in sharing)]
        self.shared[life.client_id] = sorted(found, key=lambda each: each.order)
        return self.shared_id(life.client_id)

    def shared_id(self, client_id: str) -> SharedId:
        """The clients of a shared id. Raises KeyError for an id that is not shared."""
        addresses = tuple(life.peer.address for life in self.shared[client_id])
        return SharedId(self._group, client_id, addresses)

    def as_seen_by(self, peer: Peer, client_ids: list[str]) -> list[str]:
        """The member list for one member: without its own id if another client owns that id."""
        life = self._lives.get(peer)
        sharing = self.shared.get(life.client_id, []) if life is not None else []
        if life is None or life not in sharing or sharing[0] is life:
            return client_ids
        # Never an empty list, because RocketMQ's client would then keep its queues: an entry names the client
        # that owns the id instead.
        holder = held_by(life.client_id, sharing[0].peer.address)
        return [holder if client_id == life.client_id else client_id for client_id in client_ids]

    def position_of(self, client_id: str, peer: Peer, client_ids: list[str]) -> tuple[int, int] | None:
        """(index, count) of a member among all members, counting each client of a shared id; None for a client that is
        not a member."""
        if client_id not in client_ids:
            return None
        index = 0
        for each in sorted(client_ids):
            sharing = self.shared.get(each, [])
            if each == client_id:
                index += next((at for at, life in enumerate(sharing) if life.peer is peer), 0)
                break
            index += max(1, len(sharing))
        return index, sum(max(1, len(self.shared.get(each, []))) for each in client_ids)
