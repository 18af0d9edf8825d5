"""Acknowledges popped messages and changes their invisible time, independent of the protocol (AckMessageProcessor,
ChangeInvisibleTimeProcessor).

Acknowledgements of one pass of the event loop are written together: those of one check point share one record, all records
are one append. Their results come after it; where the disk or replicas are waited for, an answer may leave when the log is safe up to
that append's end (AckPolicy), so that a good answer means that the acknowledgement is in the log.

ack_calls.py is the encoder for remoting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.pop.check_point import Acks, CheckPointKey
from aerobee.broker.pop.checks import PopChecks
from aerobee.broker.pop.engine import PopEngine, where
from aerobee.broker.pop.order_info import NOT_OURS, UNKNOWN
from aerobee.broker.pop.pop_service import check_invisible_time
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.clock import Clock
from aerobee.errors import StoreError
from aerobee.lite_topic import LITE_PREFIX
from aerobee.remoting.body.pop_handle import Handle
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.protocol import INVISIBLE_MS_MAX
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

HANDLE_AHEAD_MS_MAX = 2 * INVISIBLE_MS_MAX  # of a handle's end: with space for a clock that was put back


@dataclass(slots=True)
class AckRequest:
    """Acknowledgement of one message by a group. `topic` is the subscribed topic, or the retry topic that stores the
    message.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    handle: Handle


@dataclass(slots=True)
class BatchAckRequest:
    """Acknowledgement of several messages of one handle by a group. `handle.queue_offset` is ignored."""

    group: str
    topic: str
    handle: Handle
    offsets: Sequence[int]


