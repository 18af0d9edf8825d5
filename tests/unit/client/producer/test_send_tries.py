"""The tries of a send: what surely was not stored is tried elsewhere and waited for, what may have been stored is a try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from aerobee.client.base.config import ProducerConfig
from aerobee.client.producer import send_tries
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.send_tries import SendTries, may_be_stored
from aerobee.errors import (
    AerobeeError,
    ConnectFailed,
    ConnectionLost,
    GoAway,
    MalformedFrame,
    MessageIllegal,
    NoMaster,
    NoNameServer,
    NoPermission,
    NotLeaderForQueue,
    NotWritable,
    RemoteError,
    RemoteSystemError,
    RequestTimeout,
    RouteError,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    UsageError,
)
from aerobee.message import MessageQueue
from aerobee.simulation.simulated_loop import SimulatedClock, SimulatedLoop

TOPIC = "orders"
LOST = ConnectionLost("the connection ended", address="10.0.0.1:10911")
REFUSED = ConnectFailed("connection refused", address="10.0.0.1:10911")
SLAVE = ServiceNotAvailable(14, "a slave")
NOT_STORED = [REFUSED, SLAVE, GoAway(1500, "leaving"), NotLeaderForQueue(501, "another one does")]
Answer = AerobeeError | str


class Routes:
    """A producer's routes: a topic of these brokers, or what is raised for it, one after the other."""

    def __init__(self, brokers: Sequence[str] = ("a",), masterless: Sequence[str] = ()) -> None:
        queues = [MessageQueue(TOPIC, name, 0) for name in (*brokers, *masterless)]
        targets = {name: Target(name, f"{name}:10911", *(cast(Any, None),) * 3) for name in brokers}
        self.whole = PublishInfo(queues, targets, first_turn=-1, masterless=masterless)
        self.known = {TOPIC: self.whole}
        self.once_known = {TOPIC}
        self.failures: list[AerobeeError] = []
        self.asked = 0
        self.behind = 0
        self.refresh_deadlines: list[float] = []

    async def info(self, topic: str, deadline: float) -> PublishInfo:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        self.known[topic] = self.whole
        return self.whole

    async def refresh(self, topic: str, deadline: float) -> None:
        self.asked += 1
        self.refresh_deadlines.append(deadline)

    def refresh_behind(self, topic: str) -> None:
        self.behind += 1


