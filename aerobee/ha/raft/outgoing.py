"""Output of a node: ordered effects, and messages. Core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import Entry, HardState, Snapshot
from aerobee.ha.raft.log import RaftLog
from aerobee.ha.raft.messages import AppendReply, AppendRequest, Message, SnapshotChunk, VoteRequest
from aerobee.ha.raft.progress import Flow, Progress


class Head(TypedDict):
    """Sender, receiver and term."""

    source: str
    target: str
    term: int
    identity: str
    target_identity: str


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A read may be answered once every entry up to `index` is applied; None: the caller must retry, perhaps
    at another node.
    """

    read_id: int
    index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Actions in this order: make durable, call on_persisted, send, restore, apply, answer reads."""

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()
    messages: tuple[Message, ...] = ()
    restore: Snapshot | None = None
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadReady, ...] = ()


def asking_for_vote(head: Head, log: RaftLog, *, is_pre_vote: bool, is_ordered: bool) -> VoteRequest:
    """A vote or pre-vote request of a candidate whose log ends as this one."""
    return VoteRequest(
        **head,
        last_index=log.last_index,
        last_term=log.last_term,
        is_pre_vote=is_pre_vote,
        is_ordered=is_ordered,
    )


def accepting(head: Head, index: int, number: int) -> AppendReply:
    """A reply: this node has every entry up to `index` on disk."""
    return AppendReply(**head, is_accepted=True, index=index, rejected_index=0, hint_term=0, round=number)


def refusing(head: Head, request: AppendRequest | SnapshotChunk, hint: int, hint_term: int) -> AppendReply:
    """A reply: this node lacks the entry before those of the request; the last common entry is at `hint` or before."""
    return AppendReply(
        **head,
        is_accepted=False,
        index=max(0, hint),
        rejected_index=request.prev_index if isinstance(request, AppendRequest) else request.index,
        hint_term=hint_term,
        round=request.round,
    )


class FollowerMessages:
    """A leader's messages to its followers: entries, or chunks of its snapshot.

    `commit_index` and `round_number` are the current ones of the leader.
    """

    def __init__(
        self, log: RaftLog, config: RaftConfig, head: Callable[[str], Head], send: Callable[[Message], None]
    ) -> None:
        self._log = log
        self._config = config
        self._head = head
        self._send = send

    def has_next(self, peer: Progress) -> bool:
        """Whether the follower lacks an entry or a chunk of the snapshot."""
        return peer.flow is Flow.SNAPSHOT or peer.next_index <= self._log.last_index

    def send_next(self, member: str, peer: Progress, commit_index: int, round_number: int) -> None:
        """Send what the follower lacks next, and note that it was sent."""
        config, log = self._config, self._log
        if peer.flow is not Flow.SNAPSHOT and log.term_at(peer.next_index - 1) is None:
            assert log.snapshot is not None, "entries are gone, and no snapshot has them"
            peer.needs_snapshot(log.snapshot)
        if peer.flow is Flow.SNAPSHOT:
            peer.is_waiting = True
            self._send(
                _next_chunk(
                    self._head(member), peer, chunk_bytes=config.snapshot_chunk_bytes, number=round_number
                )
            )
            return
        entries = log.entries_from(
            peer.next_index, bytes_max=config.append_bytes_max, count_max=config.append_entries_max
        )
        self.send_entries(member, peer, entries, commit_index, round_number)
        peer.sent(entries[-1].index)

    def send_entries(
        self, member: str, peer: Progress, entries: tuple[Entry, ...], commit_index: int, round_number: int
    ) -> None:
        """Send these entries, which follow the follower's; without entries, a heartbeat."""
        prev_term = self._log.term_at(peer.next_index - 1)
        if prev_term is None:  # the log dropped this entry after the last message to this peer
            self.send_next(member, peer, commit_index, round_number)
            return
        self._send(
            AppendRequest(
                **self._head(member),
                prev_index=peer.next_index - 1,
                prev_term=prev_term,
                commit_index=commit_index,
                round=round_number,
                entries=entries,
            )
        )


def _next_chunk(head: Head, peer: Progress, *, chunk_bytes: int, number: int) -> SnapshotChunk:
    """The next chunk of the snapshot for a follower."""
    snapshot = peer.snapshot
    assert snapshot is not None, "a chunk of no snapshot"
    start = peer.snapshot_offset
    return SnapshotChunk(
        **head,
        index=snapshot.index,
        snapshot_term=snapshot.term,
        voters=snapshot.membership.voters,
        learners=snapshot.membership.learners,
        identities=snapshot.membership.identities,
        offset=start,
        total_bytes=len(snapshot.data),
        crc=peer.snapshot_crc,
        round=number,
        data=snapshot.data[start : start + chunk_bytes],
    )
