"""What a master delivers by itself, done by an acting slave: due messages go to other brokers by the EscapeBridge.

A delivery that succeeded is noted before the next look: here, and in where each delay level stands, which moves over no message
that was not delivered. What no other broker takes is tried again every second, for as long as this slave acts, and holds nothing
else up: such messages wait apart, and so many of them as there may be have only their own share of the sends on their way.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from aerobee.broker.acting.escape_bridge import EscapeBridge
from aerobee.broker.acting.level_progress import LevelProgress
from aerobee.broker.acting.waiting import Waits, leaving, waiting_of_level, waiting_timers
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.store.log.source_pointer import delivered_sources
from aerobee.store.message_store import MessageStore
from aerobee.system_names import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)
AT_ONCE_MAX = 24  # first sends on their way
AGAIN_AT_ONCE_MAX = 8  # sends on their way of what no other broker took before
ERROR_PAUSE_S = 1.0
LOOK_S = 0.5  # the longest sleep: a wall clock may jump


class _Sends:
    """Messages that wait for their time, and those of them that are on their way."""

    def __init__(self, waiting: list[Waits], at_once_max: int) -> None:
        """`waiting` is a heap."""
        self.waiting = waiting
        self.sending: dict[asyncio.Task[bool | None], Waits] = {}
        self._at_once_max = at_once_max

    def start_due(self, now_ms: int, send: Callable[[Waits], Coroutine[Any, Any, bool | None]]) -> None:
        """Send what is due, as far as there is space."""
        waiting, sending = self.waiting, self.sending
        while waiting and len(sending) < self._at_once_max and waiting[0].due_ms <= now_ms:
            waits = heapq.heappop(waiting)
            sending[asyncio.create_task(send(waits), name="acting-send")] = waits

    def pause_s(self, now_ms: int) -> float:
        """Until the next message is due, if there is space for it; LOOK_S at most."""
        if self.waiting and len(self.sending) < self._at_once_max:
            return min(LOOK_S, max(0.0, (self.waiting[0].due_ms - now_ms) / 1000))
        return LOOK_S

    def take_ended(self) -> list[tuple[Waits, bool | None]]:
        """What is on its way no more, and what came of it."""
        ended = [task for task in self.sending if task.done()]
        return [(self.sending.pop(task), task.result()) for task in ended]


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
        `inner_group` sends on behalf of no client.
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
        first = _Sends(await self._all(), AT_ONCE_MAX)
        again = _Sends([], AGAIN_AT_ONCE_MAX)
        both = (first, again)
        if first.waiting:
            log.warning("%d messages wait here for their time; they go to other brokers", len(first.waiting))
        try:
            while any(each.waiting or each.sending for each in both) and not self._is_over:
                for each in both:
                    each.start_due(self._clock.now_ms(), self._send)
                await self._pause(first, again)
                self._note(first, again)
            if sending := first.sending.keys() | again.sending.keys():
                await asyncio.wait(sending)
                self._note(first, again)
        finally:
            sending = first.sending.keys() | again.sending.keys()
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _pause(self, first: _Sends, again: _Sends) -> None:
        """Until a send ended, or the next message is due and there is space for it."""
        now = self._clock.now_ms()
        pause_s = min(first.pause_s(now), again.pause_s(now))
        if sending := first.sending.keys() | again.sending.keys():
            await asyncio.wait(sending, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await self._clock.sleep(pause_s)

    def _note(self, first: _Sends, again: _Sends) -> None:
        """Note which messages have left; one that no broker took is tried again a moment later."""
        ended = first.take_ended() + again.take_ended()
        done = [waits for waits, is_taken in ended if is_taken]
        for waits, is_taken in ended:
            if is_taken is False:
                due_ms = self._clock.now_ms() + round(ERROR_PAUSE_S * 1000)
                heapq.heappush(again.waiting, waits._replace(due_ms=due_ms))
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
