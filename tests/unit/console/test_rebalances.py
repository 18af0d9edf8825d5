"""The rebalance history of groups: who joined, who left, which queues moved, within bounds."""

from __future__ import annotations

from aerobee.console.rebalances import (
    EVENTS_MAX,
    MEMBERS_MAX,
    MERGED_S,
    MOVES_MAX,
    Rebalances,
    rebalance_row,
)


def test_a_join_moves_queues_and_a_leave_moves_them_back() -> None:
    seen = Rebalances()
    seen.record("billing", 100.0, ["a"], {"orders 0": "a", "orders 1": "a"})
    assert seen.of("billing") == []  # the first reading is the beginning
    seen.record("billing", 200.0, ["a", "b"], {"orders 0": "a", "orders 1": "b"})
    seen.record("billing", 300.0, ["b"], {"orders 0": "b", "orders 1": "b"})
    left, joined = map(rebalance_row, seen.of("billing"))
    assert joined == {
        "at_ms": 200_000,
        "last_ms": 200_000,
        "joined": ["b"],
        "left": [],
        "members": 2,
        "more": 0,
        "moves": [{"queue": "orders 1", "from": "a", "to": "b"}],
    }
    assert (left["left"], left["moves"]) == (["a"], [{"queue": "orders 0", "from": "a", "to": "b"}])


def test_readings_during_a_rebalance_are_one_rebalance() -> None:
    seen = Rebalances()
    seen.record("billing", 100.0, ["a"], {"orders 0": "a", "orders 1": "a"})
    seen.record("billing", 102.0, ["a", "b"], {"orders 0": "a", "orders 1": "a"})  # b has no queue yet
    seen.record("billing", 104.0, ["a", "b"], {"orders 0": "a"})  # a has released it
    seen.record("billing", 106.0, ["a", "b"], {"orders 0": "a", "orders 1": "b"})
    (event,) = seen.of("billing")
    assert (event.first_s, event.last_s, event.joined) == (102.0, 106.0, ["b"])
    assert event.moves == {"orders 1": ("a", "b")}


def test_what_was_taken_back_is_no_rebalance() -> None:
    seen = Rebalances()
    seen.record("billing", 100.0, ["a", "b"], {"orders 0": "b"})
    seen.record("billing", 102.0, ["a"], {"orders 0": "a"})
    seen.record("billing", 104.0, ["a", "b"], {"orders 0": "b"})
    assert seen.of("billing") == []
    seen.record("billing", 106.0, ["a"], {"orders 0": "a"})
    (event,) = seen.of("billing")
    assert event.left == ["b"]


def test_the_last_member_releases_every_queue() -> None:
    seen = Rebalances()
    seen.record("billing", 100.0, ["a"], {"orders 0": "a"})
    seen.record("billing", 200.0, [], {})
    seen.record("billing", 300.0, ["c"], {"orders 0": "c"})
    back, gone = seen.of("billing")
    assert (gone.left, gone.moves, gone.members) == (["a"], {"orders 0": ("a", None)}, 0)
    assert (back.joined, back.moves) == (["c"], {"orders 0": (None, "c")})


def test_the_history_is_bounded() -> None:
    seen = Rebalances()
    names = [f"client-{number}" for number in range(MEMBERS_MAX + 3)]
    queues = {f"orders {number:03}": names[number % 5] for number in range(MOVES_MAX + 4)}
    seen.record("large", 0.0, [], {})
    seen.record("large", 1.0, names, queues)
    (event,) = seen.of("large")
    assert (len(event.joined), len(event.moves), event.more, event.members) == (
        MEMBERS_MAX,
        MOVES_MAX,
        3 + 4,
        len(names),
    )
    for number in range(EVENTS_MAX + 10):
        seen.record("restless", 2 * MERGED_S * number, ["x" * 10_000] if number % 2 else [], {})
    assert seen.of("large") == []  # the oldest of all groups leave first
    assert len(seen.of("restless")) == EVENTS_MAX
    assert len(seen.of("restless")[0].joined[0] if seen.of("restless")[0].joined else "") <= 128


def test_groups_that_are_deleted_begin_again() -> None:
    seen = Rebalances()
    seen.record("billing", 100.0, ["a"], {})
    seen.retain(["others"])
    seen.record("billing", 200.0, ["b"], {})
    assert seen.of("billing") == []
