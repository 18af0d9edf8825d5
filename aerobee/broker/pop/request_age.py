"""Age of a request, corrected for the difference between the clocks of client and broker.

RocketMQ compares `bornTime` with the broker's clock and drops an expired pop: a client whose clock is behind never gets
a message. Here the smallest difference seen on a connection counts as the difference of the clocks, so the age is the
time beyond that of the fastest request. The first request has age 0.

When a client's clock is set back, all its requests appear late by the same time. Requests that queued while the broker
was blocked were born at different times and arrive together. So a second request that is late by the same time as the
previous one, but was born later, indicates that the clock was set back. Core: times are arguments, ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

SAME_MS = 500  # clock differences closer than this count as equal
APART_MS = 1_000  # requests born closer together than this do not indicate a clock that was set back


@dataclass(slots=True)
class _Clock:
    """State of a peer's clock: this broker's minus the peer's, and the last request that appeared late."""

    difference_ms: int
    late_difference_ms: int = 0
    late_born_ms: int = 0


class RequestAge:
    """Ages of requests by connection; drops the state of closed connections."""

    def __init__(self) -> None:
        self._clocks: WeakKeyDictionary[object, _Clock] = WeakKeyDictionary()

    def age_ms(self, peer: object, born_ms: int, now_ms: int, *, late_ms: int) -> int:
        """Time since the peer sent a request, 0 or above. `born_ms` 0 or below means now.

        `late_ms` is the age from which on the caller drops the request.
        """
        if born_ms <= 0:
            return 0
        difference_ms = now_ms - born_ms
        clock = self._clocks.get(peer)
        if clock is None or difference_ms <= clock.difference_ms:
            self._clocks[peer] = _Clock(difference_ms)
            return 0
        age_ms = difference_ms - clock.difference_ms
        if age_ms > late_ms:
            was_set = (
                abs(difference_ms - clock.late_difference_ms) < SAME_MS
                and born_ms - clock.late_born_ms >= APART_MS
            )
            if clock.late_born_ms and was_set:
                self._clocks[peer] = _Clock(difference_ms)
                return 0
            if not clock.late_born_ms or abs(difference_ms - clock.late_difference_ms) >= SAME_MS:
                clock.late_difference_ms, clock.late_born_ms = difference_ms, born_ms
        return age_ms
