"""Coverage of faults: how often each feature was in use within 100 ms of each fault."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

WITHIN_S = 0.1


class Contacts:
    """Counts of one run. A fault has several moments: its begin, its change into another fault, and its repair."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._uses: dict[str, list[float]] = {}  # feature: seconds, ascending
        self._faults: list[tuple[str, float]] = []

    def use(self, feature: str) -> None:
        """Note a use of this feature now."""
        now, times = self._now(), self._uses.setdefault(feature, [])
        if not times or times[-1] < now:
            times.append(now)

    def fault(self, name: str) -> None:
        """Note a moment of a fault now."""
        self._faults.append((name, self._now()))

    def clear(self) -> None:
        """Reset: the start that several runs share has ended."""
        self._uses.clear()
        self._faults.clear()

    def table(self, settings: tuple[str, ...]) -> dict[str, dict[str, int]]:
        """feature -> fault -> number of moments of the fault with a use of the feature within WITHIN_S.
        `settings` count for every moment.
        """
        met: dict[str, Counter[str]] = {}
        for name, at in self._faults:
            for feature, times in self._uses.items():
                index = bisect_left(times, at - WITHIN_S)
                if index < len(times) and times[index] <= at + WITHIN_S:
                    met.setdefault(feature, Counter())[name] += 1
            for setting in settings:
                met.setdefault(setting, Counter())[name] += 1
        return {feature: dict(faults) for feature, faults in met.items()}
