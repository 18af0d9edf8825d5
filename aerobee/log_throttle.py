"""Warnings that come again and again: written now and then with their number (LogThrottle), or once (RepeatedWarnings)."""

from __future__ import annotations

import logging
from collections.abc import Callable

INTERVAL_S = 10.0
KINDS_MAX = 256  # above it all kinds are dropped


class LogThrottle:
    """For what a peer can cause as often as it likes: `warn(kind, …)` writes the first warning of a kind immediately, then one
    each `interval_s` that counts the others, with the text of the newest. The number of kinds is bounded.
    """

    def __init__(
        self, log: logging.Logger, monotonic: Callable[[], float], interval_s: float = INTERVAL_S
    ) -> None:
        self.count = 0  # of all warnings, written or not
        self._log = log
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._kinds: dict[str, tuple[float, int]] = {}  # when the next may be written, how many were not

    def warn(self, kind: str, text: str, *args: object) -> bool:
        """Returns whether it was written."""
        self.count += 1
        now = self._monotonic()
        due, left_out = self._kinds.get(kind, (now, 0))
        if now < due:
            self._kinds[kind] = (due, left_out + 1)
            return False
        if len(self._kinds) >= KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (now + self._interval_s, 0)
        more = f" ({left_out} more like it before)" if left_out else ""
        # The caller's line counts as the call site, of which log_lines.py bounds the lines.
        self._log.warning(text + more.replace("%", "%%"), *args, stacklevel=2)
        return True


class RepeatedWarnings:
    """For what stays wrong for a while: by subject, a thing is said once; its repetitions are debug lines.

    A subject is one of a bounded set of names: brokers, topics of a group.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def warn(self, subject: str, text: str) -> None:
        """A warning when it is not what was said last of this subject."""
        is_new = self._said.get(subject) != text
        self._said[subject] = text
        self._log.log(logging.WARNING if is_new else logging.DEBUG, "%s", text, stacklevel=2)

    def clear(self, subject: str) -> None:
        """It is well now: what goes wrong next is said again."""
        self._said.pop(subject, None)
