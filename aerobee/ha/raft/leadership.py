"""State of a node while it leads, from its election to the end of its leadership. Core.

`round` numbers the heartbeats. A follower's reply to a round proves that it still followed when the round began, so
lease and reads are based on rounds that a majority answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aerobee.errors import MembershipRefused, QuorumBusy, UsageError
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Membership
from aerobee.ha.raft.progress import Progress

ROUNDS_KEPT = 1_024  # a reply to an older round proves nothing useful


@dataclass(frozen=True, slots=True)
class PendingRead:
    """A read that waits for `round`. `source` requested it; "" is this node."""

    read_id: int
    source: str
    index: int
    round: int


class Leadership:
    """Followers, heartbeat rounds, reads and the leadership transfer of one term."""

    def __init__(self, node_id: str, membership: Membership, first_index: int, now_ms: float) -> None:
        self.node_id = node_id
        self.first_index = first_index  # this term's first entry: committing it commits all earlier entries
        self.peers: dict[str, Progress] = {}
        self.heard: dict[str, str] = {}  # identity that each other member reported
        self.round = 0
        self.round_is_wanted = False  # a read waits for a round that has not begun
        self.reads: deque[PendingRead] = deque()
        # reads requested before the first entry was committed
        self.early_reads: deque[tuple[int, str]] = deque()
        self.transfer_target = ""
        self.transfer_deadline_ms = 0.0
        # True from the first StandNow until the term ends: a StandNow may arrive late, and voters answer the
        # candidate that it orders before this lease expires.
        self.lease_is_given_up = False
        self.is_target_told = False
        self.uncommitted_bytes = 0
        # Time of the last reply of a majority before this node was blocked, and time at which it continued.
        self._held_up = float("-inf"), float("-inf")
        self._began_ms: dict[int, float] = {}
        self.follow(membership, now_ms)

    def follow(self, membership: Membership, now_ms: float) -> None:
        """Keep one Progress for each other member and for no other node."""
        others = [member for member in membership.all_members if member != self.node_id]
        self.peers = {
            member: self.peers.get(member) or Progress(self.first_index, now_ms) for member in others
        }
        self.heard = {member: each for member, each in self.heard.items() if member in self.peers}

    def check_proposal(self, size: int, config: RaftConfig) -> None:
        """Raises UsageError for a proposal that is too large, QuorumBusy while too many are pending or the leadership
        is being transferred."""
        if size > config.entry_bytes_max:
            raise UsageError(f"a proposal of {size} bytes, {config.entry_bytes_max} are allowed")
        if self.transfer_target:
            raise QuorumBusy(f"the leadership is being handed over to {self.transfer_target}")
        if self.uncommitted_bytes + size > config.uncommitted_bytes_max:
            raise QuorumBusy(
                f"{self.uncommitted_bytes} bytes of proposals wait for a majority, {config.uncommitted_bytes_max} are allowed"
            )

    def no_change_because(self, membership_index: int, commit_index: int) -> str:
        """Reason why the members cannot change now; "" when they can."""
        if membership_index > commit_index:
            return "another change of the members is not committed yet"
        if commit_index < self.first_index:
            return "this leader has committed nothing yet: try again in a moment"
        if self.transfer_target:
            return f"the leadership is being handed over to {self.transfer_target}"
        return ""

    def hand_over(self, target: str, membership: Membership, deadline_ms: float) -> None:
        """Order `target` to start an election as soon as it has every entry. Raises MembershipRefused, QuorumBusy."""
        if target not in membership.voters or target == self.node_id:
            raise MembershipRefused(f"{target} is not another voter")
        if self.transfer_target:
            raise QuorumBusy(f"the leadership is being handed over to {self.transfer_target}")
        self.transfer_target = target
        self.is_target_told = False
        self.transfer_deadline_ms = deadline_ms

    def own_reads(self) -> list[int]:
        """Ids of pending reads that this node itself requested."""
        own = [read.read_id for read in self.reads if not read.source]
        return own + [read_id for read_id, source in self.early_reads if not source]

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
        """The last moment at which a majority surely followed this leader."""
        return self._quorum(membership, now_ms, lambda peer: peer.contact_ms)

    def held_up(self, contact_ms: float, now_ms: float) -> None:
        """Note that this node was blocked for a while, by a paused process or a slow disk. Replies may be
        waiting unread.

        Counts once for each contact with a majority, so a leader that is slow and without a majority still
        steps down.
        """
        if contact_ms > self._held_up[0]:
            self._held_up = contact_ms, now_ms

    def listens_since(self, contact_ms: float) -> float:
        """Time since which this node has read its messages and no majority has answered. The lease still
        counts from the contact.
        """
        return max(contact_ms, self._held_up[1])

    def lease_began_ms(self, membership: Membership, now_ms: float) -> float:
        """Start of the newest round that a majority answered; minus infinity before the first."""
        if self.lease_is_given_up:
            return float("-inf")
        return self._quorum(membership, now_ms, lambda peer: peer.contact_ms if peer.round else float("-inf"))

    def confirmed_reads(self, membership: Membership) -> Iterable[PendingRead]:
        """Remove and yield the reads whose round a majority has answered."""
        number = self.quorum_round(membership)
        while self.reads and self.reads[0].round <= number:
            yield self.reads.popleft()

    def _quorum(self, membership: Membership, own: float, value: Callable[[Progress], float]) -> float:
        """The value that a majority of the voters has reached. A leader that is no longer a voter does not count."""
        reached = sorted(
            (own if voter == self.node_id else value(self.peers[voter]) for voter in membership.voters),
            reverse=True,
        )
        return reached[membership.quorum - 1]