class Brokers:
    """What each try is answered; the last answer stays. `asked` names the brokers that were."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def attempt(self, target: Target, queue: MessageQueue) -> str:
        self.asked.append(target.broker_name)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, AerobeeError):
            raise answer
        return answer


async def send(
    brokers: Brokers,
    routes: Routes | None = None,
    *,
    fixed: MessageQueue | None = None,
    within_s: float = 60.0,
    **config: int,
) -> str:
    tries = SendTries(cast(Any, routes or Routes()), ProducerConfig(**cast(Any, config)), None)
    deadline = asyncio.get_running_loop().time() + within_s
    return await tries.run(TOPIC, fixed, deadline, brokers.attempt)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of sends, which take no time."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        found.append(seconds)
        await sleep(0)

    monkeypatch.setattr(send_tries.asyncio, "sleep", note)
    return found


@pytest.mark.parametrize("failure", NOT_STORED)
@pytest.mark.parametrize("fixed", [None, MessageQueue(TOPIC, "a", 0)])
async def test_what_surely_was_not_stored_is_tried_until_it_is(
    failure: AerobeeError, fixed: MessageQueue | None, pauses: list[float]
) -> None:
    brokers = Brokers(*[failure] * 20, "stored")
    assert await send(brokers, fixed=fixed) == "stored"
    assert len(brokers.asked) == 21
    assert pauses[:5] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.2])
    assert max(pauses) == pytest.approx(0.2)


@pytest.mark.parametrize("failure", [LOST, RemoteSystemError(1, "a sync failed")])
async def test_what_may_have_been_stored_is_tried_as_often_as_is_set(
    failure: AerobeeError, pauses: list[float]
) -> None:
    brokers = Brokers(failure)
    with pytest.raises(SendFailed, match="3 tries"):
        await send(brokers)
    assert len(brokers.asked) == 3
    assert pauses == []


@pytest.mark.parametrize("failure", [REFUSED, SLAVE, SystemBusy(2, "busy"), NoPermission(16, "no")])
async def test_a_failed_send_says_that_no_broker_has_the_message(failure: AerobeeError) -> None:
    with pytest.raises(SendFailed, match="was not stored in") as failed:
        await send(Brokers(failure), within_s=0.05)
    assert not failed.value.may_be_stored
    assert failed.value.retriable is failure.retriable


@pytest.mark.parametrize("failure", [LOST, RequestTimeout("no reply"), RemoteSystemError(1, "a sync failed")])
async def test_a_failed_send_says_that_a_broker_may_have_it(
    failure: AerobeeError, pauses: list[float]
) -> None:
    with pytest.raises(SendFailed, match="is not confirmed and may be stored") as failed:
        await send(Brokers(failure, REFUSED), within_s=0.05)
    assert failed.value.may_be_stored
    assert failed.value.retriable


@pytest.mark.parametrize(
    ("failure", "is_open"),
    [
        (LOST, True),
        (RemoteError(999, "an unknown code"), True),
        (MalformedFrame("the reply"), True),
        (SendFailed("tries", may_be_stored=True), True),
        (SendFailed("tries"), False),
        (REFUSED, False),
        (RouteError(TOPIC), False),
        (MessageIllegal(13, "too large"), False),
        (UsageError("no topic"), False),
        (OSError("the input file"), False),
    ],
)
def test_which_failures_leave_open_whether_a_broker_has_the_message(
    failure: Exception, is_open: bool
) -> None:
    assert may_be_stored(failure) is is_open


async def test_a_doubt_is_kept_when_many_tries_follow(pauses: list[float]) -> None:
    with pytest.raises(SendFailed) as failed:
        await send(Brokers(LOST, *[REFUSED] * 60, LOST), within_s=60)
    assert failed.value.may_be_stored


async def test_a_final_refusal_after_a_doubt_does_not_hide_it() -> None:
    with pytest.raises(SendFailed, match="may be stored") as failed:
        await send(Brokers(LOST, MessageIllegal(13, "too large")))
    assert failed.value.may_be_stored


async def test_a_refusal_between_them_is_no_try(pauses: list[float]) -> None:
    brokers = Brokers(LOST, REFUSED, SLAVE, LOST, REFUSED, LOST)
    with pytest.raises(SendFailed, match="6 tries"):
        await send(brokers)
    assert len(brokers.asked) == 6


@pytest.mark.parametrize("failure", [LOST, RemoteSystemError(1, "a sync failed")])
async def test_to_a_fixed_queue_what_may_have_been_stored_is_not_sent_again(failure: AerobeeError) -> None:
    brokers = Brokers(failure)
    with pytest.raises(SendFailed, match="1 try"):
        await send(brokers, fixed=MessageQueue(TOPIC, "a", 0))
    assert brokers.asked == ["a"]


async def test_other_brokers_are_tried_before_any_pause(pauses: list[float]) -> None:
    brokers = Brokers(SLAVE, REFUSED, "stored")
    assert await send(brokers, Routes(("a", "b", "c"))) == "stored"
    assert brokers.asked == ["a", "b", "c"]
    assert pauses == []
    brokers = Brokers(*[SLAVE] * 3, *[REFUSED] * 3, "stored")
    assert await send(brokers, Routes(("a", "b", "c"))) == "stored"
    assert sorted(brokers.asked[:3]) == sorted(brokers.asked[3:6]) == ["a", "b", "c"]
    assert len(pauses) == 2


async def test_with_no_tries_after_the_first_nothing_is_waited_for(pauses: list[float]) -> None:
    for failure in (LOST, SLAVE, REFUSED):
        brokers = Brokers(failure)
        with pytest.raises(SendFailed, match="1 try"):
            await send(brokers, retry_count_max=0)
        assert brokers.asked == ["a"]
    routes = Routes()
    routes.known.clear()
    routes.failures = [NoMaster(TOPIC)] * 2
    with pytest.raises(NoMaster):
        await send(Brokers("stored"), routes, retry_count_max=0)
    assert pauses == []


async def test_a_send_ends_with_its_time_and_says_what_was_wrong() -> None:
    brokers, routes = Brokers(SLAVE), Routes()
    with pytest.raises(SendFailed, match=r"\d times? a at a:10911: .*a slave") as caught:
        await send(brokers, routes, within_s=0.1)
    assert 2 <= len(brokers.asked) == len(caught.value.attempts)
    assert routes.behind == 1  # for the next send


async def test_a_send_that_waits_for_long_remembers_a_few_tries_and_counts_all(pauses: list[float]) -> None:
    refusals = [ServiceNotAvailable(14, f"a slave {number}") for number in range(300)]
    end = MessageIllegal(13, "too large")
    brokers = Brokers(*refusals[:150], LOST, *refusals[150:], LOST, LOST)
    with pytest.raises(SendFailed, match=r"in 303 tries .*287 times something else") as caught:
        await send(brokers)
    assert len(caught.value.attempts) == 16
    failures = [failure for _, failure in caught.value.attempts]
    assert failures[:8] == refusals[:8]
    assert failures.count(LOST) == 3
    assert not any(failure.__traceback__ for failure in failures)
    with pytest.raises(MessageIllegal):
        await send(Brokers(*refusals, end))


async def test_a_refusal_for_good_ends_the_waiting(pauses: list[float]) -> None:
    with pytest.raises(MessageIllegal):
        await send(Brokers(SLAVE, SLAVE, MessageIllegal(13, "too large"), "stored"))


async def test_a_cancelled_send_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_tries, "PAUSE_FIRST_S", 1000.0)
    brokers = Brokers(SLAVE, "stored")
    task = asyncio.create_task(send(brokers, within_s=2000.0))
    while not brokers.asked:  # noqa: ASYNC110  the task makes it true
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert brokers.asked == ["a"]


@pytest.mark.parametrize(
    "failure", [NoMaster(TOPIC, "no master"), RouteError(TOPIC), NotWritable(TOPIC), NoNameServer("none")]
)
async def test_a_route_that_was_there_is_waited_for(failure: AerobeeError, pauses: list[float]) -> None:
    routes, brokers = Routes(), Brokers("stored")
    routes.known.clear()
    routes.failures = [failure] * 9
    assert await send(brokers, routes) == "stored"
    assert len(pauses) == 9
    routes.known.clear()
    routes.failures = [failure] * 9
    assert await sending_info(routes) is routes.whole


async def sending_info(routes: Routes) -> PublishInfo:
    tries = SendTries(cast(Any, routes), ProducerConfig(), None)
    return await tries.info(TOPIC, asyncio.get_running_loop().time() + 60)


@pytest.mark.parametrize("failure", [RouteError(TOPIC), NotWritable(TOPIC), NoNameServer("none")])
@pytest.mark.parametrize("ask", [sending_info, lambda routes: send(Brokers("stored"), routes)])
async def test_a_route_that_never_was_there_is_a_mistake(
    failure: AerobeeError, ask: Callable[[Routes], Any], pauses: list[float]
) -> None:
    routes = Routes()
    routes.known.clear()
    routes.once_known.clear()
    routes.failures = [failure]
    with pytest.raises(type(failure)):
        await ask(routes)
    assert pauses == []


async def test_no_route_until_the_time_is_over_is_what_is_raised() -> None:
    routes = Routes()
    routes.known.clear()
    routes.failures = [NoMaster(TOPIC, "no master now")] * 1000
    with pytest.raises(NoMaster, match="no master now"):
        await send(Brokers("stored"), routes, within_s=0.1)


async def test_a_fixed_queue_waits_for_its_master_only_where_there_is_such_a_broker(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes, whole = Routes(("a",), masterless=("b",)), Routes(("a", "b"))

    async def refresh(topic: str, deadline: float) -> None:
        if len(pauses) == 3:
            routes.known[topic] = whole.whole

    monkeypatch.setattr(routes, "refresh", refresh)
    brokers = Brokers("stored")
    assert await send(brokers, routes, fixed=MessageQueue(TOPIC, "b", 0)) == "stored"
    assert brokers.asked == ["b"]
    assert len(pauses) == 3
    with pytest.raises(RouteError, match="no-such"):
        await send(brokers, routes, fixed=MessageQueue(TOPIC, "no-such", 0))
    assert len(pauses) == 3


@pytest.mark.parametrize(
    ("remaining_s", "is_only_try", "wait_s"),
    [
        (3.0, False, 1.0),
        (60.0, False, 3.0),
        (0.9, False, 0.5),
        (0.2, False, 0.2),
        (2.0, True, 2.0),
        (60.0, True, 3.0),
    ],
)
def test_a_connection_takes_a_share_of_the_time_unless_there_is_one_try(
    remaining_s: float, is_only_try: bool, wait_s: float
) -> None:
    assert send_tries.connect_s(remaining_s, is_only_try=is_only_try) == pytest.approx(wait_s)


async def test_a_silent_nameserver_takes_a_share_of_a_sends_time_only(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_tries, "_now", lambda: 100.0)
    routes = Routes()
    tries = SendTries(cast(Any, routes), ProducerConfig(), None)
    assert await tries.run(TOPIC, None, 130.0, Brokers(REFUSED, LOST, "stored").attempt) == "stored"
    assert routes.refresh_deadlines == [110.0, 110.0]


def test_no_try_begins_when_the_nameserver_took_the_rest_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes, brokers = Routes(), Brokers(REFUSED, "stored")
    loop = SimulatedLoop(SimulatedClock())
    deadlines: list[float] = []

    async def refresh(topic: str, deadline: float) -> None:
        deadlines.append(deadline)
        await asyncio.sleep(deadline - loop.time())

    monkeypatch.setattr(routes, "refresh", refresh)
    began = loop.time()
    with pytest.raises(SendFailed, match="connection refused"):
        loop.run_until_complete(send(brokers, routes, within_s=0.2))
    assert brokers.asked == ["a"]
    assert deadlines == [pytest.approx(began + 0.2)]
    assert loop.time() - began == pytest.approx(0.2, abs=0.01)
    loop.close()


async def test_a_failure_counts_its_seconds_from_where_the_send_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A NameServer that took nearly all of a send's time is part of what the sender waited for."""
    monkeypatch.setattr(send_tries, "_now", lambda: 130.0)
    tries = SendTries(cast(Any, Routes()), ProducerConfig(), None)
    with pytest.raises(SendFailed, match=r"in 1 try within 30\.00 s"):
        await tries.run(TOPIC, None, 130.0, Brokers(LOST).attempt, began=100.0)
