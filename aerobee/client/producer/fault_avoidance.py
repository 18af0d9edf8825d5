"""Brokers that a producer should avoid for a while. Pure: time is an argument.

Source: MQFaultStrategy. A latency of at least the threshold makes the broker unavailable for the associated duration;
a failure counts as ten seconds of latency.
"""

from __future__ import annotations

import bisect

LATENCY_MS = (50, 100, 550, 1800, 3000, 5000, 15_000)
UNAVAILABLE_MS = (0, 0, 2000, 5000, 6000, 10_000, 30_000)
FAILURE_LATENCY_MS = 10_000


class FaultAvoidance:
    """The time until which to avoid each broker."""

    __slots__ = ("_avoid_until",)

    def __init__(self) -> None:
        self._avoid_until: dict[str, float] = {}

    def record(self, broker_name: str, latency_ms: float, now_s: float) -> None:
        """Record the latency of one reply. `now_s` is monotonic."""
        pause_ms = unavailable_ms(latency_ms)
        if pause_ms:
            self._avoid_until[broker_name] = now_s + pause_ms / 1000
        else:
            self._avoid_until.pop(broker_name, None)

    def record_failure(self, broker_name: str, now_s: float) -> None:
        self.record(broker_name, FAILURE_LATENCY_MS, now_s)

    def is_available(self, broker_name: str, now_s: float) -> bool:
        return self._avoid_until.get(broker_name, 0.0) <= now_s

    def first_back(self, broker_names: list[str]) -> str:
        """The avoided broker whose time ends first."""
        return min(broker_names, key=lambda name: self._avoid_until.get(name, 0.0))


def unavailable_ms(latency_ms: float) -> int:
    index = bisect.bisect_right(LATENCY_MS, latency_ms) - 1
    return UNAVAILABLE_MS[index] if index >= 0 else 0
