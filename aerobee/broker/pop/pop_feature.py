"""POP as a feature of the broker: assembles, starts and stops its parts.

Files: config/consumerOrderInfo.json (ordered pops), written every few seconds and at the stop. Everything else is in the
log, in the groups' offsets and in config/messageRequestMode.json (request_mode.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from aerobee.broker.fastpath.pop import PopHooks
from aerobee.broker.fastpath.request import FallBackToHandler
from aerobee.broker.metrics.metrics import Registry
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.ack_calls import AckCalls
from aerobee.broker.pop.ack_service import AckService
from aerobee.broker.pop.check_point import CK_TAG, decode_acks, decode_check_point
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import PopEngine
from aerobee.broker.pop.invisible_calls import InvisibleCalls
from aerobee.broker.pop.merge_buffer import MergeBuffer
from aerobee.broker.pop.notification_calls import NotificationCalls
from aerobee.broker.pop.notification_service import NotificationService
from aerobee.broker.pop.pending_pops import PendingPops
from aerobee.broker.pop.pop_calls import PopCalls
from aerobee.broker.pop.pop_recovery import READ_COUNT, recover_pops, recovering_pops
from aerobee.broker.pop.pop_service import PopService
from aerobee.broker.pop.revive_log import ReviveLog
from aerobee.broker.pop.reviver import Reviver
from aerobee.broker.state.feature import Feature
from aerobee.clock import Timer, wall_wait_s
from aerobee.errors import MalformedFrame, StoreError
from aerobee.lite_topic import LITE_PREFIX
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import ANY_QUEUE

ORDER_FILE = "consumerOrderInfo.json"
BUFFER_SCAN_S = 0.2
UPKEEP_S = 5.0


def _pick(count: int) -> int:
    """A number from 0 to count - 1. As random.randrange, in a fifth of its time."""
    return int(random.random() * count)


class DueDeliveries(Protocol):
    """The part of the timer that POP uses. A protocol, because POP may not import broker/timer."""

    def delivered_until(self) -> int:
        """All messages due before this time (ms) are delivered."""

    def on_messages(self, pause_s: float = 0.0) -> None:
        """Messages were added to the timer's topic; none of them is due within `pause_s`."""

    def set_filter(
        self, topic: str, is_wanted: Callable[[str, bytes], bool], is_settled: Callable[[int], bool]
    ) -> None:
        """Skip unneeded messages for `topic`: is_settled(physical offset) is called first, before the message is read,
        then is_wanted(tag, body)."""


