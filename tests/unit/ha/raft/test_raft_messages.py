"""Raft messages as bytes: every kind both ways, and bytes that must be refused."""

from __future__ import annotations

import contextlib
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame
from aerobee.ha.packed import pack, pack_checked, unpack_checked
from aerobee.ha.raft.entry import Entry, EntryKind, Membership, decode_entry, decode_membership
from aerobee.ha.raft.messages import (
    FIELDS,
    AppendReply,
    AppendRequest,
    Message,
    ReadReply,
    ReadRequest,
    SnapshotChunk,
    SnapshotReply,
    StandNow,
    VoteReply,
    VoteRequest,
    decode_message,
    encode_message,
    source_of,
)
from tests.rounds import rounds

GROUP = "controllers"
LIMIT = 1 << 20
HEAD: dict[str, Any] = {
    "source": "n0",
    "target": "n1",
    "term": 7,
    "identity": "a1",
    "target_identity": "b2",
}
MESSAGES: list[Message] = [
    VoteRequest(**HEAD, last_index=5, last_term=6, is_pre_vote=True, is_ordered=False),
    VoteReply(**HEAD, is_granted=True, is_pre_vote=False),
    AppendRequest(
        **HEAD,
        prev_index=3,
        prev_term=2,
        commit_index=4,
        round=9,
        entries=(
            Entry(4, 2, EntryKind.COMMAND, b"\0\xff" * 20),
            Entry(5, 7, EntryKind.NOTHING, b""),
            Entry(6, 7, EntryKind.MEMBERSHIP, Membership(("n0", "n1"), ("n2",)).encode()),
        ),
    ),
    AppendReply(**HEAD, is_accepted=False, index=1, rejected_index=2, hint_term=3, round=4),
    SnapshotChunk(
        **HEAD,
        index=9,
        snapshot_term=6,
        voters=("n0", "n1"),
        learners=("n2",),
        offset=10,
        total_bytes=14,
        crc=zlib.crc32(b"x"),
        round=3,
        data=b"abcd",
        identities=(("n0", "a1"), ("n2", "c3")),
    ),
    SnapshotReply(**HEAD, index=9, offset=14, round=3),
    StandNow(**HEAD),
    ReadRequest(**HEAD, read_id=1 << 62),
    ReadReply(**HEAD, read_id=1 << 62, index=8),
]


def decoded(data: bytes, group: str = GROUP) -> Message:
    return decode_message(data, group, bytes_max=LIMIT)


def changed(message: Message, position: int, value: object) -> bytes:
    """The message with another value at one position of its array."""
    values = list(unpack_checked(encode_message(message, GROUP), bytes_max=LIMIT, what="it"))
    values[position] = value
    return pack_checked(tuple(values))


