"""Progress of the timer: the messages that have a unit, the present slot, and the slot's deliveries by an earlier run.
Core.

Invariants: slots before `read_time` are delivered; messages below `queue_offset` have their unit; deliveries of slots
from `read_time` on are in the commit log after `scan_from`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aerobee.broker.delay.delivery_lateness import DeliveryLateness
from aerobee.broker.metrics.metrics import Spread
from aerobee.broker.timer.pending_counts import PendingCounts
from aerobee.store.queue.queue_table import AnyQueue
from aerobee.system_names import WHEEL_TIMER_TOPIC

# Buckets of RocketMQ's rocketmq_delay_message_latency.
DELAY_ENDS_S = (60.0, 600.0, 3_600.0, 43_200.0, 86_400.0, 259_200.0)


class TimerProgress:
    """Enqueue and delivery change it, with one call per step; checkpoints and operators read it."""

    def __init__(
        self,
        *,
        queues: Mapping[tuple[str, int], AnyQueue],
        log_end: Callable[[], int],
        pending: PendingCounts,
        precision_ms: int,
    ) -> None:
        self._queues = queues
        self.log_end = log_end
        self._precision_ms = precision_ms
        self.pending = pending
        self.lateness = DeliveryLateness()
        self.delays = Spread(
            DELAY_ENDS_S
        )  # requested delays, in s, of the messages that were added to the wheel
        self.queue_offset = 0
        self.read_time = 0
        self.scan_from = 0
        self.enqueued = self.dequeued = 0
        self.is_changed = False  # since the last checkpoint
        self._is_slot_touched = False  # a message of the present slot was delivered
        # A message that cancels, or one that was stored again for a later slot, must be in its slot before that is
        # delivered. So delivery starts only when all messages of an earlier run have their units, and a slot
        # is left only when all messages stored again from it have theirs.
        self._first_needed_offset = self._needed_offset = 0
        self._handled: set[int] = (
            set()
        )  # physical offsets of the messages that an earlier run delivered since the checkpoint
        self._handled_until = 0

    # --- life

    def take_over(
        self, *, queue_offset: int, read_time: int, scan_from: int, handled: set[int], until_ms: int
    ) -> None:
        """Continue where an earlier run ended; `handled` are the physical offsets of the messages that it delivered
        since, of slots before `until_ms`.
        """
        self.queue_offset = queue_offset
        self.read_time = read_time - read_time % self._precision_ms
        self.scan_from = scan_from
        self._handled = handled
        self._handled_until = until_ms if handled else 0

    def begin(self) -> None:
        """The timer starts: all messages in its topic need their unit before anything is delivered."""
        self._first_needed_offset = self._needed_offset = self.queue_end

    def saved(self) -> None:
        """A checkpoint with the present numbers is on its way."""
        self.is_changed = False

    # --- enqueue

    @property
    def queue(self) -> AnyQueue | None:
        """The timer topic's queue; None when it is not there yet."""
        return self._queues.get((WHEEL_TIMER_TOPIC, 0))

    @property
    def queue_end(self) -> int:
        """The offset of the timer topic's next message."""
        queue = self.queue
        return queue.max_offset if queue is not None else 0

    @property
    def behind_messages(self) -> int:
        """Messages of the timer topic without a unit."""
        queue = self.queue
        return max(0, queue.readable_max - self.queue_offset) if queue is not None else 0

    def skip_to(self, queue_offset: int) -> None:
        """Messages before it are deleted."""
        self.queue_offset = max(self.queue_offset, queue_offset)

    def has_units_to(self, queue_offset: int) -> bool:
        """Messages before it have their units. Returns whether delivery waited for just that."""
        before, self.queue_offset = self.queue_offset, queue_offset
        self.is_changed = True
        return before < self._needed_offset <= queue_offset

    def count_enqueued(self, counts: Mapping[str, int], unit_count: int, now_ms: int) -> None:
        """Count added units; `counts` of them, by real topic, wait for delivery."""
        self.enqueued += unit_count
        for topic, count in counts.items():
            self.pending.add(topic, count, now_ms)

    # --- delivery

    @property
    def may_deliver(self) -> bool:
        """Whether all that an earlier run left in the topic has its unit."""
        return self.queue_offset >= self._first_needed_offset

    @property
    def may_leave_slot(self) -> bool:
        """Whether all messages that were stored again from the present slot have their unit."""
        return self.queue_offset >= self._needed_offset

    def stored_again(self) -> None:
        """A message of the present slot was stored again at the end of the timer topic."""
        self._needed_offset = self.queue_end

    def touch(self) -> None:
        """A delivery from the present slot begins."""
        self.is_changed = self._is_slot_touched = True

    def count_delivered(self, topic: str, late_ms: int, now_ms: int) -> None:
        """Count a delivery to `topic`, with its lateness."""
        self.dequeued += 1
        self.lateness.add(late_ms)
        self.pending.add(topic, -1, now_ms)

    def count_delivered_run(self, counts: Mapping[str, int], late_ms: Sequence[int], now_ms: int) -> None:
        """The same of several messages: `counts` by topic, `late_ms` one each."""
        self.dequeued += len(late_ms)
        self.lateness.add_all(late_ms)
        for topic, count in counts.items():
            self.pending.add(topic, -count, now_ms)

    def count_unwanted(self, topic: str, count: int, now_ms: int) -> None:
        """Count due messages that no group needs any more."""
        self.dequeued += count
        self.pending.add(topic, -count, now_ms)

    def count_gone(self, topic: str, now_ms: int) -> None:
        """A message will not be delivered: cancelled, stored again for later, or it cannot be."""
        self.pending.add(topic, -1, now_ms)

    def enter(self, time_ms: int) -> None:
        """Make the slot of a time the present one."""
        if time_ms == self.read_time:
            return
        self.read_time = time_ms
        # Only now is the slot before the read time, by which alone RocketMQ decides what is delivered.
        self.is_changed = self.is_changed or self._is_slot_touched
        self._is_slot_touched = False
        if self._handled_until and time_ms > self._handled_until and not self.behind_messages:
            self._handled.clear()
            self._handled_until = 0
        if not self._handled_until:
            self.scan_from = self.log_end()

    # --- what an earlier run delivered

    @property
    def has_handled(self) -> bool:
        """Whether each message must be looked up among earlier deliveries."""
        return bool(self._handled)

    def was_handled(self, physical_offset: int) -> bool:
        """Whether an earlier run delivered it."""
        return physical_offset in self._handled

    def take_handled(self, physical_offset: int) -> bool:
        """Whether an earlier run delivered it; then its unit is gone, and there is no second call."""
        if physical_offset not in self._handled:
            return False
        self._handled.discard(physical_offset)
        return True

    def handled_is_at_hand(self) -> None:
        """Deliveries of an earlier run have no unit in later slots: they are dropped with the present slot."""
        self._handled_until = min(self._handled_until, self.read_time)

    def without_handled(self, physical_offsets: set[int]) -> set[int]:
        """The messages that an earlier run has not delivered."""
        return physical_offsets - self._handled
