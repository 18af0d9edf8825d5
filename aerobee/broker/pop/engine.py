"""Pop, acknowledgement and change of invisible time: the rules, without connections (PopMessageProcessor,
AckMessageProcessor, ChangeInvisibleTimeProcessor of RocketMQ).

A pop reads each queue from the group's offset on, writes one check point per queue, advances the offset, and only then
delivers the messages, so that each delivered message can be redelivered. The group's offset means "popped", not
"consumed". An ordered pop writes no check point and moves no offset: the block is kept in OrderInfo, and
acknowledgements move the offset.

Differences from RocketMQ: the log's record of a check point and the offset are settled together (ConsumerOffsets never
runs ahead of the log, and after a crash the offsets are raised to what the check points say); an acknowledgement for
a message that was handed out again already, or never, is refused instead of ignored.

Core: time is an argument, the store is passed in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.fastpath.pop import NativelyTaken
from aerobee.broker.pop.check_point import CLOCK_SLACK_MS, Acks, CheckPoint
from aerobee.broker.pop.in_flight import InFlightTable, State
from aerobee.broker.pop.merge_buffer import MergeBuffer
from aerobee.broker.pop.order_info import OrderInfo
from aerobee.broker.pop.revive_log import REVIVE_QUEUES, ReviveLog
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.message import RETRY_PREFIX, decode_record, encode_properties, encode_record, pack_host
from aerobee.property_names import POP_CK
from aerobee.record_head import field_at, field_end, format_of, head_struct
from aerobee.remoting.body.pop_handle import (
    NORMAL,
    ORDERED_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    Handle,
    QueueShare,
    real_topic,
)
from aerobee.remoting.protocol import ANY_QUEUE
from aerobee.store.log.stored_message import GetResult, GetStatus
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.queue_table import MULTI_DISPATCH, MULTI_OFFSET
from aerobee.system_names import LMQ_PREFIX

INIT_FROM_MIN, INIT_FROM_MAX = 0, 1
_SIZE = head_struct("size")
_QUEUE_OFFSET, _QUEUE_OFFSET_AT = head_struct("queue_offset"), field_at("queue_offset")
_SIZE_AND_QUEUE_OFFSET = format_of("size", "queue_offset")
_MOVED = frozenset(
    {
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.OFFSET_OVERFLOW_BADLY,
        GetStatus.OFFSET_FOUND_NULL,
        GetStatus.MESSAGE_WAS_REMOVING,
    }
)


@dataclass(slots=True, kw_only=True)
class PopWant:
    """A pop after its checks. `queue_count` is the topic's number of readable queues; `retries` its retry topics as
    ((topic, r, readable queues), ...), empty for an ordered pop. `young_from_zero`: a new group that starts at the end
    receives a queue's messages if its first one is still in memory (initPopOffsetByCheckMsgInMem).
    """

    topic: str
    group: str
    queue_id: int
    queue_count: int
    count_max: int
    invisible_ms: int
    init_mode: int = INIT_FROM_MIN
    ordered: bool = False
    attempt_id: str = ""
    tag_codes: frozenset[int] | None = None
    accept: Callable[[bytes], bool] | None = None
    young_from_zero: bool = True
    retries: tuple[tuple[str, str, int], ...] = ()
    retry_first: bool = False
    start: int = 0  # the first queue to read in a pop of any queue
    highest_first: bool = False  # a PRIORITY topic: the queue id is the priority of its messages
    consumer: str = ""


@dataclass(slots=True)
class Taken:
    """Result of a pop. `end`: durable when the log is flushed up to it; 0 when nothing was written."""

    pop_time: int
    revive_queue_id: int
    shares: list[QueueShare] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)  # where each share lies
    sizes: list[int] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    consumed: list[dict[int, int]] = field(default_factory=list)  # ordered: per share, offset -> times before
    rest: int = 0  # number of remaining messages in the queues that were read
    end: int = 0
    count: int = 0
    blocked_until: int = 0  # ordered: time at which the first blocked queue becomes free
    status: GetStatus = GetStatus.NO_MESSAGE_IN_QUEUE


class ColdData(Exception):
    """A pop would wait for the disk. Nothing has changed: warm the data, then pop again."""


class PopEngine:
    """The state of POP at one broker. Belongs to the event loop."""

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: ConsumerOffsets,
        log: ReviveLog,
        broker_name: str,
        host: bytes,
        buffer: MergeBuffer | None = None,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self.log = log
        self._broker_name = broker_name
        self._host = host
        self.buffer = buffer
        self.in_flight = InFlightTable()
        self.orders = OrderInfo()
        self._revive_queue = -1

    # --- taking

    def sources(self, want: PopWant) -> Iterator[tuple[str, int, str]]:
        """(topic, queue id, r) in the order in which this pop reads them."""
        if want.retry_first:
            yield from self._retry_sources(want)
        if want.queue_id != ANY_QUEUE:
            yield want.topic, want.queue_id, NORMAL
        else:
            for queue_id in _in_turn(want, want.queue_count):
                yield want.topic, queue_id, NORMAL
        if not want.retry_first:
            yield from self._retry_sources(want)

    def _retry_sources(self, want: PopWant) -> Iterator[tuple[str, int, str]]:
        for topic, retry, queue_count in want.retries:
            for queue_id in _in_turn(want, queue_count):
                yield topic, queue_id, retry

    def has_messages(self, want: PopWant, now_ms: int) -> bool:
        """Whether a pop would read messages now (the filter may exclude them)."""
        for topic, queue_id, _ in self.sources(want):
            at = self.position(want, topic, queue_id, keep=False)
            if self._store.max_offset(topic, queue_id) > at and not (
                want.ordered
                and self.orders.blocked_until(topic, want.group, queue_id, want.attempt_id, now_ms)
            ):
                return True
        return False

    def free_at(self, want: PopWant, now_ms: int) -> int:
        """Time, ms, at which the first queue of an ordered pop is no longer blocked by another attempt; 0: no queue is
        blocked.
        """
        if not want.ordered:
            return 0
        ends = [
            self.orders.blocked_until(topic, want.group, queue_id, want.attempt_id, now_ms)
            for topic, queue_id, _ in self.sources(want)
        ]
        return min((end for end in ends if end), default=0)

    def take(
        self, want: PopWant, now_ms: int, is_cold: Callable[[str, int, int], bool] | None = None
    ) -> Taken:
        """Deliver up to `count_max` messages. Raises StoreError when the check points cannot be written: nothing is
        delivered then. `is_cold`, for a pop that is not ordered, is called before each read; raises ColdData."""
        taken = Taken(now_ms, ORDERED_REVIVE_QUEUE if want.ordered else self._next_revive_queue())
        moves: list[tuple[str, int, int]] = []
        for topic, queue_id, retry in self.sources(want):
            if taken.count >= want.count_max:
                break
            self._take_from(want, topic, queue_id, retry, taken, moves, is_cold)
        if not want.ordered:
            self._write_points(want, taken, moves)
        buffer = self.buffer
        for topic, queue_id, offset in moves:
            # The offset waits for earlier check points that are only in memory, even if nothing was
            # delivered.
            if buffer is None or not buffer.keep_offset(topic, want.group, queue_id, offset):
                self._offsets.commit(want.group, topic, queue_id, offset)
        return taken

    def plan_natively(self, want: PopWant) -> Any:
        """What take_natively() needs of equal pops; None: take() serves them all."""
        native = self.log.native
        if native is None or want.ordered or want.accept is not None or want.topic.startswith(LMQ_PREFIX):
            return None
        return native.plan(
            topic=want.topic,
            group=want.group,
            broker_name=self._broker_name,
            queue_id=want.queue_id,
            queue_count=want.queue_count,
            count_max=want.count_max,
            invisible_ms=want.invisible_ms,
            retries=want.retries,
            tag_codes=want.tag_codes,
        )

    def take_natively(self, plan: Any, want: PopWant, now_ms: int, opaque: int) -> NativelyTaken | None:
        """take() of hot messages, with the reply's frame, in one native call. None: nothing has changed, take() is to be called.
        Raises StoreNotWritable."""
        offsets = self._offsets
        if offsets.has_resets or self.buffer is not None:
            return None
        revive_queue_id = (self._revive_queue + 1) % REVIVE_QUEUES
        log, group = self.log, want.group
        taken = log.take(
            plan,
            offsets.table,
            now_ms,
            opaque,
            revive_queue_id,
            want.start,
            want.retry_first,
            want.highest_first,
        )
        if taken is None:
            return None
        self._revive_queue = revive_queue_id
        for (topic, _, queue_id, found, next_offset, _), physical_offset in zip(
            taken[1], taken[2], strict=True
        ):
            point = CheckPoint(
                topic=topic,
                group=group,
                queue_id=queue_id,
                start_offset=found[0],
                offsets=found,
                pop_time=now_ms,
                invisible_ms=want.invisible_ms,
                broker_name=self._broker_name,
            )
            log.noted(physical_offset, point.key)
            self.in_flight.add(point, want.consumer)
            offsets.commit(group, topic, queue_id, next_offset)
        return taken

    def _take_from(
        self,
        want: PopWant,
        topic: str,
        queue_id: int,
        retry: str,
        taken: Taken,
        moves: list[tuple[str, int, int]],
        is_cold: Callable[[str, int, int], bool] | None,
    ) -> None:
        offset = self.position(want, topic, queue_id)
        end = self._store.max_offset(topic, queue_id)
        if want.ordered:
            until = self.orders.blocked_until(topic, want.group, queue_id, want.attempt_id, taken.pop_time)
            if until:
                taken.rest += max(0, end - offset)
                taken.blocked_until = min(until, taken.blocked_until or until)
                return
        if end == offset:
            return
        if is_cold is not None and is_cold(topic, queue_id, offset):
            raise ColdData
        result = self._read(want, topic, queue_id, offset, want.count_max - taken.count)
        if result.status in _MOVED:
            moves.append((topic, queue_id, result.next_offset))
            result = self._read(want, topic, queue_id, result.next_offset, want.count_max - taken.count)
        taken.status = result.status
        taken.rest += max(0, result.max_offset - result.next_offset)
        if result.status is GetStatus.NO_MATCHED_MESSAGE:
            moves.append((topic, queue_id, result.next_offset))
        if result.status is not GetStatus.FOUND:
            return
        offsets = (
            lmq_offsets(topic, result.body) if topic.startswith(LMQ_PREFIX) else queue_offsets(result.body)
        )
        share = QueueShare(retry, queue_id, offsets[0], offsets)
        taken.shares.append(share)
        taken.topics.append(topic)
        taken.sizes.append(len(result.body))
        taken.count += len(offsets)
        taken.bodies.append(
            result.body if retry == NORMAL else self._as_origin(want, result.body, share, taken)
        )
        if want.ordered:
            self._hold_block(want, topic, share, taken)
        else:
            moves.append((topic, queue_id, result.next_offset))

    def _read(self, want: PopWant, topic: str, queue_id: int, offset: int, count_max: int) -> GetResult:
        return self._store.get_messages(
            topic, queue_id, offset, count_max=count_max, tag_codes=want.tag_codes, accept=want.accept
        )

    def position(self, want: PopWant, topic: str, queue_id: int, *, keep: bool = True) -> int:
        """Start of the group's next pop of a queue; a new group's offset is stored immediately, to `keep` it."""
        group = want.group
        if self._offsets.has_resets:
            moved = self._offsets.take_reset(group, topic, queue_id)
            if moved is not None:
                self.orders.clear(topic, group, queue_id)
                if self.buffer is not None:
                    self.buffer.clear(topic, group, queue_id)
                self._offsets.commit(group, topic, queue_id, moved)
                return moved
        if self.buffer is not None:
            buffered = self.buffer.next_offset(topic, group, queue_id)
            if buffered is not None:
                return buffered
        offset = self._offsets.query(group, topic, queue_id)
        if offset is None or offset < 0:
            offset = self._store.min_offset(topic, queue_id)
            if want.init_mode == INIT_FROM_MAX and not topic.startswith(RETRY_PREFIX):
                offset = self._end(topic, queue_id, offset, young_from_zero=want.young_from_zero)
            if keep:
                self._offsets.commit(group, topic, queue_id, offset)
        return offset

    def _end(self, topic: str, queue_id: int, low: int, *, young_from_zero: bool) -> int:
        """Start offset of a new group that does not request all messages: the last message, but 0 in a new queue."""
        end = self._store.max_offset(topic, queue_id)
        if young_from_zero and low <= 0 < end and not self._store.is_cold(topic, queue_id, 0):
            return 0
        return max(0, end - 1)

    def _as_origin(self, want: PopWant, body: bytes, share: QueueShare, taken: Taken) -> bytes:
        """Messages of a retry topic as the consumer sees them: under the topic that it requested, with their handle."""
        parts: list[bytes] = []
        at = 0
        while at < len(body):
            record = decode_record(body, at, check_crc=False)
            at += record.total_size
            handle = Handle(
                share.start_offset,
                taken.pop_time,
                want.invisible_ms,
                taken.revive_queue_id,
                share.retry,
                self._broker_name,
                share.queue_id,
                record.queue_offset,
            )
            properties = {**record.properties, POP_CK: record.properties.get(POP_CK) or str(handle)}
            parts.append(
                encode_record(
                    topic=want.topic.encode(),
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    body=record.body,
                    properties=encode_properties(properties).encode(errors="surrogateescape"),
                    flag=record.flag,
                    sys_flag=record.sys_flag,
                    born_timestamp=record.born_timestamp,
                    born_host=pack_host(*record.born_host),
                    store_timestamp=record.store_timestamp,
                    store_host=pack_host(*record.store_host),
                    reconsume_times=record.reconsume_times,
                    prepared_transaction_offset=record.prepared_transaction_offset,
                )
            )
        return b"".join(parts)

    def _hold_block(self, want: PopWant, topic: str, share: QueueShare, taken: Taken) -> None:
        consumed = self.orders.popped(
            topic,
            want.group,
            share.queue_id,
            share.offsets,
            pop_time=taken.pop_time,
            invisible_ms=want.invisible_ms,
            attempt_id=want.attempt_id,
        )
        taken.consumed.append(consumed)

    def _write_points(self, want: PopWant, taken: Taken, moves: list[tuple[str, int, int]]) -> None:
        points: list[tuple[CheckPoint, int]] = []
        buffer = self.buffer
        next_offsets = (
            {} if buffer is None else {(topic, queue_id): offset for topic, queue_id, offset in moves}
        )
        for topic, share in zip(taken.topics, taken.shares, strict=True):
            point = CheckPoint(
                topic=topic,
                group=want.group,
                queue_id=share.queue_id,
                start_offset=share.start_offset,
                offsets=share.offsets,
                pop_time=taken.pop_time,
                invisible_ms=want.invisible_ms,
                broker_name=self._broker_name,
            )
            if buffer is not None:
                next_offset = next_offsets[(topic, share.queue_id)]
                if buffer.add(point, taken.revive_queue_id, next_offset, taken.pop_time):
                    moves[:] = [move for move in moves if move[:2] != (topic, share.queue_id)]
                    self.in_flight.add(point, want.consumer)
                    continue
            points.append((point, taken.revive_queue_id))
        if points:
            taken.end = self.log.append(taken.pop_time, points)
        for point, _ in points:
            self.in_flight.add(point, want.consumer)
            if buffer is None:
                continue
            key = (point.topic, point.queue_id)
            if buffer.keep_offset(point.topic, point.group, point.queue_id, next_offsets[key]):
                moves[:] = [move for move in moves if move[:2] != key]

    def _next_revive_queue(self) -> int:
        self._revive_queue = (self._revive_queue + 1) % REVIVE_QUEUES
        return self._revive_queue

    # --- acknowledging

    def check_ack(self, topic: str, group: str, handle: Handle, offset: int) -> bool:
        """Whether an acknowledgement must be written; False: it is known already.

        Raises Refused NOT_HELD when the message was not handed out with this handle, or was handed out again.
        """
        key = (topic, group, handle.queue_id, handle.start_offset, handle.pop_time)
        if self.buffer is not None and self.buffer.holds(key):
            self.in_flight.ack(key, offset)
            if self.buffer.ack(key, offset):
                return False
        entry = self.in_flight.get(key)
        if entry is None:
            if handle.pop_time < self.in_flight.known_since_ms:
                return True
            raise Refused(
                Reason.NOT_HELD,
                f"no message of {topic} queue {handle.queue_id} is delivered with this handle: "
                f"its {handle.invisible_ms} ms "
                "have expired, or another broker issued it",
            )
        if offset not in entry.point.offsets:
            raise Refused(
                Reason.NOT_HELD,
                f"message {offset} of {topic} queue {handle.queue_id} was not delivered with "
                "this handle, which has "
                f"{', '.join(map(str, entry.point.offsets))}",
            )
        if not entry.point.is_unacked(offset):
            return False
        if entry.state is State.REVIVED:
            raise Refused(
                Reason.NOT_HELD,
                f"message {offset} of {topic} queue {handle.queue_id} was not acknowledged within its "
                f"{handle.invisible_ms} ms and was redelivered; a longer invisible time prevents this",
            )
        return True

    def write_acks(self, acks: Sequence[tuple[Acks, int, int]], now_ms: int) -> int:
        """Write acknowledgements (each with revive queue id and revive time); return the end of the last record.

        Raises StoreError; the messages are then redelivered.
        """
        acks = [
            (
                ack,
                queue_id,
                revive_ms if ack.pop_time <= now_ms + CLOCK_SLACK_MS else now_ms + revive_ms - ack.pop_time,
            )
            for ack, queue_id, revive_ms in acks
        ]
        end = self.log.append(now_ms, acks=acks)
        for ack, _, _ in acks:
            self.in_flight.ack(ack.key, *ack.offsets)
        return end

    def change_invisible(
        self,
        topic: str,
        group: str,
        handle: Handle,
        offset: int,
        invisible_ms: int,
        now_ms: int,
        *,
        suspend: bool = False,
        consumer: str = "",
    ) -> tuple[int, int]:
        """Keep a message invisible for `invisible_ms` from now: write a new check point, then acknowledge the old one.
        Returns (pop time of the new handle, end of the records).

        Raises Refused NOT_HELD as check_ack(), also for a message that is acknowledged; StoreError.
        """
        key = (topic, group, handle.queue_id, handle.start_offset, handle.pop_time)
        buffer = self.buffer if self.buffer is not None and self.buffer.holds(key) else None
        known = self.in_flight.get(key)
        is_acked = known is not None and offset in known.point.offsets and not known.point.is_unacked(offset)
        if is_acked or (buffer is None and not self.check_ack(topic, group, handle, offset)):
            raise Refused(
                Reason.NOT_HELD,
                f"message {offset} of {topic} queue {handle.queue_id} is acknowledged: its invisible time cannot be changed",
            )
        # The key of the new check point must be another one. A handle of a clock that was set back has a key far ahead.
        was_set_back = handle.pop_time > now_ms + CLOCK_SLACK_MS
        pop_time = now_ms if was_set_back else max(now_ms, handle.pop_time + 1)
        revive_ms = now_ms + handle.invisible_ms if was_set_back else handle.revive_time
        point = CheckPoint(
            topic=topic,
            group=group,
            queue_id=handle.queue_id,
            start_offset=offset,
            offsets=(offset,),
            pop_time=pop_time,
            invisible_ms=invisible_ms,
            broker_name=self._broker_name,
            suspend=suspend,
        )
        ack = Acks(
            topic=topic,
            group=group,
            queue_id=handle.queue_id,
            start_offset=handle.start_offset,
            pop_time=handle.pop_time,
            broker_name=self._broker_name,
            offsets=(offset,),
        )
        # The new check point first: if a crash keeps only one of the two, the message is redelivered once
        # more than needed.
        acks = [] if buffer is not None else [(ack, handle.revive_queue_id, revive_ms)]
        end = self.log.append(now_ms, [(point, handle.revive_queue_id)], acks)
        self.in_flight.ack(ack.key, offset)
        if buffer is not None:
            buffer.ack(key, offset)
        self.in_flight.add(point, consumer)
        return pop_time, end

    # --- the buffer

    def scan_buffer(self, now_ms: int, *, everything: bool = False) -> None:
        """Write check points that have been in the buffer long enough, and commit the possible offsets. Raises
        StoreError."""
        if self.buffer is None:
            return
        actions = self.buffer.scan(now_ms, everything=everything)
        if actions.points:
            self.log.append(now_ms, actions.points, actions.acks)
        for (topic, group, queue_id), offset in self.buffer.stored(actions):
            self._offsets.commit(group, topic, queue_id, offset)

    def use_buffer(self, buffer: MergeBuffer | None) -> None:
        """Use this buffer from now on; the owner handles the contents of the previous one."""
        self.buffer = buffer

    def end_buffer(self, now_ms: int) -> None:
        """Write everything that is only in memory, and stop buffering. Raises StoreError."""
        self.scan_buffer(now_ms, everything=True)
        self.buffer = None


def _in_turn(want: PopWant, queue_count: int) -> Iterable[int]:
    """Queue ids in the order in which a pop of any queue reads them."""
    if want.highest_first:
        return reversed(range(queue_count))
    start = want.start % queue_count if queue_count else 0
    return (*range(start, queue_count), *range(start))


def queue_offsets(body: bytes) -> tuple[int, ...]:
    """The queue offsets of records that stand back to back."""
    end = len(body)
    (size,) = _SIZE.unpack_from(body)
    if size == end:
        return _QUEUE_OFFSET.unpack_from(body, _QUEUE_OFFSET_AT)
    count, rest = divmod(end, size)
    if not rest:  # they may be alike: then one struct reads them all
        said = _alike(count, size).unpack(body)
        if said[::2] == (size,) * count:
            return said[1::2]
    found: list[int] = []
    at = 0
    while at < end:
        found.append(_QUEUE_OFFSET.unpack_from(body, at + _QUEUE_OFFSET_AT)[0])
        at += _SIZE.unpack_from(body, at)[0]
    return tuple(found)


def lmq_offsets(lmq: str, body: bytes) -> tuple[int, ...]:
    """The offsets in an LMQ of records that stand back to back: their own offset is that in their topic, which may be the LMQ."""
    found: list[int] = []
    at = 0
    while at < len(body):
        record = decode_record(body, at, check_crc=False)
        at += record.total_size
        if record.topic == lmq:
            found.append(record.queue_offset)
            continue
        names = record.properties.get(MULTI_DISPATCH, "").split(",")
        offsets = record.properties.get(MULTI_OFFSET, "").split(",")
        found.append(int(dict(zip(names, offsets, strict=False))[lmq]))
    return tuple(found)


@lru_cache(maxsize=256)
def _alike(count: int, size: int) -> struct.Struct:
    """Sizes and queue offsets, alternating, of records of one size."""
    return struct.Struct(">" + f"{_SIZE_AND_QUEUE_OFFSET}{size - field_end('queue_offset')}x" * count)


def where(topic: str, group: str, handle: Handle) -> str:
    """The topic that a handle's message lies in; `topic` may be that one already, as clients differ."""
    if topic.startswith(RETRY_PREFIX) or handle.retry not in (RETRY_V1, RETRY_V2):
        return topic
    return real_topic(topic, group, handle.retry)
