"""Messages between the nodes of a group, and their encoding. Core.

    crc32 4 | MessagePack array: version, group, kind, source, target, term, identity, target's identity, fields of the kind in order

Every message names its group, so a node refuses a message of another cluster. It names its target, so a node
does not answer at an address that belonged to another node. It names the data directories of both nodes, the
target's as the source knows it, so a node notices a replaced directory. A datagram or a frame contains one
message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from aerobee.errors import MalformedFrame
from aerobee.ha.packed import (
    array,
    array_of,
    blob,
    flag,
    integer,
    pack_checked,
    text,
    unpack_checked,
    unpack_first,
)
from aerobee.ha.raft.entry import Entry, EntryKind, Membership, decode_entry, identities_of, members

VERSION = 2
# Maximum number of entries that a decoder accepts in one message; RaftConfig.append_entries_max bounds what
# is sent.
ENTRIES_LIMIT = 1 << 16
_HEAD = 8  # values before the fields of the kind
_SOURCE = 3  # the index of the source in the head
# version, kind and source (up to TEXT_BYTES_MAX) with MessagePack's overhead, without the group
_TO_SOURCE_BYTES_MAX = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Sender, receiver and term. The identities are "" where none is known."""

    KIND: ClassVar[int] = 0
    source: str
    target: str
    term: int
    identity: str = ""
    target_identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest(Message):
    """Requests a vote. With `is_pre_vote` it only asks whether the target would vote; `term` is the term of
    the election that would follow.

    `is_ordered`: the leader ordered the candidacy, so voters need not wait for their leader's time-out.
    """

    KIND: ClassVar[int] = 1
    last_index: int
    last_term: int
    is_pre_vote: bool
    is_ordered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply(Message):
    """A grant contains the requested term, a refusal the voter's term."""

    KIND: ClassVar[int] = 2
    is_granted: bool
    is_pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest(Message):
    """Entries behind (prev_index, prev_term); without entries a heartbeat.

    `round` numbers the leader's heartbeats; the reply repeats it, which proves that the follower still
    followed at that round.
    """

    KIND: ClassVar[int] = 3
    prev_index: int
    prev_term: int
    commit_index: int
    round: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply(Message):
    """`index` is the last entry that is durable and surely equal to the leader's.

    Without `is_accepted` the follower lacks the entry at `rejected_index`; (index, hint_term) is an entry at which the
    leader may look for the last common entry.
    """

    KIND: ClassVar[int] = 4
    is_accepted: bool
    index: int
    rejected_index: int
    hint_term: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChunk(Message):
    """A chunk of the snapshot at (index, snapshot_term); `total_bytes` and `crc` are those of the whole snapshot."""

    KIND: ClassVar[int] = 5
    index: int
    snapshot_term: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    offset: int
    total_bytes: int
    crc: int
    round: int
    data: bytes
    identities: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReply(Message):
    """`offset`: number of received bytes of the snapshot at `index`."""

    KIND: ClassVar[int] = 6
    index: int
    offset: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StandNow(Message):
    """The leader orders an up-to-date follower to start an election immediately."""

    KIND: ClassVar[int] = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest(Message):
    """A follower requests the index that a linearizable read must have applied."""

    KIND: ClassVar[int] = 8
    read_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReply(Message):
    """The answer to the ReadRequest of the same id."""

    KIND: ClassVar[int] = 9
    read_id: int
    index: int


def _entries(value: object, what: str) -> tuple[Entry, ...]:
    entries = tuple(decode_entry(each) for each in array(value, what, ENTRIES_LIMIT))
    if any(entry.kind is EntryKind.RESET for entry in entries):
        raise MalformedFrame("a message carries an entry of a kind that only a disk may hold")
    return entries


_crc32 = partial(integer, maximum=(1 << 32) - 1)
Fields = tuple[tuple[str, Callable[[object, str], Any]], ...]

