import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee.ops.terminal.latency import LatencyHistogram


def test_percentiles_are_within_two_percent() -> None:
    histogram = LatencyHistogram()
    source = random.Random(7)
    values = [source.lognormvariate(-6, 1) for _ in range(20_000)]
    for value in values:
        histogram.add(value)
    values.sort()
    for percent in (50, 99, 99.9):
        exact = values[int(len(values) * percent / 100) - 1] * 1000
        assert histogram.percentile_ms(percent) == pytest.approx(exact, rel=0.021)


def test_summary_without_samples_is_empty() -> None:
    assert LatencyHistogram().summary() == {}


@given(st.lists(st.floats(min_value=-10, max_value=1e9), min_size=1, max_size=50))
def test_percentiles_rise_and_stay_below_the_longest(values: list[float]) -> None:
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    found = [histogram.percentile_ms(percent) for percent in (1, 50, 99, 100)]
    assert found == sorted(found)
    assert found[-1] <= max(0.0, max(values)) * 1000
