"""Delivery lateness: delivery time minus due time, as percentiles of the last minutes. Core.

Fixed buckets, about 12 % apart, in two alternating windows: a reading covers one to two windows.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence

WINDOW_S = 60.0


def _bounds() -> tuple[int, ...]:
    bounds = list(range(11))
    while bounds[-1] < 86_400_000:
        bounds.append(max(bounds[-1] + 1, bounds[-1] * 9 // 8))
    return tuple(bounds)


_BOUNDS_MS = _bounds()  # a bucket's upper end, inclusive


class DeliveryLateness:
    """Histogram of lateness in ms."""

    def __init__(self) -> None:
        self._now = [0] * (len(_BOUNDS_MS) + 1)
        self._before = [0] * (len(_BOUNDS_MS) + 1)
        self._turned_at = 0.0
        self._max_now = self._max_before = 0
        self.count = 0  # deliveries since the start

    def add(self, late_ms: int) -> None:
        """Count one delivery with this lateness in milliseconds."""
        late = max(0, late_ms)
        self._now[bisect.bisect_left(_BOUNDS_MS, late)] += 1
        self._max_now = max(self._max_now, late)
        self.count += 1

    def add_all(self, late_ms: Sequence[int]) -> None:
        """add() for each; deliveries of one pass have few distinct values."""
        for late, count in Counter(late_ms).items():
            bucket = bisect.bisect_left(_BOUNDS_MS, max(0, late))
            self._now[bucket] += count
        self._max_now = max(self._max_now, *late_ms)
        self.count += len(late_ms)

    def turn(self, monotonic_s: float) -> None:
        """Drop counts older than the window. Called periodically."""
        if monotonic_s - self._turned_at >= WINDOW_S:
            self._before, self._now = self._now, [0] * len(self._now)
            self._max_before, self._max_now = self._max_now, 0
            self._turned_at = monotonic_s

    def percentile_ms(self, share: float) -> int:
        """The upper end of the bucket in which this share (0..1) of the deliveries ends; 0 without any."""
        counts = [a + b for a, b in zip(self._now, self._before, strict=True)]
        wanted, seen = share * sum(counts), 0
        if not wanted:
            return 0
        for bound, count in zip(_BOUNDS_MS, counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(bound, self.max_ms)
        return self.max_ms

    def quantiles_s(self) -> list[tuple[tuple[str, ...], float]]:
        """Median, 99th percentile and maximum with their names, in seconds; empty when nothing was delivered."""
        if not any(self._now) and not any(self._before):
            return []
        shares = (("0.5", self.percentile_ms(0.5)), ("0.99", self.percentile_ms(0.99)), ("1", self.max_ms))
        return [((name,), late_ms / 1000) for name, late_ms in shares]

    @property
    def max_ms(self) -> int:
        """The maximum lateness of the present and the previous window, ms."""
        return max(self._max_now, self._max_before)

    def info(self, prefix: str) -> dict[str, str]:
        """Keys for GET_BROKER_RUNTIME_INFO, `<prefix>DeliveryErrorP50Ms` and so on."""
        return {
            f"{prefix}DeliveryErrorP50Ms": str(self.percentile_ms(0.5)),
            f"{prefix}DeliveryErrorP99Ms": str(self.percentile_ms(0.99)),
            f"{prefix}DeliveryErrorMaxMs": str(self.max_ms),
            f"{prefix}Delivered": str(self.count),
        }
