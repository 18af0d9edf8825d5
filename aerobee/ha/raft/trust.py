"""Checks by which a member refuses well-formed messages. Core.

An id and a data directory identify a member. A node with the id and another directory has lost votes and
entries; a group that accepted it could elect two leaders or lose committed entries.
"""

from __future__ import annotations

from aerobee.errors import WireError
from aerobee.ha.raft.entry import EntryKind, Membership, decode_membership
from aerobee.ha.raft.membership_change import is_one_step
from aerobee.ha.raft.messages import AppendRequest, Message

# Maximum difference between a message's term and this node's. No member misses this many elections. A forged
# term near the largest possible one would leave the members no higher term for an election.
TERM_STEP_MAX = 1 << 32


def check_envelope(message: Message, node_id: str, term: int) -> None:
    """Raises WireError for a message to another node, or with a term that elections cannot have reached."""
    if message.target != node_id or message.source == node_id:
        raise WireError(f"a message from {message.source!r} to {message.target!r} reached {node_id!r}")
    if message.term > term + TERM_STEP_MAX:
        raise WireError(
            f"a message of term {message.term} reached a member of term {term}: no election leads there"
        )


def is_for_another(message: Message, identity: str) -> bool:
    """Whether the sender knows another data directory of this member."""
    return bool(identity) and message.target_identity not in ("", identity)


def check_source(message: Message, members: Membership) -> None:
    """Raises WireError when the source's data directory is not the one that the membership names."""
    known = members.identity_of(message.source)
    if known and message.identity != known:
        raise WireError(
            f"{message.source!r} has the data directory {message.identity or 'without a name'}, this quorum knows {known}. If its disk was "
            f"replaced, remove it and add it again: aerobee ha remove-controller {message.source}, add-controller, promote-controller"
        )


def check_memberships(request: AppendRequest, before: Membership) -> None:
    """Raises WireError when an entry changes the members by more than one step: no correct leader writes that."""
    for entry in request.entries:
        if entry.kind is not EntryKind.MEMBERSHIP:
            continue
        after = decode_membership(entry.data)
        if not is_one_step(before, after):
            raise WireError(
                f"entry {entry.index} of {request.source!r} changes the members from {before.all_members!r:.200} to "
                f"{after.all_members!r:.200}: a change is one member or one vote"
            )
        before = after
