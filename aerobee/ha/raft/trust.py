"""Checks by which a member refuses well-formed messages. Core.

A member is its id and its data directory. A node with that id and another directory has lost votes and entries; a group
that accepted it could elect two leaders, or lose committed entries.
"""

from __future__ import annotations

from aerobee.errors import WireError
from aerobee.ha.raft.entry import EntryKind, Membership, decode_membership
from aerobee.ha.raft.membership_change import is_one_step
from aerobee.ha.raft.messages import AppendRequest, Message

# Maximum difference between a message's term and this node's. No member is away for so many elections; a
# forged term next to the largest would be kept by all, and leave them no term to elect a leader in.
TERM_STEP_MAX = 1 << 32


def check_envelope(message: Message, node_id: str, term: int) -> None:
    """Raises WireError for a message that is not for this node, or of a term that no election leads to."""
    if message.target != node_id or message.source == node_id:
        raise WireError(f"a message from {message.source!r} to {message.target!r} reached {node_id!r}")
    if message.term > term + TERM_STEP_MAX:
        raise WireError(
            f"a message of term {message.term} reached a member of term {term}: no election leads there"
        )


def is_for_another(message: Message, identity: str) -> bool:
    """Whether the message is meant for another data directory of this member."""
    return bool(identity) and message.target_identity not in ("", identity)


def check_source(message: Message, members: Membership) -> None:
    """Raises WireError when the source's data directory is another one than the member's."""
    known = members.identity_of(message.source)
    if known and message.identity != known:
        raise WireError(
            f"{message.source!r} has the data directory {message.identity or 'without a name'}, this quorum knows {known}. If its disk was "
            f"replaced, remove it and add it again: aerobee ha remove-controller {message.source}, add-controller, promote-controller"
        )


def check_memberships(request: AppendRequest, before: Membership) -> None:
    """Raises WireError when the members change by more than one step: no leader writes that into its log."""
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
