"""Orderly locks: who gets a queue, for how long, and who may give it back."""

from __future__ import annotations

import pytest

from aerobee.broker.consumer.lock_table import LockTable
from aerobee.clock import ManualClock
from aerobee.errors import MalformedFrame
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


def test_a_client_that_tells_its_lease_is_followed_sooner(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0], lease_s=10)
    clock.advance(11)
    assert locks.lock("g", "c2", [Q0]) == []
    clock.advance(1.1)
    assert locks.lock("g", "c2", [Q0]) == [Q0]


def test_a_lease_is_never_longer_than_rocketmqs(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0], lease_s=1e9)
    clock.advance(60.1)
    assert locks.lock("g", "c2", [Q0]) == [Q0]


def test_locks_come_back_from_their_file_as_just_renewed(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0, Q1], lease_s=10)
    tree = locks.to_json()
    clock.advance(100)
    again = LockTable(clock=clock)
    again.from_json(tree)
    assert again.lock("g", "c2", [Q0]) == []
    assert again.lock("g", "c1", [Q1]) == [Q1]
    clock.advance(12.1)
    assert again.lock("g", "c2", [Q0]) == [Q0]


def test_the_version_says_when_the_file_has_to_be_written(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0])
    granted = locks.version
    locks.lock("g", "c1", [Q0])
    assert locks.version == granted
    # A file that was written while the lock was expired does not have it: getting it again is a change.
    clock.advance(61)
    assert locks.to_json() == {"lockTable": {}}
    locks.lock("g", "c1", [Q0])
    assert locks.version > granted


@pytest.mark.parametrize(
    "tree",
    [
        {"lockTable": {"g": {}}},
        {"lockTable": {"g": ["x"]}},
        {"lockTable": {"g": [{"topic": "T", "queueId": "x"}]}},
    ],
)
def test_a_file_that_is_no_lock_table_is_refused(locks: LockTable, tree: dict[str, object]) -> None:
    with pytest.raises(MalformedFrame):
        locks.from_json(tree)


def test_infos_tell_holder_age_and_lease(locks: LockTable, clock: ManualClock) -> None:
    since = clock.now_ms()
    locks.lock("g", "c1", [Q0], lease_s=10)
    clock.advance(3)
    (info,) = locks.infos("g")
    assert (info.client_id, info.since_ms, info.age_ms, info.lease_ms) == ("c1", since, 3000, 12_000)
    assert locks.infos("other") == []


def test_an_expired_lock_is_no_held_one_and_is_forgotten_soon(locks: LockTable, clock: ManualClock) -> None:
    locks.lock("g", "c1", [Q0, Q1], lease_s=30)
    clock.advance(31)
    locks.lock("g", "c1", [Q1], lease_s=30)
    clock.advance(2)
    assert [info.age_ms > info.lease_ms for info in locks.infos("g")] == [True, False]
    assert ([info.queue for info in locks.longest_held(2, {"T"})], locks.count) == ([Q1], 1)
    clock.advance(60)
    assert locks.lock("h", "c2", [Q0]) == [Q0]
    assert [(info.group, info.queue) for info in locks.infos()] == [("g", Q1), ("h", Q0)]
    clock.advance(60.1)
    assert locks.infos("g") == []


def test_those_held_for_longest_come_first_and_none_of_other_topics(
    locks: LockTable, clock: ManualClock
) -> None:
    locks.lock("g", "c1", [Q1])
    clock.advance(1)
    locks.lock("g", "c1", [Q0])
    locks.lock("h", "c2", [MessageQueue("none", "broker-a", number) for number in range(5)])
    clock.advance(1)
    locks.lock("h", "c2", [Q0])
    assert [lock.queue for lock in locks.longest_held(2, {"T"})] == [Q1, Q0]
    assert len(locks.longest_held(10, {"T"})) == 3
    assert (locks.count, len(locks.infos())) == (8, 8)
