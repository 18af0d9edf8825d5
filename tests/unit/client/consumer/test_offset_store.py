"""Offsets at the broker: one write at a time, so that no broker's threads put an older offset over a newer one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.client.base.lost_peers import LostPeers
from aerobee.client.consumer import offset_store
from aerobee.client.consumer.offset_store import RemoteOffsets
from aerobee.errors import RequestTimeout
from aerobee.message import MessageQueue

SESSION: Any = SimpleNamespace(peers=LostPeers(monotonic=float, name_of=str))  # of it only this is used here
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]


class Commits:
    """What leaves for brokers, and what they have answered: (queue id, offset). Negative offsets are refused."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.answered: list[tuple[int, int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def commit(self, session: object, group: str, queue: MessageQueue, offset: int) -> None:
        if offset < 0:
            raise RequestTimeout("no answer")
        self.sent.append((queue.queue_id, offset))
        await asyncio.sleep(0)
        if queue.broker_name == "broker-a":
            await self.may_answer.wait()
        self.answered.append((queue.queue_id, offset))


async def passes() -> None:
    """Let all tasks run as far as they can without an answer."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    world = Commits()
    monkeypatch.setattr(offset_store, "commit_offset", world.commit)
    return world


async def test_the_first_offset_of_a_topic_is_answered_before_the_others_leave(commits: Commits) -> None:
    offsets = RemoteOffsets(SESSION, "group")
    commits.may_answer.clear()
    saves = asyncio.gather(offsets.save({QUEUES[0]: 1, QUEUES[1]: 1}), offsets.save({QUEUES[2]: 1}))
    await passes()
    assert commits.sent == [(0, 1)]
    commits.may_answer.set()
    await saves
    assert sorted(commits.answered) == [(0, 1), (1, 1), (2, 1)]


async def test_a_first_offset_that_failed_is_tried_alone_again(commits: Commits) -> None:
    offsets = RemoteOffsets(SESSION, "group")
    await offsets.save({QUEUES[0]: -1})
    commits.may_answer.clear()
    save = asyncio.create_task(offsets.save({QUEUES[0]: 5, QUEUES[1]: 5}))
    await passes()
    assert commits.sent == [(0, 5)]
    commits.may_answer.set()
    await save
    assert commits.answered == [(0, 5), (1, 5)]


async def test_an_offset_leaves_when_the_one_before_it_is_answered(commits: Commits) -> None:
    """A RocketMQ broker has applied the last one then, whichever of its threads is slow."""
    offsets = RemoteOffsets(SESSION, "group")
    await offsets.save({QUEUES[0]: 1})
    commits.may_answer.clear()
    older = asyncio.create_task(offsets.save(dict.fromkeys(QUEUES, 2)))
    newer = asyncio.create_task(offsets.save({QUEUES[0]: 3}))
    other = MessageQueue("T", "broker-b", 7)
    await offsets.save({other: 9})  # offsets of another broker are saved without waiting
    assert (0, 3) not in commits.sent
    assert (7, 9) in commits.answered
    commits.may_answer.set()
    await asyncio.gather(older, newer)
    assert commits.answered.index((0, 2)) < commits.answered.index((0, 3))


async def test_one_offset_that_is_refused_keeps_no_other_back(commits: Commits) -> None:
    offsets = RemoteOffsets(SESSION, "group")
    with pytest.raises(RequestTimeout):
        await offsets.save_and_wait({QUEUES[0]: 1, QUEUES[1]: -1, QUEUES[2]: 1})
    assert commits.answered == [(0, 1), (2, 1)]
