"""POP's fast path compared with its handlers: the same requests, usual and odd, with the same answers and the same state."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aerobee.broker.assembly.broker import Broker
from aerobee.errors import StoreFull
from aerobee.message import Message
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.connection import Connection, Endpoint
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.testing import LocalCluster
from tests.fakes import FakeTransport
from tests.integration.pop_requests import pop_request, popped
from tests.waiting import wait_until

QUEUES, MESSAGES = 2, 24
ACK = 200051
_TIME = re.compile(r"\b1?\d{13}( \d+ \d+)?\b")  # of a pop, with its invisible time and revive queue


class Way:
    """One way into a broker, with a separate group."""

    def __init__(self, broker: Broker, group: str, *, is_fast: bool) -> None:
        self.group = group
        self.broker = broker
        self.handled: list[int] = []
        handlers = {code: self._noted(code, handler) for code, handler in broker.handlers.items()}
        self.wire = FakeTransport(("127.0.0.1", 4_000 + is_fast))
        self.connection = Connection(Endpoint(handlers, burst=broker.fast_path.burst if is_fast else None))
        self.connection.connection_made(self.wire)

    def _noted(self, code: int, handler: Any) -> Any:
        def handle(peer: Any, request: RemotingCommand) -> Any:
            self.handled.append(code)
            return handler(peer, request)

        return handle

    async def ask(self, *frames: bytes) -> list[RemotingCommand]:
        """Give the frames in one read; return the answers that come immediately."""
        self.wire.writes.clear()
        self.connection.data_received(b"".join(frames))
        for _ in range(5):
            await asyncio.sleep(0)
        decoder, found = FrameDecoder(), []
        decoder.feed(self.wire.written)
        while (command := decoder.next_frame()) is not None:
            found.append(command)
        return found

    async def pop(self, topic: str, **how: Any) -> RemotingCommand:
        request = pop_request(self.broker, topic, self.group, **how)
        (reply,) = await self.ask(encode_frame(request))
        return reply


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.create_topic("orders", queues=QUEUES)
        async with cluster.producer() as producer:
            for queue in await producer.queues("orders"):
                for number in range(MESSAGES):
                    await producer.send(_message(number), queue=queue)
        yield cluster


def _message(number: int) -> Message:
    return Message("orders", str(number).encode(), tag="a" if number % 3 else "b")


async def odd_pop(way: Way, rng: random.Random, **how: Any) -> RemotingCommand:
    """A pop; one in four has something odd, which every way has for the same numbers."""
    request = pop_request(way.broker, "orders", way.group, **how)
    fields = cast(dict[str, Any], request.ext)
    if rng.random() < 0.25:
        name = rng.choice(list(fields))
        match rng.randrange(3):
            case 0:
                del fields[name]
            case 1:
                fields[name] = rng.choice(("", "x", "-1", "33", "true", "T", "a || b", str(1 << 70)))
            case _:
                fields[name] = rng.choice((0, -1, True, [1]))
    (reply,) = await way.ask(encode_frame(request))
    return reply


def ack_fields(group: str, handle: str, offset: object, queue: object) -> dict[str, Any]:
    return {
        "consumerGroup": group,
        "topic": "orders",
        "queueId": queue,
        "extraInfo": handle,
        "offset": offset,
    }


def frame(code: int, fields: dict[str, Any], opaque: int, flag: int = 0) -> bytes:
    return encode_frame(RemotingCommand(code, fields, opaque=opaque, flag=flag))


def said(replies: list[RemotingCommand], group: str) -> list[tuple[int, int, str, dict[str, str] | None]]:
    """What can be compared of answers, in the order of their requests."""
    return sorted(
        (reply.opaque, reply.code, _TIME.sub("TIME", reply.remark or "").replace(group, "GROUP"), reply.ext)
        for reply in replies
    )


def out_of(broker: Broker, group: str) -> list[tuple[int, int, tuple[int, ...], int]]:
    """What is invisible at a group."""
    return sorted(
        (entry.point.queue_id, entry.point.start_offset, entry.point.offsets, entry.point.bit_map)
        for entry in _pop(broker).engine.in_flight.out(group)
    )


def _pop(broker: Broker) -> Any:
    return next(each for each in cast(Any, broker).features if each.name == "pop")


async def test_fast_path_acks_do_not_reach_the_handler(cluster: LocalCluster) -> None:
    way = Way(cluster.broker(), "fast", is_fast=True)
    messages = popped(await way.pop("orders", count=8, queue=0), "orders", "fast")
    way.handled.clear()
    replies = await way.ask(
        *[
            frame(ACK, ack_fields("fast", str(each.handle), str(each.record.queue_offset), "0"), number)
            for number, each in enumerate(messages)
        ]
    )
    assert way.handled == []
    assert said(replies, "fast") == [(number, 0, "", None) for number in range(8)]
    assert out_of(cluster.broker(), "fast") == []
    again = frame(ACK, ack_fields("fast", str(messages[3].handle), "3", "0"), 77)
    assert said(await way.ask(again), "fast") == [(77, 0, "", None)]


async def test_fast_path_pops_do_not_reach_the_handler(cluster: LocalCluster) -> None:
    broker = cluster.broker()
    way = Way(broker, "fast", is_fast=True)
    reply = await way.pop("orders", count=32)
    assert (reply.code, reply.remark) == (0, "FOUND")
    assert len(popped(reply, "orders", "fast")) == 32
    left = await way.pop("orders", count=32)
    assert len(popped(left, "orders", "fast")) == QUEUES * MESSAGES - 32
    assert (await way.pop("orders")).code == 210
    assert way.handled == []
    request = pop_request(broker, "orders", "fast", poll_ms=10_000)
    assert await way.ask(encode_frame(request)) == [], "it waits"
    async with cluster.producer() as producer:
        await producer.send(Message("orders", b"late"))
    await wait_until(lambda: way.wire.written, "the pop is answered")
    decoder = FrameDecoder()
    decoder.feed(way.wire.written)
    late = decoder.next_frame()
    assert late is not None
    assert [each.body for each in popped(late, "orders", "fast")] == [b"late"]
    assert way.handled == []


async def test_a_pop_asks_again_who_may_when_something_has_changed(cluster: LocalCluster) -> None:
    way = Way(cluster.broker(), "fast", is_fast=True)
    assert (await way.pop("orders", count=1)).code == 0
    async with cluster.admin() as admin:
        await admin.create_group("fast", consume_enabled=False)
        assert (await way.pop("orders", count=1)).code == 16
        await admin.create_group("fast")
        assert (await way.pop("orders", count=1)).code == 0
        await admin.update_broker_config(cluster.broker().address, {"brokerPermission": "2"})
        assert (await way.pop("orders", count=1)).code == 16


async def test_a_burst_that_holds_the_loop_is_named(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Way(cluster.broker(), "fast", is_fast=True)
    fast_path = cast(Any, cluster.broker().fast_path)
    assert (await way.pop("orders", count=1)).code == 0
    before = fast_path._watch.held_count
    times = iter((10.0, 10.2))
    monkeypatch.setattr(fast_path, "_monotonic", lambda: next(times))
    assert (await way.pop("orders", count=1)).code == 0
    assert fast_path._watch.held_count == before + 1
    assert "POP_MESSAGE" in fast_path._watch.longest


async def test_a_refused_append_refuses_every_acknowledgement_of_the_pass(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = cluster.broker()
    way = Way(broker, "fast", is_fast=True)
    messages = popped(await way.pop("orders", count=4, queue=0), "orders", "fast")

    def full(*_: Any, **__: Any) -> int:
        raise StoreFull("no space is left on the disk", path="x")

    with monkeypatch.context() as patch:
        patch.setattr(_pop(broker).engine.log, "append", full)
        frames = [
            frame(ACK, ack_fields("fast", str(each.handle), str(each.record.queue_offset), "0"), number)
            for number, each in enumerate(messages)
        ]
        replies = await way.ask(*frames)
        assert sorted(reply.opaque for reply in replies) == [0, 1, 2, 3]
        assert all(reply.code != 0 and "no space" in (reply.remark or "") for reply in replies)
    assert [entry[3] for entry in out_of(broker, "fast")] == [0], "nothing counts as acknowledged"
    assert all(reply.code == 0 for reply in await way.ask(*frames))
    assert out_of(broker, "fast") == []


@pytest.mark.parametrize("seed", range(20))
async def test_both_ways_give_the_same_answers(cluster: LocalCluster, seed: int) -> None:
    rng = random.Random(seed)
    broker = cluster.broker()
    _pop(broker).pops._pick = lambda count: (
        count // 2
    )  # a pop of any queue begins at the same one in both ways
    ways = [Way(broker, "fast", is_fast=True), Way(broker, "slow", is_fast=False)]
    taken: list[
        tuple[int, list[str], list[int]]
    ] = []  # queue; of each way: handle without the last token; offsets
    for _ in range(12):
        if rng.random() < 0.4:
            queue, count, exp = (
                rng.randrange(QUEUES),
                rng.randrange(1, 9),
                rng.choice(("*", "*", "a", "a || b")),
            )
            replies = [
                await odd_pop(way, random.Random(seed), queue=queue, count=count, exp=exp) for way in ways
            ]
            seed += 100
            assert said(replies[:1], "fast")[0][1:3] == said(replies[1:], "slow")[0][1:3]
            if replies[0].code not in (0, 210):
                continue
            both = [popped(reply, "orders", way.group) for reply, way in zip(replies, ways, strict=True)]
            fast, slow = ([each.handle.queue_offset for each in messages] for messages in both)
            assert fast == slow
            assert replies[0].body == replies[1].body
            assert list(replies[0].ext or ()) == list(replies[1].ext or ())
            if fast:
                taken.append((queue, [str(messages[0].handle).rpartition(" ")[0] for messages in both], fast))
            continue
        frames: list[list[bytes]] = [[], []]
        for opaque in range(rng.randrange(1, 12)):
            if not taken:
                break
            queue, known, offsets = rng.choice(taken)
            offset: object = rng.choice((*offsets, *offsets, *offsets, 99, -1))
            queue_text: object = str(queue)
            own, flag, tail, missing = str(offset), 0, "", ""
            match rng.randrange(24):
                case 0:
                    queue_text = "1" if queue_text == "0" else "0"
                case 1:
                    own = "3"
                case 2:
                    tail = " 4711"
                case 3:
                    missing = rng.choice(("topic", "consumerGroup", "queueId", "extraInfo", "offset"))
                case 4:
                    flag = FLAG_ONEWAY
                case 5:
                    offset = f"0{offset}"
                case 6:
                    offset, queue_text = int(cast(Any, offset)), queue
                case 7:
                    known = [each.replace(" ", "  ", 1) for each in known]
                case 8:
                    known = [each.replace(" ", " 1", 1) for each in known]
                case 9:
                    queue_text = "7"
            for at, way in enumerate(ways):
                fields = ack_fields(way.group, f"{known[at]} {own}{tail}", offset, queue_text)
                if type(offset) is not int:
                    fields["offset"] = str(offset)
                fields.pop(missing, None)
                frames[at].append(frame(ACK, fields, opaque, flag))
        if not frames[0]:
            continue
        answers = [said(await way.ask(*of_way), way.group) for way, of_way in zip(ways, frames, strict=True)]
        assert answers[0] == answers[1]
        assert out_of(broker, "fast") == out_of(broker, "slow")
