"""Which transactions are open and when to ask: the table, with time as an argument."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee.broker.transaction import transaction_table
from aerobee.broker.transaction.transaction_table import OpenTransaction, Outcome, TransactionTable
from tests.rounds import rounds

IMMUNITY = 6_000


def half(number: int, name: str = "", *, stored_ms: int = 0, **fields: int) -> OpenTransaction:
    return OpenTransaction(
        ("PG", name or f"T{number}"), "orders", number, number * 100, stored_ms=stored_ms, **fields
    )


def test_transaction_is_asked_about_when_the_brokers_immunity_is_over() -> None:
    table = TransactionTable()
    transaction = table.prepared(half(0, stored_ms=1_000))
    assert table.next_due_ms(IMMUNITY) == 7_000
    assert table.due(6_999, IMMUNITY, 10) == []
    assert table.due(7_000, IMMUNITY, 10) == [transaction]
    assert table.due(7_000, IMMUNITY, 10) == []  # it is handed out once


def test_a_senders_immunity_replaces_the_brokers() -> None:
    table = TransactionTable()
    long = table.prepared(half(0, immunity_ms=30_000))
    short = table.prepared(half(1, immunity_ms=1_000))
    usual = table.prepared(half(2))
    assert table.due(1_000, IMMUNITY, 10) == [short]
    assert table.due(6_000, IMMUNITY, 10) == [usual]
    assert table.next_due_ms(IMMUNITY) == 30_000
    assert table.due(30_000, IMMUNITY, 10) == [long]


def test_changed_immunity_of_the_broker_holds_for_what_is_open_already() -> None:
    table = TransactionTable()
    transaction = table.prepared(half(0))
    assert table.next_due_ms(500) == 500
    assert table.due(500, 500, 10) == [transaction]


def test_check_moves_the_transaction_to_its_new_copy_and_counts() -> None:
    table = TransactionTable()
    table.prepared(half(0))
    (transaction,) = table.due(IMMUNITY, IMMUNITY, 10)
    table.asked(transaction, 5, 500, now_ms=IMMUNITY, due_ms=66_000)
    assert (transaction.queue_offset, transaction.physical_offset, transaction.checks) == (5, 500, 1)
    assert list(table.open) == [5]
    assert table.ops == [0]  # the old copy is done with
    assert table.next_due_ms(IMMUNITY) == 66_000


def test_put_off_transaction_counts_nothing() -> None:
    table = TransactionTable()
    table.prepared(half(0))
    (transaction,) = table.due(IMMUNITY, IMMUNITY, 10)
    table.put_off(transaction, 70_000)
    assert transaction.checks == 0
    assert table.due(69_999, IMMUNITY, 10) == []
    assert table.due(70_000, IMMUNITY, 10) == [transaction]


def test_decision_closes_every_copy_of_a_repeated_send() -> None:
    table = TransactionTable()
    first = table.prepared(half(0, "T"))
    assert table.prepared(half(1, "T")) is first
    assert first.copies == (0, 1)
    assert table.counts == {"orders": 1}
    table.decided(first, Outcome.COMMITTED)
    assert table.take_ops() == [0, 1]
    assert not table.open
    assert table.counts == {"orders": 0}
    assert table.outcomes[("PG", "T")] is Outcome.COMMITTED
    assert table.due(1 << 40, IMMUNITY, 10) == []


def test_half_message_after_the_decision_is_a_transaction_of_its_own() -> None:
    table = TransactionTable()
    table.decided(table.prepared(half(0, "T")), Outcome.ROLLED_BACK)
    again = table.prepared(half(1, "T"))
    assert table.by_key[("PG", "T")] is again
    assert again.first_offset == 1


def test_progress_stays_at_the_oldest_open_half_message_and_its_op_records() -> None:
    table = TransactionTable()
    transactions = [table.prepared(half(number)) for number in range(5)]
    for number in (0, 1, 3):
        table.decided(transactions[number], Outcome.ROLLED_BACK)
    table.op_written(0, [0, 3])
    table.op_written(1, [1])
    table.take_ops()
    assert table.progress() == (2, 0)  # record 0 names half message 3, which is not behind us
    table.decided(transactions[2], Outcome.COMMITTED)
    table.op_written(2, table.take_ops())
    assert table.progress() == (4, 3)
    table.decided(transactions[4], Outcome.COMMITTED)
    table.op_written(3, table.take_ops())
    assert table.progress() == (5, 4)


def test_outcomes_are_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_table, "OUTCOMES_MAX", 3)
    table = TransactionTable()
    for number in range(5):
        table.remember(("PG", str(number)), Outcome.COMMITTED)
    assert [key[1] for key in table.outcomes] == ["2", "3", "4"]


def test_what_is_handed_out_at_once_is_bounded() -> None:
    table = TransactionTable()
    for number in range(10):
        table.prepared(half(number))
    assert len(table.due(IMMUNITY, IMMUNITY, 4)) == 4
    assert len(table.due(IMMUNITY, IMMUNITY, 100)) == 6


@settings(max_examples=rounds(200))
@given(st.lists(st.tuples(st.sampled_from("pdac"), st.integers(0, 7)), max_size=60))
def test_book_agrees_with_a_plain_model(actions: list[tuple[str, int]]) -> None:
    """Any order of half messages, decisions, checks and put-offs: open copies, counts and progress are those of a set."""
    table = TransactionTable()
    copies: dict[str, set[int]] = {}
    end, now, written = 0, 0, 0
    for action, number in actions:
        name = f"T{number}"
        now += 1_000
        transaction = table.by_key.get(("PG", name))
        if action == "p":
            table.prepared(half(end, name, stored_ms=now))
            copies.setdefault(name, set()).add(end)
            end += 1
        elif transaction is None:
            continue
        elif action == "d":
            table.decided(transaction, Outcome.COMMITTED)
            del copies[name]
        elif action == "a":
            table.asked(transaction, end, end * 100, now_ms=now, due_ms=now + 60_000)
            copies[name] = {end}
            end += 1
        else:
            table.put_off(transaction, now + 5_000)
        table.op_written(written, table.take_ops())
        written += 1
        assert set(table.open) == set().union(*copies.values()) if copies else not table.open
        assert sum(table.counts.values()) == len(copies) == len(table.by_key)
        half_start, op_start = table.progress()
        assert half_start == min((min(offsets) for offsets in copies.values()), default=end)
        assert op_start <= written
    asked = table.due(1 << 40, IMMUNITY, 1_000)
    assert sorted(transaction.transaction_id for transaction in asked) == sorted(copies)
