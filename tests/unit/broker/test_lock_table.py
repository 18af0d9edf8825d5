"""Orderly locks: who gets a queue, for how long, and who may give it back."""

from __future__ import annotations

import pytest

from aerobee.broker.lock_table import LockTable
from aerobee.clock import ManualClock
from aerobee.message import MessageQueue

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def locks(clock: ManualClock) -> LockTable:
    return LockTable(clock=clock)


def test_a_free_queue_is_granted_and_a_held_one_refused(locks: LockTable) -> None:
    assert locks.lock("g", "c1", [Q0]) == [Q0]
    assert locks.lock("g", "c2", [Q0, Q1]) == [Q1]


def test_groups_do_not_share_locks(locks: LockTable) -> None:
    assert locks.lock("g", "c1", [Q0]) == [Q0]
    assert locks.lock("h", "c2", [Q0]) == [Q0]


def test_a_lock_that_is_renewed_does_not_expire(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0])
    for _ in range(5):
        clock.advance(40)
        assert locks.lock("g", "c1", [Q0]) == [Q0]
    assert locks.lock("g", "c2", [Q0]) == []


def test_a_lock_expires_after_60_s(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0])
    clock.advance(60)
    assert locks.lock("g", "c2", [Q0]) == []
    assert locks.holds_any("g")
    clock.advance(0.1)
    assert not locks.holds_any("g")
    assert locks.lock("g", "c2", [Q0]) == [Q0]
    assert locks.holder("g", Q0) == "c2"


def test_only_the_holder_unlocks(locks: LockTable) -> None:
    locks.lock("g", "c1", [Q0])
    locks.unlock("g", "c2", [Q0])
    assert locks.holder("g", Q0) == "c1"
    locks.unlock("g", "c1", [Q0, Q1])
    assert locks.holder("g", Q0) is None
    assert not locks.holds_any("g")


def test_locks_of_a_deleted_topic_are_forgotten(locks: LockTable) -> None:
    other = MessageQueue("U", "broker-a", 0)
    locks.lock("g", "c1", [Q0, other])
    locks.remove_topic("T")
    assert locks.holder("g", Q0) is None
    assert locks.holder("g", other) == "c1"
