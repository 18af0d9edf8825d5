"""What the console says above a group's queues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from aerobee.client.admin.explain import QueueLock
from aerobee.client.base.results import ConsumerProgress, QueueProgress, SubscriptionConflict
from aerobee.clock import ManualClock
from aerobee.console.snapshot import GroupLook, Snapshot
from aerobee.message import MessageQueue
from aerobee.monitoring.lag_state import LagState


def progress(*lags: int) -> ConsumerProgress:
    queues = tuple(
        QueueProgress(
            queue=MessageQueue("orders", "broker-a", number),
            broker_offset=2_000,
            consumer_offset=2_000 - lag,
            pull_offset=2_000 - lag,
            last_timestamp_ms=0,
        )
        for number, lag in enumerate(lags)
    )
    return ConsumerProgress(group="billing", queues=queues, consume_tps=0.0)


@pytest.mark.parametrize(
    ("lags", "headline"),
    [
        ((726, 801, 1089, 900), "lag 3516 messages in 4 queues; orders at broker-a, queue 2: "),
        ((0, 21, 0), "lag 21 messages in 1 queue; orders at broker-a, queue 1: "),
        ((0, 0), "no lag"),
        ((), "it never consumed"),
    ],
)
def test_the_headline_is_the_lag_of_all_queues(lags: tuple[int, ...], headline: str) -> None:
    look = GroupLook("billing")
    snapshot = Snapshot(cast(Any, None), ManualClock(), 1.0)
    snapshot._sample(look, progress(*lags))
    snapshot._judge(look, progress(*lags), {})
    assert look.reason.startswith(headline)


class _Locked:
    """The admin client of a cluster in which a member has locked queue 0 for two minutes; counts the requests."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.requests = 0

    async def queue_locks(self, group: str) -> tuple[QueueLock, ...]:
        self.requests += 1
        queue = MessageQueue("orders", "broker-a", 0)
        since_ms = self._clock.now_ms() - 120_000
        return (QueueLock(queue=queue, client_id="a", since_ms=since_ms, age_ms=1_000, lease_ms=60_000),)


async def test_a_locked_queue_whose_offset_stands_still_is_blocked() -> None:
    clock = ManualClock()
    admin = _Locked(clock)
    snapshot, look = Snapshot(cast(Any, admin), clock, 1.0), GroupLook("billing", members=1)
    for _ in range(3):
        snapshot._sample(look, progress(5))
        snapshot._judge(look, progress(5), await snapshot._locks(look))
        clock.advance(45.0)
    assert look.state is LagState.BLOCKED
    assert "has held the ordered queue for 120 s" in look.reason
    assert admin.requests == 1  # not while the group was observed for less than a minute


async def test_different_subscriptions_are_a_mismatch_also_without_lag() -> None:
    snapshot, look = Snapshot(cast(Any, None), ManualClock(), 1.0), GroupLook("billing", members=2)
    conflict = SubscriptionConflict(
        topic="orders", client_id="a", expression="paid", other_client_id="b", other_expression="*"
    )
    differing = replace(progress(0), conflicts=(conflict,))
    snapshot._sample(look, differing)
    snapshot._judge(look, differing, await snapshot._locks(look))
    assert (look.state, look.reason) == (
        LagState.MISMATCH,
        "orders: members of the group have different subscriptions",
    )
