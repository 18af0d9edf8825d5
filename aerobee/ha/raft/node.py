"""One node of a Raft group, without IO. Core.

Inputs are messages, the monotonic time in milliseconds, proposals and reads. Outputs are `Effects`, taken
with take_effects(): what must be made durable, then what may be sent, then what may be applied. The owner
(replica.py) executes them in that order and calls on_persisted().

    receive / tick / propose / read  ->  take_effects  ->  storage  ->  on_persisted  ->  send, apply

Follows Ongaro's dissertation "Consensus: Bridging Theory and Practice": elections with pre-vote (9.6), a
leader that misses its majority steps down (6.2), membership changes one at a time (4.1), leadership transfer
(3.10), snapshots (5), reads by index and by lease (6.4). Differences and additions:

- A voter that heard its leader grants no vote for an election time-out, not even after a restart, which counts as the
  last message of a leader: the lease depends on it.
- A change of members waits until an entry of this leader's term is committed (the known flaw of 4.1).
- A leader that ordered another node to start an election has no lease until its term ends, even if it keeps leading.
- A member is identified by its id and its data directory, whose identity a leader records in the membership: a node
  with another directory cannot take part (trust.py).
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.errors import MembershipRefused, NotLeader, QuorumBusy, UsageError, WireError
from aerobee.ha.raft.asked_reads import AskedReads
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import FIRST_TERM, Entry, EntryKind, HardState, Membership, Snapshot
from aerobee.ha.raft.incoming import IncomingSnapshot
from aerobee.ha.raft.leadership import Leadership, PendingRead
from aerobee.ha.raft.log import RaftLog, Recovered, check_before_write
from aerobee.ha.raft.membership_change import with_identities, with_learner, with_vote, without
from aerobee.ha.raft.messages import (
    AppendReply,
    AppendRequest,
    Message,
    ReadReply,
    ReadRequest,
    SnapshotChunk,
    SnapshotReply,
    StandNow,
    VoteReply,
    VoteRequest,
)
from aerobee.ha.raft.outgoing import (
    Effects,
    FollowerMessages,
    Head,
    ReadReady,
    accepting,
    asking_for_vote,
    refusing,
)
from aerobee.ha.raft.progress import Flow, Progress
from aerobee.ha.raft.roles import Role, RoleEvent, next_role
from aerobee.ha.raft.trust import check_envelope, check_memberships, check_source, is_for_another


class RaftNode:
    """The decisions of one member. Not thread-safe; the times of successive calls must not decrease."""

    def __init__(
        self,
        node_id: str,
        config: RaftConfig,
        recovered: Recovered,
        *,
        now_ms: float,
        random: Callable[[], float],
    ) -> None:
        """`random` returns numbers from 0 up to but excluding 1, as random.random does."""
        self.node_id = node_id
        self.identity = recovered.identity
        self.is_unrecognized = False  # the other members know another data directory for this id
        self.config = config
        self.log = RaftLog(recovered)
        self.role = Role.FOLLOWER
        self.term = recovered.hard_state.term
        self.voted_for = recovered.hard_state.voted_for
        self.leader = ""  # "" while no leader is known
        self.commit_index = self.log.snapshot_index
        # committed entries up to this index were returned by take_effects()
        self._handed_index = self.commit_index
        self._random = random
        self._saved = recovered.hard_state
        self._leadership: Leadership | None = None
        self._votes: dict[str, bool] = {}
        self._messages: list[Message] = []
        self._followers = FollowerMessages(self.log, config, self._head, self._send)
        self._reads_ready: list[ReadReady] = []
        self._asked_reads = AskedReads(random())
        self._new_snapshot: Snapshot | None = None
        self._restore: Snapshot | None = None
        self._incoming = IncomingSnapshot()
        self._is_persisting = False
        self._next_heartbeat_ms = now_ms
        self._promise_until_ms = now_ms
        if self.term > FIRST_TERM:
            # The node may have received a message of its leader just before it stopped.
            self._promise_until_ms += config.election_timeout_ms
        self._election_due_ms = 0.0
        self._put_off_election(now_ms)

    # -- what its owner asks

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_established(self) -> bool:
        """Whether this node leads and has committed every entry that earlier leaders acknowledged."""
        return self._leadership is not None and self.commit_index >= self._leadership.first_index

    @property
    def deadline_ms(self) -> float:
        """Latest time of the next tick(), unless an event comes first."""
        if self._leadership is not None:
            return self._next_heartbeat_ms
        return min(self._election_due_ms, self._asked_reads.deadline_ms)

    def lease_until_ms(self, now_ms: float) -> float:
        """Time until which no other node can be elected, by this node's clock; minus infinity without a lease."""
        if self._leadership is None:
            return float("-inf")
        return self._leadership.lease_began_ms(self.log.membership, now_ms) + self.config.lease_ms

    def has_lease(self, now_ms: float) -> bool:
        """Whether this node leads, and surely no other node does."""
        return now_ms < self.lease_until_ms(now_ms)

    def progress(self) -> dict[str, int]:
        """For each other member, the last entry that it surely has on disk. Empty unless this node leads."""
        if self._leadership is None:
            return {}
        return {member: peer.match_index for member, peer in self._leadership.peers.items()}

    # -- inputs

    def tick(self, now_ms: float) -> None:
        """Do the work that is due: elections, heartbeats, time-outs."""
        self._reads_ready += self._asked_reads.fail(now_ms)
        leadership = self._leadership
        if leadership is None:
            if now_ms >= self._election_due_ms:
                self._ask_for_pre_votes(now_ms)
            return
        silent_since = leadership.quorum_contact_ms(self.log.membership, now_ms)
        if now_ms >= self._next_heartbeat_ms + self.config.heartbeat_interval_ms:
            leadership.held_up(silent_since, now_ms)
        if leadership.listens_since(silent_since) + self.config.election_timeout_ms <= now_ms:
            self._stop_leading(RoleEvent.QUORUM_LOST, now_ms)
            return
        if leadership.transfer_target and now_ms >= leadership.transfer_deadline_ms:
            leadership.transfer_target = ""
        self._note_identities(leadership, now_ms)
        if now_ms >= self._next_heartbeat_ms:
            self._send_round(leadership, now_ms)

    def receive(self, message: Message, now_ms: float) -> None:
        """Process one message. Raises WireError, and leaves the log unchanged, for a message that no correct
        node sends to this one.
        """
        check_envelope(message, self.node_id, self.term)
        self._check_identities(message)
        if isinstance(message, VoteRequest):
            self._on_vote_request(message, now_ms)
            return
        if isinstance(message, VoteReply) and message.is_pre_vote and message.is_granted:
            self._on_pre_vote_granted(message, now_ms)  # a pre-vote names the next term, not the current one
            return
        if message.term > self.term:
            self._adopt_term(message.term, now_ms)
        if message.term < self.term:
            if isinstance(message, AppendRequest | SnapshotChunk):
                # The reply tells the sender the newer term, so that it stops leading.
                self._send(refusing(self._head(message.source), message, 0, 0))
            return
        if isinstance(message, AppendRequest):
            self._on_append(message, now_ms)
        elif isinstance(message, AppendReply):
            self._on_append_reply(message, now_ms)
        elif isinstance(message, VoteReply):
            self._on_vote_reply(message, now_ms)
        elif isinstance(message, SnapshotChunk):
            self._on_snapshot_chunk(message, now_ms)
        elif isinstance(message, SnapshotReply):
            self._on_snapshot_reply(message, now_ms)
        elif isinstance(message, StandNow):
            self._on_stand_now(message, now_ms)
        elif isinstance(message, ReadRequest):
            self._on_read_request(message, now_ms)
        elif isinstance(message, ReadReply):
            self._reads_ready += self._asked_reads.answered(message.read_id, message.index)

    def _check_identities(self, message: Message) -> None:
        """Raises WireError when the data directory of either node differs from the one that the other node knows."""
        members = self.log.membership
        if is_for_another(
            message, self.identity
        ):  # a message cannot make this node unrecognized while the membership has its directory
            self.is_unrecognized = members.identity_of(self.node_id) != self.identity
            raise WireError(
                f"{message.source!r} means another data directory of {self.node_id!r} than this one"
            )
        check_source(message, members)
        if self._leadership is not None and message.source in self._leadership.peers:
            self._leadership.heard[message.source] = message.identity

    def propose(self, data: bytes) -> tuple[int, int]:
        """Add a command to the log. Return its (term, index): it took effect if that index is applied with that term.

        Raises NotLeader; QuorumBusy when too many bytes wait for a quorum or during a leadership transfer;
        UsageError when the command is larger than `entry_bytes_max`.
        """
        leadership = self._leading()
        leadership.check_proposal(len(data), self.config)
        return self.term, self._append_own(leadership, EntryKind.COMMAND, data)

    def read(self, now_ms: float) -> int:
        """Request the index that a linearizable read must have applied. Return an id; the ReadReady with this
        id has the index.

        Raises NotLeader when no leader is known, QuorumBusy when too many reads wait.
        """
        leadership = self._leadership
        waiting = (
            len(leadership.reads) + len(leadership.early_reads) if leadership else len(self._asked_reads)
        )
        if waiting >= self.config.reads_max:
            raise QuorumBusy(f"{waiting} reads wait for a majority already")
        if leadership is None and not self.leader:
            raise NotLeader(f"{self.node_id} knows no leader", leader="")
        read_id = self._asked_reads.next_id()
        if leadership is not None:
            self._lead_read(leadership, read_id, "", now_ms)
        else:
            self._asked_reads.ask(read_id, now_ms + self.config.election_timeout_ms)
            self._send(ReadRequest(**self._head(self.leader), read_id=read_id))
        return read_id

    def add_learner(self, member: str, now_ms: float) -> tuple[int, int]:
        """Add a node without a vote. Return (term, index) as propose() does. Raises MembershipRefused."""
        return self._change(
            with_learner(self.log.membership, member, members_max=self.config.members_max), now_ms
        )

    def promote(self, member: str, now_ms: float) -> tuple[int, int]:
        """Give a learner a vote once it has every committed entry: before that, a majority that needs it would wait."""
        members = with_vote(self.log.membership, member)
        leadership = self._leading()
        if leadership.peers[member].match_index < self.commit_index:
            raise MembershipRefused(
                f"{member} has {leadership.peers[member].match_index} of {self.commit_index} entries: "
                "try again when it has caught up"
            )
        return self._change(members, now_ms)

    def remove(self, member: str, now_ms: float) -> tuple[int, int]:
        """Remove a member. A leader that removes itself leads until the change is committed."""
        return self._change(without(self.log.membership, member), now_ms)

    def transfer(self, target: str, now_ms: float) -> None:
        """Transfer the leadership as soon as `target` has every entry. The transfer is abandoned after an
        election timeout.

        The node accepts no proposal meanwhile. Raises NotLeader, MembershipRefused when `target` has no vote,
        QuorumBusy.
        """
        leadership = self._leading()
        leadership.hand_over(target, self.log.membership, now_ms + self.config.election_timeout_ms)

    def compact(self, index: int, data: bytes) -> None:
        """Use `data` as the state after the entry `index`, and drop earlier entries.

        Raises UsageError when take_effects() has not returned that entry as committed, when it is not
        durable, or when the state is too large.
        """
        term = self.log.check_snapshot(index, self._handed_index)
        if len(data) > self.config.snapshot_bytes_max:
            raise UsageError(f"a snapshot of {len(data)} bytes, {self.config.snapshot_bytes_max} are allowed")
        snapshot = Snapshot(index, term, self.log.membership_at(index), data)
        self.log.compact(snapshot, kept_max=self.config.entries_kept_max)
        self._new_snapshot = snapshot

    # -- outputs

    def take_effects(self, now_ms: float) -> Effects | None:
        """The effects to execute now, or None. Returns None until on_persisted() is called for the previous effects."""
        if self._is_persisting:
            return None
        if self._leadership is not None:
            self._tell_followers(self._leadership, now_ms)
        state, log = HardState(self.term, self.voted_for), self.log
        is_saved = self._saved == state
        if (
            is_saved
            and not self._messages
            and log.stable_index == log.last_index
            and self._handed_index == self.commit_index
            and not self._reads_ready
            and self._new_snapshot is None
        ):
            return None
        check_before_write(state, self._saved, log, self._handed_index, self.commit_index)
        effects = Effects(
            hard_state=None if is_saved else state,
            snapshot=self._new_snapshot,
            entries=log.unstable(),
            messages=tuple(self._messages),
            restore=self._restore,
            committed=log.range(self._handed_index + 1, self.commit_index),
            reads=tuple(self._reads_ready),
        )
        self._messages.clear()
        self._reads_ready.clear()
        self._new_snapshot = self._restore = None
        self._handed_index = self.commit_index
        self._is_persisting = True
        return effects

    def on_persisted(self, effects: Effects, now_ms: float) -> None:
        """Note that the data of these effects is durable. Only now do this node's own vote and entries count."""
        self._is_persisting = False
        if effects.hard_state is not None:
            self._saved = effects.hard_state
        if effects.entries:
            self.log.note_stable(effects.entries[-1].index, effects.entries[-1].term)
        if self.role is Role.CANDIDATE and self._saved == HardState(self.term, self.node_id):
            self._votes[self.node_id] = True
            self._count_votes(now_ms)
        elif self._leadership is not None:
            self._advance_commit(self._leadership, now_ms)

    # -- elections

    def _put_off_election(self, now_ms: float) -> None:
        self._election_due_ms = now_ms + self.config.election_timeout_ms * (1 + self._random())

    def _ask_for_pre_votes(self, now_ms: float) -> None:
        self._put_off_election(now_ms)
        self.leader = ""
        if not self._may_stand():
            return
        self._move(RoleEvent.LEADER_MISSED)
        self._votes = {self.node_id: True}
        self._ask_for_votes(self.term + 1, is_pre_vote=True, is_ordered=False)
        self._count_votes(now_ms)

    def _may_stand(self) -> bool:
        """Whether this node may start an election: it is a voter, or its removal is not committed and its log
        may be the only one with that entry.
        """
        log = self.log
        if self.is_unrecognized or self.node_id in log.membership.voters:
            return not self.is_unrecognized
        is_open = log.membership_index > max(self.commit_index, log.base_index)
        return is_open and self.node_id in log.membership_at(log.membership_index - 1).voters

    def _stand(self, event: RoleEvent, now_ms: float) -> None:
        self._move(event)
        self.term += 1
        self.voted_for = self.node_id
        self.leader = ""
        self._votes = {}  # its own vote counts when it is on disk
        self._put_off_election(now_ms)
        self._ask_for_votes(self.term, is_pre_vote=False, is_ordered=event is RoleEvent.TOLD_TO_STAND)

    def _ask_for_votes(self, term: int, *, is_pre_vote: bool, is_ordered: bool) -> None:
        for voter in self.log.membership.voters:
            if voter != self.node_id:
                head: Head = {**self._head(voter), "term": term}
                self._send(asking_for_vote(head, self.log, is_pre_vote=is_pre_vote, is_ordered=is_ordered))

    def _on_vote_request(self, request: VoteRequest, now_ms: float) -> None:
        if self.is_unrecognized or (not request.is_ordered and self._follows_a_leader(now_ms)):
            return
        has_all = self.log.is_up_to_date(request.last_index, request.last_term)
        if request.is_pre_vote:
            granted = request.term > self.term and has_all
            term = request.term if granted else self.term
            head: Head = {**self._head(request.source), "term": term}
            self._send(VoteReply(**head, is_granted=granted, is_pre_vote=True))
            return
        if request.term > self.term:
            self._adopt_term(request.term, now_ms)
        granted = request.term == self.term and has_all and self._may_vote_for(request.source)
        if granted:
            self.voted_for = request.source
            self._put_off_election(now_ms)
        self._send(VoteReply(**self._head(request.source), is_granted=granted, is_pre_vote=False))

    def _follows_a_leader(self, now_ms: float) -> bool:
        """Whether a vote now could depose a leader that still has its lease."""
        return self.role is Role.LEADER or now_ms < self._promise_until_ms

    def _may_vote_for(self, candidate: str) -> bool:
        return self.role is Role.FOLLOWER and self.voted_for in ("", candidate)

    def _on_pre_vote_granted(self, reply: VoteReply, now_ms: float) -> None:
        if self.role is Role.PRE_CANDIDATE and reply.term == self.term + 1:
            self._votes[reply.source] = True
            self._count_votes(now_ms)

    def _on_vote_reply(self, reply: VoteReply, now_ms: float) -> None:
        asked = Role.PRE_CANDIDATE if reply.is_pre_vote else Role.CANDIDATE
        if self.role is asked:
            self._votes[reply.source] = reply.is_granted
            self._count_votes(now_ms)

    def _count_votes(self, now_ms: float) -> None:
        members = self.log.membership
        answers = [self._votes[voter] for voter in members.voters if voter in self._votes]
        if answers.count(True) >= members.quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._stand(RoleEvent.PRE_VOTE_WON, now_ms)
            else:
                self._lead(now_ms)
        elif answers.count(False) > len(members.voters) - members.quorum:
            self._move(RoleEvent.ELECTION_LOST)

    def _lead(self, now_ms: float) -> None:
        self._move(RoleEvent.VOTE_WON)
        self.leader = self.node_id
        leadership = Leadership(self.node_id, self.log.membership, self.log.last_index + 1, now_ms)
        leadership.uncommitted_bytes = self.log.bytes_behind(self.commit_index)
        self._leadership = leadership
        self._reads_ready += self._asked_reads.fail()
        self._append_own(leadership, EntryKind.NOTHING, b"")
        self._send_round(leadership, now_ms)

    def _adopt_term(self, term: int, now_ms: float) -> None:
        if self._leadership is not None:
            self._stop_leading(RoleEvent.HIGHER_TERM, now_ms)
        else:
            self._move(RoleEvent.HIGHER_TERM)
        self.term = term
        self.voted_for = ""
        self.leader = ""
        self._incoming.clear()

    def _stop_leading(self, event: RoleEvent, now_ms: float) -> None:
        leadership = self._leadership
        assert leadership is not None, "only a leader can stop leading"
        self._move(event)
        self._leadership = None
        self.leader = ""
        self._put_off_election(now_ms)
        self._reads_ready.extend(ReadReady(read_id, None) for read_id in leadership.own_reads())

    def _hear_leader(self, source: str, now_ms: float) -> None:
        if self.role is Role.LEADER or self.leader not in ("", source):
            raise WireError(f"{source!r} and {self.leader!r} both lead in term {self.term}")
        self._move(RoleEvent.LEADER_HEARD)
        self.leader = source
        self.is_unrecognized = False  # the leader knows this directory or none: this node was added again
        self._put_off_election(now_ms)
        self._promise_until_ms = now_ms + self.config.election_timeout_ms

    # -- following

    def _on_append(self, request: AppendRequest, now_ms: float) -> None:
        self._hear_leader(request.source, now_ms)
        if request.prev_index < self.log.base_index:
            # Committed and compacted long ago; every leader has these entries.
            self._accept_append(request, self.commit_index)
            return
        if self.log.term_at(request.prev_index) != request.prev_term:
            hint = self.log.last_index_of_term(request.prev_index, request.prev_term)
            hint_term = self.log.term_at(hint) or 0
            self._send(refusing(self._head(request.source), request, hint, hint_term))
            return
        check_memberships(request, self.log.membership_at(request.prev_index))
        self.log.append(request.entries, commit_index=self.commit_index)
        # Later entries of this log may come from another leader: only up to here it equals the leader's log.
        same_up_to = request.prev_index + len(request.entries)
        self._commit_up_to(min(request.commit_index, same_up_to))
        self._accept_append(request, same_up_to)

    def _commit_up_to(self, index: int) -> None:
        self.commit_index = max(self.commit_index, index)

    def _accept_append(self, request: AppendRequest | SnapshotChunk, index: int) -> None:
        self._send(accepting(self._head(request.source), index, request.round))

    def _on_snapshot_chunk(self, chunk: SnapshotChunk, now_ms: float) -> None:
        if chunk.total_bytes > self.config.snapshot_bytes_max:
            raise WireError(
                f"a snapshot of {chunk.total_bytes} bytes, {self.config.snapshot_bytes_max} are allowed"
            )
        self._hear_leader(chunk.source, now_ms)
        if chunk.index <= self.commit_index:
            self._accept_append(chunk, self.commit_index)
            return
        if self.log.term_at(chunk.index) == chunk.snapshot_term:
            # This node has the entries that the snapshot replaces, and now learns that they are committed.
            self._commit_up_to(chunk.index)
            self._accept_append(chunk, chunk.index)
            return
        arrived, data = self._incoming.add(chunk)
        if data is None:
            self._send(
                SnapshotReply(
                    **self._head(chunk.source), index=chunk.index, offset=arrived, round=chunk.round
                )
            )
            return
        snapshot = Snapshot(
            chunk.index, chunk.snapshot_term, Membership(chunk.voters, chunk.learners, chunk.identities), data
        )
        self._install(snapshot)
        self._accept_append(chunk, chunk.index)

    def _install(self, snapshot: Snapshot) -> None:
        self.log.install(snapshot)
        self.commit_index = self._handed_index = snapshot.index
        self._new_snapshot = self._restore = snapshot

    def _on_stand_now(self, order: StandNow, now_ms: float) -> None:
        if self.role is Role.FOLLOWER and self._may_stand() and self.leader == order.source:
            self._stand(RoleEvent.TOLD_TO_STAND, now_ms)

    # -- leading

    def _leading(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(
                f"{self.node_id} does not lead, {self.leader or 'no node that it knows'} does",
                leader=self.leader,
            )
        return self._leadership

    def _append_own(self, leadership: Leadership, kind: EntryKind, data: bytes) -> int:
        entry = Entry(self.log.last_index + 1, self.term, kind, data)
        self.log.append((entry,), commit_index=self.commit_index)
        leadership.uncommitted_bytes += entry.size
        return entry.index

    def _change(self, members: Membership, now_ms: float) -> tuple[int, int]:
        leadership = self._leading()
        if why_not := leadership.no_change_because(self.log.membership_index, self.commit_index):
            raise MembershipRefused(why_not)
        index = self._append_own(leadership, EntryKind.MEMBERSHIP, members.encode())
        leadership.follow(members, now_ms)
        return self.term, index

    def _note_identities(self, leadership: Leadership, now_ms: float) -> None:
        """Propose a membership with the newly learned identities of data directories, if a change is allowed now."""
        heard = {**leadership.heard, self.node_id: self.identity}
        members = with_identities(self.log.membership, heard)
        if members is not self.log.membership and not leadership.no_change_because(
            self.log.membership_index, self.commit_index
        ):
            self._change(members, now_ms)

    def _send_round(self, leadership: Leadership, now_ms: float) -> None:
        """Send every member a heartbeat, and resend what may have been lost."""
        leadership.begin_round(now_ms)
        self._next_heartbeat_ms = now_ms + self.config.heartbeat_interval_ms
        for member, peer in leadership.peers.items():
            peer.is_waiting = False
            if peer.flow is Flow.PIPELINE or peer.next_index > self.log.last_index:
                self._followers.send_entries(member, peer, (), self.commit_index, leadership.round)
            else:
                self._followers.send_next(member, peer, self.commit_index, leadership.round)
        self._advance_commit(leadership, now_ms)  # a group of one gets no replies

    def _tell_followers(self, leadership: Leadership, now_ms: float) -> None:
        if leadership.round_is_wanted:
            self._send_round(leadership, now_ms)
        for member, peer in leadership.peers.items():
            while peer.may_send(self.config.in_flight_max) and self._followers.has_next(peer):
                self._followers.send_next(member, peer, self.commit_index, leadership.round)
        target = leadership.peers.get(leadership.transfer_target)
        if target and target.match_index == self.log.last_index and not leadership.is_target_told:
            leadership.is_target_told = True
            leadership.lease_is_given_up = True
            self._send(StandNow(**self._head(leadership.transfer_target)))

    def _on_append_reply(self, reply: AppendReply, now_ms: float) -> None:
        if reply.is_accepted and reply.index > self.log.last_index:
            raise WireError(
                f"{reply.source!r} says it has entry {reply.index} of {self.log.last_index} in term {self.term}"
            )
        found = self._answering_peer(reply.source, reply.round)
        if found is None:
            return
        leadership, peer = found
        if reply.is_accepted:
            peer.accepted(reply.index)
        else:
            common = self.log.last_index_of_term(reply.index, reply.hint_term)
            peer.rejected(reply.rejected_index, common + 1)
        self._advance_commit(leadership, now_ms)

    def _on_snapshot_reply(self, reply: SnapshotReply, now_ms: float) -> None:
        found = self._answering_peer(reply.source, reply.round)
        if found is not None:
            leadership, peer = found
            peer.chunk_arrived(reply.index, reply.offset)
            self._advance_commit(leadership, now_ms)

    def _answering_peer(self, source: str, number: int) -> tuple[Leadership, Progress] | None:
        """Note that a member answered a round. None when it is no longer a member, or this node no longer leads."""
        leadership = self._leadership
        peer = leadership.peers.get(source) if leadership is not None else None
        if leadership is None or peer is None:
            return None
        leadership.answered(peer, number)
        return leadership, peer

    def _advance_commit(self, leadership: Leadership, now_ms: float) -> None:
        """Commit what a majority has on disk, then answer the reads that a majority has confirmed."""
        members = self.log.membership
        index = leadership.quorum_index(members, self.log.stable_index)
        # An entry of an earlier term may still be replaced although a majority has it: it is committed by one of
        # this term that follows it, never by itself.
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self.commit_index = index
            leadership.uncommitted_bytes = self.log.bytes_behind(index)
        if self.commit_index >= leadership.first_index:
            while leadership.early_reads:
                read_id, source = leadership.early_reads.popleft()
                self._lead_read(leadership, read_id, source, now_ms)
        for read in leadership.confirmed_reads(members):
            self._answer_read(read.read_id, read.source, read.index)
        if self.commit_index >= self.log.membership_index and self.node_id not in members.voters:
            self._stop_leading(RoleEvent.REMOVED, now_ms)

    # -- reads

    def _on_read_request(self, request: ReadRequest, now_ms: float) -> None:
        leadership = self._leadership
        if leadership is None or len(leadership.reads) + len(leadership.early_reads) >= self.config.reads_max:
            return  # the follower repeats its request
        self._lead_read(leadership, request.read_id, request.source, now_ms)

    def _lead_read(self, leadership: Leadership, read_id: int, source: str, now_ms: float) -> None:
        if self.commit_index < leadership.first_index:
            # Entries that an earlier leader acknowledged may be above this leader's commit index.
            leadership.early_reads.append((read_id, source))
        elif self.has_lease(now_ms):
            self._answer_read(read_id, source, self.commit_index)
        else:
            # The read waits for a round that begins from now on; one round serves all reads that arrive until
            # then.
            leadership.round_is_wanted = True
            leadership.reads.append(PendingRead(read_id, source, self.commit_index, leadership.round + 1))

    def _answer_read(self, read_id: int, source: str, index: int) -> None:
        if source:
            self._send(ReadReply(**self._head(source), read_id=read_id, index=index))
        else:
            self._reads_ready.append(ReadReady(read_id, index))

    def _head(self, target: str) -> Head:
        return {
            "source": self.node_id,
            "target": target,
            "term": self.term,
            "identity": self.identity,
            "target_identity": self.log.membership.identity_of(target),
        }

    def _send(self, message: Message) -> None:
        self._messages.append(message)

    def _move(self, event: RoleEvent) -> None:
        self.role = next_role(self.role, event)
