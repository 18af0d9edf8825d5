"""Entries of the log, and the membership. Core.

An entry on the wire and on disk is `[index, term, kind, data]`. A membership is `[voters, learners,
identities]`, ids in order. `identities` is `[[id, identity], …]`: the data directory of each member. It is
absent while no identity is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aerobee.errors import MalformedFrame
from aerobee.ha.packed import array, array_of, blob, integer, pack, text, unpack

# Overhead per entry in a message: four MessagePack headers.
ENTRY_OVERHEAD_BYTES = 32
# term of the first entry, which every initial member has from the start; no node leads in this term
FIRST_TERM = 1
MEMBERS_LIMIT = 255  # maximum size that a decoder accepts; RaftConfig.members_max is what a leader allows


class EntryKind(IntEnum):
    """Kind of an entry."""

    COMMAND = 1  # a proposal, for the state machine
    NOTHING = 2  # a leader's first entry; committing it commits all earlier entries
    MEMBERSHIP = 3  # the members from this entry on
    # Only on disk: the log begins again behind this index; the snapshot contains the earlier entries.
    RESET = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. Two entries with the same index and term are the same."""

    index: int
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size(self) -> int:
        """Maximum number of bytes of this entry in a message."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES

    @property
    def values(self) -> tuple[int, int, int, bytes]:
        """The list that decode_entry() reads."""
        return self.index, self.term, self.kind.value, self.data


@dataclass(frozen=True, slots=True)
class Membership:
    """The voters, and the learners, which only follow. Empty: this node does not know them yet.

    `identities`: the identity of each member's data directory, sorted by id, as far as a leader has learned
    them. A member with another data directory has lost its votes.
    """

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    identities: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        members = self.voters + self.learners
        if len(set(members)) != len(members) or "" in members:
            raise MalformedFrame(f"members {members!r:.200} are empty or appear twice")
        known = [member for member, _ in self.identities]
        if known != sorted(set(known)) or not set(known) <= set(members):
            raise MalformedFrame(
                f"identities of {known!r:.200} are not those of members, each once and in order"
            )

    @property
    def all_members(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        """Number of voters that form a majority."""
        return len(self.voters) // 2 + 1

    def identity_of(self, member: str) -> str:
        """The identity of a member's data directory; "" while none is known."""
        return next((identity for each, identity in self.identities if each == member), "")

    def encode(self) -> bytes:
        if not self.identities:
            return pack((self.voters, self.learners))
        return pack((self.voters, self.learners, self.identities))


@dataclass(frozen=True, slots=True)
class HardState:
    """Durable state of a node: its term, and its vote in that term ("" for none)."""

    term: int = 0
    voted_for: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after the entry `index` of `term`, with the members at that entry."""

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
    """Decode the bytes of Membership.encode(). Raises MalformedFrame."""
    parts = array(unpack(data, "a membership"), "a membership", 3)
    if len(parts) < 2:
        raise MalformedFrame(
            f"a membership has {len(parts)} parts, expected voters, learners and perhaps identities"
        )
    return membership_of(parts[0], parts[1], parts[2] if len(parts) > 2 else ())


def membership_of(voters: object, learners: object, identities: object) -> Membership:
    """Check the parts of a membership. Raises MalformedFrame."""
    return Membership(
        members(voters, "voters"), members(learners, "learners"), identities_of(identities, "identities")
    )


def identities_of(value: object, what: str) -> tuple[tuple[str, str], ...]:
    """Check a list of (id, identity). Raises MalformedFrame."""
    pairs = (array_of(each, f"one of {what}", 2) for each in array(value, what, MEMBERS_LIMIT))
    return tuple((text(each, f"a member of {what}"), text(other, "an identity")) for each, other in pairs)


def members(value: object, what: str) -> tuple[str, ...]:
    """Check a list of ids. Raises MalformedFrame."""
    return tuple(text(each, f"a member of {what}") for each in array(value, what, MEMBERS_LIMIT))


def first_entry(members: Membership) -> Entry:
    """The entry with which the log of every initial member begins, so that all of them know the same members."""
    ordered = Membership(tuple(sorted(members.voters)), tuple(sorted(members.learners)))
    return Entry(1, FIRST_TERM, EntryKind.MEMBERSHIP, ordered.encode())


_KINDS = frozenset(EntryKind)
