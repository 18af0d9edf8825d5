"""The broker's table of SQL92 filters: loaded, kept up to date by heartbeats, written, and asked by the store."""

from __future__ import annotations

from aerobee.broker.feature import BrokerParts, Feature
from aerobee.clock import Timer

SAVE_INTERVAL_S = 10.0


class FilterFeature(Feature):
    """consumerFilter.json, and the bits of queue entries where enableCalcFilterBitMap asks for them."""

    name = "filter"

    def __init__(self, parts: BrokerParts) -> None:
        self.table = parts.filters
        self._parts = parts
        self._timer: Timer | None = None
        parts.consumers.on_subscriptions(self.table.subscribed)
        if parts.live.value.enable_calc_filter_bit_map and parts.store.config.enable_consume_queue_ext:
            parts.store.set_bitmap(self.table.bitmap)

    def load(self) -> None:
        self.table.load()

    def start(self) -> None:
        self._timer = self._parts.clock.call_later(SAVE_INTERVAL_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def save(self) -> None:
        self.table.save()

    def _tick(self) -> None:
        self._timer = self._parts.clock.call_later(SAVE_INTERVAL_S, self._tick)
        self.table.clean()
        write = self.table.prepare_save()
        if write is not None:
            self._parts.run_blocking(write)
