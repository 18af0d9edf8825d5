"""Writes POP's check points and acknowledgements to the log in RocketMQ's format.

A record with a future due time goes to the timer's topic with the revive topic as REAL_TOPIC; a due record goes to the
revive topic directly. The records of one pop, or of all acknowledgements of one pass of the event loop, are one append.
Several acknowledgements of one check point share one record (tag bAck).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from aerobee.broker.fastpath.pop import MakePopRecords, NativelyTaken, PopRecords
from aerobee.broker.pop.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_LEAD_MS,
    CK_TAG,
    Acks,
    CheckPoint,
    CheckPointKey,
)
from aerobee.message import tags_code
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.append.own_records import OwnRecord, OwnRecords
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.system_names import REVIVE_PREFIX, WHEEL_TIMER_TOPIC

REVIVE_QUEUES = 8  # reviveQueueNum
WRITTEN_MAX = 1_000_000
IPV4_BYTES = 8  # of a packed host
FAR_MS = 1_000  # records with a due time beyond this
COMPANY_S = 0.02  # wait this long for their slot in the wheel
PRECISION_MS = 1_000  # timerPrecisionMs: the wheel's slot of a record
_CODES = {tag: tags_code(tag) for tag in (CK_TAG, ACK_TAG, BATCH_ACK_TAG)}
_CK_CODE = _CODES[CK_TAG]


def revive_topic(cluster: str) -> str:
    """The topic of the cluster's check points and acknowledgements."""
    return f"{REVIVE_PREFIX}{cluster}"


