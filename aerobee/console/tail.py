"""New messages of a topic as they come, read once for all who watch the topic. No group, no offsets: nothing is consumed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from aerobee.client import Admin
from aerobee.console.views import shown
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue

log = logging.getLogger(__name__)
LOOK_S = 1.0
SHOWN_A_LOOK = 20  # of a queue; of a faster one the newest are shown, and how many were passed over
WAITING_MAX = 200  # messages that a slow page has not taken
TOPICS_MAX = 50


class Tails:
    """One task for each topic that somebody watches."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._watchers: dict[str, set[asyncio.Queue[dict[str, Any]]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()  # topics whose ends were looked up: what is stored behind them is shown

    async def watch(self, topic: str) -> AsyncGenerator[dict[str, Any], None]:
        """{"watching": true}, then messages that are stored from there on, and {"passed": count} or {"error": …}.

        Close it to stop."""
        if topic not in self._watchers and len(self._watchers) >= TOPICS_MAX:
            yield {"error": f"{TOPICS_MAX} topics are watched already"}
            return
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(WAITING_MAX)
        self._watchers.setdefault(topic, set()).add(queue)
        if topic in self._begun:
            queue.put_nowait({"watching": True})
        if topic not in self._tasks:
            self._tasks[topic] = asyncio.create_task(self._run(topic), name=f"console-tail-{topic}")
        try:
            while True:
                yield await queue.get()
        finally:
            watchers = self._watchers.get(topic, set())
            watchers.discard(queue)
            if not watchers:
                self._watchers.pop(topic, None)
                task = self._tasks.pop(topic, None)
                self._begun.discard(topic)
                if task is not None:
                    task.cancel()

    async def stop(self) -> None:
        """End all of them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, topic: str) -> None:
        ends: dict[Any, int] = {}
        is_first = True
        while True:
            try:
                for row in await self._admin.topic_stats(topic):
                    before = ends.get(row.queue, row.max_offset if is_first else row.min_offset)
                    begin = max(before, row.max_offset - SHOWN_A_LOOK)
                    if begin > before:
                        self._tell(topic, {"passed": begin - before})
                    ends[row.queue] = begin
                    while ends[row.queue] < row.max_offset:
                        await self._show(topic, row.queue, ends[row.queue])
                        ends[row.queue] += 1
                if is_first:
                    is_first = False
                    self._begun.add(topic)
                    self._tell(topic, {"watching": True})
            except AerobeeError as error:
                self._tell(topic, {"error": str(error)})
            except Exception as error:
                log.exception("the tail of %s failed", topic)
                self._tell(topic, {"error": f"a fault of the console: {error!r}"})
            await asyncio.sleep(LOOK_S)

    async def _show(self, topic: str, queue: MessageQueue, offset: int) -> None:
        """One message; one that cannot be read is named and passed over. Raises what may be otherwise at the next look."""
        try:
            event: dict[str, Any] = {"message": shown(await self._admin.message_at(queue, offset))}
        except AerobeeError as error:
            if error.retriable:
                raise
            event = {"error": f"offset {offset} of {queue}: {error}"}
        except Exception as error:
            log.exception("offset %d of %s cannot be shown", offset, queue)
            event = {"error": f"a fault of the console at offset {offset} of {queue}: {error!r}"}
        self._tell(topic, event)

    def _tell(self, topic: str, event: dict[str, Any]) -> None:
        for queue in self._watchers.get(topic, ()):
            if queue.full():
                queue.get_nowait()  # the oldest: a live tail shows what is new
            queue.put_nowait(event)
