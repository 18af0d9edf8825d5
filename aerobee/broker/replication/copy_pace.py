"""Pause of a slave between two rounds of copying its master's tables. Core."""

from __future__ import annotations

INTERVAL_S = 1.0
PAUSE_FACTOR = 10  # pause as a multiple of a round's duration
PAUSE_MAX_S = 60.0  # RocketMQ's slaves request the tables this often


class CopyPace:
    """The pause grows with the duration of a round, so that large tables are requested less often.

    A single slow round does not show such a cost: the master may have been paused, or the network interrupted. A pause of ten
    times that wait left deleted topics at a slave for minutes.
    """

    def __init__(self) -> None:
        self._last_s = 0.0  # duration of the last complete round

    def pause_s(self, took_s: float, *, is_complete: bool) -> float:
        """The pause after a round that took `took_s`, from INTERVAL_S to PAUSE_MAX_S.

        Ten times the duration of the faster one of the last two complete rounds. An incomplete round ended with an
        error, usually after a wait for an answer: the pause is as long as the round.
        """
        wanted_s = took_s
        if is_complete:
            wanted_s = PAUSE_FACTOR * min(took_s, self._last_s)
            self._last_s = took_s
        return min(PAUSE_MAX_S, max(INTERVAL_S, wanted_s))
