"""What doctor says of groups with a lag."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee.client.base.results import ConsumerProgress, QueueProgress, SubscriptionConflict
from aerobee.message import MessageQueue
from aerobee.ops.diagnosis.lag_findings import LagFacts, lag_findings

NOW_MS = 1_790_000_000_000
LONG_AGO_MS, JUST_NOW_MS = NOW_MS - 121_000, NOW_MS - 1_000


def group(*queues: QueueProgress) -> ConsumerProgress:
    return ConsumerProgress(group="billing", queues=queues, consume_tps=0.0)


def attended(*queues: QueueProgress) -> ConsumerProgress:
    return replace(group(*queues), members=("a",))


def queue(number: int, lag: int, last_ms: int, *, owner: str = "", worked_ms: int = 0) -> QueueProgress:
    return QueueProgress(
        queue=MessageQueue("orders", "broker-a", number),
        broker_offset=100,
        consumer_offset=100 - lag,
        pull_offset=100,
        last_timestamp_ms=last_ms,
        client_id=owner,
        member_worked_ms=worked_ms,
    )


def test_a_lag_without_members_is_a_stop() -> None:
    (found,) = lag_findings([LagFacts(group(queue(0, 5, LONG_AGO_MS), queue(1, 2, LONG_AGO_MS)))], NOW_MS)
    assert (found.level, found.part) == ("warn", "group billing")
    assert found.detail == "STOP: lag of 7 messages in 2 queues, no member is online"
    assert "group delete billing" in found.advice


def test_a_member_that_consumes_nothing_is_a_stall() -> None:
    stuck = queue(0, 5, LONG_AGO_MS, owner="a", worked_ms=LONG_AGO_MS)
    busy = queue(1, 9, LONG_AGO_MS, owner="a", worked_ms=JUST_NOW_MS)
    (found,) = lag_findings([LagFacts(attended(stuck, busy))], NOW_MS)
    assert found.detail == "STALL: lag of 5 messages in 1 queue, no offset moved for 2 minutes"
    assert "why --group billing" in found.advice


@pytest.mark.parametrize(
    "progress",
    [
        group(queue(0, 5, JUST_NOW_MS)),
        group(queue(0, 5, 0)),  # nothing was consumed yet
        group(queue(0, 0, LONG_AGO_MS)),
    ],
)
def test_a_short_or_no_lag_is_not_red(progress: ConsumerProgress) -> None:
    for members in ((), ("a",)):
        (found,) = lag_findings([LagFacts(replace(progress, members=members))], NOW_MS)
        assert (found.level, found.part) == ("ok", "cluster")


def test_groups_beyond_the_limit_are_said() -> None:
    (found,) = lag_findings([], NOW_MS, left_out=3)
    assert found.level == "warn"
    assert "3 groups not checked" in found.detail


def test_a_locked_queue_that_stands_still_is_blocked() -> None:
    stuck = queue(0, 5, LONG_AGO_MS, owner="a", worked_ms=LONG_AGO_MS)
    (found,) = lag_findings([LagFacts(attended(stuck), {stuck.queue: 90_000})], NOW_MS)
    assert found.detail == (
        "BLOCKED: lag of 5 messages in 1 queue, one member has locked the queue for 90 s, no offset moved for 2 minutes"
    )
    (found,) = lag_findings([LagFacts(attended(stuck), {stuck.queue: 59_000})], NOW_MS)
    assert found.detail.startswith("STALL: ")


def test_producers_that_are_faster_than_the_group_are_a_warning() -> None:
    moving = queue(0, 50, JUST_NOW_MS, owner="a", worked_ms=JUST_NOW_MS)
    slow = replace(attended(moving), consume_tps=4.0)
    (found,) = lag_findings([LagFacts(slow, produced_tps=6.5)], NOW_MS)
    assert found.level == "warn"
    assert found.detail == (
        "WARN: lag of 50 messages in 1 queue, producers add 6.5/s, the group consumes 4.0/s"
    )
    (found,) = lag_findings([LagFacts(slow, produced_tps=3.0)], NOW_MS)
    assert found.level == "ok"


def test_different_subscriptions_are_a_mismatch_also_without_lag() -> None:
    conflict = SubscriptionConflict(
        topic="orders", client_id="a", expression="paid", other_client_id="b", other_expression="*"
    )
    (found,) = lag_findings([LagFacts(replace(attended(queue(0, 0, 0)), conflicts=(conflict,)))], NOW_MS)
    assert found.detail == "MISMATCH: members have different subscriptions to orders, so they miss messages"
