"""Deduplication of sends: a message with the DEDUP_KEY of an earlier message of its topic is not stored again
(Aerobee-specific).

A producer that did not get its answer sends again, and RocketMQ stores the message twice. With `dedupWindowMillis`
above 0, a message that carries the property DEDUP_KEY (any client can set it) is looked up by topic and key: if a
message with the same key was stored here within the window, the reply contains its ids and nothing is stored. Off, the
property means nothing. Messages without it are not looked up, so ordinary sends cost no more.

The keys are in memory, at most `dedupKeysMax` (the oldest go first), and are what the tail of the commit log says
(duplicate_window.py reads it, at a slave as the log grows). That makes them as durable as the messages: a first message
that was lost, or truncated because another broker led without it, is stored when it is sent again. Invariants: keys are
in the order of their messages; none points after the log's end.

Not deduplicated: messages inside a batch, half messages (they have an outcome, see transactions), and what consumers
give back to %RETRY%, which keeps its key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.unserved import UnservedKinds
from aerobee.clock import Clock
from aerobee.errors import RemoteError
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, TRANSACTION_MASK, Record
from aerobee.property_names import DEDUP_KEY
from aerobee.remoting.codes import ResponseCode
from aerobee.store.log.stored_message import AppendResult
from aerobee.system_names import HALF_TOPIC, OP_TOPIC

FEATURE = "deduplication"
KEY_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class FirstSend:
    """The earlier message, which was stored."""

    result: AppendResult
    queue_id: int
    unique_key: str
    # begin of its window: its store time, or the time of recording when the store time is ahead of the clock
    known_ms: int


class AlreadyStored(Exception):
    """The reply to a duplicate send: it has the queue offset of the earlier message."""

    def __init__(self, first: FirstSend) -> None:
        super().__init__("stored already")
        self.first = first


class SendDuplicates:
    """The keys of one broker. Belongs to the event loop."""

    def __init__(self, *, live: LiveConfig, clock: Clock, unserved: UnservedKinds | None = None) -> None:
        """`unserved` says while the keys are not known yet."""
        self._live = live
        self._clock = clock
        self._unserved = UnservedKinds() if unserved is None else unserved
        self._firsts: OrderedDict[tuple[str, str], FirstSend] = OrderedDict()
        self.dropped_count = 0  # messages that were not stored again
        self.forgotten_count = 0  # keys that made space for others within the window

    def __len__(self) -> int:
        return len(self._firsts)

    def check(self, topic: str, properties: dict[str, str], sys_flag: int) -> str:
        """Return the key under which to record this message, empty for none.

        Raises AlreadyStored when it is a repetition, RemoteError for a key that is too long, and while the keys are not known.
        """
        key = properties.get(DEDUP_KEY, "")
        if not key or not self._live.value.dedup_window_millis or not _counts(topic, properties, sys_flag):
            return ""
        if len(key) > KEY_CHARS_MAX:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its {DEDUP_KEY} has {len(key)} characters, at most {KEY_CHARS_MAX} are "
                "allowed",
            )
        if refusal := self._unserved.refusal(FEATURE):
            raise refusal
        self._expire(self._clock.now_ms())
        first = self._firsts.get((topic, key))
        if first is not None:
            self.dropped_count += 1
            raise AlreadyStored(first)
        return key

    def is_new(self, topic: str, key: str) -> bool:
        """Whether check() of an ordinary topic would return this key."""
        if len(key) > KEY_CHARS_MAX or self._unserved.refusal(FEATURE):
            return False
        self._expire(self._clock.now_ms())
        return (topic, key) not in self._firsts

    def note(self, topic: str, key: str, result: AppendResult, queue_id: int, unique_key: str) -> None:
        """A message with a key is stored."""
        known_ms = min(result.store_timestamp, self._clock.now_ms())
        self._firsts[topic, key] = FirstSend(result, queue_id, unique_key, known_ms)
        if len(self._firsts) > self._live.value.dedup_keys_max:
            self._firsts.popitem(last=False)
            self.forgotten_count += 1

    def _expire(self, now_ms: int) -> None:
        begin_ms = now_ms - self._live.value.dedup_window_millis
        firsts = self._firsts
        while firsts:
            oldest = next(iter(firsts))
            if firsts[oldest].known_ms > now_ms:
                # The clock was ahead when the key was recorded, and was corrected since: the window begins
                # now.
                for name, first in firsts.items():
                    firsts[name] = replace(first, known_ms=min(first.known_ms, now_ms))
            if firsts[oldest].known_ms >= begin_ms:
                return
            del firsts[oldest]

    # --- keys from the log

    def note_record(self, record: Record) -> None:
        """Record the key of a log record, unless it is outside the window or a later copy of a known message."""
        key = record.properties.get(DEDUP_KEY, "")
        topic, queue_id = record.topic, record.queue_id
        real_topic = record.properties.get("REAL_TOPIC")
        if real_topic is not None:
            # In a system topic: where the message was put first. In an ordinary one: what was delivered from there.
            if not _is_waiting_topic(topic):
                return
            topic = real_topic
            text = record.properties.get("REAL_QID", "")
            queue_id = int(text) if text.isascii() and text.isdigit() else 0
        window_ms = self._live.value.dedup_window_millis
        stored_ms = record.store_timestamp
        if (
            not key
            or len(key) > KEY_CHARS_MAX
            or stored_ms < self._clock.now_ms() - window_ms
            or not _counts(topic, record.properties, record.sys_flag)
        ):
            return
        known = self._firsts.get((topic, key))
        if known is not None:
            if known.result.physical_offset == record.physical_offset or (
                stored_ms - known.result.store_timestamp <= window_ms
            ):
                return
            # the key's window had expired: the later message is inserted at the end
            del self._firsts[topic, key]
        result = AppendResult(
            record.physical_offset,
            record.total_size,
            record.queue_offset,
            stored_ms,
            (record.physical_offset,),
        )
        self.note(topic, key, result, queue_id, record.unique_id or "")

    def cut(self, log_offset: int) -> None:
        """The log was truncated to `log_offset`: forget the messages behind it."""
        firsts = self._firsts
        for name in [name for name, each in firsts.items() if each.result.physical_offset >= log_offset]:
            del firsts[name]


def _counts(topic: str, properties: Mapping[str, str], sys_flag: int) -> bool:
    is_transaction = sys_flag & TRANSACTION_MASK or properties.get("TRAN_MSG", "").lower() == "true"
    return not is_transaction and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _is_waiting_topic(topic: str) -> bool:
    return topic in (HALF_TOPIC, OP_TOPIC, "SCHEDULE_TOPIC_XXXX") or topic.startswith("rmq_sys_")
