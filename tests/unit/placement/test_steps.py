"""Steps: what may be written and read at each moment, from any state that they lead through."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.message import java_hash
from aerobee.placement.plan import moved_share, queue_list
from aerobee.placement.steps import (
    ABSENT,
    CHANGES,
    Kind,
    State,
    order_counts,
    order_text,
    steps_for,
    trajectory,
)

counts = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 5), min_size=1)


def settled(count: Mapping[str, int]) -> dict[str, State]:
    return {name: State(each, each) for name, each in count.items()}


def walked(states: dict[str, State], steps: list) -> list[dict[str, State]]:
    """The states after each step."""
    found = []
    for step in steps:
        if step.kind in CHANGES:
            states = {**states, step.broker: step.state}
        found.append(states)
    return found


@given(before=counts, after=counts, keeps_keys=st.booleans())
def test_steps_end_where_they_shall_and_from_any_step_on(before, after, keeps_keys):
    steps = steps_for("t", settled(before), after, keeps_keys=keeps_keys)
    wanted = {name: State(after.get(name, 0), after.get(name, 0)) for name in {*before, *after}}
    states = {name: settled(before).get(name, ABSENT) for name in wanted}
    passed = trajectory(before, after, keeps_keys=keeps_keys)
    walk = walked(states, steps)
    assert (walk[-1] if walk else states) == wanted
    for now in [states, *walk]:
        for name, state in now.items():
            assert state in passed[name]
            assert state.read >= state.write
        # Cut off here and begun again, in both directions.
        for goal in (after, before):
            again = walked(now, steps_for("t", now, goal, keeps_keys=keeps_keys))
            end = again[-1] if again else now
            assert end == {name: State(goal.get(name, 0), goal.get(name, 0)) for name in wanted}
            for next_states in again:
                for name, state in next_states.items():
                    assert state in passed[name]


@given(before=counts, after=counts, keeps_keys=st.booleans())
def test_nothing_is_removed_that_was_not_drained_and_nothing_written_that_has_no_offsets(
    before, after, keeps_keys
):
    drained, seeded, is_writable = set(), set(), settled(before)
    for step in steps_for("t", settled(before), after, keeps_keys=keeps_keys):
        ids = {(step.broker, queue_id) for queue_id in range(step.first, step.end)}
        now = is_writable.get(step.broker, ABSENT)
        if step.kind is Kind.DRAIN:
            assert all(queue_id >= now.write for _, queue_id in ids), "what can be written cannot be drained"
            drained |= ids
        elif step.kind is Kind.SEED:
            seeded |= ids
        elif step.kind is Kind.ALLOW and not keeps_keys:
            assert {(step.broker, each) for each in range(now.write, step.state.write)} <= seeded
        elif step.kind is Kind.REMOVE:
            assert ids <= drained
        if step.kind in CHANGES:
            is_writable[step.broker] = step.state


@given(before=counts, after=counts, had_order=st.booleans(), cut=st.integers(0, 60), back=st.booleans())
def test_with_keys_there_is_one_list_of_queues_at_a_time_whatever_was_cut_off(
    before, after, had_order, cut, back
):
    """Producers go by the order configuration, where there is one, else by permissions; who has not asked again, by what there was."""
    states = {name: settled(before).get(name, ABSENT) for name in {*before, *after}}
    published = order_text(before) if had_order else None
    lists = {order_text(before)}  # by which producers may write now

    def walk(goal: Mapping[str, int], steps_max: int) -> None:
        nonlocal states, published
        steps = steps_for("t", states, goal, keeps_keys=True, had_order=had_order, order=published)
        for step in steps[:steps_max]:
            if step.kind is Kind.CATCH_UP or (step.kind is Kind.PUBLISH and step.order not in lists):
                assert not lists, "producers may write while queues drain"
            if step.kind in CHANGES:
                states = {**states, step.broker: step.state}
            elif step.kind is Kind.PUBLISH:
                published = step.order
            elif step.kind is Kind.UNPUBLISH:
                published = None
            elif step.kind is Kind.ROUTES:
                lists.clear()
            seen = published or order_text({name: state.write for name, state in states.items()})
            lists.update({seen} - {""})
            assert len(lists) <= 1, f"after {step}"

    walk(after, cut)
    goal = before if back else after
    walk(goal, 1000)
    assert states == {name: State(goal.get(name, 0), goal.get(name, 0)) for name in states}
    assert published == (order_text(goal) if had_order else None)


@given(before=counts, after=counts)
def test_an_order_configuration_that_a_run_left_behind_is_taken_away(before, after):
    steps = steps_for("t", settled(after), after, keeps_keys=True, order=order_text(after))
    assert [step.kind for step in steps] == [Kind.ROUTES, Kind.UNPUBLISH]
    assert (
        steps_for("t", settled(after), after, keeps_keys=True, had_order=True, order=order_text(after)) == []
    )
    assert order_counts(order_text(after)) == after


@given(before=counts, after=counts)
def test_the_share_of_keys_that_move_is_what_counting_them_gives(before, after):
    old, new = queue_list(before), queue_list(after)
    size = len(old) * len(new)
    moved = sum(old[number % len(old)] != new[number % len(new)] for number in range(size))
    assert moved_share(before, after) == pytest.approx(moved / size)


def test_the_share_of_keys_that_move_is_that_of_real_keys():
    before, after = {"a": 4, "b": 4}, {"a": 4, "b": 4, "c": 4}
    old, new = queue_list(before), queue_list(after)
    keys = [f"customer-{number}" for number in range(20_000)]
    moved = sum(old[abs(java_hash(key)) % len(old)] != new[abs(java_hash(key)) % len(new)] for key in keys)
    assert moved / len(keys) == pytest.approx(moved_share(before, after), abs=0.02)


def test_an_order_configuration_lists_queues_as_a_route_does():
    assert order_text({"b": 2, "a": 4, "c": 0}) == "a:4;b:2"