@dataclass(slots=True)
class ChangeRequest:
    """Request to keep a message invisible for `invisible_ms` from now on; 0 redelivers it immediately.

    `suspend`: it comes back with the number of deliveries it has, not with one more.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    handle: Handle
    invisible_ms: int
    suspend: bool = False


class Changed(NamedTuple):
    """The handle that replaces the previous one; `end` as in Written."""

    handle: Handle
    end: int


class Written(NamedTuple):
    """Outcome of the acknowledgements of one pass. They are safe when the log is safe up to `end` (0: nothing was
    written).

    `error`: they could not be written, and the messages are handed out again.
    """

    end: int
    error: StoreError | None = None


@dataclass(slots=True)
class _Open:
    """Unwritten acknowledgements of one check point."""

    handle: Handle
    offsets: set[int] = field(default_factory=set)


class AckService:
    """Records acknowledgements of groups. Its functions return immediately; the results of writes follow at the end of
    the pass.
    """

    def __init__(
        self,
        *,
        engine: PopEngine,
        store: MessageStore,
        offsets: ConsumerOffsets,
        checks: PopChecks,
        wake: Callable[[str, str, int], None],
        clock: Clock,
        broker_name: str,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`wake(topic, group, queue id)` lets pending pops of an ordered queue try again."""
        self._engine = engine
        self._store = store
        self._offsets = offsets
        self._checks = checks
        self._wake = wake
        self._clock = clock
        self._broker_name = broker_name
        self._call_soon = call_soon
        self._open: dict[CheckPointKey, _Open] = {}
        self._at_end: list[Callable[[Written], None]] = []
        self._is_due = False
        self.ack_count = 0

    def acknowledge(self, asked: AckRequest) -> bool:
        """Acknowledge a message. True: it is written at the end of this pass, and when_written() says what came of
        it. False: it needs no record, and is done. Raises Refused."""
        topic, offset = self._message_of(asked.group, asked.topic, asked.queue_id, asked.offset, asked.handle)
        if asked.handle.is_ordered:
            self._ack_in_order(topic, asked.group, asked.queue_id, offset, asked.handle)
            return False
        return self._acknowledge(topic, asked.group, asked.handle, offset)

    def count_ack(self) -> None:
        """Count an acknowledgement that was answered without this service: the message was acknowledged before."""
        self.ack_count += 1

    def acknowledge_batch(self, asked: BatchAckRequest) -> tuple[bool, Refused | None]:
        """acknowledge() of several messages of one handle; those that cannot be are left out. Returns (whether anything is written
        at the end of this pass, the last refusal). Raises Refused when it is refused whole."""
        handle = asked.handle
        self.check_handle(handle)
        self._checks.client_group(asked.group)
        self._checks.queue(self._checks.topic(asked.topic), handle.queue_id, Reason.HANDLE_ILLEGAL)
        topic = where(asked.topic, asked.group, handle)
        writes = False
        refused: Refused | None = None
        for offset in asked.offsets:
            try:
                if handle.is_ordered:
                    self._ack_in_order(topic, asked.group, handle.queue_id, offset, handle)
                elif self._acknowledge(topic, asked.group, handle, offset):
                    writes = True
            except Refused as refusal:
                refused = refusal
        return writes, refused

    def change_invisible(self, asked: ChangeRequest, consumer: str) -> Changed:
        """Have a message come back at another time. `consumer`: the address of who holds it from now on.

        Raises Refused, also for a message that is acknowledged; StoreError, and nothing has changed then.
        """
        now_ms = self._clock.now_ms()
        group, handle, invisible_ms = asked.group, asked.handle, asked.invisible_ms
        topic, offset = self._message_of(group, asked.topic, asked.queue_id, asked.offset, handle)
        check_invisible_time(invisible_ms)
        if handle.is_ordered:
            return self._change_in_order(
                topic, group, handle, offset, invisible_ms, now_ms, suspend=asked.suspend
            )
        if (topic, group, handle.queue_id, handle.start_offset, handle.pop_time) in self._open:
            self._write()
        pop_time, end = self._engine.change_invisible(
            topic, group, handle, offset, invisible_ms, now_ms, suspend=asked.suspend, consumer=consumer
        )
        changed = replace(
            handle, start_offset=offset, pop_time=pop_time, invisible_ms=invisible_ms, queue_offset=offset
        )
        return Changed(changed, end)

    def when_written(self, callback: Callable[[Written], None]) -> None:
        """Call back at the end of this event loop iteration, when its acknowledgements are written."""
        self._at_end.append(callback)
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._write)

    # --- steps, which the fast path takes one by one

    def open_offsets(self, key: CheckPointKey, handle: Handle) -> set[int]:
        """Offsets of one check point that are written at the end of this pass: put those of messages there that are handed out
        and not acknowledged. when_written() is to be called, too."""
        waiting = self._open.get(key)
        if waiting is None:
            waiting = self._open[key] = _Open(handle)
        return waiting.offsets

    def check_handle(self, handle: Handle) -> None:
        """Raise Refused for a handle that no pop can have given: an ordinary one names a queue and a time of revival."""
        if handle.is_ordered:
            return
        now_ms = self._clock.now_ms()
        if handle.pop_time < 0 or not 0 <= handle.revive_time <= now_ms + HANDLE_AHEAD_MS_MAX:
            raise Refused(
                Reason.HANDLE_ILLEGAL,
                f"the handle has popTime {handle.pop_time} and invisibleTime {handle.invisible_ms}: popTime must not be negative, and their "
                f"sum must be 0 to {now_ms + HANDLE_AHEAD_MS_MAX}, {HANDLE_AHEAD_MS_MAX} ms from now",
            )
        if not 0 <= handle.revive_queue_id < 64:
            raise Refused(
                Reason.HANDLE_ILLEGAL,
                f"the handle has reviveQid {handle.revive_queue_id}, expected 0 to 63",
            )

    def check_queue(self, topic: TopicConfig, queue_id: int, handle: Handle) -> tuple[str, int, int]:
        """(topic, first offset, last offset) of the queue that a request names. Raises Refused."""
        if queue_id < 0:
            raise Refused(Reason.HANDLE_ILLEGAL, f"queueId[{queue_id}] is illegal in an acknowledgement")
        name = topic.topic_name
        self._checks.queue(topic, queue_id, Reason.HANDLE_ILLEGAL)
        if queue_id != handle.queue_id:
            raise Refused(
                Reason.HANDLE_ILLEGAL,
                f"queueId[{queue_id}] is not that of the handle, which is of queue {handle.queue_id}",
            )
        self.check_handle(handle)
        return name, self._store.min_offset(name, queue_id), self._store.next_offset(name, queue_id)

    def _message_of(
        self, group: str, topic_name: str, queue_id: int, offset: int, handle: Handle
    ) -> tuple[str, int]:
        """(topic, offset) of where the message lies. Raises Refused."""
        self._checks.client_group(group)
        name, low, high = self.check_queue(self._checks.topic(topic_name), queue_id, handle)
        if not low <= offset <= high:
            raise Refused(
                Reason.NOT_HELD, f"offset is illegal, key:{name}@{queue_id}, ack:{offset}, store:{low}~{high}"
            )
        return where(name, group, handle), offset

    # --- in order

    def _ack_in_order(self, topic: str, group: str, queue_id: int, offset: int, handle: Handle) -> None:
        committed = self._offsets.query(group, topic, queue_id)
        if committed is not None and offset < committed:
            return  # acknowledged before
        orders = self._engine.orders
        next_offset = orders.ack(topic, group, queue_id, offset, handle.pop_time)
        if next_offset == UNKNOWN:
            raise Refused(
                Reason.HANDLE_ILLEGAL,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{committed}, ack:{offset}: the group does not hold it",
            )
        if next_offset == NOT_OURS:
            raise _handed_out_again(topic, queue_id, offset)
        self.ack_count += 1
        self._offsets.commit(group, topic, queue_id, next_offset)
        if not orders.blocked_until(topic, group, queue_id, "", self._clock.now_ms()):
            self._wake(topic, group, queue_id)

    def _change_in_order(
        self,
        topic: str,
        group: str,
        handle: Handle,
        offset: int,
        invisible_ms: int,
        now_ms: int,
        *,
        suspend: bool,
    ) -> Changed:
        visible_ms = now_ms + invisible_ms
        orders = self._engine.orders
        if not orders.change_visible(topic, group, handle.queue_id, offset, handle.pop_time, visible_ms):
            raise _handed_out_again(topic, handle.queue_id, offset)
        if suspend and topic.startswith(
            LITE_PREFIX
        ):  # the lite topic as a whole; an ordinary block ignores it
            orders.suspend(topic, group, handle.queue_id, handle.pop_time, visible_ms)
        if invisible_ms == 0 or topic.startswith(LITE_PREFIX):
            self._wake(topic, group, handle.queue_id)
        # From the pop on. Never less than was requested: the clock may have been set back since, and a handle has no negative time.
        from_pop_ms = invisible_ms + max(0, now_ms - handle.pop_time)
        return Changed(replace(handle, invisible_ms=from_pop_ms, queue_offset=offset), 0)

    # --- writing

    def _acknowledge(self, topic: str, group: str, handle: Handle, offset: int) -> bool:
        """Add an acknowledgement to those that this pass writes. False: it is known already and is not written
        again.
        """
        key = (topic, group, handle.queue_id, handle.start_offset, handle.pop_time)
        waiting = self._open.get(key)
        if waiting is not None and offset in waiting.offsets:
            return True
        if not self._engine.check_ack(topic, group, handle, offset):
            self.ack_count += 1
            return False
        self.open_offsets(key, handle).add(offset)
        if not self._is_due:
            self._is_due = True
            self._call_soon(self._write)
        return True

    def _write(self) -> None:
        """Write the acknowledgements of this event loop iteration, then call the waiting callbacks."""
        self._is_due = False
        opened, self._open = self._open, {}
        waiting, self._at_end = self._at_end, []
        written = self._written(opened)
        for callback in waiting:
            try:
                callback(written)
            except Exception:
                log.exception(
                    "an acknowledgement was written, but not answered"
                )  # the loop still answers the others

    def _written(self, opened: dict[CheckPointKey, _Open]) -> Written:
        acks = [
            (
                Acks(
                    topic=topic,
                    group=group,
                    queue_id=queue_id,
                    start_offset=start_offset,
                    pop_time=pop_time,
                    broker_name=self._broker_name,
                    offsets=tuple(sorted(waiting.offsets)),
                ),
                waiting.handle.revive_queue_id,
                waiting.handle.revive_time,
            )
            for (topic, group, queue_id, start_offset, pop_time), waiting in opened.items()
            if waiting.offsets
        ]
        if not acks:
            return Written(0)
        try:
            end = self._engine.write_acks(acks, self._clock.now_ms())
        except StoreError as error:
            return Written(0, error)
        self.ack_count += sum(len(ack.offsets) for ack, _, _ in acks)
        return Written(end)


def _handed_out_again(topic: str, queue_id: int, offset: int) -> Refused:
    return Refused(
        Reason.NOT_HELD,
        f"message {offset} of {topic} queue {queue_id} is not held with this handle any more: its block was handed out again",
    )
