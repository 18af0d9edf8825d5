"""What is read: boundaries, losses, tasks, limits, pushed conditions, pulls. All without Spark."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from aerobee.errors import ConfigError, UsageError
from aerobee.message import MessageQueue
from aerobee.spark.admission import Admission, limited
from aerobee.spark.boundaries import Bounds, begin_offsets, end_offsets, wanted_times
from aerobee.spark.data_loss import DataLost, losses, report, resume_at
from aerobee.spark.offsets import EARLIEST, LATEST
from aerobee.spark.options import Edge
from aerobee.spark.pull_window import PullWindow
from aerobee.spark.pushdown import push_all
from aerobee.spark.ranges import TASKS_MAX, QueueRange, ranges_between, split_ranges

A, B, C = (MessageQueue("orders", "broker-a", number) for number in range(3))
HAS = {A: Bounds(10, 100), B: Bounds(0, 5), C: Bounds(0, 0)}


def test_earliest_and_latest_are_what_the_queues_hold():
    assert begin_offsets(HAS, Edge(offsets=EARLIEST), {}, at_no_message="error") == {A: 10, B: 0, C: 0}
    assert end_offsets(HAS, Edge(offsets=LATEST), {}) == {A: 100, B: 5, C: 0}


def test_a_timestamp_for_all_goes_before_others():
    edge = Edge(timestamp_ms=7, by_timestamp={A: 1, B: 2, C: 3}, offsets={A: 50, B: 1, C: 0})
    assert wanted_times(HAS, edge) == {A: 7, B: 7, C: 7}
    assert wanted_times(HAS, Edge(by_timestamp=edge.by_timestamp)) == {A: 1, B: 2, C: 3}
    assert begin_offsets(HAS, edge, {A: 40, B: 2, C: 0}, at_no_message="latest") == {A: 40, B: 2, C: 0}
    assert begin_offsets(HAS, Edge(offsets={A: 50, B: LATEST, C: EARLIEST}), {}, at_no_message="error") == {
        A: 50,
        B: 5,
        C: 0,
    }


def test_a_time_without_a_message_is_an_error_or_the_end():
    with pytest.raises(UsageError, match="broker-a:2"):
        begin_offsets(HAS, Edge(timestamp_ms=7), {A: 40, B: 2, C: 0}, at_no_message="error")
    assert end_offsets(HAS, Edge(timestamp_ms=7), {A: 900, B: 2, C: 0}) == {A: 100, B: 2, C: 0}


@pytest.mark.parametrize(
    ("given", "words"),
    [({A: 1}, "says nothing of"), ({A: 1, B: 1, C: 1, MessageQueue("x", "y", 0): 1}, "not among")],
)
def test_offsets_name_each_queue_and_no_other(given: dict[MessageQueue, int], words: str):
    with pytest.raises(ConfigError, match=words):
        begin_offsets(HAS, Edge(offsets=given), {}, at_no_message="error")


def test_what_is_lost_is_named_with_queue_offsets_and_cause():
    found = losses({A: 4, B: 9, C: 0}, HAS)
    assert [(loss.queue, loss.begin, loss.end) for loss in found] == [(A, 4, 10), (B, 5, 9)]
    with pytest.raises(
        DataLost, match=r"orders broker-a:0 has lost offsets 4 to 9 \(6 messages\): .*retention"
    ):
        report(found[:1], fail=True)
    with pytest.raises(DataLost, match="recreated"):
        report(found[1:], fail=True)
    report(found, fail=False)
    assert (resume_at(4, HAS[A]), resume_at(9, HAS[B]), resume_at(50, HAS[A])) == (10, 0, 50)


def test_what_a_slave_alone_says_names_it_and_moves_nothing():
    behind = Bounds(10, 100, is_masters=False)
    (late, early) = losses({A: 120}, {A: behind}) + losses({A: 3}, {A: behind})
    assert "no master of its broker is registered now" in str(late)
    assert (early.begin, early.end) == (3, 10)
    assert [resume_at(offset, behind) for offset in (3, 50, 120)] == [3, 50, 120]


def test_tasks_are_the_ranges_unless_more_are_wanted():
    ranges = ranges_between({A: 10, B: 0, C: 0}, {A: 100, B: 5, C: 0})
    assert ranges == [QueueRange(A, 10, 100), QueueRange(B, 0, 5)]
    assert split_ranges(ranges) == ranges
    assert [part.size for part in split_ranges(ranges, records_max=40)] == [30, 30, 30, 5]
    assert [part.size for part in split_ranges(ranges, partitions_min=5)] == [18, 18, 18, 18, 18, 5]


@pytest.mark.parametrize("seed", range(20))
def test_split_ranges_are_what_came_in(seed: int):
    chosen = random.Random(seed)
    ranges = [QueueRange(queue, 7, 7 + chosen.randint(1, 5000)) for queue in (A, B, C)]
    most = chosen.choice([None, chosen.randint(1, 700)])
    parts = split_ranges(
        ranges, partitions_min=chosen.choice([None, chosen.randint(1, 40)]), records_max=most
    )
    for whole in ranges:
        mine = [part for part in parts if part.queue == whole.queue]
        assert [mine[0].begin, *(part.end for part in mine)] == [*(part.begin for part in mine), whole.end]
        assert all(part.size > 0 and (most is None or part.size <= most) for part in mine)


def test_more_tasks_than_a_driver_can_plan_are_refused_with_what_to_write():
    ranges = [QueueRange(A, 0, TASKS_MAX), QueueRange(B, 5, 5 + TASKS_MAX)]
    assert len(split_ranges(ranges, records_max=2)) == TASKS_MAX
    with pytest.raises(ConfigError, match=r"200000 tasks, and 100000 is the most\. Write 2 or more"):
        split_ranges(ranges, records_max=1)
    with pytest.raises(ConfigError, match="maxRecordsPerPartition is 1: "):
        split_ranges([QueueRange(A, 0, 2**62)], records_max=1)
    assert split_ranges(ranges, records_max=2**62) == ranges
    assert len(split_ranges(ranges, partitions_min=TASKS_MAX)) == TASKS_MAX


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_is_shared_out_in_proportion(seed: int):
    chosen = random.Random(seed)
    begin = {queue: chosen.randint(0, 50) for queue in (A, B, C)}
    end = {queue: begin[queue] + chosen.choice([0, 1, 10, 1000]) for queue in (A, B, C)}
    waiting = {queue: end[queue] - begin[queue] for queue in end}
    most = chosen.randint(1, 1500)
    taken = {queue: limited(begin, end, most)[queue] - begin[queue] for queue in end}
    assert sum(taken.values()) == min(most, sum(waiting.values()))
    assert all(0 <= taken[queue] <= waiting[queue] for queue in end)
    if sum(waiting.values()) > most:
        for queue in end:
            assert abs(taken[queue] - waiting[queue] * most / sum(waiting.values())) <= 3


def test_a_large_queue_starves_no_other():
    assert limited({A: 0, B: 0, C: 0}, {A: 10_000, B: 1, C: 1}, 10) == {A: 8, B: 1, C: 1}


def test_a_batch_waits_for_the_minimum_but_not_for_ever():
    admission = Admission(count_min=100, delay_max_ms=5000)
    assert admission.waits(10, 0.0)
    assert admission.waits(99, 4.9)
    assert not admission.waits(10, 5.0)
    assert admission.waits(10, 6.0)
    assert not admission.waits(100, 6.1)
    assert not Admission(count_min=None, delay_max_ms=0).waits(0, 0.0)


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class In(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class GreaterThanOrEqual(EqualTo):
    pass


class LessThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class StringStartsWith(EqualTo):
    pass


@dataclass(frozen=True)
class IsNotNull:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: Any


def test_conditions_on_queues_and_offsets_are_taken_whole():
    pushed, left = push_all(
        [
            EqualTo(("topic",), "orders"),
            IsNotNull(("topic",)),
            Not(EqualTo(("queue_id",), 1)),
            StringStartsWith(("broker",), "broker-"),
            GreaterThan(("queue_offset",), 4),
            LessThanOrEqual(("queue_offset",), 9),
            In(("tags",), ("A", "B")),
        ],
        may_filter_tags=True,
    )
    assert left == []
    assert [pushed.wants(queue) for queue in (A, B, C)] == [True, False, True]
    assert pushed.offsets_within(0, 100) == (5, 10)
    assert pushed.offsets_within(50, 100) == (50, 50)
    assert pushed.tags == {"A", "B"}


def test_what_cannot_be_used_is_left_to_spark():
    conditions = [
        EqualTo(("value",), b"x"),
        EqualTo(("properties", "a"), "x"),
        EqualTo(("tags",), "A || B"),
        EqualTo(("tags",), "*"),
        Not(EqualTo(("tags",), "A")),
        Not(EqualTo(("queue_offset",), 3)),
    ]
    pushed, left = push_all(conditions, may_filter_tags=True)
    assert left == conditions
    assert pushed.tags is None
    assert push_all([EqualTo(("tags",), "A")], may_filter_tags=False)[1] == [EqualTo(("tags",), "A")]


def test_a_condition_on_the_store_time_narrows_and_stays():
    at = datetime(2026, 1, 1, microsecond=1500, tzinfo=UTC)
    ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    conditions = [GreaterThanOrEqual(("store_ts",), at), LessThan(("store_ts",), at)]
    pushed, left = push_all(conditions, may_filter_tags=True)
    assert left == conditions
    assert (pushed.time_min_ms, pushed.time_max_ms) == (ms + 1, ms + 2)


@pytest.mark.parametrize("seed", range(30))
def test_pulls_in_any_order_come_out_in_order_and_once(seed: int):
    """A broker that answers as much as it likes, when it likes: each offset comes once, and what waits is bounded."""
    chosen = random.Random(seed)
    begin, end = 3, 3 + chosen.randint(1, 400)
    bound = chosen.choice([1, 64, 10_000])
    window = PullWindow(
        begin,
        end,
        cell_size=chosen.randint(1, 50),
        in_flight_max=chosen.randint(1, 6),
        waiting_bytes_max=bound,
    )
    waiting: list[Any] = []
    came: list[int] = []
    while not window.is_done:
        waiting += window.asks()
        assert waiting, "no request and no work"
        cell = waiting.pop(chosen.randrange(len(waiting)))
        count = chosen.randint(0, min(4, cell.end - cell.next_offset))
        offsets = range(cell.next_offset, cell.next_offset + count)
        window.answered(cell, cell.next_offset + count, bytes(offset % 256 for offset in offsets))
        came += [byte for body, _ in window.take() for byte in body]
        assert window._waiting_bytes <= bound + 6 * 4
    assert came == [offset % 256 for offset in range(begin, end)]
