"""Latencies in buckets, and the registry of all numbers."""

from __future__ import annotations

import random

import pytest

from aerobee.broker.metrics.metrics import (
    SIZE_ENDS,
    STEPPED_S,
    WINDOW_S,
    Kind,
    Latency,
    Registry,
    Sizes,
    Spread,
    larger_of,
    upper_end_s,
)
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.clock import ManualClock
from aerobee.remoting.loop_watch import HELD_LIMIT_S


def test_each_duration_lies_in_its_bucket() -> None:
    numbers = random.Random(1)
    for _ in range(2_000):
        elapsed_s = 10 ** numbers.uniform(-7, 3.3)
        latency = Latency()
        latency.add(elapsed_s)
        bucket = latency.counts.index(1)
        assert upper_end_s(bucket - 1) <= elapsed_s < upper_end_s(bucket), elapsed_s


def test_no_burst_that_held_the_loop_is_short_enough_to_be_counted_in_steps() -> None:
    """The fast path looks for a held loop only where it counts no step."""
    assert STEPPED_S <= HELD_LIMIT_S


@pytest.mark.parametrize("elapsed_s", [-1.0, 0.0, 1e-12, 1e9])
def test_what_is_out_of_range_is_counted_at_the_ends(elapsed_s: float) -> None:
    latency = Latency()
    latency.add(elapsed_s, 3)
    assert latency.counts[0 if elapsed_s < 1 else -1] == latency.count == 3


def test_percentiles_are_right_to_an_eighth() -> None:
    latency = Latency()
    numbers = random.Random(2)
    times = sorted(numbers.expovariate(1000) for _ in range(10_000))
    for elapsed_s in times:
        latency.add(elapsed_s)
    for share in (0.5, 0.99, 0.999):
        true_ms = times[int(len(times) * share) - 1] * 1000
        assert true_ms <= latency.percentile_ms(share) <= true_ms * 1.126
    assert latency.percentile_ms(1.0) == times[-1] * 1000


def test_percentiles_forget_and_totals_do_not() -> None:
    latency = Latency()
    latency.add(1.0, 5)
    latency.turn(WINDOW_S)
    assert latency.percentile_ms(0.99) == 1000
    latency.turn(2 * WINDOW_S)
    latency.add(0.001)
    assert latency.percentile_ms(0.99) < 1.2
    assert (latency.count, latency.max_s, latency.sum_s) == (6, 1.0, 5.001)
    assert [count for _, count in latency.buckets()] == [1, 6]


def test_a_name_is_taken_once() -> None:
    registry = Registry()
    registry.gauge("depth", "How deep", lambda: 3.0)
    with pytest.raises(ValueError, match="depth"):
        registry.latency("depth", "How long")


def test_the_registry_lists_what_a_broker_counts() -> None:
    stats = BrokerStats(clock=ManualClock(), cluster="C")
    stats.topic_put("T", 3, 300)
    stats.group_get("G", "T", 2, 200)
    stats.put_took(0.002, 3)
    samples = {(metric.name, labels): value for metric, labels, value in stats.registry.samples()}
    assert samples["messages_in", ("T",)] == 3
    assert samples["bytes_out", ("T", "G")] == 200
    assert samples["put_latency", ()] is stats.put_latency
    assert {metric.kind for metric in stats.registry.metrics()} == {Kind.COUNTER, Kind.LATENCY, Kind.SIZES}
    for metric, labels, _ in stats.registry.samples():
        assert len(labels) == len(metric.labels)
        assert metric.meaning
        assert metric.unit


def test_sizes_lie_within_the_ends_that_they_do_not_exceed() -> None:
    sizes = [1, 1024, 1025, 4096, 5000, 512 << 10, (1 << 20) + 1, 5 << 20]
    histogram = Sizes(len(sizes), sum(sizes), tuple(larger_of(sizes)))
    assert histogram.within() == tuple(sum(size <= end for size in sizes) for end in SIZE_ENDS)
    both = histogram + histogram
    assert both.within() == tuple(2 * count for count in histogram.within())
    stats = BrokerStats(clock=ManualClock(), cluster="c")
    for size in sizes:
        stats.topic_put("t", 1, size)
    stats.topic_put("t", len(sizes), sum(sizes), 1, larger_of(sizes))
    (counted,) = (value for metric, _, value in stats.registry.samples() if metric.name == "message_size")
    assert counted == both


def test_a_spread_counts_each_number_at_the_first_end_that_holds_it() -> None:
    spread = Spread((10.0, 100.0))
    for number in (0, 10, 10.5, 100, 101, 5000):
        spread.add(number)
    assert (spread.counts, spread.sum) == ([2, 2, 2], 5221.5)
