"""What a pull may carry: an offset that a newer commit cannot be followed by, however a broker orders its threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.client.base.lost_peers import LostPeers
from aerobee.client.base.tasks import Tasks
from aerobee.client.consumer import queue_pull
from aerobee.client.consumer.queue_pull import PullSettings, QueuePull
from aerobee.client.consumer.subscription import subscribe
from aerobee.clock import SystemClock
from aerobee.message import MessageQueue
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import PULL_COMMIT_OFFSET
from tests.waiting import wait_until

QUEUE = MessageQueue("T", "broker-a", 0)
SETTINGS = PullSettings(
    lite=False,
    commits=True,
    post_subscription=False,
    count_max=32,
    bytes_max=1 << 20,
    hold_s=15.0,
    timeout_s=30.0,
    cached_count_max=1_000,
    cached_bytes_max=1 << 20,
)


@dataclass
class Pulled:
    """What a QueuePull asked of its broker, and the answers that wait to be given."""

    pull: QueuePull
    asked: list[RemotingCommand] = field(default_factory=list)
    answers: asyncio.Queue[RemotingCommand] = field(default_factory=asyncio.Queue)

    def answer(self, offsets: range, max_offset: int) -> None:
        ext = {"nextBeginOffset": str(offsets.stop), "maxOffset": str(max_offset), "offsetDelta": "0"}
        self.answers.put_nowait(
            RemotingCommand(ResponseCode.SUCCESS, ext=ext, body=b",".join(b"%d" % n for n in offsets))
        )

    async def request(self, number: int) -> tuple[int, bool]:
        """(the offset in the pull's commitOffset, whether the broker is to commit it)."""
        await wait_until(lambda: len(self.asked) > number)
        ext = self.asked[number].ext
        assert ext is not None
        return int(ext["commitOffset"]), bool(int(ext["sysFlag"]) & PULL_COMMIT_OFFSET)


@pytest.fixture
async def pulled() -> AsyncIterator[Pulled]:
    async def invoke(_address: str, request: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        world.asked.append(request)
        return await world.answers.get()

    def decode(body: bytes, _queue: MessageQueue) -> list[Any]:
        return [SimpleNamespace(queue_offset=int(each), size_bytes=100, tag="") for each in body.split(b",")]

    session: Any = SimpleNamespace(
        clock=SystemClock(),
        tasks=Tasks(),
        peers=LostPeers(monotonic=float, name_of=str),
        routes=SimpleNamespace(leader_of=lambda queue: queue.broker_name, address_of=lambda *_: "10.0.0.1:1"),
        remoting=SimpleNamespace(invoke=invoke),
        codec=SimpleNamespace(decode_messages=decode),
        meter=None,
    )
    subscription = subscribe("T", "*", 0)
    world = Pulled(
        QueuePull(
            session, "g", QUEUE, 5, settings=SETTINGS, subscription=lambda: subscription,
            deliver=lambda _pull, _messages: None, moved=lambda _pull, _offset: None,
        )
    )  # fmt: skip
    world.pull.start()
    yield world
    await session.tasks.close()


async def test_what_is_not_finished_is_committed_by_a_pull_only_when_it_is_answered_at_once(
    pulled: Pulled,
) -> None:
    assert await pulled.request(0) == (5, True), "all is finished"
    pulled.answer(range(5, 8), max_offset=10)
    assert await pulled.request(1) == (5, True), "the broker has more"
    pulled.pull.process.finish(5)
    pulled.answer(range(8, 10), max_offset=10)
    assert await pulled.request(2) == (6, False), (
        "this pull may be held, and what it carries overtake a commit"
    )
    pulled.pull.process.finish_all(range(6, 10))
    pulled.answer(range(10, 11), max_offset=11)
    pulled.pull.process.finish(10)
    assert await pulled.request(3) == (10, False)


async def test_who_gives_a_queue_up_waits_for_the_answer_to_what_was_carried(pulled: Pulled) -> None:
    pulled.answer(range(5, 8), max_offset=10)
    assert await pulled.request(1) == (5, True)
    pulled.pull.process.finish_all(range(5, 8))
    halt = asyncio.create_task(pulled.pull.halt())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not halt.done(), "offset 5 is on its way"
    pulled.answer(range(8, 10), max_offset=10)
    await halt
    assert pulled.pull.process.commit_offset == 8, "what came meanwhile is the next owner's"
    assert len(pulled.asked) == 2


async def test_a_pending_pull_delays_no_other_pull(pulled: Pulled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pull, "ANSWER_WAIT_S", 3_600.0)
    assert await pulled.request(0) == (5, True)
    await pulled.pull.halt()


async def test_a_broker_that_says_nothing_does_not_keep_the_queue(
    pulled: Pulled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pull, "ANSWER_WAIT_S", 0.01)
    pulled.answer(range(5, 8), max_offset=10)
    assert await pulled.request(1) == (5, True)
    await pulled.pull.halt()


async def test_a_queue_that_was_halted_can_begin_again(pulled: Pulled) -> None:
    assert await pulled.request(0) == (5, True)
    await pulled.pull.halt()
    pulled.pull.restart(3)
    assert await pulled.request(1) == (3, True)
