"""Rate of a stream in bytes per second, sampled by its caller. Core."""

from __future__ import annotations

WINDOW_S = 1.0


class ByteRate:
    """The rate over the last window of at least one second; 0 after two seconds without progress."""

    def __init__(self, now_s: float, position: int = 0) -> None:
        self._since_s = now_s
        self._from = position
        self._rate = 0

    def look(self, now_s: float, position: int) -> int:
        """The rate, given the present position of the stream."""
        elapsed_s = now_s - self._since_s
        if elapsed_s >= WINDOW_S:
            self._rate = int((position - self._from) / elapsed_s)
            self._since_s, self._from = now_s, position
        return self._rate
