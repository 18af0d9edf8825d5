"""What a master delivers by itself, done by an acting slave: due messages go to other brokers by the EscapeBridge.

A delivery that succeeded is noted before the next look: here, and in where each delay level stands, which moves over no message
that was not delivered. What no other broker takes is tried again each second, for as long as this slave acts, and holds nothing
else up.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from aerobee.broker.acting.escape_bridge import EscapeBridge
from aerobee.broker.acting.level_progress import LevelProgress
from aerobee.broker.acting.waiting import Waits, leaving, waiting_of_level, waiting_timers
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.topic_table import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.store.delivery_mark import delivered_sources
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)
AT_ONCE_MAX = 32  # sends on their way
ERROR_PAUSE_S = 1.0
LOOK_S = 0.5  # the longest sleep: a wall clock may jump


class ActingDeliveries:
    """One task while a slave acts. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        schedule: Schedule,
        escaped: EscapedDeliveries,
        bridge: EscapeBridge,
        halves: Callable[[], Iterable[tuple[int, int]]],
        clock: Clock,
        inner_group: str,
    ) -> None:
        """`halves` tells the half messages that are open: physical offset, and when it is time to ask (ms since 1970).
        `inner_group` sends for nobody.
        """
        self._store = store
        self._schedule = schedule
        self._escaped = escaped
        self._bridge = bridge
        self._halves = halves
        self._clock = clock
        self._inner_group = inner_group
        self._levels: defaultdict[int, LevelProgress] = defaultdict(LevelProgress)
        self._trouble = ""
        self._is_over = False
        self.delivered_count = 0

    async def run(self) -> None:
        """Until finish(), or nothing waits. Cancelled, a send that is under way may be stored and not noted: it comes twice."""
        self._is_over = False
        waiting = await self._all()
        if waiting:
            log.warning("%d messages wait here for their time; they go to other brokers", len(waiting))
        leaving: dict[asyncio.Task[bool | None], Waits] = {}
        try:
            while (waiting or leaving) and not self._is_over:
                self._send_due(waiting, leaving)
                await self._pause(waiting, leaving)
                self._note(waiting, leaving)
            if leaving:
                await asyncio.wait(leaving)
                self._note(waiting, leaving)
        finally:
            for task in leaving:
                task.cancel()
            await asyncio.gather(*leaving, return_exceptions=True)

    def _send_due(self, waiting: list[Waits], leaving: dict[asyncio.Task[bool | None], Waits]) -> None:
        """Let go what is due, as far as there is room."""
        now = self._clock.now_ms()
        while waiting and len(leaving) < AT_ONCE_MAX and waiting[0].due_ms <= now:
            waits = heapq.heappop(waiting)
            leaving[asyncio.create_task(self._send(waits), name="acting-send")] = waits

    async def _pause(self, waiting: list[Waits], leaving: dict[asyncio.Task[bool | None], Waits]) -> None:
        """Until a send ended, or the next message is due and there is room for it."""
        pause_s = LOOK_S
        if waiting and len(leaving) < AT_ONCE_MAX:
            pause_s = min(LOOK_S, max(0.0, (waiting[0].due_ms - self._clock.now_ms()) / 1000))
        if not leaving:
            await self._clock.sleep(pause_s)
            return
        await asyncio.wait(leaving, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)

    def _note(self, waiting: list[Waits], leaving: dict[asyncio.Task[bool | None], Waits]) -> None:
        """Take down which messages have left; what nobody took is tried again a moment later, and holds nothing else up."""
        ended = [(task, waits) for task, waits in leaving.items() if task.done()]
        done = [waits for task, waits in ended if task.result()]
        for task, waits in ended:
            del leaving[task]
            if task.result() is False:
                due_ms = self._clock.now_ms() + round(ERROR_PAUSE_S * 1000)
                heapq.heappush(waiting, waits._replace(due_ms=due_ms))
        if not done:
            return
        self._escaped.add(each.physical_offset for each in done)
        offsets = {
            each.level: self._levels[each.level].done(each.queue_offset) for each in done if each.level
        }
        if offsets:
            self._schedule.delivered_elsewhere(offsets)
        if len(done) == len(ended) and self._trouble:
            log.info("messages that are due leave for other brokers again")
            self._trouble = ""

    def finish(self) -> None:
        """Let run() return once what is under way is noted."""
        self._is_over = True

    async def _all(self) -> list[Waits]:
        """Everything that waits, as a heap."""
        store = self._store
        delivered = await asyncio.to_thread(
            delivered_sources, store.log, self._first_waiting(), store.log.end
        )
        delivered |= self._escaped.sources
        now = self._clock.now_ms()
        levels: Iterator[Waits] = itertools.chain.from_iterable(
            waiting_of_level(store, level, self._schedule.offsets.get(level, 0), delay_ms, now)
            for level, delay_ms in enumerate(store.config.delay_levels_ms(), 1)
        )
        found = [each for each in levels if each.physical_offset not in delivered]
        self._levels = defaultdict(LevelProgress)
        for each in found:
            self._levels[each.level].add(each.queue_offset)
        found += [Waits(due_ms, offset) for offset, due_ms in self._halves() if offset not in delivered]
        if store.config.timer_wheel_enable:
            found += await waiting_timers(
                store, delivered, precision_ms=store.config.timer_precision_ms, clock=self._clock
            )
        heapq.heapify(found)
        return found

    def _first_waiting(self) -> int:
        """Where the oldest record lies that may wait; the log's end without any. No delivery of it lies before."""
        firsts = [self._store.log.end]
        for (topic, _), queue in self._store.queues.items():
            if topic in (SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC) and queue.min_offset < queue.max_offset:
                entry = queue.entry(queue.min_offset)
                firsts.append(entry[0] if isinstance(entry, tuple) else self._store.log.min_offset)
        return max(self._store.log.min_offset, min(firsts))

    async def _send(self, waits: Waits) -> bool | None:
        """Whether another broker took it. None: it cannot leave from here, and the master, whose record may be whole, delivers it."""
        message = leaving(self._store, waits, self._inner_group)
        if message is None:
            log.error(
                "the message at %d cannot be read or sent here: it waits for the master",
                waits.physical_offset,
            )
            return None
        try:
            await self._bridge.send(message)
        except AerobeeError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("a message is due and no other broker takes it: %s; trying again", error)
            return False
        self.delivered_count += 1
        return True
