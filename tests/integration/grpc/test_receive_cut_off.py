"""Messages that were popped for a ReceiveMessage and did not reach its client come back in a second, with the attempts they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aerobee.access.gate import Gate
from aerobee.access.keepers import UserKeeper
from aerobee.access.users import MemoryTable, Users
from aerobee.broker.admission.ack import Safety
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.call_peer import CallPeer
from aerobee.broker.grpc.pop_rpcs import PopServices, make_pop_rpcs, make_renewals
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.grpc.proto import messages as pb
from aerobee.message import Message
from aerobee.testing import LocalCluster
from tests.fakes import FakePeer
from tests.integration.grpc.test_receive_message import receive_request
from tests.unit.broker.access_sends import CONFIG
from tests.waiting import wait_until


class Stream:
    """A ResponseStream of a client that takes everything, until it leaves."""

    def __init__(self, peer: CallPeer, *, takes: bool = True) -> None:
        self._peer = peer
        self._takes = takes
        self.sent: list[Any] = []
        self.is_over = self.is_cut_off = False

    def push(self, *responses: Any) -> None:
        self.sent += responses

    async def send(self, response: Any) -> None:
        self.push(response)

    def end(self) -> None:
        if self._takes:
            self.is_over = True
            self._peer.end()

    def leave(self) -> None:
        """The client ends the call before it has everything."""
        self.is_over = self.is_cut_off = True
        self._peer.end()

    @property
    def bodies(self) -> list[bytes]:
        return [each.message.body for each in self.sent if each.WhichOneof("content") == "message"]


class World:
    def __init__(self, cluster: LocalCluster, gate: Gate) -> None:
        self.cluster = cluster
        broker = cast(Any, cluster.broker())
        self.services = broker.services
        parts = broker._serving.parts
        pops = PopServices(
            pops=self.services.pops,
            acks=self.services.acks,
            send_backs=self.services.send_backs,
            lite=self.services.lite,
        )
        self.renewals = make_renewals(parts, pops)
        self.parts = parts
        rpcs = make_pop_rpcs(parts, pops, renewals=self.renewals, access=RpcAccess(gate))
        self._receive = next(rpc.streaming for rpc in rpcs if rpc.name == "ReceiveMessage")

    def receive(self, *, takes: bool = True, **how: Any) -> Stream:
        peer = CallPeer(cast(Any, FakePeer()), ("10.0.0.1", 43_664))
        stream = Stream(peer, takes=takes)
        context = RpcContext({"x-mq-client-id": "client-1"}, peer, None, ("127.0.0.1", 8081))
        assert self._receive is not None
        assert self._receive(context, receive_request(**how), stream) is None
        return stream

    async def send(self, *bodies: bytes) -> None:
        async with self.cluster.producer() as producer:
            for body in bodies:
                await producer.send(Message("orders", body))

    async def received_again(self) -> list[tuple[bytes, int]]:
        """(body, delivery attempt) of what comes back."""
        streams = [self.receive(poll_s=20)]
        await wait_until(lambda: streams[0].is_over)
        return [
            (each.message.body, each.message.system_properties.delivery_attempt)
            for each in streams[0].sent
            if each.WhichOneof("content") == "message"
        ]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=1)
        yield World(cluster, Gate(keeper=None, admin_open=True))


async def test_messages_of_a_response_that_was_cut_off_come_back(world: World) -> None:
    await world.send(b"1")
    stream = world.receive(takes=False, auto_renew=True)
    assert stream.bodies == [b"1"]
    stream.leave()
    assert len(world.renewals.table) == 0
    assert await world.received_again() == [(b"1", 1)]


async def test_a_client_that_leaves_before_the_log_is_safe_gets_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.send(b"1")
    releases: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            type(world.parts.ack), "when_safe", lambda self, caller, end, release: releases.append(release)
        )
        stream = world.receive()
    assert (stream.sent, len(releases)) == ([], 1)
    stream.leave()
    releases[0](Safety.SAFE, "")
    assert stream.sent == []
    assert await world.received_again() == [(b"1", 1)]


async def test_messages_are_not_sent_while_the_log_is_not_safe(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.send(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(
            type(world.parts.ack),
            "when_safe",
            lambda self, caller, end, release: release(Safety.FLUSH_TIMEOUT, "the disk is late"),
        )
        stream = world.receive()
    assert stream.bodies == []
    assert stream.sent[0].status.code == pb.MASTER_PERSISTENCE_TIMEOUT
    assert await world.received_again() == [(b"1", 1)]


async def test_messages_of_a_whole_response_are_renewed_where_the_client_asks_for_it(world: World) -> None:
    await world.send(b"1", b"2")
    assert world.receive(auto_renew=True).bodies == [b"1", b"2"]
    assert len(world.renewals.table) == 2
    await world.send(b"3")
    assert world.receive().bodies == [b"3"]
    assert len(world.renewals.table) == 2


async def test_a_waiting_call_costs_no_task(world: World) -> None:
    world.receive(poll_s=20)
    before = len(asyncio.all_tasks())
    streams = [world.receive(poll_s=20) for _ in range(50)]
    assert len(asyncio.all_tasks()) == before
    assert world.services.pops._waiting.count == 51
    for stream in streams:
        stream.leave()
    assert world.services.pops._waiting.count == 1


async def test_a_waiting_call_whose_user_is_refused_gets_unauthorized(world: World) -> None:
    stream = world.receive(poll_s=20)
    (pending,) = world.services.pops._waiting.everything()
    closed = Gate(
        keeper=UserKeeper(Users(MemoryTable(), MemoryTable()), CONFIG, lambda: "DefaultCluster"),
        admin_open=False,
    )
    cast(Any, pending.call)._rpc._access = RpcAccess(closed)
    refusal = pending.refusal_by(lambda peer, request: None)
    assert refusal is not None
    pending.refuse(refusal)
    assert stream.sent[0].status.code == pb.UNAUTHORIZED
    assert stream.is_over
