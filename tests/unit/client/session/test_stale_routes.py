"""A client that is refused or loses its broker requests the route immediately: its next send and pull find the new master."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aerobee.client.base.config import ProducerConfig
from aerobee.client.base.lost_peers import LostPeers
from aerobee.client.base.tasks import Tasks
from aerobee.client.consumer.queue_pull import PullSettings, QueuePull
from aerobee.client.producer.publish_info import PublishInfo, Target
from aerobee.client.producer.publish_info_table import REFRESH_PAUSE_S, PublishInfoTable
from aerobee.client.producer.send_tries import SendTries
from aerobee.client.session.route_cache import RouteCache
from aerobee.client.session.stale_routes import StaleRoutes
from aerobee.clock import ManualClock
from aerobee.errors import (
    AerobeeError,
    ConnectFailed,
    ConnectionLost,
    MessageIllegal,
    RequestTimeout,
    SystemBusy,
)
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.command import RemotingCommand
from tests.waiting import wait_until

QUEUE = MessageQueue("orders", "broker-a", 0)


class Session:
    """As much of a client's session as a producer's routes and a pull ask for."""

    def __init__(self, error: AerobeeError | None = None) -> None:
        self.clock = ManualClock()
        self.tasks = Tasks()
        self.asked = 0
        self.routes = self
        self.remoting = self
        self.peers = LostPeers(monotonic=self.clock.monotonic, name_of=str)
        self._error = error

    def on_change(self, _: object) -> None: ...

    async def refresh(self, topic: str) -> None:
        assert topic == QUEUE.topic
        self.asked += 1

    def leader_of(self, queue: MessageQueue) -> str:
        return queue.broker_name

    def address_of(self, *_: object) -> str:
        return "10.0.0.1:10911"

    async def invoke(self, *_: object, **__: object) -> None:
        assert self._error is not None
        raise self._error


async def _failing_send(failure: AerobeeError) -> Session:
    session = Session()
    routes = PublishInfoTable(cast(Any, session), "P", ProducerConfig())
    target = Target("broker-a", "10.0.0.1:10911", *(cast(Any, None),) * 3)
    routes.known["orders"] = PublishInfo((QUEUE,), {"broker-a": target}, first_turn=0)

    async def attempt(*_: object) -> None:
        raise failure

    tries = SendTries(routes, ProducerConfig(), None)
    for _ in range(3):
        with pytest.raises(AerobeeError):
            await tries.run("orders", QUEUE, asyncio.get_running_loop().time() + 5, attempt)
        await asyncio.sleep(0)
    return session


@pytest.mark.parametrize(
    "failure",
    [ConnectionLost("gone", address="10.0.0.1:10911"), RequestTimeout("late", address="10.0.0.1:10911")],
)
async def test_a_send_to_a_fixed_queue_that_fails_asks_for_the_route(failure: AerobeeError) -> None:
    session = await _failing_send(failure)
    assert session.asked == 1  # three failures, one question: the others come too soon
    session.clock.advance(REFRESH_PAUSE_S)
    await asyncio.sleep(0)
    await session.tasks.close()


async def test_after_a_pause_the_next_failure_asks_again() -> None:
    session = Session()
    routes = PublishInfoTable(cast(Any, session), "P", ProducerConfig())
    for count in (1, 2, 3):
        routes.refresh_behind("orders")
        await wait_until(lambda count=count: session.asked == count, "the route is requested")
        session.clock.advance(REFRESH_PAUSE_S)
        await wait_until(lambda: not routes._refreshing, "the pause ended")
    await session.tasks.close()


async def test_a_message_that_no_broker_takes_asks_for_no_route() -> None:
    session = await _failing_send(MessageIllegal(13, "too large"))
    assert session.asked == 0
    await session.tasks.close()


@pytest.mark.parametrize("failure", [SystemBusy(2, "a slave answers no pulls"), ConnectionLost("gone")])
async def test_a_pull_that_a_broker_refuses_asks_for_the_route(failure: AerobeeError) -> None:
    session = Session(failure)
    settings = PullSettings(
        lite=False,
        commits=True,
        post_subscription=False,
        count_max=32,
        bytes_max=1 << 20,
        hold_s=1.0,
        timeout_s=3.0,
        cached_count_max=100,
        cached_bytes_max=1 << 20,
    )
    subscription = SimpleNamespace(version=1, expression="*", expression_type="TAG", tags=())
    pull = QueuePull(
        cast(Any, session),
        "G",
        QUEUE,
        0,
        settings=settings,
        subscription=lambda: cast(Any, subscription),
        deliver=lambda *_: None,
        moved=lambda *_: None,
    )
    pull.start()
    await wait_until(lambda: session.asked == 1, "the route is requested")
    pull.stop()
    await session.tasks.close()


class Routes:
    """What StaleRoutes asks of a route cache: two topics at one address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: AerobeeError | None = None

    def topics_at(self, address: str) -> list[str]:
        return ["orders", "bills"] if address == ADDRESS else []

    async def refresh(self, topic: str) -> None:
        self.asked.append(topic)
        if self.error is not None:
            raise self.error


