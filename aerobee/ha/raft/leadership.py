"""What a node holds while it leads, from its election to its last moment as leader. Core.

`round` numbers the heartbeats. A follower's answer to a round proves that it still followed when the round began, so a
round that a majority answered is what the lease and the reads stand on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aerobee.ha.raft.entry import Membership
from aerobee.ha.raft.progress import Progress

ROUNDS_KEPT = 1_024  # an answer to an older one proves nothing that is still of use


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read that waits for `round`. `source` asked for it; "" is this node."""

    read_id: int
    source: str
    index: int
    round: int


class Leadership:
    """Followers, rounds, reads and a handing over of one term."""

    def __init__(self, node_id: str, membership: Membership, first_index: int, now_ms: float) -> None:
        self.node_id = node_id
        self.first_index = first_index  # this term's first entry: once it is committed, so is all before it
        self.peers: dict[str, Progress] = {}
        self.round = 0
        self.round_is_wanted = False  # a read waits for a round that has not begun
        self.reads: deque[PendingRead] = deque()
        self.early_reads: deque[tuple[int, str]] = deque()  # asked before the first entry was committed
        self.transfer_target = ""
        self.transfer_deadline_ms = 0.0
        # From the first order to stand on, and until the term ends: an order may arrive late, and voters that get an
        # ordered request do not wait until this lease is over.
        self.lease_is_given_up = False
        self.is_target_told = False
        self.uncommitted_bytes = 0
        # When a majority was last heard before this node was held up, and when it went on.
        self._held_up = float("-inf"), float("-inf")
        self._began_ms: dict[int, float] = {}
        self.follow(membership, now_ms)

    def follow(self, membership: Membership, now_ms: float) -> None:
        """Have a progress for each other member, and for nobody else."""
        others = [member for member in membership.everybody if member != self.node_id]
        self.peers = {
            member: self.peers.get(member) or Progress(self.first_index, now_ms) for member in others
        }

    def begin_round(self, now_ms: float) -> int:
        self.round += 1
        self.round_is_wanted = False
        self._began_ms[self.round] = now_ms
        self._began_ms.pop(self.round - ROUNDS_KEPT, None)
        return self.round

    def answered(self, peer: Progress, number: int) -> None:
        """A follower answered a message of this round."""
        began_ms = self._began_ms.get(number)
        if number > peer.round and began_ms is not None:
            peer.round = number
            peer.contact_ms = began_ms

    def quorum_index(self, membership: Membership, own_index: int) -> int:
        """The last entry that a majority has on disk."""
        return int(self._quorum(membership, own_index, lambda peer: peer.match_index))

    def quorum_round(self, membership: Membership) -> int:
        """The newest round that a majority answered."""
        return int(self._quorum(membership, self.round, lambda peer: peer.round))

    def quorum_contact_ms(self, membership: Membership, now_ms: float) -> float:
        """Since when this leader may be alone: a majority followed at this moment."""
        return self._quorum(membership, now_ms, lambda peer: peer.contact_ms)

    def held_up(self, contact_ms: float, now_ms: float) -> None:
        """This node itself did nothing for a while: a process that got no turn, a slow disk. Answers may lie here unread.

        Once for each contact: a leader that is alone and slow ceases to lead all the same.
        """
        if contact_ms > self._held_up[0]:
            self._held_up = contact_ms, now_ms

    def listens_since(self, contact_ms: float) -> float:
        """Since when nobody was heard though this node listened. The lease, which nothing here prolongs, counts from the contact."""
        return max(contact_ms, self._held_up[1])

    def lease_began_ms(self, membership: Membership, now_ms: float) -> float:
        """When the newest round that a majority answered began; minus infinity before the first."""
        if self.lease_is_given_up:
            return float("-inf")
        return self._quorum(membership, now_ms, lambda peer: peer.contact_ms if peer.round else float("-inf"))

    def confirmed_reads(self, membership: Membership) -> Iterable[PendingRead]:
        """Take the reads whose round a majority has answered."""
        number = self.quorum_round(membership)
        while self.reads and self.reads[0].round <= number:
            yield self.reads.popleft()

    def _quorum(self, membership: Membership, own: float, value: Callable[[Progress], float]) -> float:
        """The value that a majority of the voters has reached. A leader that is no voter any more does not count."""
        reached = sorted(
            (own if voter == self.node_id else value(self.peers[voter]) for voter in membership.voters),
            reverse=True,
        )
        return reached[membership.quorum - 1]
