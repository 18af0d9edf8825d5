"""Slots that viewers share: no viewer holds all of them while another one has none."""

from __future__ import annotations

from aerobee.console.fair_share import FairShare


def test_who_holds_most_gives_up_his_oldest() -> None:
    share, ended = FairShare(lambda: 4), list[int]()
    for number in range(4):
        assert share.take("ada", lambda number=number: ended.append(number)) is not None  # type: ignore[misc]
    assert share.take("otto", lambda: ended.append(10)) is not None
    assert share.take("otto", lambda: ended.append(11)) is not None
    assert ended == [0, 1]
    assert share.take("otto", lambda: ended.append(12)) is None
    assert share.take("ada", lambda: ended.append(13)) is None
    assert ended == [0, 1]


def test_a_newcomer_evicts_no_user_with_one_slot() -> None:
    share = FairShare(lambda: 2)
    assert share.take("ada", lambda: None) is not None
    slot = share.take("otto", lambda: None)
    assert slot is not None
    assert share.take("vera", lambda: None) is None
    share.leave(slot)
    share.leave(slot)
    assert share.take("vera", lambda: None) is not None
    assert share.take("otto", lambda: None) is None
