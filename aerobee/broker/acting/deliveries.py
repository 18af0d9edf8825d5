"""Deliveries of an acting slave on behalf of its master: due messages go to other brokers through the EscapeBridge.

A successful delivery is recorded before the next pass: here, and in the offset of each delay level, which passes no
undelivered message. Messages that no other broker accepts are retried every second while this slave acts. They wait in
a separate queue with a separate share of the concurrent sends, so that they delay no other message.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import Any

from aerobee.broker.acting.escape_bridge import EscapeBridge
from aerobee.broker.acting.level_progress import LevelProgress
from aerobee.broker.acting.waiting import (
    RECORD_BYTES,
    Waits,
    leaving,
    stays,
    waiting_of_level,
    waiting_timers,
)
from aerobee.broker.delay.delivery_scan import deliveries_between
from aerobee.broker.delay.escaped import EscapedDeliveries
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.timer.pending_timers import PendingTimers
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.store.message_store import MessageStore
from aerobee.system_names import SCHEDULE_TOPIC, WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)
AT_ONCE_MAX = 24  # maximum number of first sends in flight
AGAIN_AT_ONCE_MAX = 8  # maximum number of retried sends in flight
ERROR_PAUSE_S = 1.0
LOOK_S = 0.5  # the longest sleep: a wall clock may jump


class _Sends:
    """Pending messages by due time, and those in flight."""

    def __init__(self, waiting: list[Waits], at_once_max: int) -> None:
        """`waiting` is a heap."""
        self.waiting = waiting
        self.sending: dict[asyncio.Task[bool | None], Waits] = {}
        self._at_once_max = at_once_max

    def start_due(self, now_ms: int, send: Callable[[Waits], Coroutine[Any, Any, bool | None]]) -> None:
        """Send due messages, within the bound of sends in flight."""
        waiting, sending = self.waiting, self.sending
        while waiting and len(sending) < self._at_once_max and waiting[0].due_ms <= now_ms:
            waits = heapq.heappop(waiting)
            sending[asyncio.create_task(send(waits), name="acting-send")] = waits

    def pause_s(self, now_ms: int) -> float:
        """Time until the next message is due, if another send is permitted; LOOK_S at most."""
        if self.waiting and len(self.sending) < self._at_once_max:
            return min(LOOK_S, max(0.0, (self.waiting[0].due_ms - now_ms) / 1000))
        return LOOK_S

    def take_ended(self) -> list[tuple[Waits, bool | None]]:
        """The ended sends and their results."""
        ended = [task for task in self.sending if task.done()]
        return [(self.sending.pop(task), task.result()) for task in ended]


class ActingDeliveries:
    """Delivers due messages, in one task, while this slave acts as master. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        schedule: Schedule,
        escaped: EscapedDeliveries,
        bridge: EscapeBridge,
        halves: Callable[[], Iterable[tuple[int, int]]],
        pending_timers: Callable[[], Awaitable[PendingTimers | None]],
        clock: Clock,
        inner_group: str,
    ) -> None:
        """`halves` returns the open half messages: physical offset and time of the next check (ms since 1970).
        `pending_timers`: as Timers.pending(). `inner_group` is the producer group of these sends, which belong to no client.
        """
        self._store = store
        self._schedule = schedule
        self._escaped = escaped
        self._bridge = bridge
        self._halves = halves
        self._pending_timers = pending_timers
        self._cancelled: set[str] = set()  # keys of recalled timers
        self._clock = clock
        self._inner_group = inner_group
        self._levels: defaultdict[int, LevelProgress] = defaultdict(LevelProgress)
        self._trouble = ""
        self._is_over = False
        self.delivered_count = 0

    async def run(self) -> None:
        """Run until finish(), or until no message waits. After a cancellation a send in flight may be stored but not
        recorded: its message is delivered twice."""
        self._is_over = False
        first = _Sends(await self._all(), AT_ONCE_MAX)
        again = _Sends([], AGAIN_AT_ONCE_MAX)
        both = (first, again)
        if first.waiting:
            log.warning(
                "up to %d delayed messages are pending here; they are delivered to other brokers",
                len(first.waiting),
            )
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
        """Wait until a send ends, or the next message is due and may be sent."""
        now = self._clock.now_ms()
        pause_s = min(first.pause_s(now), again.pause_s(now))
        if sending := first.sending.keys() | again.sending.keys():
            await asyncio.wait(sending, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        else:
            await self._clock.sleep(pause_s)

    def _note(self, first: _Sends, again: _Sends) -> None:
        """Record the delivered messages; a message that no broker accepted is retried after a pause."""
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
            log.info("due messages are delivered to other brokers again")
            self._trouble = ""

    def finish(self) -> None:
        """Let run() return after recording the sends in flight."""
        self._is_over = True

    async def _all(self) -> list[Waits]:
        """All pending messages, as a heap."""
        store = self._store
        pending = None
        if store.config.timer_wheel_enable:
            pending = await self._pending_timers() or PendingTimers()
        scan_from = self._scan_start(pending)
        delivered = await deliveries_between(store, scan_from, store.log.end)
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
        if pending is not None:
            timers = await waiting_timers(
                store, pending, delivered, precision_ms=store.config.timer_precision_ms
            )
            found += timers.waits
            self._cancelled = timers.cancelled
        heapq.heapify(found)
        return found

    def _scan_start(self, timers: PendingTimers | None) -> int:
        """Physical offset from which on the log may have deliveries of messages that seem to wait."""
        store, level_scan = self._store, self._schedule.copied_from
        firsts = [store.log.end]
        if level_scan is None:
            firsts += self._oldest(SCHEDULE_TOPIC)
        else:
            firsts.append(level_scan)
        if timers is not None:
            firsts += self._oldest(WHEEL_TIMER_TOPIC) if timers.scan_from is None else [timers.scan_from]
        return max(store.log.min_offset, min(firsts))

    def _oldest(self, topic: str) -> list[int]:
        """Physical offset of the oldest record of each queue of a topic. No delivery has an earlier source."""
        store, found = self._store, []
        for (name, _), queue in store.queues.items():
            if name == topic and queue.min_offset < queue.max_offset:
                entry = queue.entry(queue.min_offset)
                found.append(entry[0] if isinstance(entry, tuple) else store.log.min_offset)
        return found

    async def _send(self, waits: Waits) -> bool | None:
        """Whether another broker accepted it. None: it is recalled, or this broker cannot send it, and the master delivers
        it, whose record may be intact."""
        if waits.is_timer:
            await self._store.warm_records([(waits.physical_offset, RECORD_BYTES)])
            if stays(self._store, waits, self._cancelled):
                return None
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
                log.warning("a message is due and no other broker accepts it: %s; trying again", error)
            return False
        self.delivered_count += 1
        return True
