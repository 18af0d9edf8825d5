"""Epoch files as RocketMQ 5.5.0 wrote them, and where two logs part by their epochs."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame
from aerobee.ha.stream.epoch_file import (
    CommonPoint,
    EpochEntry,
    append_epoch,
    common_point,
    cut_epochs,
    decode_epochs,
    encode_epochs,
    end_offset,
    parted_at_first_byte,
    without_deleted,
)

STORE = Path(__file__).resolve().parents[3] / "data" / "store" / "controller-a.tar.gz"
TWO = (EpochEntry(1, 0), EpochEntry(2, 3276))


def test_captured_files_both_ways() -> None:
    with tarfile.open(STORE) as archive:
        for name, entries in (("epochFileCheckpoint", TWO), ("epochFileCheckpoint.bak", TWO[:1])):
            file = archive.extractfile(f"controller-a/{name}")
            assert file is not None
            data = file.read()
            assert decode_epochs(data) == entries
            assert encode_epochs(entries) == data


def test_a_checksum_of_zero_is_not_checked_and_no_epoch_is_a_file_too() -> None:
    assert decode_epochs(b"2\n0\n1-0\n2-3276\n") == TWO
    assert decode_epochs(encode_epochs(())) == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not begin with a count"),
        (b"x\n0\n", "does not begin with a count"),
        (b"2\n0\n1-0\n", "2 epochs has 1 lines"),
        (b"1\n0\n1-0\n2-5\n", "1 epochs has 2 lines"),
        (b"1\n5\n1-0\n", "checksum"),
        (b"1\n0\n1 0\n", "not EPOCH-START"),
        (b"1\n0\n1--5\n", "not EPOCH-START"),
        (b"2\n0\n2-0\n1-5\n", "epoch 1 from 5 follows epoch 2"),
        (b"2\n0\n1-9\n2-5\n", "epoch 2 from 5 follows epoch 1 from 9"),
        (b"1\n0\n1-\xff\n", "no text"),
        (b"1" * (1 << 20) + b"1", "bytes, 1048576 are allowed"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        decode_epochs(data)


def test_a_slave_that_has_no_more_than_its_master_keeps_all() -> None:
    # As captured: the old master had the whole first epoch, and nothing to cut off.
    assert common_point(TWO[:1], 3276, TWO, 4914) == CommonPoint(1, 3276)


def test_what_an_old_master_wrote_alone_is_cut_off() -> None:
    assert common_point(TWO[:1], 5000, TWO, 4914) == CommonPoint(1, 3276)
    mine = (EpochEntry(1, 0), EpochEntry(2, 3276), EpochEntry(3, 4000))
    theirs = (EpochEntry(1, 0), EpochEntry(2, 3276), EpochEntry(4, 4100))
    point = common_point(mine, 9000, theirs, 8000)
    assert point == CommonPoint(2, 4000)
    assert cut_epochs(mine, point) == TWO


def test_an_epoch_with_another_start_is_another_one() -> None:
    assert common_point(
        (EpochEntry(1, 0), EpochEntry(2, 50)), 90, (EpochEntry(1, 0), EpochEntry(2, 60)), 90
    ) == (CommonPoint(1, 50))
    assert common_point((EpochEntry(3, 0),), 90, (EpochEntry(1, 0),), 90) is None
    assert common_point((), 0, TWO, 4914) is None


def test_epochs_do_not_go_back() -> None:
    assert append_epoch(TWO, 3, 5000) == (*TWO, EpochEntry(3, 5000))
    for epoch, start in ((2, 5000), (1, 5000), (3, 3000)):
        with pytest.raises(MalformedFrame):
            append_epoch(TWO, epoch, start)


def test_epochs_whose_bytes_are_deleted_go() -> None:
    assert without_deleted(TWO, 3275) == TWO
    assert without_deleted(TWO, 3276) == TWO[1:]
    assert without_deleted(TWO, 9999) == TWO[1:]
    assert without_deleted((), 5) == ()


@given(st.integers(0, 10_000))
def test_the_common_point_of_two_histories_is_where_they_part(seed: int) -> None:
    """Masters write, die, and continue from a part of what was written; a log is a list of (epoch, byte)."""
    rng = random.Random(seed)
    logs: list[list[tuple[int, int]]] = [[], []]
    epochs: list[list[EpochEntry]] = [[], []]
    serial = 0
    for epoch in range(1, rng.randint(2, 8)):
        master = rng.randrange(2)
        epochs[master].append(EpochEntry(epoch, len(logs[master])))
        for _ in range(rng.randint(0, 6)):
            serial += 1
            logs[master].append((epoch, serial))
        if rng.random() < 0.7:  # the other follows for a while
            other = 1 - master
            point = common_point(epochs[other], len(logs[other]), epochs[master], len(logs[master]))
            end = rng.randint(point.offset if point else 0, len(logs[master]))
            logs[other] = logs[master][:end]
            epochs[other] = [
                entry for entry in epochs[master] if entry.start_offset < end or entry == epochs[master][0]
            ]
    point = common_point(epochs[0], len(logs[0]), epochs[1], len(logs[1]))
    same = 0
    while same < min(len(logs[0]), len(logs[1])) and logs[0][same] == logs[1][same]:
        same += 1
    if point is None:
        assert same == 0
    else:
        assert point.offset == same


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 100)), max_size=20))
def test_any_epochs_both_ways(steps: list[tuple[int, int]]) -> None:
    entries: tuple[EpochEntry, ...] = ()
    epoch = start = 0
    for more, further in steps:
        epoch, start = epoch + more, start + further
        entries = append_epoch(entries, epoch, start)
    assert decode_epochs(encode_epochs(entries)) == entries
    ends = [end_offset(entries, position, start + 10) for position in range(len(entries))]
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("local", "master", "expected"),
    [
        (((1, 0),), ((2, 0),), True),
        (((1, 0), (2, 500)), ((3, 0), (4, 10)), True),
        (((1, 0),), ((1, 0), (2, 5)), False),
        (((1, 0),), ((5, 900),), False),  # the master's first bytes are deleted: they may have been these
        (((1, 100),), ((2, 0),), False),
        ((), ((2, 0),), False),
        (((1, 0),), (), False),
    ],
)
def test_logs_share_nothing_when_their_first_byte_is_of_two_masters(
    local: tuple[tuple[int, int], ...], master: tuple[tuple[int, int], ...], expected: bool
) -> None:
    ours, theirs = [EpochEntry(*each) for each in local], [EpochEntry(*each) for each in master]
    assert parted_at_first_byte(ours, theirs) is expected
