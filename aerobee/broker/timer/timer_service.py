"""The running timer: wires and starts its parts in order, and reports their progress and lag (TimerMessageStore).

    timer_progress.py its progress slots_at_hand.py the present slot and the next one, in memory clock_set_back.py messages with due times of a clock that ran ahead enqueue.py from the timer topic into the wheel
    delivery.py         from the wheel to the real topics

After a crash RocketMQ delivers again the messages of a slot that it had delivered. Here source pointers in the commit
log record the deliveries (docs/decisions/0006-exact-timers-in-rocketmqs-files-never-twice.md).
"""

from __future__ import annotations

from collections.abc import Callable

from aerobee.broker.delay.delivery_runs import DeliveryRuns
from aerobee.broker.delay.redelivery import ExistingQueue
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.message_writer import LmqDispatch
from aerobee.broker.timer.clock_set_back import ClockSetBack
from aerobee.broker.timer.delivery import TimerDelivery
from aerobee.broker.timer.enqueue import TimerEnqueue
from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.broker.timer.slots_at_hand import SlotsAtHand, TimerMessages
from aerobee.broker.timer.timer_progress import TimerProgress
from aerobee.clock import Clock
from aerobee.store.message_store import MessageStore
from aerobee.store.timer.timer_files import TimerFiles


class TimerService:
    """The running timer of a master. Belongs to the event loop. TimerSaver and the operators' requests read `progress`
    and `slots`.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        files: TimerFiles,
        clock: Clock,
        stats: BrokerStats,
        pending: PendingCounts,
        runs: DeliveryRuns,
        existing_queue: ExistingQueue,
        warm: Callable[[list[int]], None] = lambda offsets: None,
        lmqs: LmqDispatch | None = None,
    ) -> None:
        """`warm` is given the physical offsets of the next slot, to bring their records into memory."""
        self._clock = clock
        self._store = store
        self._precision_ms = files.precision_ms
        self.progress = TimerProgress(
            queues=store.queues,
            log_end=lambda: store.log.end,
            pending=pending,
            precision_ms=files.precision_ms,
        )
        messages = TimerMessages(store, files.precision_ms)
        self.slots = SlotsAtHand(files, messages, self.progress, warm)
        set_back = ClockSetBack(
            slots=self.slots, messages=messages, files=files, progress=self.progress, clock=clock
        )
        self._delivery = TimerDelivery(
            store=store,
            progress=self.progress,
            slots=self.slots,
            messages=messages,
            files=files,
            runs=runs,
            stats=stats,
            clock=clock,
            existing_queue=existing_queue,
            set_back=set_back,
            lmqs=lmqs,
        )
        self._enqueue = TimerEnqueue(
            progress=self.progress,
            slots=self.slots,
            messages=messages,
            files=files,
            runs=runs,
            clock=clock,
            set_back=set_back,
            wake=self._delivery.wake,
        )
        self.set_filter = self._delivery.set_filter
        self.on_appended = self._enqueue.on_appended
        self.on_messages = self._enqueue.on_messages

    # --- life

    def take_over(self, *, queue_offset: int, read_time: int, scan_from: int, handled: set[int]) -> None:
        """Continue where an earlier run ended; `handled` are the physical offsets of the messages that it delivered
        since.
        """
        self.slots.forget()
        self.progress.take_over(
            queue_offset=queue_offset,
            read_time=read_time,
            scan_from=scan_from,
            handled=handled,
            # Delivered were slots of the clock that it had, which may have been ahead.
            until_ms=max(self._clock.now_ms(), self._store.last_store_timestamp),
        )

    def start(self) -> None:
        """Start with the messages in the topic and the due ones."""
        self.progress.begin()
        self._delivery.start(self._store.last_store_timestamp)
        self._enqueue.start()

    def stop(self) -> None:
        """Cancel the timers; nothing is written."""
        self._enqueue.stop()
        self._delivery.stop()

    # --- numbers

    def delivered_until(self) -> int:
        """Everything that was due before this time, ms, is delivered; 0 while messages are without a unit."""
        self._enqueue.end_pause()
        if self.progress.behind_messages:
            return 0
        slot = self.slots.slot
        if slot is None:
            return self._clock.now_ms()
        if not slot.is_loaded:
            return slot.time_ms
        return slot.next_due_ms or slot.time_ms + self._precision_ms

    @property
    def trouble(self) -> str:
        """Reason why messages get no unit or are not delivered, while it is retried; empty when healthy."""
        return self._enqueue.trouble or self._delivery.trouble

    @property
    def behind_ms(self) -> int:
        """Delivery lag, ms: the lateness of the oldest due message, or the time since the end of the present slot if
        that is larger.
        """
        slot = self.slots.slot
        if slot is None:
            return 0
        due = slot.next_due_ms
        now = self._clock.now_ms()
        late = 0 if due is None else now - due
        return max(0, late, now - self.progress.read_time - self._precision_ms)
