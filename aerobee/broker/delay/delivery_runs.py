"""Interface between levels or timers and the storage of due messages in runs (deliveries.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aerobee.broker.fastpath.seam import DeliveryResult, Looked, Stamp

RUN_MAX = 128  # messages of one run: a millisecond of the Python backend, then the event loop continues


class DeliveryRuns(Protocol):
    """Stores due messages under their real topics, many in one call."""

    def run(self, sources: Sequence[int], stamp: Stamp | None = None) -> DeliveryResult:
        """Deliver the records at these physical offsets in order, up to the first one that is not ordinary.

        Returns the number of delivered messages, their statistics by topic, and an exception to raise after these are
        recorded. They are readable and durable as after MessageStore.append. Timer messages have a `stamp`, for the
        properties with the times at which they entered and left the wheel. Redelivery handles the remaining ones and
        every error.
        """
        ...

    def look(self, sources: Sequence[int], precision_ms: int) -> list[Looked]:
        """The timer's data about these records of its topic, up to the first one that is not ordinary."""
        ...
