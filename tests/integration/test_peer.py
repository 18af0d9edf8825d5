"""A peer that is no connection: another protocol's, say. Sends, long polls and POP work for it as for any other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import isawaitable
from pathlib import Path

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.remoting.command import RemotingCommand
from tests.fakes import FakePeer
from tests.integration.broker_calls import make_broker, pull_request, records_of, send_request
from tests.integration.pop_requests import pop_request, popped
from tests.waiting import wait_until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = make_broker(tmp_path)
    await broker.start()
    yield broker
    await broker.stop()


async def ask(broker: Broker, peer: FakePeer, request: RemotingCommand) -> RemotingCommand | None:
    """What the handler answers immediately; None when the answer is deferred and comes through the peer."""
    reply = broker.handlers[request.code](peer, request)
    return await reply if isawaitable(reply) else reply


async def test_a_send_tells_where_its_sender_is(broker: Broker) -> None:
    peer = FakePeer(("10.9.8.7", 1234))
    sent = await ask(broker, peer, send_request("TopicNew", b"from elsewhere"))
    assert sent is not None
    assert sent.code == 0
    pulled = await ask(broker, peer, pull_request("TopicNew"))
    assert pulled is not None
    (record,) = records_of(pulled)
    assert (record.body, record.born_host) == (b"from elsewhere", ("10.9.8.7", 1234))
    assert peer.written == []


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_reply_that_waits_for_the_disk_goes_to_the_peer(tmp_path: Path, kind: str) -> None:
    broker = make_broker(tmp_path, store={"flush_disk_type": f"{kind.upper()}_FLUSH"})
    await broker.start()
    try:
        peer = FakePeer()
        at_once = await ask(broker, peer, send_request("TopicNew"))
        await wait_until(lambda: at_once is not None or bool(peer.written), "the reply is there")
        assert (at_once is None) is (kind == "sync")
        assert [reply.code for reply in peer.replies() or [at_once]] == [0]
    finally:
        await broker.stop()


async def test_a_held_pull_is_answered_through_the_peer(broker: Broker) -> None:
    peer, sender = FakePeer(), FakePeer(("10.0.0.2", 1))
    await ask(broker, sender, send_request("TopicNew"))
    assert await ask(broker, peer, pull_request("TopicNew", 1, hold_ms=20_000)) is None
    assert broker.pending_pulls.count == 1
    await ask(broker, sender, send_request("TopicNew", b"late"))
    await wait_until(lambda: bool(peer.written), "the pending pull is answered")
    (reply,) = peer.replies()
    assert [record.body for record in records_of(reply)] == [b"late"]


async def test_a_peer_that_goes_takes_its_held_pulls_along(broker: Broker) -> None:
    peer = FakePeer()
    await ask(broker, peer, send_request("TopicNew"))
    assert await ask(broker, peer, pull_request("TopicNew", 1, hold_ms=20_000)) is None
    peer.close()
    assert broker.pending_pulls.count == 0


async def test_a_pop_that_waits_is_answered_through_the_peer(broker: Broker) -> None:
    peer, sender = FakePeer(), FakePeer(("10.0.0.2", 1))
    await ask(broker, sender, send_request("TopicNew", b"first"))
    first = await ask(broker, peer, pop_request(broker, "TopicNew"))
    assert first is not None
    assert [message.body for message in popped(first, "TopicNew")] == [b"first"]
    assert await ask(broker, peer, pop_request(broker, "TopicNew", poll_ms=20_000)) is None
    await ask(broker, sender, send_request("TopicNew", b"late"))
    await wait_until(lambda: bool(peer.written), "the waiting POP is answered")
    (reply,) = peer.replies()
    assert [message.body for message in popped(reply, "TopicNew")] == [b"late"]
