"""Messages of the timer topic may wait for company before they get their units, but nobody waits for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aerobee.broker.stats import BrokerStats
from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.broker.timer.timer_service import TimerService
from aerobee.clock import ManualClock


class Service(TimerService):
    """Notes when it would give units."""

    def __init__(self, clock: ManualClock) -> None:
        self.enqueued_at: list[int] = []
        files = SimpleNamespace(precision_ms=1_000, wheel=SimpleNamespace(exists=False))
        super().__init__(
            store=cast(Any, SimpleNamespace(queues={}, appended=0)),
            files=cast(Any, files),
            clock=clock,
            stats=BrokerStats(clock=clock, cluster="c"),
            pending=PendingCounts(clock.now_ms()),
            runs=cast(Any, None),
        )

    def _enqueue(self) -> None:
        super()._enqueue()
        self.enqueued_at.append(self._clock.now_ms())


def started() -> tuple[Service, ManualClock, int]:
    clock = ManualClock()
    service = Service(clock)
    service.start()
    clock.advance(1)
    service.enqueued_at.clear()
    return service, clock, clock.now_ms()


def test_what_may_wait_is_given_its_units_together() -> None:
    service, clock, now = started()
    for _ in range(5):
        service.messages_came(0.02)
        clock.advance(0.003)
    clock.advance(1)
    assert service.enqueued_at == [now + 20]


def test_a_message_that_may_not_wait_ends_the_wait() -> None:
    service, clock, now = started()
    service.messages_came(0.02)
    clock.advance(0.005)
    service.messages_came()
    service.messages_came(0.02)
    clock.advance(1)
    assert service.enqueued_at == [now + 5]


def test_who_asks_how_far_the_timer_is_does_not_wait() -> None:
    service, clock, now = started()
    service.messages_came(0.02)
    service.delivered_until()
    clock.advance(1)
    assert service.enqueued_at == [now]


def test_a_stopped_timer_stays_stopped() -> None:
    service, clock, _ = started()
    service.stop()
    service.messages_came(0.02)
    clock.advance(1)
    assert service.enqueued_at == []
