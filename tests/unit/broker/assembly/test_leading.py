"""Features begin when a broker may lead; what fails is refused, tried again, and in the end handed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aerobee.broker.assembly.leading import GIVE_UP_PAUSE_S, GIVE_UP_S, RETRY_S, Leading
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.unserved import STARTING, WAITING_MAX, UnservedKinds
from aerobee.clock import ManualClock
from aerobee.errors import StoreError
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer

STEP_S = 0.02


class Part(Feature):
    """Fails as long as `fault` says."""

    def __init__(self, name: str, needs: tuple[str, ...] = ()) -> None:
        self.name = name
        self.needs = needs
        self.fault: Exception | None = None
        self.calls: list[str] = []

    async def take_over(self) -> None:
        self.calls.append("take over")
        if self.fault is not None:
            raise self.fault

    def start(self) -> None:
        self.calls.append("start")

    def follow(self) -> None:
        self.calls.append("follow")

    def stop(self) -> None:
        self.calls.append("stop")


class Broker:
    """Three features, one of which needs another."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.unserved = UnservedKinds()
        self.timer, self.pop, self.other = Part("timer"), Part("pop", needs=("timer",)), Part("other")
        self.has_lease = True
        self.log_end = self.readable_end = 100
        self.handed_over: list[str] = []
        self.can_hand_over = True
        self.leading = Leading(
            features=(self.timer, self.pop, self.other),
            unserved=self.unserved,
            may_answer=lambda: self.has_lease,
            log_end=lambda: self.log_end,
            readable_end=lambda: self.readable_end,
            hand_over=self.hand_over,
            clock=self.clock,
        )

    async def hand_over(self, reason: str) -> bool:
        self.handed_over.append(reason)
        return self.can_hand_over

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            for _ in range(4):
                await asyncio.sleep(0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    broker.leading.stop()


async def test_nothing_is_read_before_there_is_a_lease(broker: Broker) -> None:
    broker.has_lease = False
    broker.leading.lead()
    await broker.run(5)
    assert broker.timer.calls == []
    assert broker.unserved.reasons == dict.fromkeys(("timer", "pop", "other"), STARTING)
    broker.has_lease = True
    await broker.run(0.1)
    assert broker.timer.calls == ["stop", "take over", "start"]
    assert broker.unserved.reasons == {}


async def test_nothing_is_read_before_the_copied_log_is_readable(broker: Broker) -> None:
    broker.readable_end = 99
    broker.leading.lead()
    broker.log_end = 300  # what this master stores itself is no matter
    await broker.run(5)
    assert broker.timer.calls == []
    assert broker.unserved.reasons == dict.fromkeys(("timer", "pop", "other"), STARTING)
    broker.readable_end = 100
    await broker.run(0.1)
    assert broker.timer.calls == ["stop", "take over", "start"]
    assert broker.unserved.reasons == {}


@pytest.mark.parametrize("fault", [StoreError("it is damaged"), ValueError("a bug")])
async def test_what_fails_is_refused_with_what_needs_it_and_tried_again(
    broker: Broker, fault: Exception
) -> None:
    broker.timer.fault = fault
    broker.leading.lead()
    await broker.run(2.5 * RETRY_S)
    assert broker.timer.calls.count("take over") == 3
    assert broker.unserved.reasons["timer"] == str(fault)
    assert "timer" in broker.unserved.reasons["pop"]
    assert broker.other.calls == ["stop", "take over", "start"]
    broker.timer.fault = None
    await broker.run(2 * RETRY_S)
    assert broker.unserved.reasons == {}
    assert broker.pop.calls == ["stop", "take over", "start"]
    assert broker.handed_over == []


async def test_a_lasting_fault_hands_the_mastership_over_once_in_a_while(broker: Broker) -> None:
    broker.can_hand_over = False
    broker.timer.fault = StoreError("it is damaged")
    broker.leading.lead()
    await broker.run(GIVE_UP_S + 20)
    assert len(broker.handed_over) == 1
    assert "timer: it is damaged" in broker.handed_over[0]
    assert broker.timer.calls.count("take over") > 10, "no other broker could: it keeps trying"
    broker.leading.resign()
    broker.can_hand_over = True
    broker.leading.lead()
    await broker.run(GIVE_UP_S + 5)
    assert len(broker.handed_over) == 1, "a fault of all replicas does not send the mastership round"
    broker.clock.advance(GIVE_UP_PAUSE_S)
    await broker.run(RETRY_S + 1)
    assert len(broker.handed_over) == 2


async def test_a_question_that_fails_ends_no_attempt(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(reason: str) -> bool:
        raise ValueError("a bug")

    monkeypatch.setattr(broker.leading, "_hand_over", fail)
    broker.timer.fault = StoreError("it is damaged")
    broker.leading.lead()
    await broker.run(GIVE_UP_S + 5)
    broker.timer.fault = None
    await broker.run(2 * RETRY_S)
    assert broker.unserved.reasons == {}


async def test_a_broker_that_resigns_while_it_takes_over_follows(broker: Broker) -> None:
    broker.has_lease = False
    broker.leading.lead()
    await broker.run(1)
    broker.leading.resign()
    broker.has_lease = True
    await broker.run(1)
    assert broker.unserved.reasons == {}
    for part in (broker.timer, broker.pop, broker.other):
        assert part.calls[-1] == "follow"
        assert "take over" not in part.calls


# --- requests meanwhile


def guarded(unserved: UnservedKinds, served: list[int]) -> Callable[[int], Any]:
    def handler(peer: Any, request: RemotingCommand) -> RemotingCommand:
        served.append(request.code)
        return request.reply()

    handlers = unserved.guard("pop", {1: handler, 2: handler}, frozenset({2}))
    return lambda code: handlers[code](FakePeer(), RemotingCommand(code, {}))


async def test_a_request_waits_for_a_feature_that_starts() -> None:
    unserved, served = UnservedKinds(), list[int]()
    call = guarded(unserved, served)
    assert call(1).code == 0
    unserved.put(["pop", "timer"], STARTING)
    waiting = asyncio.create_task(call(1))
    await asyncio.sleep(0)
    assert call(2).code == 0, "always served"
    unserved.take("timer")
    await asyncio.sleep(0)
    assert not waiting.done()
    unserved.take("pop")
    assert (await waiting).code == 0
    assert served == [1, 2, 1]


async def test_a_request_is_refused_when_the_feature_fails_or_too_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unserved, served = UnservedKinds(), list[int]()
    call = guarded(unserved, served)
    unserved.put(["pop"], STARTING)
    waiting = asyncio.create_task(call(1))
    await asyncio.sleep(0)
    unserved.put(["pop"], "its file is damaged")
    reply = await waiting
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "its file is damaged" in reply.remark
    unserved.put(["pop"], STARTING)
    monkeypatch.setattr("aerobee.broker.state.unserved.WAITING_MAX", 1)
    first = asyncio.create_task(call(1))
    await asyncio.sleep(0)
    assert (await call(1)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    unserved.clear()
    assert (await first).code == 0
    assert WAITING_MAX > 1
