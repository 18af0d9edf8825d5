"""Mappings of static topics: creation, growth, moves, decisions, and completion of interrupted changes."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from aerobee.client.base.static_plan import (
    StaticPart,
    StaticTopic,
    block_after,
    decided,
    gathered,
    grown,
    moved,
    settled,
)
from aerobee.errors import UsageError
from aerobee.remoting.body.queue_mapping import QueueMapping, QueueMappingItem
from aerobee.remoting.body.topic_config import TopicConfig

T = "ledger"


def made(total: int, *brokers: str) -> StaticTopic:
    return gathered(T, grown(gathered(T, {}), total, brokers, 1_000_000).parts)


def with_ends(topic: StaticTopic, end: int = 7) -> StaticTopic:
    ends = {(item.broker_name, item.queue_id): end for items in topic.queues.values() for item in items}
    return gathered(T, decided(topic, ends).parts)


def counts(topic: StaticTopic) -> Counter[str]:
    return Counter(topic.leaders.values())


def test_queues_are_dealt_out_evenly_each_to_a_queue_of_its_own() -> None:
    topic = made(8, "a", "b", "c")
    assert sorted(counts(topic).values()) == [2, 3, 3]
    assert topic.is_whole
    for name, part in topic.parts.items():
        assert part.mapping is not None
        assert sorted(part.mapping.led().values()) == list(range(counts(topic)[name]))
        assert part.config.write_queue_nums == part.config.read_queue_nums == counts(topic)[name]
        assert (part.mapping.total_queues, part.mapping.epoch) == (8, 1_000_000)


def test_more_queues_leave_those_that_there_are_where_they_are() -> None:
    before = made(3, "a")
    after = gathered(T, grown(before, 6, ("a", "b"), 1).parts)
    assert counts(after) == {"a": 3, "b": 3}
    assert all(after.queues[n] == before.queues[n] for n in range(3))
    assert after.epoch == before.epoch + 1_000
    with pytest.raises(UsageError, match="never becomes smaller"):
        grown(after, 5, ("a",), 1)


def test_a_move_takes_as_few_as_can_be_and_begins_behind_what_was_there() -> None:
    before = made(6, "a", "b")
    target = moved(before, ("a", "b", "c"), 2_000_000)
    assert counts(target) == {"a": 2, "b": 2, "c": 2}
    assert len(target.undecided) == 2
    assert not gathered(T, target.parts).is_whole
    after = with_ends(target, 7)
    assert after.is_whole
    for n, items in after.queues.items():
        if len(items) == 2:
            assert (items[0], items[1].logic_offset, items[1].broker_name) == (
                before.queues[n][0],
                10_000,
                "c",
            )
    again = with_ends(moved(after, ("a",), 3_000_000), 20_001)
    assert counts(again) == {"a": 6}
    assert {items[-1].logic_offset for items in again.queues.values() if len(items) == 3} == {40_000}
    with pytest.raises(UsageError, match="name a broker"):
        moved(after, (), 1)


@pytest.mark.parametrize(
    ("offset", "begin"), [(0, 10_000), (4_999, 10_000), (5_000, 20_000), (10_000, 20_000)]
)
def test_a_part_begins_with_room_behind_the_one_before(offset: int, begin: int) -> None:
    assert block_after(offset) == begin


def test_a_move_that_broke_off_anywhere_is_ended_with_nothing_lost() -> None:
    for seed in range(200):
        random = Random(seed)
        before = made(random.randint(1, 6), *random.sample("abcd", random.randint(1, 3)))
        target = moved(before, random.sample("abcd", random.randint(1, 4)), 2_000_000)
        takers = {items[-1].broker_name for items in target.undecided.values()}
        givers = {items[-2].broker_name for items in target.undecided.values()}
        steps = [*sorted(takers), *sorted(givers - takers)]
        written = steps[: random.randint(0, len(steps))]
        if len(written) == len(steps) and takers and random.random() < 0.5:
            done = with_ends(target)
            partly = {**target.parts, **{name: done.parts[name] for name in random.sample(sorted(takers), 1)}}
        else:
            partly = {**before.parts, **{name: target.parts[name] for name in written}}
        found = gathered(T, partly)
        if found.is_whole:
            continue
        end = with_ends(settled(found, tuple("abcd"), 5_000_000))
        assert end.is_whole, seed
        assert end.total == before.total
        for n, items in end.queues.items():
            assert items[0] == before.queues[n][0], seed  # what was stored before is still found
            assert [item.gen for item in items] == list(range(len(items)))
            offsets = [item.logic_offset for item in items]
            assert offsets == sorted(set(offsets)), seed


def test_a_broken_off_change_is_ended_before_another_one() -> None:
    target = moved(made(2, "a"), ("b",), 2_000_000)
    with pytest.raises(UsageError, match="was interrupted"):
        moved(gathered(T, target.parts), ("c",), 3_000_000)


def test_queues_without_leader_move_on_demand_only() -> None:
    """Their broker may be away: what it has of them would not be found any more."""
    whole = made(6, "a", "b", "c")
    partly = gathered(T, {name: whole.parts[name] for name in ("a", "b")})
    assert partly.leaderless == (2, 5)
    for change in (grown, lambda now, total, *more: settled(now, *more)):
        with pytest.raises(UsageError, match=r"2 logical queues of ledger have no leader \(2, 5\)"):
            change(partly, 6, ("a", "b"), 1)
    end = gathered(T, grown(partly, 6, ("a", "b", "c"), 1, gives_lost=True).parts)
    assert end.is_whole
    assert counts(end) == {"a": 2, "b": 2, "c": 2}
    assert all(end.queues[n] == items for n, items in partly.queues.items())


def test_a_queue_of_an_offline_leader_is_not_reassigned() -> None:
    whole = with_ends(moved(made(2, "a"), ("b",), 2_000_000))
    without_b = gathered(T, {"a": whole.parts["a"]})
    assert without_b.leaderless == (0, 1)
    for gives_lost in (False, True):
        with pytest.raises(UsageError, match="b leads logical queue 0 of ledger and is away"):
            grown(without_b, 2, ("a", "c"), 1, gives_lost=gives_lost)


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (None, "an ordinary topic at a"),
        (QueueMapping(T, 1, "b", 1), "names broker b"),
        (QueueMapping(T, 1, "a", 1, dirty=True), "marked as dirty"),
        (
            QueueMapping(T, 2, "a", 1, hosted={n: (QueueMappingItem(0, 0, "a", 0),) for n in range(2)}),
            "share queue 0 of a",
        ),
    ],
)
def test_what_cannot_be_changed_safely_is_refused(mapping: QueueMapping | None, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        gathered(T, {"a": StaticPart(TopicConfig(T), mapping)})


def test_an_unknown_end_is_not_guessed() -> None:
    target = moved(made(1, "a"), ("b",), 2_000_000)
    with pytest.raises(UsageError, match="did not return the end of its queue 0"):
        decided(target, {})
