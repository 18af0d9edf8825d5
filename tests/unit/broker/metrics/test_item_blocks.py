"""Items in blocks: what has changed is known without looking at each of them."""

from __future__ import annotations

from aerobee.broker.metrics.item_blocks import BLOCK_ITEMS, ItemBlocks
from aerobee.broker.metrics.metrics import Metric, Value
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.clock import ManualClock


def test_an_item_stays_where_it_is_and_the_next_one_takes_the_room_of_one_that_went() -> None:
    blocks: ItemBlocks[str] = ItemBlocks()
    of = {name: blocks.add(name) for name in map(str, range(2 * BLOCK_ITEMS))}
    first, second = blocks
    assert [len(first.items), len(second.items)] == [BLOCK_ITEMS, BLOCK_ITEMS]
    before = (first.version, first.items_version, second.version)
    blocks.remove("7", of["7"])
    assert first.version > before[0]
    assert first.items_version > before[1]
    assert second.version == before[2]
    assert blocks.add("new") is first
    assert list(blocks) == [first, second]
    assert blocks.add("one more") not in (first, second)


def test_only_the_block_of_what_was_counted_has_another_token() -> None:
    stats = BrokerStats(clock=ManualClock(), cluster="c")
    for number in range(3 * BLOCK_ITEMS):
        stats.group_get("g", f"topic-{number}", 1, 10)
    metric = next(each for each in stats.registry.metrics() if each.name == "messages_out")
    before = tokens(metric)
    assert len(before) == 3
    assert tokens(metric) == before
    stats.group_get("g", f"topic-{BLOCK_ITEMS}", 5, 50)
    assert [now == then for now, then in zip(tokens(metric), before, strict=True)] == [True, False, True]
    assert numbers(metric)[f"topic-{BLOCK_ITEMS}"] == 6
    before = tokens(metric)
    stats.remove_group("other")
    assert tokens(metric) == before
    stats.remove_topic("topic-1")
    assert [now == then for now, then in zip(tokens(metric), before, strict=True)] == [False, True, True]
    assert "topic-1" not in numbers(metric)
    stats.remove_group("g")
    assert numbers(metric) == {}


def test_sends_change_the_tokens_of_all_that_is_counted_with_them() -> None:
    stats = BrokerStats(clock=ManualClock(), cluster="c")
    stats.topic_put("orders", 1, 10)
    metrics = {each.name: each for each in stats.registry.metrics()}
    names = ("messages_in", "bytes_in", "message_size")
    before = [tokens(metrics[name]) for name in names]
    stats.topic_put("orders", 2, 5_000)
    for name, then in zip(names, before, strict=True):
        assert tokens(metrics[name]) != then
    assert numbers(metrics["messages_in"]) == {"orders": 3}
    assert numbers(metrics["bytes_in"]) == {"orders": 5_010}
    stats.remove_topic("orders")
    assert all(numbers(metrics[name]) == {} for name in names)


def tokens(metric: Metric) -> list[object]:
    assert metric.blocks is not None
    return [block.token for block in metric.blocks()]


def numbers(metric: Metric) -> dict[str, Value]:
    return {labels[0]: value for labels, value in metric.read()}
