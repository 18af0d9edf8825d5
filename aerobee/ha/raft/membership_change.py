"""The members after one change, and why a change makes no sense. Core.

One voter more or less: a majority before and a majority after always share somebody.
"""

from __future__ import annotations

from aerobee.errors import MembershipRefused
from aerobee.ha.raft.entry import Membership


def with_learner(members: Membership, member: str, *, members_max: int) -> Membership:
    """Raises MembershipRefused for one that is a member already, and above `members_max`."""
    if member in members.everybody:
        raise MembershipRefused(f"{member} is a member already")
    if len(members.everybody) >= members_max:
        raise MembershipRefused(f"there are {members_max} members, no more are allowed")
    return Membership(members.voters, (*members.learners, member))


def with_vote(members: Membership, member: str) -> Membership:
    """Raises MembershipRefused unless it is a learner."""
    if member not in members.learners:
        raise MembershipRefused(f"{member} is not a learner: add it as one first")
    return Membership((*members.voters, member), _without(members.learners, member))


def without(members: Membership, member: str) -> Membership:
    """Raises MembershipRefused for a stranger, and for the last voter."""
    if member not in members.everybody:
        raise MembershipRefused(f"{member} is not a member")
    if members.voters == (member,):
        raise MembershipRefused(f"{member} is the last voter")
    return Membership(_without(members.voters, member), _without(members.learners, member))


def _without(ids: tuple[str, ...], member: str) -> tuple[str, ...]:
    return tuple(each for each in ids if each != member)
