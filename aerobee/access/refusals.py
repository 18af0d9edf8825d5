"""Limits the audit log's lines for refusals of unauthenticated clients: a few per address and minute; others are counted. No I/O.

Any client that reaches the port can cause any number of refusals, from all its addresses.
"""

from __future__ import annotations

from collections import Counter

WINDOW_MS = 60_000
LINES_OF_AN_ADDRESS = 5  # lines of one address in a window
LINES_MAX = 30  # lines of all addresses together
COUNTED_ADDRESSES_MAX = 60  # addresses with a separate count of omitted refusals
OTHERS = "other addresses"


class Refusals:
    """Call admit() for each refusal; left_out() returns the number of omitted lines after the end of a window."""

    def __init__(self) -> None:
        self._window = -1
        self._lines: Counter[str] = Counter()
        self._line_count = 0
        self._left_out: Counter[str] = Counter()

    def admit(self, host: str, now_ms: int) -> bool:
        """Whether to log this refusal. Call left_out() with the same time before."""
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
        """Address and number of omitted refusals of an ended window, or, at the end of the log, of this one. Reported once."""
        if not self._left_out or (now_ms // WINDOW_MS == self._window and not is_last):
            return []
        found = sorted(self._left_out.items())
        self._left_out.clear()
        return found
