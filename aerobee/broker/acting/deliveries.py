"""What a master delivers by itself, done by an acting slave: due messages go to other brokers by the EscapeBridge.

A delivery that succeeded is noted before the next look: here, and in where each delay level stands. What no other broker takes
is tried again each second, for as long as this slave acts.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

from aerobee.broker.acting.escape_bridge import EscapeBridge
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
        halves: Callable[[], Sequence[int]],
        clock: Clock,
        inner_group: str,
    ) -> None:
        """`halves` tells the physical offsets of the half messages that are open; `inner_group` sends for nobody."""
        self._store = store
        self._schedule = schedule
        self._escaped = escaped
        self._bridge = bridge
        self._halves = halves
        self._clock = clock
        self._inner_group = inner_group
        self._trouble = ""
        self._is_over = False
        self.delivered_count = 0

    async def run(self) -> None:
        """Until finish(), or nothing waits. Cancelled, a send that is under way may be stored and not noted: it comes twice."""
        self._is_over = False
        waiting = await self._all()
        if waiting:
            log.warning("%d messages wait here for their time; they go to other brokers", len(waiting))
        while waiting and not self._is_over:
            wait_s = (waiting[0].due_ms - self._clock.now_ms()) / 1000
            if wait_s > 0:
                await self._clock.sleep(min(wait_s, LOOK_S))
                continue
            batch: list[Waits] = []
            now = self._clock.now_ms()
            while waiting and len(batch) < AT_ONCE_MAX and waiting[0].due_ms <= now:
                batch.append(heapq.heappop(waiting))
            left = await self._deliver(batch)
            for each in left:
                heapq.heappush(waiting, each)
            if left:
                await self._clock.sleep(ERROR_PAUSE_S)

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
        found += [Waits(now, offset) for offset in self._halves() if offset not in delivered]
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

    async def _deliver(self, batch: Sequence[Waits]) -> list[Waits]:
        """Send them all; returns those that nobody took."""
        outcomes = await asyncio.gather(*map(self._send, batch))
        done = [each for each, is_done in zip(batch, outcomes, strict=True) if is_done]
        left = [each for each, is_done in zip(batch, outcomes, strict=True) if not is_done]
        if done:
            self._escaped.add(each.physical_offset for each in done)
            self._advance(done, left)
        if not left and self._trouble:
            log.info("messages that are due leave for other brokers again")
            self._trouble = ""
        return left

    def _advance(self, done: Sequence[Waits], left: Sequence[Waits]) -> None:
        """Move each level behind what was delivered, and not over what was not."""
        offsets = dict(self._schedule.offsets)
        stuck = {each.level for each in left}
        for each in done:
            if each.level and each.level not in stuck:
                offsets[each.level] = max(offsets.get(each.level, 0), each.queue_offset + 1)
        self._schedule.delivered_elsewhere(offsets)

    async def _send(self, waits: Waits) -> bool:
        message = leaving(self._store, waits, self._inner_group)
        if message is None:
            log.error("the message at %d can be delivered nowhere and is skipped", waits.physical_offset)
            return True
        try:
            await self._bridge.send(message)
        except AerobeeError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("a message is due and no other broker takes it: %s; trying again", error)
            return False
        self.delivered_count += 1
        return True
