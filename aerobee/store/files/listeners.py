"""Callbacks of other parts, each with a separate error boundary.

A failing callback is logged and does not affect its caller: the record is already stored, and a stored record must
never appear as failed. The remaining callbacks are still called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, TypeVarTuple

from aerobee.clock import Clock

_logger = logging.getLogger(__name__)
LOG_INTERVAL_S = 10.0  # a callback may fail with each message: one traceback in this time tells enough
_Arguments = TypeVarTuple("_Arguments")


class Listeners(Generic[*_Arguments]):
    """Callbacks of one event. `what` names the event in the log."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._callbacks: list[Callable[[*_Arguments], Any]] = []
        self._logged_s = float("-inf")
        self.failure_count = 0

    def add(self, callback: Callable[[*_Arguments], Any]) -> None:
        """Call back from now on, in the order of these calls."""
        self._callbacks.append(callback)

    def tell(self, *args: *_Arguments) -> None:
        """Run every callback. Never raises an Exception."""
        for callback in self._callbacks:
            try:
                callback(*args)
            except Exception:
                self._note_failure(callback)

    def _note_failure(self, callback: Callable[..., Any]) -> None:
        self.failure_count += 1
        now_s = self._clock.monotonic()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            _logger.exception(
                "%s: %r failed (%d failures so far); what was stored stays stored",
                self._what,
                callback,
                self.failure_count,
            )