# The fields of each kind behind the head, in the order of the wire, with their checks.
FIELDS: dict[type[Message], Fields] = {
    VoteRequest: (
        ("last_index", integer),
        ("last_term", integer),
        ("is_pre_vote", flag),
        ("is_ordered", flag),
    ),
    VoteReply: (("is_granted", flag), ("is_pre_vote", flag)),
    AppendRequest: (
        ("prev_index", integer),
        ("prev_term", integer),
        ("commit_index", integer),
        ("round", integer),
        ("entries", _entries),
    ),
    AppendReply: (
        ("is_accepted", flag),
        ("index", integer),
        ("rejected_index", integer),
        ("hint_term", integer),
        ("round", integer),
    ),
    SnapshotChunk: (
        ("index", integer),
        ("snapshot_term", integer),
        ("voters", members),
        ("learners", members),
        ("offset", integer),
        ("total_bytes", integer),
        ("crc", _crc32),
        ("round", integer),
        ("data", blob),
        ("identities", identities_of),
    ),
    SnapshotReply: (("index", integer), ("offset", integer), ("round", integer)),
    StandNow: (),
    ReadRequest: (("read_id", integer),),
    ReadReply: (("read_id", integer), ("index", integer)),
}
_BY_KIND = {cls.KIND: cls for cls in FIELDS}


def encode_message(message: Message, group: str) -> bytes:
    """The bytes of one message."""
    cls = type(message)
    names = (message.source, message.target, message.term, message.identity, message.target_identity)
    head = (VERSION, group, cls.KIND, *names)
    values = [getattr(message, name) for name, _ in FIELDS[cls]]
    if isinstance(message, AppendRequest):
        values[-1] = [entry.values for entry in message.entries]
    return pack_checked((*head, *values))


def source_of(data: bytes, group: str) -> str:
    """The claimed sender of a message, at constant cost: call it before decode_message().

    Raises MalformedFrame when the first values of the head cannot be read, or name another version or group.
    """
    bytes_max = _TO_SOURCE_BYTES_MAX + len(group.encode())
    values = unpack_first(data, _SOURCE + 1, bytes_max=bytes_max, what="a Raft message")
    _check_origin(values, group)
    return text(values[_SOURCE], "the source")


def _check_origin(values: tuple[object, ...], group: str) -> None:
    if values and values[0] != VERSION:
        raise MalformedFrame(f"a Raft message is of version {values[0]!r:.40}, this node speaks {VERSION}")
    if len(values) > 1 and values[1] != group:
        raise MalformedFrame(
            f"a Raft message is of the group {values[1]!r:.80}, this node belongs to {group!r}"
        )


def decode_message(data: bytes, group: str, *, bytes_max: int) -> Message:
    """Decode the bytes of encode_message().

    Raises MalformedFrame when the message is damaged, too large, of another version or group, when a value is
    out of range, or when entries are not consecutive.
    """
    values = array(unpack_checked(data, bytes_max=bytes_max, what="a Raft message"), "a Raft message", 64)
    _check_origin(values, group)
    if len(values) < _HEAD:
        raise MalformedFrame(f"a Raft message has {len(values)} values, {_HEAD} are the head")
    _, _, kind, source, target, term, identity, target_identity = values[:_HEAD]
    cls = _BY_KIND.get(integer(kind, "the kind of a Raft message"))
    if cls is None:
        raise MalformedFrame(f"a Raft message is of the unknown kind {kind!r:.40}")
    fields = FIELDS[cls]
    rest = array_of(values[_HEAD:], f"{cls.__name__}'s fields", len(fields))
    message = cls(
        source=text(source, "the source"),
        target=text(target, "the target"),
        term=integer(term, "the term"),
        identity=text(identity, "the identity"),
        target_identity=text(target_identity, "the target's identity"),
        **{name: check(value, name) for (name, check), value in zip(fields, rest, strict=True)},
    )
    _check_relations(message)
    return message


def _check_relations(message: Message) -> None:
    """Checks that involve several fields."""
    if isinstance(message, AppendRequest):
        index, term = message.prev_index, message.prev_term
        for entry in message.entries:
            if entry.index != index + 1 or not term <= entry.term <= message.term:
                raise MalformedFrame(
                    f"entry {entry.index} of term {entry.term} follows entry {index} of term {term} "
                    f"in a message of term {message.term}"
                )
            index, term = entry.index, entry.term
        if term > message.term:
            raise MalformedFrame(f"an entry of term {term} precedes a message of term {message.term}")
    elif isinstance(message, SnapshotChunk):
        end = message.offset + len(message.data)
        if end > message.total_bytes or message.snapshot_term > message.term:
            raise MalformedFrame(
                f"a chunk up to {end} of a snapshot of {message.total_bytes} bytes and term "
                f"{message.snapshot_term} in a message of term {message.term}"
            )
        if not message.voters:
            raise MalformedFrame("a snapshot has no voters")
        Membership(message.voters, message.learners, message.identities)  # checks itself
