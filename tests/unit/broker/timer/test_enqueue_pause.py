"""Messages of the timer topic may wait for others before they get their units, but no request waits for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.timer import timer_service
from aerobee.broker.timer.enqueue import TimerEnqueue
from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.broker.timer.timer_service import TimerService
from aerobee.clock import ManualClock


class CountedEnqueue(TimerEnqueue):
    """Notes when it would give units."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.enqueued_at: list[int] = []

    def _enqueue(self) -> None:
        super()._enqueue()
        self.enqueued_at.append(self._clock.now_ms())


def started() -> tuple[TimerService, list[int], ManualClock, int]:
    """A timer that runs, the times at which it gives units, its clock and the time."""
    clock = ManualClock()
    with mock.patch.object(timer_service, "TimerEnqueue", CountedEnqueue):
        service = TimerService(
            store=cast(Any, SimpleNamespace(queues={}, appended=0, last_store_timestamp=0)),
            files=cast(Any, SimpleNamespace(precision_ms=1_000, wheel=SimpleNamespace(exists=False))),
            clock=clock,
            stats=BrokerStats(clock=clock, cluster="c"),
            pending=PendingCounts(clock.now_ms()),
            runs=cast(Any, None),
            existing_queue=lambda topic, queue_id: queue_id,
        )
    enqueued_at = cast(CountedEnqueue, service._enqueue).enqueued_at
    service.start()
    clock.advance(1)
    enqueued_at.clear()
    return service, enqueued_at, clock, clock.now_ms()


def test_what_may_wait_is_given_its_units_together() -> None:
    service, enqueued_at, clock, now = started()
    for _ in range(5):
        service.on_messages(0.02)
        clock.advance(0.003)
    clock.advance(1)
    assert enqueued_at == [now + 20]


def test_a_message_that_may_not_wait_ends_the_wait() -> None:
    service, enqueued_at, clock, now = started()
    service.on_messages(0.02)
    clock.advance(0.005)
    service.on_messages()
    service.on_messages(0.02)
    clock.advance(1)
    assert enqueued_at == [now + 5]


def test_who_asks_how_far_the_timer_is_does_not_wait() -> None:
    service, enqueued_at, clock, now = started()
    service.on_messages(0.02)
    service.delivered_until()
    clock.advance(1)
    assert enqueued_at == [now]


def test_a_stopped_timer_stays_stopped() -> None:
    service, enqueued_at, clock, _ = started()
    service.stop()
    service.on_messages(0.02)
    clock.advance(1)
    assert enqueued_at == []
