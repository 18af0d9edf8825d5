"""A schedule of faults gets shorter, and still breaks the same promise."""

from __future__ import annotations

from aerobee.simulation.outcome import Outcome
from aerobee.simulation.shrink import shrink


def test_what_does_not_matter_is_left_out() -> None:
    needed, count = {3, 11}, 16

    def run(left_out: frozenset[int]) -> Outcome:
        is_broken = not needed & left_out
        return Outcome(
            5,
            failure="lost" if is_broken else "",
            checker="acknowledged" if is_broken else "",
            fault_count=count,
            story=[str(each) for each in range(count) if each not in left_out],
        )

    shortest, left_out = shrink(run(frozenset()), run)
    assert shortest.story == ["3", "11"]
    assert left_out == frozenset(range(count)) - needed


def test_another_promise_that_breaks_is_not_the_same_story() -> None:
    def run(left_out: frozenset[int]) -> Outcome:
        return Outcome(5, failure="x", checker="progress" if left_out else "acknowledged", fault_count=4)

    broken = run(frozenset())
    assert shrink(broken, run) == (broken, frozenset())


def test_tries_are_bounded() -> None:
    tries = []

    def run(left_out: frozenset[int]) -> Outcome:
        tries.append(left_out)
        return Outcome(5)

    shrink(Outcome(5, failure="x", checker="order", fault_count=1000), run, tries_max=9)
    assert len(tries) == 9
