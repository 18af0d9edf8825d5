"""POP's services without a protocol: typed requests by a caller that is no connection, typed results, late ones too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from aerobee.broker.admission.pending_access import RefusalOf
from aerobee.broker.pop.ack_service import AckRequest, BatchAckRequest, ChangeRequest, Written
from aerobee.broker.pop.notification_service import Notice, NotificationRequest
from aerobee.broker.pop.pop_feature import Pop
from aerobee.broker.pop.pop_service import PopOutcome, PopRequest, PopStatus
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.caller import Caller
from aerobee.errors import AerobeeError, RemoteError, StoreFull
from aerobee.message import Message, decode_records
from aerobee.remoting.body.pop_handle import Handle
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig
from aerobee.testing import LocalCluster


class PlainCaller:
    """A caller that has no connection and no frames."""

    def __init__(self) -> None:
        self.principal, self.listener = "", "default"
        self.host_port = ("10.1.1.1", 7)
        self.address = "10.1.1.1:7"
        self.is_open, self.congested = True, False
        self._callbacks: list[Callable[[Caller], None]] = []

    def on_close(self, callback: Callable[[Caller], None]) -> None:
        self._callbacks.append(callback)

    def close(self, reason: str = "") -> None:
        self.is_open = False
        for callback in self._callbacks:
            callback(self)

    def failed(self, error: BaseException | None = None) -> None:
        raise AssertionError(error)


class Call:
    """One call whose result may come late."""

    def __init__(self, caller: PlainCaller) -> None:
        self.caller = caller
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.is_open = True

    def refusal_by(self, refusal_of: RefusalOf) -> RemoteError | None:
        return None

    def deliver(self, outcome: PopOutcome | Notice) -> None:
        self.result.set_result(outcome)

    def refuse(self, error: AerobeeError) -> None:
        self.result.set_exception(error)


class World:
    """The services of one broker, and who calls them."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.caller = PlainCaller()
        self.broker = cluster.broker()
        self.pop_feature = next(each for each in cast(Any, self.broker).features if isinstance(each, Pop))

    def asked(self, **how: Any) -> PopRequest:
        fields: dict[str, Any] = {
            "group": "g",
            "topic": "orders",
            "queue_id": -1,
            "count_max": 32,
            "invisible_ms": 60_000,
        }
        return PopRequest(**(fields | how))  # fmt: skip

    async def pop(self, **how: Any) -> PopOutcome:
        call = Call(self.caller)
        outcome = self.pop_feature.pops.pop(self.asked(**how), call)
        if asyncio.iscoroutine(outcome):
            outcome = await outcome
        return cast(PopOutcome, outcome or await asyncio.wait_for(call.result, 120))

    def handles(self, outcome: PopOutcome) -> list[Handle]:
        taken = outcome.taken
        return [
            Handle(
                share.start_offset, taken.pop_time, outcome.want.invisible_ms, taken.revive_queue_id, share.retry,
                self.broker.identity.name, share.queue_id, offset,
            )
            for share in taken.shares
            for offset in share.offsets
        ]  # fmt: skip

    def ack(self, handle: Handle) -> bool:
        return self.pop_feature.acks.acknowledge(
            AckRequest("g", "orders", handle.queue_id, handle.queue_offset, handle)
        )

    async def written(self) -> Written:
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self.pop_feature.acks.when_written(future.set_result)
        return await future

    async def send(self, *bodies: bytes) -> None:
        async with self.cluster.producer() as producer:
            (queue,) = await producer.queues("orders")
            for body in bodies:
                await producer.send(Message("orders", body), queue=queue)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        yield World(cluster)


def bodies(outcome: PopOutcome) -> list[bytes]:
    return [record.body for body in outcome.taken.bodies for record in decode_records(body)]


async def test_a_caller_without_a_connection_pops_and_acknowledges(world: World) -> None:
    await world.send(b"1", b"2")
    outcome = await world.pop()
    assert (outcome.status, bodies(outcome)) == (PopStatus.FOUND, [b"1", b"2"])
    assert all(world.ack(handle) for handle in world.handles(outcome))
    written = await world.written()
    assert (written.error, written.end) == (None, world.broker.store.log.end)
    assert not world.ack(world.handles(outcome)[0]), "known, so there is nothing to write"
    assert (await world.pop()).status is PopStatus.NOTHING


async def test_a_pop_that_waits_gets_its_outcome_late(world: World) -> None:
    call = Call(world.caller)
    assert world.pop_feature.pops.pop(world.asked(poll_ms=15_000), call) is None
    await world.send(b"late")
    assert bodies(await asyncio.wait_for(call.result, 120)) == [b"late"]


