"""The rings behind the charts: fixed size, gaps, means over an interval, and which items are kept."""

from __future__ import annotations

from math import inf, nan

from aerobee.console.history import CLUSTER, KEPT_MAX, SLOTS, STEP_S, History, Kind, mean

START_S = 1_000_000 * STEP_S


def read(history: History, end_s: float, points: int, slots_per_point: int = 1) -> list[float | None]:
    return history.read(
        Kind.CLUSTER, CLUSTER, "in", end_s, slots_per_point=slots_per_point, points=points, of=mean
    )


def made() -> History:
    history = History()
    history.keep(Kind.CLUSTER, CLUSTER)
    return history


def put(history: History, at_s: float, value: float, since_s: float | None = None) -> None:
    history.record(Kind.CLUSTER, CLUSTER, at_s, {"in": value}, since_s)


def test_slots_without_a_value_are_gaps() -> None:
    history = made()
    put(history, START_S, 1.0)
    put(history, START_S + 3 * STEP_S, 4.0)
    assert read(history, START_S + 4 * STEP_S, 6) == [None, 1.0, None, None, 4.0, None]


def test_a_mean_over_an_interval_fills_its_slots() -> None:
    history = made()
    put(history, START_S, 9.0)
    put(history, START_S + 4 * STEP_S, 2.0, START_S)
    assert read(history, START_S + 4 * STEP_S, 5) == [9.0, 2.0, 2.0, 2.0, 2.0]


def test_a_value_overwrites_the_one_an_hour_before() -> None:
    history = made()
    for slot in range(2 * SLOTS + 7):
        put(history, START_S + slot * STEP_S, slot)
    values = read(history, START_S + (2 * SLOTS + 6) * STEP_S, SLOTS)
    assert values == list(range(SLOTS + 7, 2 * SLOTS + 7))
    put(history, START_S, 5.0)  # a clock that went back by more than an hour
    assert read(history, START_S + (2 * SLOTS + 6) * STEP_S, SLOTS) == values


def test_a_pause_of_hours_leaves_no_old_values() -> None:
    history = made()
    put(history, START_S, 1.0)
    resumed_s = START_S + 5 * SLOTS * STEP_S
    put(history, resumed_s, 2.0, START_S)  # the mean since then fills the ring, and no more
    assert read(history, resumed_s, SLOTS) == [2.0] * SLOTS
    put(history, resumed_s + SLOTS * STEP_S, 3.0)
    assert read(history, resumed_s + SLOTS * STEP_S, SLOTS) == [None] * (SLOTS - 1) + [3.0]


def test_points_reduce_slots_that_do_not_move() -> None:
    history = made()
    for slot in range(10):
        put(history, START_S + slot * STEP_S, slot)
    assert read(history, START_S + 9 * STEP_S, 2, 5) == [2.0, 7.0]
    assert read(history, START_S + 6 * STEP_S, 2, 5) == [2.0, 7.0]


def test_numbers_that_are_not_finite_are_dropped() -> None:
    history = made()
    for value in (nan, inf, -inf):
        put(history, START_S, value)
    assert read(history, START_S, 1) == [None]


def test_thousands_of_topics_share_a_bounded_history() -> None:
    history = History()
    for number in range(5_000):
        history.keep(Kind.TOPIC, f"topic-{number}")
        history.keep(Kind.TOPIC, "on a page")
        history.record(Kind.TOPIC, f"topic-{number}", START_S, {"in": 1.0})
    assert len(history.kept(Kind.TOPIC)) == KEPT_MAX
    assert history.is_kept(Kind.TOPIC, "on a page")
    assert not history.is_kept(Kind.TOPIC, "topic-0")
    history.record(Kind.TOPIC, "topic-0", START_S, {"in": 1.0})
    values = history.read(Kind.TOPIC, "topic-0", "in", START_S, slots_per_point=1, points=1, of=mean)
    assert values == [None]
