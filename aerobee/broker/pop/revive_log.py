"""Writing check points and acknowledgements, in the form in which RocketMQ's brokers keep them.

A record that becomes due later goes into the timer's topic with the revive topic as REAL_TOPIC; one that is due already goes
into the revive topic itself. The records of one pop, or of all acknowledgements of one pass of the event loop, are one
append. Several acknowledgements of one check point share one record (tag bAck).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aerobee.broker.pop.check_point import CK_LEAD_MS, CK_TAG, Acks, CheckPoint, CheckPointKey
from aerobee.broker.topic_table import SYSTEM_PREFIX, WHEEL_TIMER_TOPIC
from aerobee.message import tags_code
from aerobee.store.stored_message import AppendResult, StoredMessage

REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
REVIVE_QUEUES = 8  # reviveQueueNum
WRITTEN_MAX = 1_000_000
PRECISION_MS = 1_000  # timerPrecisionMs: the wheel's slot of a record
_CODES = {tag: tags_code(tag) for tag in ("ck", "ack", "bAck")}


def revive_topic(cluster: str) -> str:
    return f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}"


class BatchLog(Protocol):
    """What is needed of the store."""

    def append_batch(self, messages: Sequence[StoredMessage]) -> AppendResult: ...


class ReviveLog:
    """Appends to the revive topic. `uses_timer` false: everything goes there at once (timerWheelEnable=false)."""

    def __init__(self, *, store: BatchLog, cluster: str, host: bytes, uses_timer: bool = True) -> None:
        self._store = store
        self._host = host
        self.topic = revive_topic(cluster)
        # What waits in the timer: physical offset -> (check point, whether the record is that itself). Bounded by what
        # is invisible; the timer's delivery takes entries out.
        self.written: dict[int, tuple[CheckPointKey, bool]] = {}
        self.uses_timer = uses_timer

    def append(
        self,
        now_ms: int,
        points: Sequence[tuple[CheckPoint, int]] = (),
        acks: Sequence[tuple[Acks, int, int]] = (),
    ) -> int:
        """Write check points (each with its revive queue id), then acknowledgements (revive queue id, revive time).

        Returns the end of the last record: durable when the log is flushed up to it. Raises StoreError; then an
        acknowledgement or a check point may be there or not, which costs at most another delivery.
        """
        later: list[StoredMessage] = []
        direct: list[StoredMessage] = []
        for point, revive_queue_id in points:
            self._add(
                later, direct, now_ms, CK_TAG, point.encode(), point.unique_key, revive_queue_id,
                point.revive_time - CK_LEAD_MS,
            )  # fmt: skip
        point_count = len(direct)
        for ack, revive_queue_id, revive_time in acks:
            self._add(
                later, direct, now_ms, ack.tag, ack.encode(), ack.unique_key, revive_queue_id, revive_time
            )
        # No acknowledgement before a check point that takes its message over: a crash between them would lose it.
        end = 0
        for message in direct[:point_count]:
            end = self._store.append_batch((message,)).end
        if later:
            result = self._store.append_batch(later)
            end = result.end
            # The same that _add() put there, in the same order.
            keys = [(point.key, True) for point, _ in points if point.revive_time - CK_LEAD_MS > now_ms]
            keys += [(ack.key, False) for ack, _, revive_time in acks if revive_time > now_ms]
            if len(self.written) < WRITTEN_MAX:
                self.written.update(zip(result.record_offsets, keys, strict=True))
        for message in direct[point_count:]:
            end = self._store.append_batch((message,)).end
        return end

    def _add(
        self,
        later: list[StoredMessage],
        direct: list[StoredMessage],
        now_ms: int,
        tag: str,
        body: bytes,
        unique_key: str,
        revive_queue_id: int,
        deliver_ms: int,
    ) -> None:
        common = f"TIMER_DELIVER_MS\x01{deliver_ms}\x02UNIQ_KEY\x01{unique_key}\x02TAGS\x01{tag}\x02"
        if self.uses_timer and deliver_ms > now_ms:  # as in append()
            out_ms = (deliver_ms - 1) // PRECISION_MS * PRECISION_MS
            text = f"TIMER_OUT_MS\x01{out_ms}\x02{common}REAL_TOPIC\x01{self.topic}\x02REAL_QID\x01{revive_queue_id}\x02"
            later.append(self._message(WHEEL_TIMER_TOPIC, 0, tag, body, text, now_ms))
        else:
            direct.append(self._message(self.topic, revive_queue_id, tag, body, common, now_ms))

    def _message(
        self, topic: str, queue_id: int, tag: str, body: bytes, text: str, now_ms: int
    ) -> StoredMessage:
        return StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=text.encode(),
            born_host=self._host,
            born_timestamp=now_ms,
            tags_code=_CODES[tag],
            index_keys=(),  # nobody looks for them by key, and an index entry costs as much as the record
        )
