"""The members after one change, and the refusal of invalid changes. Core.

A change adds or removes one voter: a majority before it and a majority after it always share a member. The
identity of a member's data directory is recorded at its first message to a leader, and removed with the
member: a member that lost its disk must be removed and added again.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.errors import MembershipRefused
from aerobee.ha.raft.entry import Membership


def with_learner(members: Membership, member: str, *, members_max: int) -> Membership:
    """Raises MembershipRefused for an existing member, and above `members_max`."""
    if member in members.all_members:
        raise MembershipRefused(f"{member} is a member already")
    if len(members.all_members) >= members_max:
        raise MembershipRefused(f"there are {members_max} members, no more are allowed")
    return Membership(members.voters, (*members.learners, member), members.identities)


def with_vote(members: Membership, member: str) -> Membership:
    """Raises MembershipRefused unless it is a learner."""
    if member not in members.learners:
        raise MembershipRefused(f"{member} is not a learner: add it as one first")
    return Membership((*members.voters, member), _without(members.learners, member), members.identities)


def without(members: Membership, member: str) -> Membership:
    """Raises MembershipRefused for an unknown member, and for the last voter."""
    if member not in members.all_members:
        raise MembershipRefused(f"{member} is not a member")
    if members.voters == (member,):
        raise MembershipRefused(f"{member} is the last voter")
    identities = tuple(each for each in members.identities if each[0] != member)
    return Membership(_without(members.voters, member), _without(members.learners, member), identities)


def with_identities(members: Membership, heard: Mapping[str, str]) -> Membership:
    """Add the identities of members that had none; returns the same object when nothing is new."""
    new = {
        member: identity
        for member, identity in heard.items()
        if identity and member in members.all_members and not members.identity_of(member)
    }
    if not new:
        return members
    identities = tuple(sorted({**dict(members.identities), **new}.items()))
    return Membership(members.voters, members.learners, identities)


def is_one_step(before: Membership, after: Membership) -> bool:
    """Whether a leader can have made this change: it adds or removes one member, one vote, or adds unknown
    identities.
    """
    if not before.all_members:
        return True  # this node does not know the members yet
    voters = set(before.voters) ^ set(after.voters)
    members = set(before.all_members) ^ set(after.all_members)
    kept = {member: identity for member, identity in before.identities if member in after.all_members}
    return len(voters) <= 1 and len(members) <= 1 and kept.items() <= dict(after.identities).items()


def _without(ids: tuple[str, ...], member: str) -> tuple[str, ...]:
    return tuple(each for each in ids if each != member)
