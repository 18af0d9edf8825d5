"""The broker's table of SQL92 filters: loads and writes it, updates it from heartbeats, and evaluates it for the
store.
"""

from __future__ import annotations

from aerobee.broker.filter.filter_table import FilterTable
from aerobee.broker.state.feature import Feature
from aerobee.clock import Clock, Timer

SAVE_INTERVAL_S = 10.0


class FilterFeature(Feature):
    """Keeps consumerFilter.json."""

    name = "filter"

    def __init__(self, *, table: FilterTable, clock: Clock) -> None:
        self.table = table
        self._clock = clock
        self._timer: Timer | None = None

    def load(self) -> None:
        self.table.load()

    def start(self) -> None:
        self._timer = self._clock.call_later(SAVE_INTERVAL_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def save(self) -> None:
        self.table.save()

    def _tick(self) -> None:
        self._timer = self._clock.call_later(SAVE_INTERVAL_S, self._tick)
        self.table.clean()
        self.table.save_soon()
