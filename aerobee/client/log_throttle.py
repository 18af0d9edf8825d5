"""Warnings that say a thing once: while the same goes wrong again and again, its repetitions are debug lines."""

from __future__ import annotations

import logging


class LogThrottle:
    """By subject, the last thing that was said. A subject is a bounded set of names: brokers, topics of a group."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def warn(self, subject: str, text: str) -> None:
        """A warning when it is not what was said last of this subject."""
        is_new = self._said.get(subject) != text
        self._said[subject] = text
        self._log.log(logging.WARNING if is_new else logging.DEBUG, "%s", text)

    def clear(self, subject: str) -> None:
        """It is well now: what goes wrong next is said again."""
        self._said.pop(subject, None)
