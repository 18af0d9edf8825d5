"""How many of the messages that wait in a queue a group's filter takes: counted in a small range, else estimated. Core.

Follows estimateAccumulation (RocketMQ), which scans the first 20,000 entries and extrapolates. Here the sample is spread over
the whole range, so that an old stretch of another tag does not stand for everything.
"""

from __future__ import annotations

from collections.abc import Callable

SAMPLE_MAX = 1_000  # entries that are looked at, some 2 ms


def estimated(begin: int, end: int, takes: Callable[[int], bool]) -> int:
    """How many of the offsets from `begin` to before `end` `takes` says yes to."""
    count = end - begin
    if count <= 0:
        return 0
    if count <= SAMPLE_MAX:
        return sum(takes(offset) for offset in range(begin, end))
    taken = sum(takes(begin + number * count // SAMPLE_MAX) for number in range(SAMPLE_MAX))
    return round(taken * count / SAMPLE_MAX)