async def test_a_pop_whose_caller_leaves_takes_nothing(world: World) -> None:
    first, second = Call(PlainCaller()), Call(world.caller)
    for call in (first, second):
        assert world.pop_feature.pops.pop(world.asked(poll_ms=15_000), call) is None
    first.caller.close()
    await world.send(b"1")
    assert bodies(await asyncio.wait_for(second.result, 120)) == [b"1"]
    assert not first.result.done()


async def test_a_dropped_call_gets_nothing_and_the_callers_others_do(world: World) -> None:
    first, second = Call(world.caller), Call(world.caller)
    for call in (first, second):
        assert world.pop_feature.pops.pop(world.asked(poll_ms=15_000), call) is None
    world.pop_feature.pops.drop(first)
    await world.send(b"1")
    assert bodies(await asyncio.wait_for(second.result, 120)) == [b"1"]
    assert (first.result.done(), world.pop_feature.waiting.count) == (False, 0)


async def test_a_message_for_a_call_that_has_just_ended_wakes_the_next(world: World) -> None:
    first, second = Call(world.caller), Call(world.caller)
    for call in (first, second):
        assert world.pop_feature.pops.pop(world.asked(poll_ms=120_000), call) is None
    first.is_open = False  # its end is noticed after the message has released it
    await world.send(b"1")
    assert bodies(await asyncio.wait_for(second.result, 60)) == [b"1"]
    assert not first.result.done()


async def test_an_invisible_time_is_changed_by_a_new_handle(world: World) -> None:
    await world.send(b"1")
    (handle,) = world.handles(await world.pop())
    change = ChangeRequest("g", "orders", handle.queue_id, handle.queue_offset, handle, 120_000)
    changed, end = world.pop_feature.acks.change_invisible(change, world.caller.address)
    assert (changed.invisible_ms, end) == (120_000, world.broker.store.log.end)
    with pytest.raises(Refused) as refused:
        world.pop_feature.acks.change_invisible(change, world.caller.address)
    assert refused.value.reason is Reason.NOT_HELD
    assert world.ack(changed)


async def test_an_ordered_block_comes_again_to_its_attempt_alone(world: World) -> None:
    await world.send(b"1", b"2")
    first = await world.pop(ordered=True, attempt_id="a", count_max=2)
    again = await world.pop(ordered=True, attempt_id="a", count_max=2)
    assert bodies(first) == bodies(again) == [b"1", b"2"]
    other = await world.pop(ordered=True, attempt_id="b", count_max=2)
    assert other.status is PopStatus.NOTHING
    assert other.taken.blocked_until > 0
    handles = world.handles(again)
    assert world.pop_feature.acks.acknowledge_batch(
        BatchAckRequest("g", "orders", handles[0], [handle.queue_offset for handle in handles])
    ) == (False, None)
    assert world.broker.offsets.query("g", "orders", 0) == 2


async def test_refusals_have_reasons_and_no_codes(world: World) -> None:
    reasons = {
        Reason.TOPIC_UNKNOWN: {"topic": "nowhere"},
        Reason.QUEUE_ILLEGAL: {"queue_id": 9},
        Reason.COUNT_ILLEGAL: {"count_max": 0},
        Reason.INVISIBLE_TIME_ILLEGAL: {"invisible_ms": -1},
        Reason.FORBIDDEN: {"group": "CID_RMQ_SYS_x"},
        Reason.FILTERS_OFF: {"expression_type": "SQL92", "expression": "a = 1"},
    }
    for reason, how in reasons.items():
        with pytest.raises(Refused) as refused:
            await world.pop(**how)
        assert refused.value.reason is reason
    world.broker.groups.put(SubscriptionGroupConfig("g", consume_enable=False))
    with pytest.raises(Refused) as refused:
        await world.pop()
    assert refused.value.reason is Reason.FORBIDDEN


async def test_acknowledgements_that_cannot_be_written_say_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.send(b"1")
    (handle,) = world.handles(await world.pop())

    def full(*_: object, **__: object) -> int:
        raise StoreFull("the disk is full")

    assert world.ack(handle)
    with monkeypatch.context() as patch:
        patch.setattr(world.pop_feature.engine.log, "append", full)
        written = await world.written()
    assert isinstance(written.error, StoreFull)
    assert world.ack(handle), "it is handed out still"


async def test_a_notice_comes_late_and_takes_nothing(world: World) -> None:
    call = Call(world.caller)
    asked = NotificationRequest(group="g", topic="orders", queue_id=-1, poll_ms=15_000)
    assert world.pop_feature.notifications.notify(asked, call) is None
    await world.send(b"1")
    assert await asyncio.wait_for(call.result, 120) == Notice(has_message=True)
    assert bodies(await world.pop()) == [b"1"]
