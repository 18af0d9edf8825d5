"""Rate limit. Core: the time is an argument."""

from __future__ import annotations

from aerobee.grpc.limits import Rate


class TokenBucket:
    """A token bucket, initially full."""

    __slots__ = ("_rate", "_seen", "_tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate.burst)
        self._seen = now

    def take(self, now: float) -> bool:
        """Take a token; False when there is none. `now` in seconds never goes backwards."""
        rate = self._rate
        self._tokens = min(float(rate.burst), self._tokens + (now - self._seen) * rate.per_s)
        self._seen = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def fill(self) -> None:
        """Make it full."""
        self._tokens = float(self._rate.burst)
