"""A micro-batch is the same when it is planned again, the first one, too."""

from __future__ import annotations

import pytest

from aerobee.errors import ConfigError
from aerobee.message import MessageQueue
from aerobee.spark.offsets import to_table
from aerobee.spark.stream_offsets import begin_of, initial_table, next_table, offsets_of

A = MessageQueue("orders", "broker-a", 0)
B = MessageQueue("orders", "broker-b", 0)


def test_the_first_batch_keeps_its_begin_and_others_follow():
    start = initial_table({A: 7, B: 0})
    first = next_table(start, {A: 23, B: 4})
    assert offsets_of(first) == {A: 23, B: 4}
    assert begin_of(start, first) == {A: 7, B: 0}
    assert begin_of(initial_table({A: 99, B: 99}), first) == {A: 7, B: 0}, "asked again after a failure"
    second = next_table(first, {A: 30, B: 4})
    assert second == to_table({A: 30, B: 4})
    assert begin_of(first, second) == {A: 23, B: 4}


def test_nothing_to_read_is_the_same_table():
    start = initial_table({A: 7})
    assert next_table(start, {A: 7}) is start
    first = next_table(start, {A: 9})
    assert next_table(first, {A: 9}) is first


def test_an_empty_first_batch_reads_nothing_whatever_the_begin_is_by_now():
    planned = next_table(initial_table({A: 7}), {A: 7})
    assert begin_of(initial_table({A: 12}), planned) == offsets_of(planned) == {A: 7}
    after = next_table(planned, {A: 12})
    assert begin_of(planned, after) == {A: 7}


def test_a_checkpoint_without_a_begin_is_read_as_before():
    assert begin_of(to_table({A: 3}), to_table({A: 5})) == {A: 3}
    with pytest.raises(ConfigError, match="the checkpoint"):
        offsets_of({"orders": 5})
    with pytest.raises(ConfigError, match="the checkpoint: orders broker-a:0 has 9223372036854775808"):
        offsets_of({"orders": {"broker-a:0": 2**63}})
    assert offsets_of({"orders": {"broker-a:0": 2**63 - 1}}) == {A: 2**63 - 1}


@pytest.mark.parametrize("begin", [None, True, 5, "orders", [], {"orders": 5}])
def test_a_begin_that_is_none_is_named(begin: object):
    with pytest.raises(ConfigError, match="the checkpoint"):
        begin_of(to_table({A: 3}), {**to_table({A: 5}), "@begin": begin})