ADDRESS = "10.0.0.1:10911"
LOST = ConnectionLost("gone", address=ADDRESS)


async def test_a_failed_call_has_the_routes_of_its_address_read_again() -> None:
    routes, clock = Routes(), ManualClock()
    stale = StaleRoutes(cast(Any, routes), clock=clock, tasks=Tasks())
    for _ in range(100):
        stale.failed(ADDRESS, LOST)
        stale.failed("10.0.0.2:10911", LOST)
        stale.failed(ADDRESS, MessageIllegal(13, "too large"))
        await asyncio.sleep(0)
    assert routes.asked == ["orders", "bills"]


async def test_a_broker_that_stays_away_is_asked_for_ever_more_rarely() -> None:
    routes, clock, reads = Routes(), ManualClock(), 0
    stale = StaleRoutes(cast(Any, routes), clock=clock, tasks=Tasks())
    for _ in range(600):  # a minute of failures, ten a second
        stale.failed(ADDRESS, LOST)
        await asyncio.sleep(0)
        clock.advance(0.1)
        await asyncio.sleep(0)
    reads = len(routes.asked) // 2
    assert 12 <= reads <= 20
    stale.answered(ADDRESS)
    assert stale.pauses_s == {}


async def test_without_a_nameserver_the_other_topics_are_not_asked_for() -> None:
    routes = Routes()
    routes.error = ConnectFailed("no nameserver")
    StaleRoutes(cast(Any, routes), clock=ManualClock(), tasks=Tasks()).failed(ADDRESS, LOST)
    await asyncio.sleep(0)
    assert routes.asked == ["orders"]


def route_of(address: str) -> bytes:
    return fastjson.dumps(
        {
            "brokerDatas": [{"brokerAddrs": {"0": address}, "brokerName": "broker-a", "cluster": "C"}],
            "queueDatas": [{"brokerName": "broker-a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1}],
        }
    )


async def test_the_newest_route_says_where_a_broker_is() -> None:
    """A topic whose route was not read since the failover must not bring back the old master."""
    now = "old:1"

    class Nameserver:
        async def invoke(self, request: RemotingCommand, **_: object) -> tuple[str, RemotingCommand]:
            return "nameserver:1", request.reply(body=route_of(now))

    clock, tasks = ManualClock(), Tasks()
    routes = RouteCache(
        cast(Any, Nameserver()),
        clock=clock,
        tasks=tasks,
        refresh_s=30.0,
        request_timeout_s=3.0,
        peers=LostPeers(monotonic=clock.monotonic, name_of=str),
    )
    for topic in ("a", "b", "c"):
        await routes.refresh(topic)
    now = "new:1"
    await routes.refresh("a")
    assert routes.address_of("broker-a") == "new:1"
    assert routes.topics_at("old:1") == ["b", "c"]
    routes.unwatch("c")
    assert routes.address_of("broker-a") == "new:1"
    await routes.refresh("b")
    assert routes.topics_at("new:1") == ["a", "b"]
    await tasks.close()
