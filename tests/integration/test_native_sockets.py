"""A broker whose connections are read by native code, over real sockets: cut frames, mixed kinds, slow and broken peers.

What transports and connections do is in test_remoting.py, which runs on both kinds of network.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct

import pytest

from aerobee.broker.fastpath.choice import choose_backend
from aerobee.message import decode_records
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.frame import encode_frame
from tests.integration.native_broker import (
    GROUP,
    TOPIC,
    WITHIN_S,
    peer_of,
    runtime_info,
    send,
    serving,
    stored,
)
from tests.survival.frame_mutator import FrameMutator
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(
    choose_backend().make_sockets is None, reason="only the native backend on Linux has them"
)


def pull(opaque: int, queue: int, offset: int, *, count: int = 32) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "1000",
        "subscription": "*", "subVersion": "1", "expressionType": "TAG",
    }  # fmt: skip
    return encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE.value, ext, opaque=opaque))


def long_poll(opaque: int, offset: int) -> bytes:
    ext = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "1",
        "expressionType": "TAG",
    }  # fmt: skip
    return encode_frame(RemotingCommand(RequestCode.PULL_MESSAGE.value, ext, opaque=opaque))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(6))
async def test_frames_cut_anywhere_are_each_answered_once(seed: int, flush: str) -> None:
    chance = random.Random(seed)
    frames = []
    for opaque in range(1, 201):
        kind = chance.random()
        if kind < 0.75:
            frames.append(send(opaque, size=chance.choice((0, 100, 5_000)), binary=chance.random() < 0.3))
        elif kind < 0.9:
            frames.append(runtime_info(opaque))
        else:
            frames.append(send(opaque, size=200_000))  # longer than what native code keeps of a frame
    data = b"".join(frames)
    sends = sum(len(frame) > 150 for frame in frames)
    async with serving(flush_disk_type=flush) as broker, peer_of(broker) as peer:

        async def write() -> None:
            at = 0
            while at < len(data):
                step = chance.choice((1, 7, 300, 3_000, 70_000, 400_000))
                peer.writer.write(data[at : at + step])
                at += step
                if chance.random() < 0.3:
                    await asyncio.sleep(0.001)

        writing = asyncio.create_task(write())
        replies = await peer.replies(200)
        await writing
        assert sorted(reply.opaque for reply in replies) == list(range(1, 201))
        assert {reply.code for reply in replies} == {ResponseCode.SUCCESS}
        assert stored(broker) == sends
        positions = sorted(
            (reply.ext["queueId"], int(reply.ext["queueOffset"]))
            for reply in replies
            if reply.ext and "queueOffset" in reply.ext
        )
        assert len(set(positions)) == sends


async def test_many_connections_share_a_turn_and_each_gets_its_own_replies() -> None:
    async with serving() as broker, contextlib.AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(peer_of(broker)) for _ in range(40)]
        for round_number in range(5):
            for number, peer in enumerate(peers):
                first = 1000 * number + 10 * round_number
                peer.writer.write(b"".join(send(first + each) for each in range(10)))
            for number, peer in enumerate(peers):
                first = 1000 * number + 10 * round_number
                assert [reply.opaque for reply in await peer.replies(10)] == list(range(first, first + 10))
        assert stored(broker) == 2000
        item = broker.stats._puts[TOPIC].counter
        assert (item.count, item.times) == (2000, 2000)


async def test_a_look_for_slow_peers_takes_only_frames_that_have_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0
    given = Connection.data_received

    def count(connection: Connection, data: bytes) -> None:
        nonlocal reads
        reads += 1
        given(connection, data)

    async with serving() as broker, peer_of(broker) as peer:
        peer.writer.write(send(1))
        await peer.replies(1)
        connection = max(broker.connections, key=lambda each: each.host_port[1])  # the last that came
        monkeypatch.setattr(Connection, "data_received", count)
        assert connection.frame_begun() is None
        peer.writer.write(send(2))
        await peer.replies(1)
        assert reads == 0, "native code continues to read it"
        frame = send(3, size=500)
        peer.writer.write(frame[:100])
        await asyncio.sleep(0.05)
        begun = connection.frame_begun()
        assert begun is not None
        assert begun[1] == len(frame)
        peer.writer.write(frame[100:])
        assert [reply.opaque for reply in await peer.replies(1)] == [3]


async def test_behind_its_first_read_a_connection_is_served_without_an_object_for_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0
    given = Connection.data_received

    def count(connection: Connection, data: bytes) -> None:
        nonlocal reads
        reads += 1
        given(connection, data)

    async with serving() as broker, peer_of(broker) as peer:
        peer.writer.write(send(1))
        await peer.replies(1)
        monkeypatch.setattr(Connection, "data_received", count)
        peer.writer.write(b"".join(send(n) for n in range(2, 30)) + send(30)[:70])
        await peer.replies(28)
        peer.writer.write(send(30)[70:] + pull(31, 0, 0))
        await peer.replies(2)
        assert reads == 0
        peer.writer.write(runtime_info(32) + send(33))
        await peer.replies(2)
        assert reads == 1
        peer.writer.write(send(34))
        await peer.replies(1)
        assert reads == 1
        assert stored(broker) == 32


async def test_a_peer_that_stops_reading_delays_no_other_peer() -> None:
    async with serving() as broker, peer_of(broker) as other, peer_of(broker, limit=1024) as slow:
        other.writer.write(b"".join(send(n, size=4_000, queue=0) for n in range(200)))
        await other.replies(200)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        slow.writer.write(b"".join(pull(n, 0, 0) for n in range(400)))
        async with asyncio.timeout(WITHIN_S):
            while not any(connection.congested for connection in broker.connections):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        other.writer.write(send(1))
        assert [reply.opaque for reply in await other.replies(1)] == [1]
        unsent = max(connection.unsent_bytes for connection in broker.connections)
        assert unsent < 8 << 20
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        replies = await slow.replies(400)
        assert [reply.opaque for reply in replies] == list(range(400))
        assert len({len(reply.body) for reply in replies}) == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_many_long_polls_at_one_queue_are_each_answered_by_one_message(flush: str) -> None:
    async with serving(flush_disk_type=flush) as broker, contextlib.AsyncExitStack() as stack:
        sender = await stack.enter_async_context(peer_of(broker))
        peers = [await stack.enter_async_context(peer_of(broker)) for _ in range(30)]
        sender.writer.write(send(1, queue=0))
        await sender.replies(1)
        for offset in (1, 2, 3):
            for number, peer in enumerate(peers):
                peer.writer.write(b"".join(long_poll(10 * number + each, offset) for each in range(10)))
            async with asyncio.timeout(WITHIN_S):
                while broker.pending_pulls.count < 300:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            sender.writer.write(send(offset + 1, queue=0))
            assert [reply.code for reply in await sender.replies(1)] == [0]
            for number, peer in enumerate(peers):
                replies = await peer.replies(10)
                assert [reply.opaque for reply in replies] == list(range(10 * number, 10 * number + 10))
                assert {(reply.code, len(list(decode_records(reply.body)))) for reply in replies} == {(0, 1)}
        assert (broker.pending_pulls.count, broker.pending_pulls.frames_bytes) == (0, 0)


async def test_a_pull_that_cannot_be_noted_closes_its_connection_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as broker, peer_of(broker) as one, peer_of(broker) as two:
        for peer in (one, two):
            peer.writer.write(send(1, queue=0))
            await peer.replies(1)

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a fault")

        with monkeypatch.context() as patch:
            patch.setattr(broker.stats, "get_miss", fail)
            one.writer.write(long_poll(2, 2))
            assert await one.is_closed()
        two.writer.write(long_poll(3, 2) + send(4, queue=0))
        assert {reply.opaque for reply in await two.replies(2)} == {3, 4}


async def test_oneway_sends_are_stored_and_not_answered() -> None:
    async with serving() as broker, peer_of(broker) as peer:
        peer.writer.write(b"".join(send(n, flag=2) for n in range(1, 6)) + send(6))
        assert [reply.opaque for reply in await peer.replies(1)] == [6]
        assert stored(broker) == 6


async def test_a_peer_that_goes_with_half_a_frame_leaves_nothing_behind() -> None:
    async with serving() as broker:
        async with peer_of(broker) as peer:
            peer.writer.write(send(1) + send(2)[:50])
            await peer.replies(1)
            before = len(broker.connections)
        async with asyncio.timeout(WITHIN_S):
            while len(broker.connections) >= before:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert stored(broker) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        struct.pack(">II", 1 << 30, 5),
        struct.pack(">II", 40, 4000) + bytes(36),
        b"GET / HTTP/1.1\r\n\r\n" * 4,
    ],
)
async def test_garbage_behind_good_frames_closes_its_connection_only(garbage: bytes) -> None:
    async with serving() as broker, peer_of(broker) as good, peer_of(broker) as bad:
        for each in (good, bad):
            each.writer.write(send(1))
            await each.replies(1)
        bad.writer.write(send(2) + garbage)
        assert [reply.opaque for reply in await bad.replies(1)] == [2]
        assert await bad.is_closed()
        good.writer.write(send(3))
        assert [reply.opaque for reply in await good.replies(1)] == [3]


async def test_a_fault_of_ours_answers_nothing_and_closes_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as broker:
        log = broker.store.log
        async with peer_of(broker) as peer:
            peer.writer.write(send(1))
            await peer.replies(1)
            whole, log.buffer = log.buffer, bytearray(16)
            peer.writer.write(send(2))
            assert await peer.is_closed()
            log.buffer = whole
        assert "lies beyond its file" in caplog.text
        async with peer_of(broker) as peer:
            peer.writer.write(send(3))
            assert [reply.opaque for reply in await peer.replies(1)] == [3]


async def test_a_frame_of_which_half_is_there_when_the_broker_leaves_is_told_to_go_away() -> None:
    async with serving() as broker, peer_of(broker) as peer:
        peer.writer.write(send(1))
        await peer.replies(1)
        frame = send(2)
        peer.writer.write(frame[:60])
        await asyncio.sleep(0.05)
        server = broker.ports.main  # what Broker.stop does with it
        stopping = asyncio.create_task(server.stop(go_away=True, drain_s=60))
        await wait_until(lambda: server._endpoint.going_away)
        peer.writer.write(frame[60:])
        (reply,) = await peer.replies(1)
        assert (reply.opaque, reply.code) == (2, ResponseCode.GO_AWAY)
        await stopping
        assert await peer.is_closed()


@pytest.mark.parametrize("seed", range(3))
async def test_damaged_frames_close_their_connections_and_nothing_else(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    mutator = FrameMutator(chance)
    async with serving() as broker, peer_of(broker) as good:
        for attempt in range(60):
            async with peer_of(broker) as bad:
                bad.writer.write(send(1))  # so that native code reads what follows
                await bad.replies(1)
                data = b"".join(mutator.next() for _ in range(chance.randint(1, 12)))
                cut = chance.randrange(len(data))
                bad.writer.write(data[:cut])
                await asyncio.sleep(0)
                bad.writer.write(data[cut:])
                if chance.random() < 0.3:
                    bad.writer.transport.abort()  # type: ignore[attr-defined]
                good.writer.write(send(attempt))
                assert [reply.opaque for reply in await good.replies(1)] == [attempt]
        await wait_until(lambda: stored(broker) >= 120)  # counted after a run of turns
    assert not [record for record in caplog.records if record.exc_info]
