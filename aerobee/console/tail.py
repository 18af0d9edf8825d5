"""New messages of a topic as they come, read once for all who watch the topic. No group, no offsets: nothing is consumed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
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


class _Watcher(asyncio.Queue[dict[str, Any] | None]):
    """What one page has not taken yet; None: it is over."""

    def __init__(self, viewer: str) -> None:
        super().__init__(WAITING_MAX)
        self.viewer = viewer

    def end(self) -> None:
        if self.full():
            self.get_nowait()
        self.put_nowait(None)


class Tails:
    """One task for each topic that somebody watches."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._watchers: dict[str, set[_Watcher]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()  # topics whose ends were looked up: what is stored behind them is shown

    async def watch(self, topic: str, viewer: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """{"watching": true}, then messages that are stored from there on, and {"passed": count} or {"error": …}.

        Close it to stop. Of a topic that makes room for another one it ends with {"error": …}."""
        if topic not in self._watchers and len(self._watchers) >= TOPICS_MAX and not self._make_room(viewer):
            yield {"error": f"{TOPICS_MAX} topics are watched already"}
            return
        queue = _Watcher(viewer)
        self._watchers.setdefault(topic, set()).add(queue)
        if topic in self._begun:
            queue.put_nowait({"watching": True})
        if topic not in self._tasks:
            self._tasks[topic] = asyncio.create_task(self._run(topic), name=f"console-tail-{topic}")
        try:
            while (event := await queue.get()) is not None:
                yield event
            yield {"error": f"{TOPICS_MAX} topics are watched, and {topic} makes room for another viewer's"}
        finally:
            watchers = self._watchers.get(topic, set())
            if queue in watchers:
                watchers.discard(queue)
                if not watchers:
                    self._forget(topic)

    def _make_room(self, viewer: str) -> bool:
        """End one topic whose viewers each watch at least two more than this one: the oldest of those who watch most."""
        counts = Counter(
            each for watchers in self._watchers.values() for each in {queue.viewer for queue in watchers}
        )
        least = {
            topic: min(counts[queue.viewer] for queue in watchers)
            for topic, watchers in self._watchers.items()
        }
        topic = max(least, key=lambda each: least[each])  # the first of equals is the oldest
        if least[topic] <= counts[viewer] + 1:
            return False
        for queue in self._watchers[topic]:
            queue.end()
        self._forget(topic)
        return True

    def _forget(self, topic: str) -> None:
        self._watchers.pop(topic, None)
        self._begun.discard(topic)
        task = self._tasks.pop(topic, None)
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
