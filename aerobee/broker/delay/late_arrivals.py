"""Arrival times of delay-level messages whose due time is too late because the clock was set back. Core.

A store time never goes back, so after a clock is set back the store times stand still until it has caught up, and the
due times that are made of them are late. Such a message is due when its level's delay has passed on the steady clock.
All messages of a step of STEP_S get the last one's time: none is early, and the table stays small.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from aerobee.clock import Clock

STEP_S = 0.1


@dataclass(slots=True)
class _Step:
    """The messages [first, end) of the level's queue arrived until `last_s`, by the steady clock."""

    first: int
    end: int
    began_s: float
    last_s: float


class LateArrivals:
    """Arrival times of one level. While the clock is behind, it has at most as many steps as fit the level's delay;
    otherwise it is empty."""

    def __init__(self, delay_ms: int, clock: Clock) -> None:
        self._delay_ms = delay_ms
        self._clock = clock
        self._steps: deque[_Step] = deque()
        self._end = -1  # of the level's queue, when add() was called last

    def add(self, end: int, wait_ms: int) -> None:
        """The level's queue has messages up to `end` now; the last one's due time is `wait_ms` ahead."""
        begin, self._end = self._end if self._end >= 0 else end - 1, end
        if wait_ms <= self._delay_ms:
            return
        now_s, steps = self._clock.monotonic(), self._steps
        while steps and now_s - steps[0].last_s > self._delay_ms / 1000 + STEP_S:
            steps.popleft()
        last = steps[-1] if steps else None
        if last is not None and now_s - last.began_s < STEP_S:
            last.end, last.last_s = end, now_s
        else:
            steps.append(_Step(begin, end, now_s, now_s))

    def left_ms(self, offset: int) -> int:
        """Remaining delay of the message at a queue offset, ms; 0 when its delay has expired or it is unknown."""
        for step in self._steps:
            if step.first <= offset < step.end:
                left_s = step.last_s + self._delay_ms / 1000 - self._clock.monotonic()
                return max(0, round(left_s * 1000))
        return 0