class ReviveLog:
    """Appends to the revive topic. `uses_timer` false: records are appended immediately, without the timer
    (timerWheelEnable=false).
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        cluster: str,
        host: bytes,
        waiting: Container[tuple[str, int]],
        on_timer_messages: Callable[[float], None] | None,
        make_records: MakePopRecords | None = None,
    ) -> None:
        """`on_timer_messages` notifies the timer of messages in its topic, with the time that they may wait there, in
        seconds; None: there is no timer. `waiting`: OwnRecords. `make_records`: the native writer."""
        self._store = store
        self._host = host
        self.topic = revive_topic(cluster)
        # Records in the timer: physical offset -> (check point, whether the record is the check point
        # itself). Bounded by the invisible messages; the timer's delivery removes entries.
        self.written: dict[int, tuple[CheckPointKey, bool]] = {}
        self.uses_timer = on_timer_messages is not None
        self.own = OwnRecords(
            store,
            topic=WHEEL_TIMER_TOPIC,
            queue_id=0,
            host=host,
            waiting=waiting,
            on_written=self._on_written,
        )
        self._on_timer_messages = on_timer_messages
        self._records: PopRecords | None = None
        if make_records is not None and self.uses_timer and len(host) == len(store.store_host) == IPV4_BYTES:
            self._records = make_records(
                store=store,
                store_host=store.store_host,
                host=host,
                waiting=waiting,
                timer_topic=TopicConfig(WHEEL_TIMER_TOPIC),
                revive_topic=self.topic,
                codes=(_CODES[CK_TAG], _CODES[ACK_TAG], _CODES[BATCH_ACK_TAG]),
            )
        self._soonest_ms = 0  # until the first record of the run is due
        self.record_count = 0  # number of records written since the start

    def append(
        self,
        now_ms: int,
        points: Sequence[tuple[CheckPoint, int]] = (),
        acks: Sequence[tuple[Acks, int, int]] = (),
    ) -> int:
        """Write check points (each with its revive queue id), then acknowledgements (revive queue id, revive time).

        Returns the end of the last record: durable when the log is flushed up to it. Raises StoreError; then an
        acknowledgement or a check point may be stored or not, which causes at most another delivery.
        """
        if (
            self._records is not None
            and (points or acks)
            and (end := self._append_natively(self._records, now_ms, points, acks))
        ):
            self.record_count += len(points) + len(acks)
            return end
        deferred: list[OwnRecord] = []
        keys: list[tuple[CheckPointKey, bool]] = []  # of `deferred`
        direct: list[StoredMessage] = []
        soonest = 1 << 62
        for point, revive_queue_id in points:
            deliver_ms = point.pop_time + point.invisible_ms - CK_LEAD_MS
            if self.uses_timer and deliver_ms > now_ms:
                text = self._timer_text(deliver_ms, point.unique_key, CK_TAG, revive_queue_id)
                deferred.append((point.encode(), text, _CK_CODE))
                soonest = min(soonest, deliver_ms)
                keys.append((point.key, True))
            else:
                text = _text(deliver_ms, point.unique_key, CK_TAG).encode()
                direct.append(
                    self._message(self.topic, revive_queue_id, point.encode(), text, _CK_CODE, now_ms)
                )
        point_count = len(direct)
        for ack, revive_queue_id, revive_time in acks:
            tag = ack.tag
            if self.uses_timer and revive_time > now_ms:
                text = self._timer_text(revive_time, ack.unique_key, tag, revive_queue_id)
                deferred.append((ack.encode(), text, _CODES[tag]))
                soonest = min(soonest, revive_time)
                keys.append((ack.key, False))
            else:
                text = _text(revive_time, ack.unique_key, tag).encode()
                direct.append(
                    self._message(self.topic, revive_queue_id, ack.encode(), text, _CODES[tag], now_ms)
                )
        # A check point that takes over a message must precede its acknowledgement: a crash between them would
        # lose the message.
        end = 0
        for message in direct[:point_count]:
            end = self._store.append_batch((message,)).end
        if deferred:
            self._soonest_ms = soonest - now_ms
            offsets, end = self._append_deferred(now_ms, deferred)
            if len(self.written) < WRITTEN_MAX:
                self.written.update(zip(offsets, keys, strict=True))
        for message in direct[point_count:]:
            end = self._store.append_batch((message,)).end
        self.record_count += len(points) + len(acks)
        return end

    @property
    def native(self) -> PopRecords | None:
        """The native writer, where there is one: it makes the plans for take()."""
        return self._records

    def take(
        self,
        plan: Any,
        offsets: dict[tuple[str, str], dict[int, int]],
        pop_time: int,
        opaque: int,
        revive_queue_id: int,
        start: int,
        retry_first: bool,
        highest_first: bool,
    ) -> NativelyTaken | None:
        """PopRecords.take(), without the keys of the check points, which noted() adds. Raises StoreNotWritable."""
        store = self._store
        queue = store.queues.get((WHEEL_TIMER_TOPIC, 0))
        if self._records is None or queue is None:
            return None
        store.check_writable()
        is_awaited = self.own.is_awaited
        taken = self._records.take(
            plan, queue, offsets, store.store_time_now(), pop_time, opaque, revive_queue_id, start, retry_first, highest_first,
            is_sync=store.visibility.holds,
        )  # fmt: skip
        if taken is not None:
            self.record_count += len(taken[1])
            self._soonest_ms = taken[4] - pop_time
            self.own.written(is_awaited=is_awaited)
        return taken

    def noted(self, physical_offset: int, key: CheckPointKey) -> None:
        """take() has written the record of a check point there."""
        if len(self.written) < WRITTEN_MAX:
            self.written[physical_offset] = (key, True)

    def close(self) -> None:
        """Release the broker: Python's garbage collection does not see native references."""
        self._records = None

    def _append_natively(
        self,
        records: PopRecords,
        now_ms: int,
        points: Sequence[tuple[CheckPoint, int]],
        acks: Sequence[tuple[Acks, int, int]],
    ) -> int:
        """append() in one native call; 0: nothing is written. Raises StoreNotWritable."""
        store = self._store
        store.check_writable()
        queue = store.queues.get((WHEEL_TIMER_TOPIC, 0))
        if queue is None:
            return 0
        is_awaited = self.own.is_awaited
        is_sync = store.visibility.holds
        done = records.append(queue, store.store_time_now(), now_ms, points, acks, is_sync=is_sync)
        if done is None:
            return 0
        offsets, end, soonest_ms = done
        self._soonest_ms = soonest_ms - now_ms
        if len(self.written) < WRITTEN_MAX:
            keys = [(point.key, True) for point, _ in points]
            keys += [(ack.key, False) for ack, _, _ in acks]
            self.written.update(zip(offsets, keys, strict=True))
        self.own.written(is_awaited=is_awaited)
        return end

    def _append_deferred(self, now_ms: int, records: Sequence[OwnRecord]) -> tuple[Sequence[int], int]:
        """Write to the timer's topic; return physical offsets and the end."""
        done = self.own.append(now_ms, records)
        if done is not None:
            return done
        result = self._store.append_batch(
            [self._message(WHEEL_TIMER_TOPIC, 0, body, text, code, now_ms) for body, text, code in records]
        )
        return result.record_offsets, result.end

    def _on_written(self) -> None:
        """Notify the timer. One read contains one or two records, and runs are cheaper."""
        if self._on_timer_messages is not None:
            self._on_timer_messages(COMPANY_S if self._soonest_ms > FAR_MS else 0.0)

    def _timer_text(self, deliver_ms: int, unique_key: str, tag: str, revive_queue_id: int) -> bytes:
        out_ms = (deliver_ms - 1) // PRECISION_MS * PRECISION_MS
        return (
            f"TIMER_OUT_MS\x01{out_ms}\x02{_text(deliver_ms, unique_key, tag)}"
            f"REAL_TOPIC\x01{self.topic}\x02REAL_QID\x01{revive_queue_id}\x02"
        ).encode()

    def _message(
        self, topic: str, queue_id: int, body: bytes, properties: bytes, tags_code: int, now_ms: int
    ) -> StoredMessage:
        return StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            born_host=self._host,
            born_timestamp=now_ms,
            tags_code=tags_code,
            # No query searches for them by key, and an index entry costs as much as the record.
            index_keys=(),
        )


def _text(deliver_ms: int, unique_key: str, tag: str) -> str:
    return f"TIMER_DELIVER_MS\x01{deliver_ms}\x02UNIQ_KEY\x01{unique_key}\x02TAGS\x01{tag}\x02"
