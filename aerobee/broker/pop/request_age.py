"""How long a request was under way, when its client's clock may be minutes off.

RocketMQ compares `bornTime` with the broker's own clock and drops a pop whose time is up: a client whose clock is behind
never gets a message. Here the clocks are compared for each connection: the smallest difference seen is taken for the
difference of the clocks, so only what a request took longer than the quickest one counts. A first request is never late.

When a client's clock is set back, its requests look late. They are all late by the same time then, while those that
piled up before a broker that stood still were born at different times and come together. So a second request that is
late by as much as the one before, and was born later, says that the clock was set.
Core: times are arguments, ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

SAME_MS = 500  # two differences of clocks closer than this are one
APART_MS = 1_000  # requests born closer together than this tell nothing of a clock that was set


@dataclass(slots=True)
class _Clock:
    """What is known of a peer's clock: ours minus its own, and the last request that looked late."""

    difference_ms: int
    late_difference_ms: int = 0
    late_born_ms: int = 0


class RequestAge:
    """Ages of requests by connection; forgets a connection with it."""

    def __init__(self) -> None:
        self._clocks: WeakKeyDictionary[object, _Clock] = WeakKeyDictionary()

    def age_ms(self, peer: object, born_ms: int, now_ms: int, *, late_ms: int) -> int:
        """How long ago the peer sent a request, 0 or above. `born_ms` 0 or below means now.

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
