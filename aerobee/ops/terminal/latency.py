"""Histogram of durations in buckets of equal relative width, and percentiles read from it. No I/O.

Bucket n counts durations from 1.02^n to 1.02^(n+1) microseconds, so the error of a percentile is 2 % at most, and memory
does not grow with the number of samples.
"""

from __future__ import annotations

import math

BUCKET_RATIO = 1.02
LONGEST_US = 3_600e6  # longer durations count as this one
_LOG_RATIO = math.log(BUCKET_RATIO)
_BUCKET_COUNT = math.ceil(math.log(LONGEST_US) / _LOG_RATIO) + 1


class LatencyHistogram:
    """Durations in seconds in, percentiles in milliseconds out."""

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKET_COUNT
        self.count = 0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one (clock skew) counts as 1 microsecond."""
        microseconds = min(max(seconds * 1e6, 1.0), LONGEST_US)
        self._buckets[int(math.log(microseconds) / _LOG_RATIO)] += 1
        self.count += 1
        self.max_s = max(self.max_s, seconds)

    def percentile_ms(self, percent: float) -> float:
        """The duration that `percent` of all do not exceed; 0 without samples."""
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return min(BUCKET_RATIO ** (bucket + 1) / 1000, self.max_s * 1000)
        return 0.0

    def summary(self) -> dict[str, float]:
        """p50, p99, p99.9 and the longest, in ms; nothing without samples."""
        if not self.count:
            return {}
        return {
            "p50_ms": round(self.percentile_ms(50), 3),
            "p99_ms": round(self.percentile_ms(99), 3),
            "p99_9_ms": round(self.percentile_ms(99.9), 3),
            "max_ms": round(self.max_s * 1000, 3),
        }
