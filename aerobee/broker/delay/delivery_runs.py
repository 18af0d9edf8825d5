"""What levels and timers ask of whoever stores runs of due messages (deliveries.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aerobee.broker.fastpath.seam import DeliveryResult, Looked, Stamp

RUN_MAX = 128  # messages of one run: a millisecond of the Python backend, then the event loop gets its turn


class DeliveryRuns(Protocol):
    """Stores due messages under their real topics, many in one call."""

    def run(self, sources: Sequence[int], stamp: Stamp | None = None) -> DeliveryResult:
        """Deliver the records at these physical offsets, from the first one on, as far as they are ordinary.

        Returns how many were delivered, what by topic, and what is to be raised when that is noted. They are readable
        and durable as after MessageStore.append. Timer messages have a `stamp`, for the properties that say when they
        entered and left the wheel. What is left, for whatever reason, is for Redelivery, which knows every error.
        """
        ...

    def look(self, sources: Sequence[int], precision_ms: int) -> list[Looked]:
        """What the timer has to know of these records of its topic, as far as they are ordinary."""
        ...
