"""Output of a node: ordered effects, and messages. Core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from aerobee.ha.raft.entry import Entry, HardState, Snapshot
from aerobee.ha.raft.log import RaftLog
from aerobee.ha.raft.messages import AppendReply, AppendRequest, Message, SnapshotChunk, VoteRequest
from aerobee.ha.raft.progress import Progress


class Head(TypedDict):
    """Sender, receiver and term."""

    source: str
    target: str
    term: int
    identity: str
    target_identity: str


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A read may be answered once everything up to `index` is applied; None: ask again, perhaps another node."""

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
    """Would you vote, or do you, for a candidate whose log ends like this one?"""
    return VoteRequest(
        **head,
        last_index=log.last_index,
        last_term=log.last_term,
        is_pre_vote=is_pre_vote,
        is_ordered=is_ordered,
    )


def accepting(head: Head, index: int, number: int) -> AppendReply:
    """Everything up to `index` is here and durable."""
    return AppendReply(**head, is_accepted=True, index=index, rejected_index=0, hint_term=0, round=number)


def refusing(head: Head, request: AppendRequest | SnapshotChunk, hint: int, hint_term: int) -> AppendReply:
    """The entry before those of the request is not here; the last common one may be at `hint`, or before."""
    return AppendReply(
        **head,
        is_accepted=False,
        index=max(0, hint),
        rejected_index=request.prev_index if isinstance(request, AppendRequest) else request.index,
        hint_term=hint_term,
        round=request.round,
    )


def next_chunk(head: Head, peer: Progress, *, chunk_bytes: int, number: int) -> SnapshotChunk:
    """The piece of its snapshot that a follower lacks next."""
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
