"""New messages of a topic as they arrive, read once for all pages that watch the topic, without a group and without offsets."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from aerobee.client import Admin, ReceivedMessage
from aerobee.console.masks import Masks
from aerobee.console.views import shown
from aerobee.errors import AerobeeError
from aerobee.message import MessageQueue

log = logging.getLogger(__name__)
LOOK_S = 1.0
SHOWN_A_LOOK = 32  # messages of a queue per poll, one pull; of a faster queue the newest, with the number of skipped ones
BODY_MAX = 8_192  # bytes of a body; the page reads a larger one when the reader opens the message
WAITING_MAX = 200  # pending messages of a slow page
TOPICS_MAX = 50


class _Watcher(asyncio.Queue[dict[str, Any] | None]):
    """The pending events of one page; None ends the stream."""

    def __init__(self, viewer: str) -> None:
        super().__init__(WAITING_MAX)
        self.viewer = viewer

    def end(self) -> None:
        if self.full():
            self.get_nowait()
        self.put_nowait(None)


class Tails:
    """One task for each watched topic."""

    def __init__(self, admin: Admin, masks: Masks | None = None) -> None:
        self._admin = admin
        self._masks = masks
        self._watchers: dict[str, set[_Watcher]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()  # topics whose end offsets are known: messages after them are shown

    async def watch(self, topic: str, viewer: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """Yield {"watching": true}, then messages stored from then on, {"passed": count} for skipped ones, or {"error": …}.

        Close the generator to stop. If another viewer's topic replaces this one, it ends with {"error": …}."""
        if topic not in self._watchers and len(self._watchers) >= TOPICS_MAX and not self._make_room(viewer):
            yield {"error": f"the limit of {TOPICS_MAX} watched topics is reached"}
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
            yield {
                "error": f"the limit of {TOPICS_MAX} watched topics is reached: another viewer's topic replaced {topic}"
            }
        finally:
            watchers = self._watchers.get(topic, set())
            if queue in watchers:
                watchers.discard(queue)
                if not watchers:
                    self._forget(topic)

    def _make_room(self, viewer: str) -> bool:
        """End the oldest topic of the viewers that watch most, if each of its viewers watches at least two more than this one."""
        counts = Counter(
            each for watchers in self._watchers.values() for each in {queue.viewer for queue in watchers}
        )
        least = {
            topic: min(counts[queue.viewer] for queue in watchers)
            for topic, watchers in self._watchers.items()
        }
        topic = max(
            least, key=lambda each: least[each]
        )  # max() returns the first of equals, which is the oldest
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
        """End all tasks."""
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
                        self._send(topic, {"passed": begin - before})
                    ends[row.queue] = begin
                    while ends[row.queue] < row.max_offset:
                        ends[row.queue] = await self._show(topic, row.queue, ends[row.queue])
                if is_first:
                    is_first = False
                    self._begun.add(topic)
                    self._send(topic, {"watching": True})
            except AerobeeError as error:
                self._send(topic, {"error": str(error)})
            except Exception as error:
                log.exception("the tail of %s failed", topic)
                self._send(topic, {"error": f"internal error of the console: {error!r}"})
            await asyncio.sleep(LOOK_S)

    async def _show(self, topic: str, queue: MessageQueue, offset: int) -> int:
        """Send messages from `offset` on, and return the offset to continue. Raises retriable errors.

        A batch that cannot be read is read message by message: only the unreadable one is skipped, with an error.
        """
        try:
            messages, following = await self._admin.messages_from(queue, offset)
        except AerobeeError as error:
            if error.retriable:
                raise
            return await self._show_one(topic, queue, offset)
        except Exception:
            return await self._show_one(topic, queue, offset)
        for message in messages:
            self._send(topic, self._event(message, queue))
        return following

    async def _show_one(self, topic: str, queue: MessageQueue, offset: int) -> int:
        try:
            event = self._event(await self._admin.message_at(queue, offset), queue)
        except AerobeeError as error:
            if error.retriable:
                raise
            event = {"error": f"offset {offset} of {queue}: {error}"}
        except Exception as error:
            log.exception("offset %d of %s cannot be shown", offset, queue)
            event = {"error": f"internal error of the console at offset {offset} of {queue}: {error!r}"}
        self._send(topic, event)
        return offset + 1

    def _event(self, message: ReceivedMessage, queue: MessageQueue) -> dict[str, Any]:
        try:
            return {"message": shown(message, BODY_MAX, masks=self._masks)}
        except Exception as error:
            log.exception("a message of %s cannot be shown", queue)
            return {"error": f"internal error of the console at a message of {queue}: {error!r}"}

    def _send(self, topic: str, event: dict[str, Any]) -> None:
        for queue in self._watchers.get(topic, ()):
            if queue.full():
                queue.get_nowait()  # drop the oldest: a live tail shows new messages
            queue.put_nowait(event)
