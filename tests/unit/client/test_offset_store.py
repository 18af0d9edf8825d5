"""Offsets at the broker: the first of a topic goes alone, so that a RocketMQ broker does not lose the others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.client.consumer import offset_store
from aerobee.client.consumer.offset_store import RemoteOffsets
from aerobee.client.lost_peers import LostPeers
from aerobee.errors import RequestTimeout
from aerobee.message import MessageQueue

SESSION: Any = SimpleNamespace(peers=LostPeers(monotonic=float, name_of=str))  # of it only this is used here
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is written, in order: ("wait" or "oneway", queue id); a waited one is noted when it is answered."""
    written: list[tuple[str, int]] = []

    async def commit(session: object, group: str, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        if offset < 0:
            raise RequestTimeout("no answer")
        if not oneway:
            await asyncio.sleep(0)
        written.append(("oneway" if oneway else "wait", queue.queue_id))

    monkeypatch.setattr(offset_store, "commit_offset", commit)
    return written


async def test_the_first_offset_of_a_topic_is_answered_before_the_others_leave(
    commits: list[tuple[str, int]],
) -> None:
    offsets = RemoteOffsets(SESSION, "group")
    await asyncio.gather(offsets.save({QUEUES[0]: 1, QUEUES[1]: 1}), offsets.save({QUEUES[2]: 1}))
    assert commits[0] == ("wait", 0)
    assert sorted(commits[1:]) == [("oneway", 1), ("oneway", 2)]


async def test_a_first_offset_that_failed_is_tried_alone_again(commits: list[tuple[str, int]]) -> None:
    offsets = RemoteOffsets(SESSION, "group")
    await offsets.save({QUEUES[0]: -1})
    await offsets.save({QUEUES[0]: 5, QUEUES[1]: 5})
    assert commits == [("wait", 0), ("oneway", 1)]


async def test_queues_are_handed_over_when_the_broker_has_their_offsets(
    commits: list[tuple[str, int]],
) -> None:
    offsets = RemoteOffsets(SESSION, "group")
    await offsets.save({QUEUES[0]: 1})
    await offsets.hand_over(dict.fromkeys(QUEUES, 2) | {MessageQueue("T", "broker-a", 9): -1})
    assert commits[0] == ("wait", 0)
    assert sorted(commits[1:]) == [("wait", 0), ("wait", 1), ("wait", 2)]
