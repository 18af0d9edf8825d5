"""The client ids of one group's members, and those that several living clients have in common. Core.

Clients name themselves. In containers two of them easily do so alike (same address, same process id, same instance name), and each
then computes the share of that one id: all its messages are delivered twice, without a word (apache/rocketmq 2760 and others).

A client that reconnects has two connections for a while, too, of which the old one shows no more life. So an id counts as shared
when an older connection shows life (a heartbeat, a question for the list of members) after a newer one has joined, and the two are
different clients: their hosts differ, or the versions of their subscriptions, which are the times at which they subscribed.

Who shares an id has an order that all brokers see alike: who subscribed first, then the host. The first has the id's queues; the
others get a list of members without their own id, and take none until it leaves. They could have separate queues only
where the broker computes the shares (QUERY_ASSIGNMENT 400), which counts each of them.
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
    """One connection under an id. Turns are counted by the registry."""

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
    """An id that several living clients have. `addresses` begins with the one that has its queues."""

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
    """Of one group. `shared` may be read: empty as long as all is well."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._lives: dict[Peer, _Life] = {}
        self._by_id: dict[str, list[_Life]] = {}
        self.shared: dict[str, list[_Life]] = {}  # by client id, in the order of their claims

    def joined(self, client_id: str, peer: Peer, turn: int) -> None:
        """A connection is a member under this id from now on."""
        self.left(peer)
        life = self._lives[peer] = _Life(peer, client_id, turn, turn)
        self._by_id.setdefault(client_id, []).append(life)

    def left(self, peer: Peer) -> None:
        """It is none any more."""
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
        """What a heartbeat of this member asks for."""
        life = self._lives.get(peer)
        if life is not None:
            life.subscribed_ms = min((item.sub_version for item in subscriptions), default=0)

    def alive(self, peer: Peer, turn: int) -> SharedId | None:
        """The member shows life. Returns the id that is now known to be shared, when it was not before."""
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
        """Who has a shared id. Raises KeyError for one that is not."""
        addresses = tuple(life.peer.address for life in self.shared[client_id])
        return SharedId(self._group, client_id, addresses)

    def as_seen_by(self, peer: Peer, client_ids: list[str]) -> list[str]:
        """The list of members for one of them: without its own id when that belongs to another client."""
        life = self._lives.get(peer)
        sharing = self.shared.get(life.client_id, []) if life is not None else []
        if life is None or life not in sharing or sharing[0] is life:
            return client_ids
        # Never an empty list: RocketMQ's client keeps its queues then. Its entry names the client that has the id instead.
        holder = held_by(life.client_id, sharing[0].peer.address)
        return [holder if client_id == life.client_id else client_id for client_id in client_ids]

    def position_of(self, client_id: str, peer: Peer, client_ids: list[str]) -> tuple[int, int] | None:
        """(index, count) of a member among all, each client that shares an id counted; None for who is no member."""
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
