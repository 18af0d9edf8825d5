"""The planner on random clusters: what may never happen; and on small ones: what has to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.placement.goals import Goal, hard_amounts, imbalance, imbalances, violations
from aerobee.placement.model import Broker, Load, Model, Topic, allocation_of, broker_loads
from aerobee.placement.planner import planned
from tests.rounds import rounds
from tests.unit.placement.worlds import models


def even(name: str, counts: dict[str, int], rate: float, **more: object) -> Topic:
    """A topic of `rate` bytes a second, each queue the same."""
    total = sum(counts.values())
    load = Load(rate / total, rate / total, rate / total * 100)
    return Topic(name=name, queues={broker: (load,) * count for broker, count in counts.items()}, **more)  # type: ignore[arg-type]


def brokers(count: int, **more: object) -> tuple[Broker, ...]:
    return tuple(Broker(name=f"b{number}", **more) for number in range(count))  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=rounds(150), deadline=None)
@given(model=models(), move_ordered=st.booleans())
def test_a_plan_breaks_no_hard_goal_and_is_never_less_even(model: Model, move_ordered: bool):
    before = allocation_of(model)
    result = planned(model, move_ordered=move_ordered)
    after = result.allocation
    old, new = hard_amounts(model, before), hard_amounts(model, after)
    for key, amount in new.items():
        assert amount <= old.get(key, 0.0) + 1e-6, key
    if sum(new.values()) >= sum(old.values()) - 1e-6:
        assert imbalance(model, after) <= max(1.1, imbalance(model, before)) + 1e-6
    for topic in model.topics:
        counts = after[topic.name]
        assert sum(counts.values()) >= topic.queue_count
        assert all(count > 0 for count in counts.values())
        if topic.pinned or (topic.keeps_keys and not move_ordered):
            assert counts == topic.counts
    assert planned(model, move_ordered=move_ordered) == result


@settings(max_examples=rounds(100), deadline=None)
@given(model=models())
def test_the_sum_of_all_load_stays_what_it_is(model: Model):
    def total(allocation: dict[str, dict[str, int]]) -> list[float]:
        return [sum(each) for each in zip(*broker_loads(model, allocation).values(), strict=True)]

    after = planned(model).allocation
    for was, now in zip(total(allocation_of(model)), total(after), strict=True):
        assert abs(was - now) <= 1e-6 * max(1.0, was)


def test_a_skewed_cluster_becomes_even():
    topics = tuple(even(f"t{n}", {"b0": 4, "b1": 2}, 1000.0 * (n + 1)) for n in range(10))
    model = Model(brokers=brokers(4), topics=topics)
    assert imbalance(model, allocation_of(model)) > 2
    after = planned(model).allocation
    assert imbalance(model, after) <= 1.1
    assert imbalances(model, after)["queues"] <= 1.2


def test_a_topic_at_one_broker_is_spread_also_one_of_a_single_queue():
    model = Model(brokers=brokers(3), topics=(even("single", {"b0": 1}, 10.0), even("pair", {"b1": 2}, 10.0)))
    assert {v.goal for v in violations(model, allocation_of(model)) if v.goal.is_hard} == {Goal.NOT_ALONE}
    after = planned(model).allocation
    assert not hard_amounts(model, after)
    assert sum(after["single"].values()) >= 2


def test_zones_are_used_where_there_are_several():
    model = Model(
        brokers=(*brokers(2, zone="east"), Broker(name="w0", zone="west"), Broker(name="w1", zone="west")),
        topics=(even("orders", {"b0": 2, "b1": 2}, 100.0),),
    )
    assert ("zone", "orders") in {(v.goal.value, v.subject) for v in violations(model, allocation_of(model))}
    assert not hard_amounts(model, planned(model).allocation)


def test_a_broker_above_its_capacity_is_relieved_although_others_are_fuller_by_share():
    small = Broker(name="small", capacity=Load(100.0, 1e9, 1e9))
    large = Broker(name="large", capacity=Load(1000.0, 1e9, 1e9))
    model = Model(brokers=(small, large), topics=(even("orders", {"small": 9, "large": 1}, 200.0),))
    assert (Goal.CAPACITY, "small") in hard_amounts(model, allocation_of(model))
    assert not hard_amounts(model, planned(model).allocation)


def test_a_new_broker_is_filled():
    topics = tuple(even(f"t{n}", {"b0": 4, "b1": 4}, 100.0) for n in range(12))
    model = Model(brokers=brokers(3), topics=topics)
    assert (Goal.NEW_BROKER, "b2") in {(v.goal, v.subject) for v in violations(model, allocation_of(model))}
    after = planned(model).allocation
    assert Goal.NEW_BROKER not in {v.goal for v in violations(model, after)}
    assert imbalance(model, after) <= 1.1


def test_queues_are_added_until_each_group_can_share_them():
    model = Model(brokers=brokers(2), topics=(even("orders", {"b0": 4, "b1": 4}, 10.0, group_sizes=(3, 2)),))
    after = planned(model).allocation
    assert sum(after["orders"].values()) == 12


def test_a_hot_queue_is_split():
    model = Model(
        brokers=brokers(4),
        topics=(
            even("hot", {"b0": 1, "b1": 1}, 10_000.0),
            *(even(f"t{n}", {"b2": 2, "b3": 2}, 10.0) for n in range(8)),
        ),
    )
    after = planned(model).allocation
    assert sum(after["hot"].values()) >= 4
    assert imbalance(model, after) <= 1.1


def test_topics_whose_keys_choose_the_queue_are_left_alone_unless_they_may_move():
    model = Model(
        brokers=brokers(2),
        topics=(
            even("fifo", {"b0": 8}, 1000.0, is_ordered=True),
            even("free", {"b0": 2, "b1": 2}, 10.0),
        ),
    )
    left = planned(model)
    assert left.allocation["fifo"] == {"b0": 8}
    assert left.left_out == ("fifo",)
    moved = planned(model, move_ordered=True)
    assert set(moved.allocation["fifo"]) == {"b0", "b1"}
    assert imbalance(model, moved.allocation) <= 1.1


def test_queues_that_differ_by_more_than_writing_in_turn_explains_count_as_sharded():
    assert Topic(name="t", queues={"b0": (Load(100.0), Load(1.0), Load(1.0))}).keeps_keys
    assert not Topic(name="t", queues={"b0": (Load(100.0), Load(90.0), Load(80.0))}).keeps_keys
