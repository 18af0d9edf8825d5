"""Delay levels as a feature of the broker: schedule.py starts and stops with the master role."""

from __future__ import annotations

from aerobee.broker.delay.delivery_scan import deliveries_between
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.state.feature import Feature
from aerobee.store.message_store import MessageStore


class DelayLevels(Feature):
    """Messages with a delay level. The Schedule is created and loaded earlier, because other parts read it, too."""

    name = "delay levels"
    accepts_early = True

    def __init__(self, schedule: Schedule, store: MessageStore) -> None:
        self._schedule = schedule
        self._store = store

    async def take_over(self) -> None:
        start = self._schedule.copied_from
        if start is not None:
            end = self._store.log.end
            self._schedule.skip_delivered(await deliveries_between(self._store, start, end))

    def start(self) -> None:
        self._schedule.start()

    def follow(self) -> None:
        self._schedule.follow()

    def stop(self) -> None:
        self._schedule.stop()

    def save(self) -> None:
        self._schedule.save()
