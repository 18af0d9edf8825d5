"""Which refusals of strangers are lines of the audit log: a few of each address in a minute; the others are counted. Core.

Whoever reaches the port can be refused as often as he likes, from as many addresses as he has.
"""

from __future__ import annotations

from collections import Counter

WINDOW_MS = 60_000
LINES_OF_AN_ADDRESS = 5  # in a window
LINES_MAX = 30  # of all addresses together
COUNTED_ADDRESSES_MAX = 60  # whose further refusals are counted apart
OTHERS = "other addresses"


class Refusals:
    """admit() for each refusal; left_out() says what became no line, once its window is over."""

    def __init__(self) -> None:
        self._window = -1
        self._lines: Counter[str] = Counter()
        self._line_count = 0
        self._left_out: Counter[str] = Counter()

    def admit(self, host: str, now_ms: int) -> bool:
        """Whether this one is a line. Ask left_out() before, at this time."""
        window = now_ms // WINDOW_MS
        if window != self._window:  # also when the wall clock was set back
            self._window, self._line_count = window, 0
            self._lines.clear()
        if self._line_count < LINES_MAX and self._lines[host] < LINES_OF_AN_ADDRESS:
            self._lines[host] += 1
            self._line_count += 1
            return True
        if host not in self._left_out and len(self._left_out) >= COUNTED_ADDRESSES_MAX:
            host = OTHERS
        self._left_out[host] += 1
        return False

    def left_out(self, now_ms: int, *, is_last: bool = False) -> list[tuple[str, int]]:
        """Address and number of refusals of a window that is over, or, when nothing more comes, of this one. Told once."""
        if not self._left_out or (now_ms // WINDOW_MS == self._window and not is_last):
            return []
        found = sorted(self._left_out.items())
        self._left_out.clear()
        return found
