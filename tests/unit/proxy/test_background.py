"""What a proxy does in the background is bounded: renewals and messages that are given back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.broker.grpc.receipt_handle import Receipt
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.client.base.tasks import Tasks
from aerobee.clock import ManualClock
from aerobee.errors import RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.proxy import background
from aerobee.proxy.background import AT_ONCE, Background
from aerobee.proxy.handles import Handles
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.remoting.body.pop_handle import Handle
from tests.waiting import wait_until

COUNT = 2_000


class SlowBroker:
    """Handles whose changes wait for a permission each."""

    def __init__(self) -> None:
        self.going = asyncio.Semaphore(0)
        self.running = self.most = self.changed = 0

    async def change(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.going.acquire()
        self.running -= 1
        self.changed += 1
        handle = receipt.handle
        return Receipt(
            Handle(
                handle.start_offset,
                handle.pop_time + 60_000,
                invisible_ms,
                0,
                "0",
                "b",
                0,
                handle.queue_offset,
            ),
            1,
        )


async def settled() -> None:
    """Until every task waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_renewals_due_at_once_are_bounded() -> None:
    clock, tasks, broker = ManualClock(), Tasks(), SlowBroker()
    handles: Any = broker
    renewals = ProxyRenewals(handles, tasks, clock)
    for offset in range(COUNT):
        receipt = Receipt(Handle(0, clock.now_ms(), 60_000, 0, "0", "b", 0, offset), 1)
        renewals.add("g", ("c", ""), "", "t", receipt)
    clock.advance(55)
    renewals.look()
    await settled()
    assert (broker.running, renewals.waiting_count) == (AT_ONCE, COUNT - AT_ONCE)
    renewals.look()
    await settled()
    assert renewals.waiting_count == COUNT - AT_ONCE, "they are not due twice"
    gone = next(reversed(renewals.table._by_key.values()))
    renewals.table.remove(gone)
    for _ in range(COUNT):
        broker.going.release()
    await wait_until(lambda: not renewals.waiting_count and not broker.running)
    assert (broker.most, broker.changed) == (AT_ONCE, COUNT - 1)
    await tasks.close()


async def test_a_topic_without_a_route_keeps_no_other_renewal_waiting() -> None:
    """Its message is tried again: the route may come back while the client works."""
    clock, tasks = ManualClock(), Tasks()

    class Routes(SlowBroker):
        has_route = False
        gone = 0

        async def change(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
            if topic == "gone" and not self.has_route:
                self.gone += 1
                raise RpcRefused(pb.TOPIC_NOT_FOUND, "no route")
            return await super().change(group, topic, receipt, invisible_ms)

    broker = Routes()
    handles: Any = broker
    renewals = ProxyRenewals(handles, tasks, clock)
    for offset in range(3 * AT_ONCE):
        receipt = Receipt(Handle(0, clock.now_ms(), 60_000, 0, "0", "b", 0, offset), 1)
        renewals.add("g", ("c", ""), "", "gone" if offset < 2 * AT_ONCE else "t", receipt)
    clock.advance(55)
    for _ in range(3 * AT_ONCE):
        broker.going.release()
    renewals.look()
    await wait_until(lambda: not renewals.waiting_count and not broker.running)
    assert (broker.gone, broker.changed) == (2 * AT_ONCE, AT_ONCE)
    broker.has_route = True
    clock.advance(3)
    renewals.look()
    await wait_until(lambda: broker.changed == 3 * AT_ONCE)
    await tasks.close()


@pytest.mark.parametrize(
    ("code", "is_kept"), [(1, True), (2, True), (14, True), (16, True), (13, False), (208, False)]
)
async def test_a_renewal_is_retried_unless_its_receipt_is_invalid(code: int, is_kept: bool) -> None:
    """A broker that is busy, or changes its role, ended the renewal for ever, and the message came to another client."""
    clock, tasks = ManualClock(), Tasks()

    class Busy(SlowBroker):
        error: RemoteError | None = RemoteError(code, "not now")
        refused = 0

        async def change(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> Receipt:
            if self.error is not None:
                self.refused += 1
                raise self.error
            return await super().change(group, topic, receipt, invisible_ms)

    broker = Busy()
    handles: Any = broker
    renewals = ProxyRenewals(handles, tasks, clock)
    renewals.add("g", ("c", ""), "", "t", Receipt(Handle(0, clock.now_ms(), 60_000, 0, "0", "b", 0, 0), 1))
    clock.advance(50)
    for _ in range(8):
        clock.advance(1)
        renewals.look()
        await settled()
    assert (broker.refused, len(renewals.table)) == ((8, 1) if is_kept else (1, 0))
    broker.error = None
    broker.going.release()
    clock.advance(1)
    renewals.look()
    await settled()
    assert broker.changed == is_kept
    await tasks.close()


async def test_a_message_whose_time_has_ended_is_not_renewed() -> None:
    clock, tasks, broker = ManualClock(), Tasks(), SlowBroker()
    handles: Any = broker
    renewals = ProxyRenewals(handles, tasks, clock)
    renewals.add("g", ("c", ""), "", "t", Receipt(Handle(0, clock.now_ms(), 60_000, 0, "0", "b", 0, 0), 1))
    clock.advance(61)
    renewals.look()
    await settled()
    assert (broker.running, len(renewals.table)) == (0, 0)
    await tasks.close()


async def test_a_message_that_cannot_be_given_back_keeps_no_other_waiting() -> None:
    tasks, returned = Tasks(), []
    cluster: Any = SimpleNamespace(session=SimpleNamespace(tasks=tasks))
    handles = Handles(cluster)

    async def change(group: str, topic: str, receipt: Receipt, invisible_ms: int, *, suspend: bool) -> None:
        if topic == "gone":
            raise RpcRefused(pb.TOPIC_NOT_FOUND, "no route")
        returned.append(topic)

    handles.change = change  # type: ignore[method-assign, assignment]
    for number in range(2 * AT_ONCE):
        handles.give_back("g", "gone", Receipt(Handle(0, 0, 60_000, 0, "0", "b", 0, number), 1))
    handles.give_back("g", "t", Receipt(Handle(0, 0, 60_000, 0, "0", "b", 0, 0), 1))
    await wait_until(lambda: not handles.waiting_count)
    assert returned == ["t"]
    await tasks.close()


async def test_work_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "WAITING_MAX", 3)
    tasks, done = Tasks(), []
    work = Background(tasks, "test")

    async def piece() -> None:
        done.append(len(done))

    assert [work.add(piece) for _ in range(4)] == [True, True, True, False]
    await settled()
    assert (len(done), len(work), work.running_count) == (3, 0, 0)
    assert work.add(piece)
    await settled()
    assert len(done) == 4
    await tasks.close()
