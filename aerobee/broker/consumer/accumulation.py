"""Number of lagging messages that match a group's filter: counted in a small range, else estimated. Core.

Follows estimateAccumulation (RocketMQ), which scans the first 20,000 entries and extrapolates. Here the sample is
spread over the whole range, so that an old range with another tag does not dominate the estimate.
"""

from __future__ import annotations

from collections.abc import Callable

SAMPLE_MAX = 1_000  # sampled entries, about 2 ms


def estimated(begin: int, end: int, takes: Callable[[int], bool]) -> int:
    """Number of offsets in [begin, end) for which `takes` returns True."""
    count = end - begin
    if count <= 0:
        return 0
    if count <= SAMPLE_MAX:
        return sum(takes(offset) for offset in range(begin, end))
    taken = sum(takes(begin + number * count // SAMPLE_MAX) for number in range(SAMPLE_MAX))
    return round(taken * count / SAMPLE_MAX)
