"""Where a slave's log diverges from its master's: found by comparing received bytes with stored ones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.errors import MalformedFrame
from aerobee.ha.stream.divergence import OVERLAP_BYTES, Comparison, DivergenceSearch, Verdict


def log_of(sizes: list[int], label: int, first: int = 0) -> tuple[bytes, list[int]]:
    """Records with their own offset, as RocketMQ's have, and their writer."""
    data, starts = bytearray(), []
    for number, size in enumerate(sizes):
        starts.append(first + len(data))
        data += random.Random(f"{label} {first + len(data)} {number}").randbytes(size)
    return bytes(data), starts


def search(slave: bytes, starts: list[int], master: bytes, *, piece: int = 1000) -> Comparison:
    """The whole conversation with a master."""
    found = DivergenceSearch(starts, len(slave), lambda start, end: slave[start:end])
    for _ in range(100):
        at = found.ask_from
        while True:
            body = master[at : at + piece]
            if not body:  # the master has nothing more: the slave's log is longer, and the same so far
                return Comparison(Verdict.MORE, at)
            answer = found.take(at, body)
            at += len(body)
            if answer.verdict is Verdict.FURTHER_BACK:
                break
            if answer.verdict is not Verdict.MORE:
                return answer
    raise AssertionError("the search does not end")


def test_a_log_equal_to_the_masters_continues_at_its_end() -> None:
    data, starts = log_of([500] * 300, 1)
    assert search(data, starts, data + b"more") == Comparison(Verdict.EQUAL, len(data))


def test_a_log_that_parted_is_cut_at_the_last_common_record() -> None:
    common, starts = log_of([500] * 280, 1)
    mine, my_starts = log_of([300] * 10, 2, len(common))
    theirs, _ = log_of([700] * 10, 3, len(common))
    assert search(common + mine, starts + my_starts, common + theirs) == Comparison(
        Verdict.PARTED, len(common)
    )


def test_a_log_that_parted_long_ago_is_searched_further_back() -> None:
    common, starts = log_of([100] * 50, 1)
    mine, my_starts = log_of([1000] * 400, 2, len(common))
    theirs, _ = log_of([900] * 500, 3, len(common))
    assert len(mine) > 5 * OVERLAP_BYTES
    assert search(common + mine, starts + my_starts, common + theirs) == Comparison(
        Verdict.PARTED, len(common)
    )


def test_logs_that_share_nothing() -> None:
    mine, starts = log_of([100] * 2000, 1)
    theirs, _ = log_of([100] * 2000, 2)
    assert search(mine, starts, theirs).verdict is Verdict.NOTHING_COMMON


def test_the_first_record_of_all_is_compared_too() -> None:
    mine, starts = log_of([100] * 5, 1)
    theirs, _ = log_of([100] * 5, 2)
    assert DivergenceSearch(starts, 500, lambda start, end: b"").ask_from == 0
    assert search(mine, starts, theirs) == Comparison(Verdict.NOTHING_COMMON, 0)
    assert search(mine, starts, mine[:100] + theirs[100:]) == Comparison(Verdict.PARTED, 100)


def test_bytes_of_another_offset_are_refused() -> None:
    mine, starts = log_of([100] * 5, 1)
    with pytest.raises(MalformedFrame, match="the master sent bytes at offset 100, the slave requested 0"):
        DivergenceSearch(starts, 500, lambda start, end: mine[start:end]).take(100, mine)


@given(
    st.lists(st.integers(50, 5000), min_size=2, max_size=60),
    st.lists(st.integers(50, 5000), min_size=1, max_size=60),
    st.lists(st.integers(50, 5000), min_size=1, max_size=60),
    st.integers(1, 40_000),
)
def test_nothing_that_differs_is_kept_and_nothing_common_is_cut(
    shared: list[int], mine: list[int], theirs: list[int], piece: int
) -> None:
    common, starts = log_of(shared, 1)
    my_tail, my_starts = log_of(mine, 2, len(common))
    their_tail, _ = log_of(theirs, 3, len(common))
    answer = search(common + my_tail, starts + my_starts, common + their_tail, piece=piece)
    assert answer == Comparison(Verdict.PARTED, len(common))