class Pop(Feature):
    """The POP feature of one broker."""

    name = "pop"
    needs = ("timer",)  # it delivers check points when they are due

    def __init__(
        self,
        parts: BrokerParts,
        *,
        timer: DueDeliveries | None = None,
        pick: Callable[[int], int] = _pick,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`call_soon` runs a function after what runs now; the event loop's unless given."""
        self._parts = parts
        call_soon = call_soon or asyncio.get_running_loop().call_soon
        config, store, identity, clock = parts.live.value, parts.store, parts.identity, parts.clock
        self._file = parts.config_file(ORDER_FILE)
        self._log = ReviveLog(
            store=store,
            cluster=identity.cluster,
            host=identity.store_host,
            waiting=parts.pending_pulls.by_queue,
            on_timer_messages=timer.on_messages if timer and store.config.timer_wheel_enable else None,
            make_records=parts.make_pop_records,
        )
        self.engine = PopEngine(
            store=store,
            offsets=parts.offsets,
            log=self._log,
            broker_name=identity.name,
            host=identity.store_host,
            buffer=MergeBuffer() if config.enable_pop_buffer_merge else None,
        )
        self.waiting, self.notified = (
            PendingPops(
                clock=clock,
                call_soon=call_soon,
                watch=parts.pending_pulls,
                bounds=parts.bounds,
                access=parts.pending_pulls.access,
            )
            for _ in range(2)
        )
        # Called with the LMQ of a lite topic and the group for which it is free again.
        self.on_lite_free: Callable[[str, str], None] = lambda lmq, group: None
        self._make_calls(parts, pick, call_soon)
        self.reviver = Reviver(
            store=store,
            topic=self._log.topic,
            in_flight=self.engine.in_flight,
            offsets=parts.offsets,
            topics=parts.topics,
            groups=parts.groups,
            stats=parts.stats,
            live=parts.live,
            clock=clock,
            host=identity.store_host,
            call_soon=call_soon,
            delivered_until=timer.delivered_until if timer is not None else clock.now_ms,
            copied_from=parts.offsets.log_end,
        )
        if timer is not None:
            timer.set_filter(self._log.topic, self._is_wanted, self._is_settled)
        store.on_arrival(self.waiting.on_appended)
        store.on_arrival(self.notified.on_appended)
        store.on_arrival(self.reviver.on_appended, self._log.topic)
        parts.offsets.on_reset(self._offset_reset)
        parts.pending_pulls.on_release_all(self._release_waiting)
        self.withdrawals = self._pop_calls.withdrawals
        forget_plans = self._pop_calls.forget_plans
        parts.topics.on_change(lambda _: forget_plans())
        parts.groups.on_change(forget_plans)
        parts.live.on_change(lambda _: forget_plans())
        parts.role.on_change(lambda _: forget_plans())
        self._known_to = -1  # load() has read the log up to here, and nothing was dropped since
        self._timers: dict[str, Timer] = {}
        self._free: dict[tuple[str, str], tuple[int, Timer]] = {}
        self._register_numbers(parts.stats.registry)

    def _register_numbers(self, registry: Registry) -> None:
        registry.gauge(
            "pop_invisible",
            "Messages delivered by pops, not acknowledged or redelivered yet",
            lambda: self.engine.in_flight.message_count,
        )
        registry.gauge("pop_waiting", "Pending pops", lambda: self.waiting.count)
        reviver, queue_id = self.reviver, ("queue_id",)
        registry.gauges(
            "pop_revive_behind", "Revive records not read yet", reviver.unread_by_queue, labels=queue_id
        )
        registry.gauge(
            "pop_revive_failing",
            "1 while redelivery fails and is retried, else 0",
            lambda: int(bool(reviver.trouble)),
        )
        registry.gauges(
            "pop_revive_latency",
            "Age of the oldest revive record that is not read yet, ms; 0 without one",
            reviver.behind_ms_by_queue,
            labels=queue_id,
            unit="ms",
        )
        buffer = self.engine.buffer
        registry.gauges(
            "pop_checkpoints_buffered",
            "Check points that are only in memory; absent without enablePopBufferMerge",
            lambda: [] if buffer is None else [((), len(buffer))],
            labels=(),
        )
        registry.gauges(
            "pop_offsets_buffered",
            "Offsets of pops that wait for earlier ones; absent without enablePopBufferMerge",
            lambda: [] if buffer is None else [((), buffer.offset_count)],
            labels=(),
        )
        registry.counter(
            "pop_revive_in",
            "Check point and acknowledgement records written",
            lambda: [((), self._log.record_count)],
        )
        registry.counter("pop_revive_out", "Revive records read", lambda: [((), reviver.record_count)])
        registry.counter(
            "pop_acked", "Messages acknowledged by POP consumers", lambda: [((), self.acks.ack_count)]
        )
        registry.counter(
            "pop_revived",
            "Messages redelivered after their invisible time",
            lambda: [((), self.reviver.revived_count)],
        )

    def _make_calls(
        self,
        parts: BrokerParts,
        pick: Callable[[int], int],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """The services, and the handlers that answer with their outcomes by remoting."""
        store, identity, clock = parts.store, parts.identity, parts.clock
        checks = self.checks = PopChecks(
            topics=parts.topics,
            groups=parts.groups,
            live=parts.live,
            identity=identity,
            role=parts.role,
            expressions=parts.expressions,
        )
        self.pops = PopService(
            engine=self.engine,
            store=store,
            checks=checks,
            waiting=self.waiting,
            stats=parts.stats,
            live=parts.live,
            clock=clock,
            pick=pick,
            spawn=parts.spawn,
            when_free=self._wake_at,
            unserved=parts.unserved,
            feature=self.name,
        )
        self.acks = AckService(
            engine=self.engine,
            store=store,
            offsets=parts.offsets,
            checks=checks,
            wake=self.wake,
            clock=clock,
            broker_name=identity.name,
            call_soon=call_soon,
        )
        self.notifications = NotificationService(
            engine=self.engine,
            checks=checks,
            pops=self.waiting,
            waiting=self.notified,
            clock=clock,
            when_free=self._wake_at,
        )
        self._pop_calls = PopCalls(
            service=self.pops, engine=self.engine, store=store, ack=parts.ack, clock=clock
        )
        self._ack_calls = AckCalls(
            service=self.acks, engine=self.engine, checks=checks, ack=parts.ack, broker_name=identity.name
        )
        self._fast = PopFastPath(
            pops=self._pop_calls, acks=self._ack_calls, is_served=parts.unserved.served(self.name)
        )
        self._notification_calls = NotificationCalls(self.notifications)
        self._invisible = InvisibleCalls(engine=self.engine, consumers=parts.consumers, clock=clock)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            **self._pop_calls.handlers(),
            **self._ack_calls.handlers(),
            **self._notification_calls.handlers(),
            **self._invisible.handlers(),
        }

    def fast_path_hooks(self) -> PopHooks:
        """The fast path hooks, which serve ordinary requests before the handlers."""
        return self._fast

    def runtime_info(self) -> Mapping[str, str]:
        return {
            "popInvisibleMessages": str(self.engine.in_flight.message_count),
            "popWaiting": str(self.waiting.count),
            "popAcked": str(self.acks.ack_count),
            "popRevived": str(self.reviver.revived_count),
            "popReviveBehind": str(self.reviver.unread),
            "popTrouble": self.reviver.trouble,
        }

    # --- life

    def load(self) -> None:
        tree = self._file.read()
        if tree is not None:
            try:
                self.engine.orders.load(tree)
            except MalformedFrame as error:
                raise StoreError(f"config/{ORDER_FILE} is not a table of ordered pops: {error}") from error
        # Of a broker with controllers it reads what was confirmed when the last run ended, not what lies behind it.
        self._known_to = self._parts.store.readable_offset
        recover_pops(
            self._parts.store,
            revive_topic=self._log.topic,
            offsets=self._parts.offsets,
            in_flight=self.engine.in_flight,
        )

    async def take_over(self) -> None:
        await self._read_back()
        self._parts.offsets.pops_are_known()

    async def _read_back(self) -> None:
        store, offsets = self._parts.store, self._parts.offsets
        if store.log.end == self._known_to:
            return  # load() has read all of it: a restarted broker that leads as before
        self._forget()
        self.reviver.forget(offsets.log_end)
        for piece in recovering_pops(
            store, revive_topic=self._log.topic, offsets=offsets, in_flight=self.engine.in_flight
        ):
            if piece is not None and store.is_cold(*piece, count_max=READ_COUNT):
                await store.get_messages_cold(*piece, count_max=READ_COUNT)
            await asyncio.sleep(0)

    def resign(self) -> None:
        self.stop()
        self._forget()
        # The pending calls are refused with the reason that this broker is a slave; their clients go to the
        # next master.
        self.waiting.release_all()
        self.notified.release_all()

    def log_cut(self, log_offset: int) -> None:
        self._known_to = -1

    def _forget(self) -> None:
        """Drop this broker's deliveries: another broker has read them in the log and continued since."""
        self._known_to = -1
        engine = self.engine
        engine.in_flight.clear()
        engine.orders.forget_all()
        if engine.buffer is not None:
            engine.buffer.forget_all()
        self._log.written.clear()

    def start(self) -> None:
        self.reviver.start()
        self._every("upkeep", UPKEEP_S, self._upkeep)
        if self.engine.buffer is not None:
            self._every("buffer", BUFFER_SCAN_S, lambda: self.engine.scan_buffer(self._parts.clock.now_ms()))

    def _release_waiting(self) -> None:
        """The broker stops: answer pending calls, and write check points that are only in memory."""
        self.pops.hold_no_more()
        self.notifications.hold_no_more()
        self.engine.end_buffer(self._parts.clock.now_ms())
        self.waiting.release_all()
        self.notified.release_all()

    def stop(self) -> None:
        self.reviver.stop()
        for timer in (*self._timers.values(), *(timer for _, timer in self._free.values())):
            timer.cancel()
        self._timers.clear()
        self._free.clear()

    def close(self) -> None:
        self._log.close()

    def save(self) -> None:
        self._file.write(self.engine.orders.to_dict())

    def _upkeep(self) -> None:
        self.engine.in_flight.forget_old(self._parts.clock.now_ms())
        orders = self.engine.orders
        if orders.dirty:
            orders.dirty = False
            content = orders.to_dict()
            self._file.write_soon(lambda: self._file.write(content))

    def _every(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        clock = self._parts.clock

        def tick() -> None:
            self._timers[name] = clock.call_later(seconds, tick)
            work()

        self._timers[name] = clock.call_later(seconds, tick)

    # --- between the parts

    def _is_wanted(self, tag: str, body: bytes) -> bool:
        """Whether a due record must go to the revive topic: not if it has no effect any more."""
        try:
            if tag == CK_TAG:
                return not self.engine.in_flight.drop(decode_check_point(body).key)
            return not self.engine.in_flight.is_dropped(decode_acks(body).key)
        except MalformedFrame:
            return True

    def _is_settled(self, physical_offset: int) -> bool:
        """The same for a record that this process wrote."""
        written = self._log.written.pop(physical_offset, None)
        if written is None:
            return False
        key, is_point = written
        in_flight = self.engine.in_flight
        return in_flight.drop(key) if is_point else in_flight.is_dropped(key)

    def _wake_at(self, topic: str, group: str, time_ms: int) -> None:
        """Serve a waiting ordered pop when its queue is free again."""
        clock = self._parts.clock
        key = (topic, group)
        known = self._free.get(key)
        if known is not None:
            if known[0] <= time_ms:
                return
            known[1].cancel()

        def wake() -> None:
            self._free.pop(key, None)
            if self._parts.live.value.enable_notify_after_pop_order_lock_release:
                self.wake(topic, group)

        # A pending pop checks again at the end of each wait, and waits again while the queue is blocked.
        self._free[key] = (time_ms, clock.call_later(max(0.001, wall_wait_s(clock, time_ms)), wake))

    def wake(self, topic: str, group: str, queue_id: int = ANY_QUEUE) -> None:
        """A blocked queue is free for a group: one pop and one notification check it again."""
        self.waiting.wake(topic, group, queue_id)
        self.notified.wake(topic, group, queue_id)
        if topic.startswith(LITE_PREFIX):
            self.on_lite_free(topic, group)

    def _offset_reset(self, group: str, topic: str, queue_id: int) -> None:
        self.wake(topic, group)


class PopFastPath:
    """fastpath.pop.PopHooks. While POP is not served, it leaves all requests to the handlers, which refuse them."""

    def __init__(self, *, pops: PopCalls, acks: AckCalls, is_served: Callable[[], bool]) -> None:
        self._pop, self._ack = pops.pop_fast, acks.ack_fast
        self._is_served = is_served

    def pop(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """POP_MESSAGE."""
        if not self._is_served():
            raise FallBackToHandler
        return self._pop(peer, opaque, fields)

    def ack(self, peer: Peer, opaque: int, fields: dict[str, Any]) -> bytes:
        """ACK_MESSAGE."""
        if not self._is_served():
            raise FallBackToHandler
        return self._ack(peer, opaque, fields)
