"""The timer as a feature of the broker: assembles, opens, starts and stops its parts in order."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Generator, Mapping

from aerobee.broker.delay.delivery_scan import deliveries_between
from aerobee.broker.delay.redelivery import WaitingMessage
from aerobee.broker.metrics.metrics import Registry
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.send.keyed_records import window_start
from aerobee.broker.send.timer_properties import number
from aerobee.broker.state.feature import Feature, PutHook
from aerobee.broker.state.master_questions import MasterQuestions
from aerobee.broker.timer.pending_counts import PendingCounts, parse_counts
from aerobee.broker.timer.pending_timers import PendingTimers, pending_timers
from aerobee.broker.timer.timer_calls import TimerCalls
from aerobee.broker.timer.timer_copy import TimerCopy
from aerobee.broker.timer.timer_hook import NO_LIMIT, TimerHook
from aerobee.broker.timer.timer_saver import TimerSaver
from aerobee.broker.timer.timer_service import TimerService
from aerobee.broker.timer.timer_source import TimerSource
from aerobee.broker.timer.wheel_snapshot import WheelSnapshot
from aerobee.errors import MalformedRecord, StoreError
from aerobee.property_names import (
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_OUT_MS,
    TIMER_REQUESTS,
    TIMER_ROLL_TIMES,
    UNIQUE_KEY,
)
from aerobee.record_head import field_at, head_struct
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.peer import Handler
from aerobee.store.files.config import TIMER_WHEEL_SLOTS, StoreConfig
from aerobee.store.files.json_file import load_statistics_file
from aerobee.store.log.source_pointer import delivered_sources
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_checkpoint import ROCKETMQ, TimerCheckpoint
from aerobee.store.timer.timer_files import TimerFiles
from aerobee.system_names import WHEEL_TIMER_TOPIC

log = logging.getLogger(__name__)

_QUEUE_OFFSET, _QUEUE_OFFSET_AT = head_struct("queue_offset"), field_at("queue_offset")
WARM_COUNT_MAX = 20_000  # records of one slot that are loaded into memory ahead
LATE_MS = 60_000  # a message is not given its unit later than this after its time
SCAN_BACK_MS = (
    600_000  # how far before a RocketMQ master's read time recovery searches for deliveries by Aerobee
)
RECORD_BYTES = 4_096  # number of bytes read of each; longer ones are rare
RECORDS_PER_STEP = 256


class Timers(Feature):
    """The timer feature: messages delivered at any time. With timerWheelEnable=false it refuses them and touches no
    file.
    """

    name = "timer"
    accepts_early = True
    always_served = frozenset({RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS})

    def __init__(self, parts: BrokerParts, *, slot_count: int = TIMER_WHEEL_SLOTS) -> None:
        """A wheel of another size than RocketMQ's is for simulation."""
        self._parts = parts
        self._schedule = parts.schedule
        store = parts.store
        self._store: MessageStore = store
        self._is_enabled = store.config.timer_wheel_enable
        self._files = TimerFiles(store.config, parts.disk, slot_count=slot_count)
        self._snapshot = WheelSnapshot(self._files.wheel, parts.clock)
        pending = PendingCounts(parts.clock.now_ms())
        self._service = TimerService(
            store=store,
            files=self._files,
            clock=parts.clock,
            stats=parts.stats,
            pending=pending,
            runs=parts.deliveries,
            existing_queue=parts.topics.existing_queue,
            warm=self._warm,
            lmqs=parts.lmqs,
        )
        self._metrics_path = store.config.path("config", "timermetrics")
        self._saver = TimerSaver(
            service=self._service,
            files=self._files,
            store=store,
            pending=pending,
            metrics_path=self._metrics_path,
            disk=parts.disk,
            clock=parts.clock,
            interval_ms=lambda: store.config.timer_flush_interval_ms,
            run_blocking=parts.run_blocking,
        )
        self._source = TimerSource(files=self._files, saver=self._saver, store=store)
        self._copy = TimerCopy(
            questions=MasterQuestions(parts.client),
            store=store,
            files=self._files,
            saver=self._saver,
            pending=pending,
            clock=parts.clock,
        )
        hook = TimerHook(config=self._config, clock=parts.clock, count_in_slot=self._count_in_slot)
        self.put_hook = PutHook(frozenset(TIMER_REQUESTS), hook)
        self._calls = TimerCalls(
            service=self._service,
            source=self._source,
            files=self._files,
            hook=hook,
            store=store,
            writer=parts.writer,
            topics=parts.topics,
            ack=parts.ack,
            live=parts.live,
            identity=parts.identity,
            role=parts.role,
            clock=parts.clock,
        )
        self._checkpoint: TimerCheckpoint | None = None
        # physical offsets of messages that count as delivered because of their time
        self._was_due: set[int] = set()
        self._has_run = False
        self._rates = (parts.clock.monotonic(), 0, 0)
        store.on_arrival(self._service.on_appended, WHEEL_TIMER_TOPIC)
        self._register_numbers(parts.stats.registry, pending)

    def _register_numbers(self, registry: Registry, pending: PendingCounts) -> None:
        service = self._service
        registry.gauges(
            "timing_messages",
            "Timer messages that wait for their delivery time",
            pending.counts,
            labels=("topic",),
        )
        registry.gauges(
            "timer_enqueue_lag",
            "Timer messages stored that are not in the timer wheel yet",
            lambda: [((), service.progress.behind_messages)] if self._has_run else [],
            labels=(),
        )
        registry.gauges(
            "timer_enqueue_latency",
            "Age of the oldest timer message that is not in the timer wheel yet, ms; 0 without one",
            lambda: [((), self._enqueue_behind_ms())] if self._has_run else [],
            labels=(),
            unit="ms",
        )
        registry.gauges(
            "timer_dequeue_lag",
            "Messages in the timer wheel, due or not",
            lambda: [((), pending.total)] if self._has_run else [],
            labels=(),
        )
        registry.gauges(
            "timer_dequeue_latency",
            "Delay of the timer wheel behind the clock, ms",
            lambda: [((), service.behind_ms)] if self._has_run else [],
            labels=(),
            unit="ms",
        )
        registry.gauges(
            "timer_message_snapshot",
            "Messages in the timer wheel that are due within this number of seconds but not within the next smaller bound; up to a day",
            lambda: self._snapshot.read() if self._has_run else [],
            labels=("timer_bound_s",),
            blocks=lambda: self._snapshot.blocks() if self._has_run else (),
        )
        registry.gauges(
            "timer_delivery_late_seconds",
            "Delay of timer messages behind their delivery time, over the last minutes; absent when none was delivered",
            service.progress.lateness.quantiles_s,
            labels=("quantile",),
            unit="s",
        )
        registry.gauge(
            "store_time_ahead",
            "Difference between the newest message's store time and a clock that was set back, ms; 0 otherwise",
            lambda: max(0, self._store.last_store_timestamp - self._parts.clock.now_ms()),
        )
        registry.gauges(
            "timer_failing",
            "1 while timer messages cannot be added to the timer wheel or delivered and the broker retries, else 0",
            lambda: [((), int(bool(service.trouble)))] if self._has_run else [],
            labels=(),
        )
        registry.counter(
            "timer_enqueued", "Messages added to the timer wheel", lambda: [((), service.progress.enqueued)]
        )
        registry.counter(
            "timer_dequeued",
            "Messages removed from the timer wheel",
            lambda: [((), service.progress.dequeued)],
        )
        registry.spread(
            "delay_message_latency",
            "Remaining delay of messages when they are added to the timer wheel, whole seconds",
            lambda: [((), service.progress.delays)],
            unit="s",
        )

    def _enqueue_behind_ms(self) -> int:
        progress = self._service.progress
        if not progress.behind_messages:
            return 0
        stored_ms = self._store.store_time(WHEEL_TIMER_TOPIC, 0, progress.queue_offset)
        return max(0, self._parts.clock.now_ms() - stored_ms) if stored_ms > 0 else 0

    def handlers(self) -> Mapping[int, Handler]:
        return self._calls.handlers() if self._is_enabled else {}

    # --- life

    def load(self) -> None:
        if not self._is_enabled:
            return
        for _ in self._opening():
            pass
        self._copy.loaded(self._checkpoint)
        if not self._parts.role.takes_writes:
            self._saver.start_copying(self._checkpoint)
            return  # deliveries are searched when this broker becomes master
        scan_from = self._scan_start()
        log_files, end = self._store.log, self._store.log.end
        self._use(scan_from, delivered_sources(log_files, scan_from, end))

    def _opening(self) -> Generator[None, None, None]:
        """Open the files, in steps of some milliseconds."""
        store, disk = self._store, self._parts.disk
        queue = store.queues.get((WHEEL_TIMER_TOPIC, 0))
        try:
            self._checkpoint = yield from self._files.opening(
                log_end=store.log.end,
                queue_max=queue.max_offset if queue is not None else 0,
                queue_offset_of=self._queue_offset_at,
            )
            tree = load_statistics_file(disk, self._metrics_path, parse_counts)
        except OSError as error:
            raise StoreError(f"the timer's files cannot be opened: {error}") from error
        if tree is not None and self._files.rebuilt_from is None:  # a rebuild counts the messages again
            self._service.progress.pending.load(tree)
        self._was_due = yield from self._finding_due()

    def _use(self, scan_from: int, delivered: set[int]) -> None:
        """Continue from the files; `delivered` are the deliveries in the log from `scan_from` on."""
        checkpoint = self._checkpoint
        self._service.take_over(
            queue_offset=checkpoint.queue_offset if checkpoint is not None else 0,
            read_time=checkpoint.read_time_ms if checkpoint is not None else 0,
            scan_from=scan_from,
            handled=delivered | self._was_due | self._parts.escaped.sources,
        )

    def _finding_due(self) -> Generator[None, None, set[int]]:
        """When the timer log was damaged, or the last master was RocketMQ: what was due long before the time that the checkpoint had
        reached, and what was stored again in the timer topic because it was beyond the roll window.

        Whether it was beyond the window cannot be computed: a wheel may have got the message long after it was stored. Deliveries of
        RocketMQ carry no marks. Messages that no RocketMQ broker can have delivered go by the deliveries in the log alone: after a clock
        was set back, pending ones are due before the read time.
        """
        checkpoint = self._files.rebuilt_from
        queue = self._store.queues.get((WHEEL_TIMER_TOPIC, 0))
        if checkpoint is None or queue is None:
            return set()
        marked_from = checkpoint.marked_from if checkpoint.marked_from >= 0 else self._store.log.end
        sources: set[int] = set()
        copies: Counter[int] = Counter()  # of messages of which older records were not met yet
        for offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            if not offset % RECORDS_PER_STEP:
                yield
            entry = queue.entry(offset)
            data = self._store.read_record(entry[0]) if isinstance(entry, tuple) else None
            if data is None or not isinstance(entry, tuple):
                continue
            try:
                properties = WaitingMessage(data).properties
            except MalformedRecord:
                continue
            out_ms, unique_key = number(properties.get(TIMER_OUT_MS)), properties.get(UNIQUE_KEY)
            if out_ms is None:
                continue
            # A request to delete a message has the message's own unique key and time.
            deleted = properties.get(TIMER_DELETE_KEY)
            key = hash((properties.get(REAL_TOPIC), unique_key, out_ms, deleted))
            was_stored_again = copies.get(key, 0) > 0
            if was_stored_again:
                copies[key] -= 1
            if unique_key and TIMER_ROLL_TIMES in properties:
                copies[key] += 1
            if was_stored_again or (
                entry[0] < marked_from
                and offset < checkpoint.queue_offset
                and out_ms < checkpoint.read_time_ms - LATE_MS
            ):
                sources.add(entry[0])
        return sources

    def _marked_from(self) -> int:
        """Physical offset from which on deliveries name their messages (TimerCheckpoint.marked_from); -1: unknown."""
        told = self._files.rebuilt_from or self._checkpoint
        if told is None:
            return 0
        if told.scan_from < 0 or (told.copied_from is not None and told.copied_from.source == ROCKETMQ):
            return self._store.log.end
        return told.marked_from

    def _scan_start(self) -> int:
        """Log offset from which on deliveries may not be included in the checkpoint."""
        store, checkpoint = self._store, self._checkpoint
        told = self._files.rebuilt_from
        if told is not None and told.copied_from is not None:
            # Messages that Aerobee delivered before the RocketMQ master took over have due times in the past.
            return window_start(store.log, told.read_time_ms - SCAN_BACK_MS)
        if checkpoint is not None:
            # RocketMQ's deliveries carry no marks: there is nothing to find.
            return min(checkpoint.scan_from, store.log.end) if checkpoint.scan_from >= 0 else store.log.end
        queue = store.queues.get((WHEEL_TIMER_TOPIC, 0))
        entry = queue.entry(queue.min_offset) if queue is not None else None
        return entry[0] if isinstance(entry, tuple) else store.log.end

    def start(self) -> None:
        if self._is_enabled:
            self._has_run = True
            self._copy.forget()  # from here on the files are this broker's own
            told = self._files.rebuilt_from
            self._saver.hold_until_all_are_read(told is not None and told.copied_from is not None)
            self._service.start()
            self._saver.start(self._checkpoint, self._marked_from())
            self._source.begin()
            if self._checkpoint is not None and self._checkpoint.scan_from < 0:
                # RocketMQ wrote it. A start after a crash from here on needs the offset from which to search
                # for deliveries.
                self._saver.save_first()

    async def take_over(self) -> None:
        # The files are a copy of the last master's, or those of an earlier mastership, or were removed by a
        # truncation.
        if not self._is_enabled:
            return
        copied = self._copy.take()
        if copied is not None:
            self._checkpoint, self._was_due = copied, set()
        else:
            self._files.close()
            for _ in self._opening():
                await asyncio.sleep(0)
        scan_from, end = self._scan_start(), self._store.log.end
        log.info(
            "timers continue from queue offset %d; their deliveries are read from %d bytes of the log",
            self._checkpoint.queue_offset if self._checkpoint is not None else 0, end - scan_from,
        )  # fmt: skip
        self._use(scan_from, await deliveries_between(self._store, scan_from, end))

    async def copy(self, master: str, is_following: Callable[[], bool]) -> None:
        if self._is_enabled:
            await self._copy.run(master, is_following)

    def log_cut(self, log_offset: int) -> None:
        # The clean-up after the truncation removes the checkpoint file (after_cut.py).
        self._files.revoke_saves()
        self._copy.forget()

    def resign(self) -> None:
        self.stop()
        self._has_run = False  # this state becomes stale: no checkpoint may contain it

    def stop(self) -> None:
        self._source.end()
        self._service.stop()
        self._saver.stop()

    def save(self) -> None:
        if self._has_run:
            self._saver.save_last()

    def close(self) -> None:
        self._files.close()

    # --- for other features

    async def pending(self) -> PendingTimers | None:
        """At a slave: what its copy of the wheel says about pending timers; None when only the timer topic shows them."""
        return await pending_timers(self._files, self._copy.checkpoint, log_end=self._store.log.end)

    def set_filter(
        self, topic: str, is_wanted: Callable[[str, bytes], bool], is_settled: Callable[[int], bool]
    ) -> None:
        """Leave out due messages for `topic` that no group needs: is_settled(physical offset) is called
        first, before the message is read, then is_wanted(tag, body).
        """
        self._service.set_filter(topic, is_wanted, is_settled)

    def on_messages(self, pause_s: float = 0.0) -> None:
        """As TimerEnqueue.on_messages."""
        self._service.on_messages(pause_s)

    def limits(self) -> tuple[int, int] | None:
        """Precision and longest delay, ms; None while each message must be checked."""
        config = self._store.config
        if not self._is_enabled or config.timer_congest_num_each_slot != NO_LIMIT:
            return None
        return config.timer_precision_ms, config.timer_max_delay_sec * 1000

    def delivered_until(self) -> int:
        """Everything that was due before this time, ms, is delivered."""
        return self._service.delivered_until() if self._is_enabled else self._parts.clock.now_ms()

    # --- for the parts

    def _config(self) -> StoreConfig:
        return self._store.config

    def _count_in_slot(self, time_ms: int) -> int:
        slot = self._files.slot(time_ms)
        return slot.number if slot is not None else 0

    def _queue_offset_at(self, physical_offset: int) -> int | None:
        data = self._store.read_record(physical_offset)
        return _QUEUE_OFFSET.unpack_from(data, _QUEUE_OFFSET_AT)[0] if data is not None else None

    def _warm(self, offsets: list[int]) -> None:
        """Bring the next slot's records into memory, those that lie far back in the log."""
        store = self._store
        cold = [at for at in offsets[:WARM_COUNT_MAX] if store.log.end - at > store.config.hot_read_bytes]
        if cold:
            self._parts.spawn(store.warm_records([(at, RECORD_BYTES) for at in cold]))

    def runtime_info(self) -> dict[str, str]:
        service = self._service
        now = self._parts.clock.monotonic()
        then, enqueued, dequeued = self._rates
        elapsed = now - then
        rates = (0.0, 0.0)
        if elapsed > 0:
            rates = (
                (service.progress.enqueued - enqueued) / elapsed,
                (service.progress.dequeued - dequeued) / elapsed,
            )
        if elapsed >= 10:
            self._rates = (now, service.progress.enqueued, service.progress.dequeued)
        return {
            "timerReadBehind": str(service.behind_ms // 1000),
            "timerOffsetBehind": str(service.progress.behind_messages),
            "timerEnqueueTps": f"{rates[0]:.1f}",
            "timerDequeueTps": f"{rates[1]:.1f}",
            "timerTrouble": service.trouble,
            # By how much the clock is behind the newest message's store time, because it was set back.
            "storeTimeAheadMs": str(max(0, self._store.last_store_timestamp - self._parts.clock.now_ms())),
            "timerPending": str(service.progress.pending.total),
            **service.progress.lateness.info("timer"),
            **self._schedule.lateness.info("schedule"),
        }
