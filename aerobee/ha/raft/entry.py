"""What the log holds, and who the members are. Core.

An entry on the wire and on disk is `[index, term, kind, data]`. A membership is `[voters, learners]`, ids in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aerobee.errors import MalformedFrame
from aerobee.ha.packed import array, array_of, blob, integer, pack, text, unpack

# An entry beside its data in a message: four heads of MessagePack.
ENTRY_OVERHEAD_BYTES = 32
FIRST_TERM = 1  # of the first entry, which every first member has from the start; nobody leads in it
MEMBERS_LIMIT = 255  # what a decoder takes; RaftConfig.members_max is what a leader allows


class EntryKind(IntEnum):
    """What an entry is for."""

    COMMAND = 1  # a proposal, for the state machine
    NOTHING = 2  # a leader's first entry, which commits what was before it
    MEMBERSHIP = 3  # the members from here on
    # Only on disk: the log begins anew behind this index; what stood before is in the snapshot.
    RESET = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in the log. Two entries with the same index and term are the same."""

    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes in a message, at most."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES

    @property
    def values(self) -> tuple[int, int, int, bytes]:
        """As decode_entry takes it."""
        return self.index, self.term, self.kind.value, self.data


@dataclass(frozen=True, slots=True)
class Membership:
    """Who votes, and who only follows. Empty: this node has not been told yet."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        everybody = self.voters + self.learners
        if len(set(everybody)) != len(everybody) or "" in everybody:
            raise MalformedFrame(f"members {everybody!r:.200} are empty or appear twice")

    @property
    def everybody(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def encode(self) -> bytes:
        return pack((self.voters, self.learners))


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must never forget: its term, and for whom it voted in it ("" for nobody)."""

    term: int = 0
    voted_for: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the entry `index` of `term`, with the members as of then."""

    index: int
    term: int
    membership: Membership
    data: bytes


def decode_entry(value: object, what: str = "an entry") -> Entry:
    """Check one `[index, term, kind, data]`. Raises MalformedFrame."""
    index, term, kind, data = array_of(value, what, 4)
    number = integer(kind, f"the kind of {what}")
    if number not in _KINDS:
        raise MalformedFrame(f"{what} is of the unknown kind {number}")
    entry = Entry(
        integer(index, f"the index of {what}"),
        integer(term, f"the term of {what}"),
        EntryKind(number),
        blob(data, f"the data of {what}"),
    )
    if entry.kind is EntryKind.MEMBERSHIP:
        decode_membership(entry.data)
    return entry


def decode_membership(data: bytes) -> Membership:
    """Read what Membership.encode made. Raises MalformedFrame."""
    voters, learners = array_of(unpack(data, "a membership"), "a membership", 2)
    return Membership(members(voters, "voters"), members(learners, "learners"))


def members(value: object, what: str) -> tuple[str, ...]:
    """Check a list of ids. Raises MalformedFrame."""
    return tuple(text(each, f"a member of {what}") for each in array(value, what, MEMBERS_LIMIT))


def first_entry(members: Membership) -> Entry:
    """The entry with which every first member of a group begins, so that they agree on who is in it."""
    ordered = Membership(tuple(sorted(members.voters)), tuple(sorted(members.learners)))
    return Entry(1, FIRST_TERM, EntryKind.MEMBERSHIP, ordered.encode())


_KINDS = frozenset(EntryKind)
