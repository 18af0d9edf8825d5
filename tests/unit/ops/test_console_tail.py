"""A live tail with unreadable messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee.console import tail
from aerobee.errors import AerobeeError, ConnectionLost, QueryNotFound
from aerobee.message import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


class Topic:
    """An Admin of one topic with a message more at each look; `failing` says how an offset is read."""

    def __init__(self, failing: dict[int, list[Exception]]) -> None:
        self.failing = failing
        self.end = 0

    async def topic_stats(self, topic: str) -> list[Any]:
        found = [SimpleNamespace(queue=QUEUE, min_offset=0, max_offset=self.end)]
        self.end = min(self.end + 4, 12)
        return found

    async def messages_from(self, queue: MessageQueue, offset: int) -> tuple[list[int], int]:
        """Up to three messages; fails as a whole when one of them is unreadable."""
        batch = range(offset, min(offset + 3, self.end))
        for each in batch:
            if self.failing.get(each) and not isinstance(self.failing[each][0], ConnectionLost):
                raise self.failing[each][0]
        return [await self.message_at(queue, each) for each in batch], batch.stop

    async def message_at(self, queue: MessageQueue, offset: int) -> int:
        failures = self.failing.get(offset, [])
        if failures:
            raise failures.pop(0)
        return offset


async def watched(monkeypatch: pytest.MonkeyPatch, failing: dict[int, list[Exception]]) -> list[Any]:
    monkeypatch.setattr(tail, "LOOK_S", 0.0)
    monkeypatch.setattr(tail, "shown", lambda offset, body_max, **_: offset)
    tails = tail.Tails(Topic(failing))  # type: ignore[arg-type]
    events: list[Any] = []
    async with asyncio.timeout(60):
        async for event in tails.watch("orders"):
            events.append(event.get("message", "error" if "error" in event else "other"))
            if event.get("message") == 11:
                break
    await tails.stop()
    return [event for event in events if event != "other"]


@pytest.mark.parametrize("failure", [QueryNotFound(1, "gone"), ValueError("a fault")])
async def test_what_cannot_be_read_is_named_once_and_nothing_is_shown_twice(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    found = await watched(monkeypatch, {2: [failure] * 9})
    assert found == [0, 1, "error", *range(3, 12)]


async def test_deferred_messages_are_shown_once_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: AerobeeError = ConnectionLost("broker-a went")
    assert lost.retriable
    found = await watched(monkeypatch, {2: [lost, lost], 6: [lost]})
    assert [event for event in found if event != "error"] == list(range(12))
    assert found.count("error") == 3
