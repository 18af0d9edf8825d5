"""What the console says above a group's queues."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aerobee.client.base.results import ConsumerProgress, QueueProgress
from aerobee.clock import ManualClock
from aerobee.console.snapshot import GroupLook, Snapshot
from aerobee.message import MessageQueue


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
    Snapshot(cast(Any, None), ManualClock(), 1.0)._judge(look, progress(*lags))
    assert look.reason.startswith(headline)
