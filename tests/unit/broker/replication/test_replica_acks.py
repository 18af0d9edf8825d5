"""The watermark that appends wait for, and how many copies of a log have what."""

from __future__ import annotations

import pytest

from aerobee.broker.admission.ack import Replicated
from aerobee.broker.replication.replica_acks import ReplicaAcks, confirmed_by
from aerobee.clock import ManualClock


def make() -> tuple[ReplicaAcks, ManualClock, list[tuple[int, Replicated]]]:
    clock = ManualClock()
    return ReplicaAcks(clock=clock, timeout_s=lambda: 3.0), clock, []


def test_one_offset_releases_all_below_it_in_order() -> None:
    acks, _, told = make()
    for offset in (10, 20, 30):
        acks.when(offset, lambda verdict, offset=offset: told.append((offset, verdict)))  # type: ignore[misc]
    acks.advance(25)
    assert told == [(10, Replicated.ENOUGH), (20, Replicated.ENOUGH)]
    acks.when(25, lambda verdict: told.append((25, verdict)))
    assert told[-1] == (25, Replicated.ENOUGH)
    acks.advance(24)
    assert acks.value == 25


def test_an_unconfirmed_send_times_out_and_delays_no_other() -> None:
    acks, clock, told = make()
    acks.when(10, lambda verdict: told.append((10, verdict)))
    clock.advance(2)
    acks.when(20, lambda verdict: told.append((20, verdict)))
    clock.advance(1.5)
    assert told == [(10, Replicated.TOO_LATE)]
    acks.advance(20)
    assert told[-1] == (20, Replicated.ENOUGH)
    clock.advance(10)
    assert len(told) == 2


def test_another_term_confirms_nothing_of_the_one_before() -> None:
    acks, clock, told = make()
    acks.advance(100)
    acks.when(150, lambda verdict: told.append((150, verdict)))
    acks.restart(0)
    assert told == [(150, Replicated.TOO_LATE)]
    acks.when(50, lambda verdict: told.append((50, verdict)))
    assert len(told) == 1
    clock.advance(3)
    assert told[-1] == (50, Replicated.TOO_LATE)


def test_what_only_this_broker_is_known_to_have_is_told_apart() -> None:
    acks, _, told = make()
    acks.advance(10)
    acks.when(20, lambda verdict: told.append((20, verdict)))
    acks.advance(30, is_at_all=False)
    acks.when(10, lambda verdict: told.append((10, verdict)))
    acks.when(30, lambda verdict: told.append((30, verdict)))
    assert told == [(20, Replicated.HERE), (10, Replicated.ENOUGH), (30, Replicated.HERE)]
    acks.advance(30)  # an offset acknowledged by one replica stays so until the log grows
    acks.when(40, lambda verdict: told.append((40, verdict)))
    acks.advance(40)
    assert told[-1] == (40, Replicated.ENOUGH)


@pytest.mark.parametrize(
    ("offsets", "copies", "confirmed"),
    [([100, 40, 70], 1, 100), ([100, 40, 70], 2, 70), ([100, 40, 70], 3, 40), ([100], 2, 0)],
)
def test_how_far_so_many_copies_go(offsets: list[int], copies: int, confirmed: int) -> None:
    assert confirmed_by(offsets, copies) == confirmed
