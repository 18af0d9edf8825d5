"""The roles of a Raft node, as a table. Core.

A node is a follower until its leader is silent for an election timeout. It then sends pre-votes
(pre-candidate), which do not disturb other nodes, and starts an election only when a majority would vote for
it (candidate). Learners stay followers.
"""

from __future__ import annotations

from enum import Enum, auto


class Role(Enum):
    FOLLOWER = auto()
    PRE_CANDIDATE = auto()
    CANDIDATE = auto()
    LEADER = auto()


class RoleEvent(Enum):
    LEADER_MISSED = auto()  # the election timeout passed
    PRE_VOTE_WON = auto()
    VOTE_WON = auto()
    ELECTION_LOST = auto()  # a majority refused
    TOLD_TO_STAND = auto()  # the leader transfers its leadership
    HIGHER_TERM = auto()  # a message has a later term
    LEADER_HEARD = auto()  # a message of a leader of this term
    QUORUM_LOST = auto()  # no majority has answered the leader for an election timeout
    REMOVED = auto()  # the removal of the leader is committed


_F, _P, _C, _L = Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER

NEXT: dict[tuple[Role, RoleEvent], Role] = {
    (_F, RoleEvent.LEADER_MISSED): _P,
    (_P, RoleEvent.LEADER_MISSED): _P,
    (_C, RoleEvent.LEADER_MISSED): _P,
    (_P, RoleEvent.PRE_VOTE_WON): _C,
    (_F, RoleEvent.TOLD_TO_STAND): _C,
    (_C, RoleEvent.VOTE_WON): _L,
    (_P, RoleEvent.ELECTION_LOST): _F,
    (_C, RoleEvent.ELECTION_LOST): _F,
    (_F, RoleEvent.HIGHER_TERM): _F,
    (_P, RoleEvent.HIGHER_TERM): _F,
    (_C, RoleEvent.HIGHER_TERM): _F,
    (_L, RoleEvent.HIGHER_TERM): _F,
    (_F, RoleEvent.LEADER_HEARD): _F,
    (_P, RoleEvent.LEADER_HEARD): _F,
    (_C, RoleEvent.LEADER_HEARD): _F,
    (_L, RoleEvent.QUORUM_LOST): _F,
    (_L, RoleEvent.REMOVED): _F,
}


def next_role(role: Role, event: RoleEvent) -> Role:
    """The role after an event. Raises RuntimeError for an impossible pair: an internal error that no peer can cause."""
    try:
        return NEXT[role, event]
    except KeyError:
        raise RuntimeError(f"{event.name} cannot happen to a {role.name}") from None
