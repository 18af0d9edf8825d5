"""Up to where every decision about a transaction has its op record, at the master that tells it and at its slave."""

from __future__ import annotations

from aerobee.broker.state.settled_decisions import SettledDecisions


def test_a_master_tells_the_end_of_the_log_while_no_decision_lacks_its_op_record() -> None:
    decisions, unwritten = SettledDecisions(), list[int]()
    assert decisions.told(100) == 0, "no master yet"
    decisions.lead(lambda: bool(unwritten))
    assert decisions.told(100) == 100
    unwritten.append(7)
    assert decisions.told(200) == 100
    unwritten.clear()
    assert decisions.told(300) == 300
    decisions.resign()
    assert decisions.told(400) == 0


def test_a_slave_takes_what_lies_in_its_log_and_forgets_it_with_a_cut() -> None:
    decisions = SettledDecisions()
    decisions.copied(100, 99)
    assert decisions.offset == 0
    decisions.copied(100, 100)
    decisions.copied(50, 200)
    assert decisions.offset == 100
    decisions.cut()
    assert decisions.offset == 0
