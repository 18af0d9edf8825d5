"""Locks of an ordered consumer at their broker: no lock survives its unlock, whatever is under way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.client.base.lost_peers import LostPeers
from aerobee.client.consumer import queue_locking
from aerobee.client.consumer.queue_locking import QueueLocking
from aerobee.clock import ManualClock
from aerobee.errors import RequestTimeout
from aerobee.message import MessageQueue

LEASE_S = 30.0
Q0, Q1 = (MessageQueue("T", "broker-a", number) for number in range(2))


class LockBroker:
    """A broker's lock table: a request takes effect as it arrives, its answer comes once it may."""

    def __init__(self) -> None:
        self.locked: set[MessageQueue] = set()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.loses_answers = False

    async def lock(
        self, session: object, group: str, address: str, queues: list[MessageQueue], *, lease_s: float
    ) -> frozenset[MessageQueue]:
        self.locked.update(queues)
        if self.loses_answers:
            raise RequestTimeout("no answer within 3 s")
        await self.may_answer.wait()
        return frozenset(queues)

    async def unlock(self, session: object, group: str, address: str, queues: list[MessageQueue]) -> None:
        self.locked.difference_update(queues)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> LockBroker:
    broker = LockBroker()
    monkeypatch.setattr(queue_locking, "lock_queues", broker.lock)
    monkeypatch.setattr(queue_locking, "unlock_queues", broker.unlock)
    return broker


@pytest.fixture
def locking() -> QueueLocking:
    async def address(broker_name: str, topic: str) -> str:
        return "10.0.0.1:10911"

    session: Any = SimpleNamespace(
        clock=ManualClock(),
        broker_address=address,
        routes=SimpleNamespace(leader_of=lambda queue: queue.broker_name),
        peers=LostPeers(monotonic=float, name_of=str),
    )
    return QueueLocking(session, "g", lease_s=LEASE_S, lost=lambda queue, reason: None)


async def passes() -> None:
    """Let all tasks run as far as they can without an answer."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_lock_is_given_back_whose_grant_comes_while_closing(
    broker: LockBroker, locking: QueueLocking
) -> None:
    broker.may_answer.clear()
    taking = asyncio.create_task(locking.take([Q0, Q1]))
    await passes()
    ending = asyncio.create_task(locking.end())
    await passes()
    broker.may_answer.set()
    await asyncio.gather(taking, ending)
    assert (broker.locked, locking.locks.held) == (set(), [])


async def test_a_lock_request_without_an_answer_is_given_back(
    broker: LockBroker, locking: QueueLocking
) -> None:
    broker.loses_answers = True
    assert await locking.take([Q0]) == set()
    assert broker.locked == {Q0}
    await locking.end()
    assert broker.locked == set()


async def test_a_renewal_under_way_takes_no_released_queue_again(
    broker: LockBroker, locking: QueueLocking
) -> None:
    await locking.take([Q0, Q1])
    keeping = asyncio.create_task(locking.keep())
    await passes()
    broker.may_answer.clear()
    locking._session.clock.advance(locking.locks.renew_interval_s)  # type: ignore[attr-defined]
    await passes()
    releasing = asyncio.create_task(locking.give_back([Q0]))
    await passes()
    broker.may_answer.set()
    await releasing
    await passes()
    assert (broker.locked, locking.locks.held) == ({Q1}, [Q1])
    keeping.cancel()


async def test_nothing_is_locked_or_renewed_after_the_end(broker: LockBroker, locking: QueueLocking) -> None:
    await locking.take([Q0, Q1])
    await locking.end(kept=[Q1])
    assert broker.locked == {Q1}
    assert await locking.take([Q0]) == set()
    assert broker.locked == {Q1}


async def test_a_renewal_that_is_answered_after_the_lease_keeps_no_lost_queue(
    broker: LockBroker, locking: QueueLocking
) -> None:
    """The queue may be another member's: renewed, its unused lock would keep every other member out."""
    await locking.take([Q0])
    keeping = asyncio.create_task(locking.keep())
    await passes()
    broker.may_answer.clear()
    clock: Any = locking._session.clock
    clock.advance(locking.locks.renew_interval_s)
    await passes()
    clock.advance(LEASE_S - locking.locks.renew_interval_s)
    await passes()
    assert locking.locks.held == [], "the lease has expired, and the queue is lost"
    broker.may_answer.set()
    await passes()
    assert (broker.locked, locking.locks.held) == (set(), [])
    keeping.cancel()