def test_every_kind_is_here() -> None:
    assert {type(message) for message in MESSAGES} == set(FIELDS)
    assert len({cls.KIND for cls in FIELDS}) == len(FIELDS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_both_ways(message: Message) -> None:
    assert decoded(encode_message(message, GROUP)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_flipped_bit_a_missing_byte_and_one_too_many_are_refused(message: Message) -> None:
    data = encode_message(message, GROUP)
    for position in range(len(data)):
        for bit in range(8):
            with pytest.raises(MalformedFrame):
                decoded(data[:position] + bytes((data[position] ^ 1 << bit,)) + data[position + 1 :])
        with pytest.raises(MalformedFrame):
            decoded(data[:position])
    with pytest.raises(MalformedFrame):
        decoded(data + b"\0")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize(
    "value",
    [-1, 1 << 63, None, 1.5, "x" * 256, b"x", (), (1,), {}, "\udcff".encode("utf-8", "replace"), [[]]],
)
def test_a_value_of_another_type_or_range_is_refused_or_read_as_it_is(
    message: Message, value: object
) -> None:
    count = len(unpack_checked(encode_message(message, GROUP), bytes_max=LIMIT, what="it"))
    for position in range(count):
        try:
            other = decoded(changed(message, position, value))
        except MalformedFrame:
            continue
        # A type that fits: a member list may be empty, data may be other bytes.
        assert type(other) is type(message)
        assert position >= 6


def test_a_message_of_another_group_version_or_kind_is_refused() -> None:
    data = encode_message(MESSAGES[0], GROUP)
    with pytest.raises(MalformedFrame, match="of the group 'controllers', this node belongs to 'others'"):
        decoded(data, "others")
    with pytest.raises(MalformedFrame, match="of version 3, this node speaks 2"):
        decoded(changed(MESSAGES[0], 0, 3))
    with pytest.raises(MalformedFrame, match="of the unknown kind 99"):
        decoded(changed(MESSAGES[0], 2, 99))


def test_one_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedFrame, match="bytes, 5 to 10 are allowed"):
        decode_message(encode_message(MESSAGES[2], GROUP), GROUP, bytes_max=10)


def test_an_array_that_announces_more_than_there_is_costs_nothing() -> None:
    payload = b"\xdd\xff\xff\xff\xff"  # an array of 2^32 - 1 values
    with pytest.raises(MalformedFrame):
        decoded(zlib.crc32(payload).to_bytes(4, "big") + payload)
    payload = b"\x91" * 100_000  # arrays in arrays
    with pytest.raises(MalformedFrame):
        decoded(zlib.crc32(payload).to_bytes(4, "big") + payload)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([(5, 2, 1, b"")], "entry 5 of term 2 follows entry 3"),
        ([(4, 8, 1, b"")], "entry 4 of term 8 follows entry 3 of term 2 in a message of term 7"),
        ([(4, 1, 1, b"")], "entry 4 of term 1 follows entry 3 of term 2"),
        ([(4, 3, 1, b""), (5, 2, 1, b"")], "entry 5 of term 2 follows entry 4 of term 3"),
        ([(4, 3, 4, b"")], "only a disk may hold"),
        ([(4, 3, 9, b"")], "of the unknown kind 9"),
        ([(4, 3, 3, b"\xc1")], "a membership is not MessagePack"),
        ([(4, 3, 3, pack((("a", "a"), ())))], "appear twice"),
        ([(4, 3, 1)], "an array of 4"),
    ],
)
def test_entries_that_do_not_follow_each_other_are_refused(entries: list[object], reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decoded(changed(MESSAGES[2], 12, entries))


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (12, 11, "up to 15 of a snapshot of 14"),
        (9, 8, "term 8 in a message of term 7"),
        (10, (), "no voters"),
        (17, (("n9", "x"),), "not those of members"),
    ],
)
def test_a_chunk_that_cannot_be_is_refused(position: int, value: object, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decoded(changed(MESSAGES[4], position, value))


@given(st.binary(max_size=300))
def test_any_bytes_with_a_right_checksum_are_refused_or_are_a_message(payload: bytes) -> None:
    try:
        message = decoded(zlib.crc32(payload).to_bytes(4, "big") + payload)
    except MalformedFrame:
        return
    assert decoded(encode_message(message, GROUP)) == message


def test_messages_with_values_exchanged_are_refused_or_can_be_written_again() -> None:
    rng = random.Random(1)
    pool: list[object] = [
        value
        for message in MESSAGES
        for value in unpack_checked(encode_message(message, GROUP), bytes_max=LIMIT, what="it")
    ]
    fine = 0
    for _ in range(rounds(20_000)):
        message = rng.choice(MESSAGES)
        values = list(unpack_checked(encode_message(message, GROUP), bytes_max=LIMIT, what="it"))
        for _ in range(rng.randint(1, 3)):
            values[rng.randrange(len(values))] = rng.choice(pool)
        try:
            other = decoded(pack_checked(tuple(values)))
        except MalformedFrame:
            continue
        fine += 1
        assert decoded(encode_message(other, GROUP)) == other
    assert fine > 100


@given(st.lists(st.text(max_size=20), max_size=6), st.lists(st.text(max_size=20), max_size=3))
def test_memberships(voters: list[str], learners: list[str]) -> None:
    voters_and_learners = voters + learners
    if "" in voters_and_learners or len(set(voters_and_learners)) != len(voters_and_learners):
        with pytest.raises(MalformedFrame):
            Membership(tuple(voters), tuple(learners))
        return
    members = Membership(tuple(voters), tuple(learners))
    assert decode_membership(members.encode()) == members
    named = Membership(
        members.voters, members.learners, tuple((each, "id") for each in sorted(voters_and_learners))
    )
    assert decode_membership(named.encode()) == named
    with pytest.raises(MalformedFrame):
        Membership(members.voters, members.learners, (("unknown member" * 2, "id"),))
    if voters:
        assert len(voters) / 2 < members.quorum <= len(voters)


def test_an_entry_both_ways() -> None:
    entry = Entry(3, 2, EntryKind.COMMAND, b"abc")
    assert decode_entry(entry.values) == entry
    assert len(pack(entry.values)) <= entry.size


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_the_source_is_read_without_the_rest(message: Message) -> None:
    data = encode_message(message, GROUP)
    assert source_of(data, GROUP) == message.source
    # What lies behind the head is not looked at, nor is the checksum of the whole.
    assert source_of(b"\0\0\0\0" + data[4:] + b"\xc1" * 1_000, GROUP) == message.source


def test_the_source_of_the_longest_names_is_read() -> None:
    group, source = "g" * 2_000, "n" * 255
    assert source_of(encode_message(StandNow(**{**HEAD, "source": source}), group), group) == source


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"abc",
        b"\0\0\0\0",
        pack_checked("text"),
        pack_checked((2, GROUP)),
        pack_checked((2, GROUP, 3, 4, 5)),
        pack_checked((2, GROUP, 3, "n" * 256, 5)),
        pack_checked((2, GROUP, 3, "n" * 1_000_000, 5)),
        pack_checked((2, GROUP, tuple(range(100_000)), "n0")),
        pack_checked((1, GROUP, 3, "n0")),
        pack_checked((2, "others", 3, "n0")),
        pack_checked((2, GROUP, 3)) + pack("n0"),
        b"\0\0\0\0" + b"\xdd\xff\xff\xff\xff" * 400,
    ],
)
def test_a_head_without_a_source_of_this_group_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        source_of(data, GROUP)


@given(st.binary(max_size=300))
def test_of_any_bytes_a_source_is_read_or_they_are_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        assert len(source_of(data, GROUP)) <= 255
