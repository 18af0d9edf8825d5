"""Messages that are sent again: one with the DEDUP_KEY of an earlier one of its topic is not stored (Aerobee's own).

A producer that did not get its answer sends again, and RocketMQ stores the message twice. With `dedupWindowMillis` above
0, a message that carries the property DEDUP_KEY (any client can set it) is looked up by topic and key: when one
was stored here within the window, the sender is answered with the ids of that one and nothing is stored. Off, the
property means nothing. Messages without it are never looked at, so ordinary sends cost what they cost.

The keys are in memory, at most `dedupKeysMax` (the oldest go first), and are read again from the tail of the commit log
when the broker starts. That makes them as durable as the messages: a first one that was lost is stored when sent again.
What always holds: keys are in the order in which their messages were stored.

Not looked at: messages inside a batch, half messages (they have an outcome, see transactions), and what consumers
give back to %RETRY%, which keeps its key.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.broker.config import LiveConfig
from aerobee.broker.property_names import DEDUP_KEY
from aerobee.broker.topic_table import HALF_TOPIC, OP_TOPIC
from aerobee.clock import Clock
from aerobee.errors import MalformedRecord, RemoteError
from aerobee.message import (
    DLQ_PREFIX,
    MAGIC_BLANK,
    RETRY_PREFIX,
    TRANSACTION_MASK,
    Record,
    decode_record,
)
from aerobee.remoting.codes import ResponseCode
from aerobee.store.commit_log import CommitLog, Segment
from aerobee.store.stored_message import AppendResult

log = logging.getLogger(__name__)

KEY_CHARS_MAX = 255
_MARK = f"{DEDUP_KEY}\x01".encode()
_SIZE_AND_MAGIC = struct.Struct(">II")
_RECORD_BYTES_MIN = 88  # up to and with the body's size; a whole record is longer


@dataclass(frozen=True, slots=True)
class FirstSend:
    """The message that was stored."""

    result: AppendResult
    queue_id: int
    unique_key: str


class AlreadyStored(Exception):
    """A send is answered with the place of an earlier one."""

    def __init__(self, first: FirstSend) -> None:
        super().__init__("stored already")
        self.first = first


class SendDuplicates:
    """The keys of one broker. Belongs to the event loop."""

    def __init__(self, *, live: LiveConfig, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._firsts: OrderedDict[tuple[str, str], FirstSend] = OrderedDict()
        self.dropped_count = 0  # messages that were not stored again
        self.forgotten_count = 0  # keys that made room for others within the window

    def __len__(self) -> int:
        return len(self._firsts)

    def check(self, topic: str, properties: dict[str, str], sys_flag: int) -> str:
        """Return the key under which this message is to be noted, empty for none.

        Raises AlreadyStored when it is a repetition, RemoteError for a key that is too long.
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
        self._expire(self._clock.now_ms())
        first = self._firsts.get((topic, key))
        if first is not None:
            self.dropped_count += 1
            raise AlreadyStored(first)
        return key

    def note(self, topic: str, key: str, result: AppendResult, queue_id: int, unique_key: str) -> None:
        """A message with a key is stored."""
        self._firsts[topic, key] = FirstSend(result, queue_id, unique_key)
        if len(self._firsts) > self._live.value.dedup_keys_max:
            self._firsts.popitem(last=False)
            self.forgotten_count += 1

    def _expire(self, now_ms: int) -> None:
        begin_ms = now_ms - self._live.value.dedup_window_millis
        firsts = self._firsts
        while firsts:
            oldest = next(iter(firsts))
            if firsts[oldest].result.store_timestamp >= begin_ms:
                return
            del firsts[oldest]

    # --- after a restart

    def load(self, commit_log: CommitLog) -> None:
        """Read the keys of the window from the log, blocking. Files without any key are passed over by one search."""
        window_ms = self._live.value.dedup_window_millis
        if not window_ms:
            return
        now_ms = self._clock.now_ms()
        begin_ms = now_ms - window_ms
        for segment in _segments_since(commit_log, begin_ms):
            for record in _marked_records(segment, commit_log.end):
                self._load_one(record, begin_ms)
        log.info(
            "%d deduplication keys of the last %d ms were read from the log", len(self._firsts), window_ms
        )

    def _load_one(self, record: Record, begin_ms: int) -> None:
        key = record.properties.get(DEDUP_KEY, "")
        topic, queue_id = record.topic, record.queue_id
        real_topic = record.properties.get("REAL_TOPIC")
        if real_topic is not None:
            # In a system topic: where the message was put first. In an ordinary one: what was delivered from there.
            if not _is_waiting_place(topic):
                return
            topic = real_topic
            text = record.properties.get("REAL_QID", "")
            queue_id = int(text) if text.isascii() and text.isdigit() else 0
        if (
            not key
            or len(key) > KEY_CHARS_MAX
            or record.store_timestamp < begin_ms
            or not _counts(topic, record.properties, record.sys_flag)
            or (topic, key) in self._firsts
        ):
            return
        result = AppendResult(
            record.physical_offset,
            record.total_size,
            record.queue_offset,
            record.store_timestamp,
            (record.physical_offset,),
        )
        self.note(topic, key, result, queue_id, record.unique_id or "")


def _counts(topic: str, properties: Mapping[str, str], sys_flag: int) -> bool:
    is_transaction = sys_flag & TRANSACTION_MASK or properties.get("TRAN_MSG", "").lower() == "true"
    return not is_transaction and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def _is_waiting_place(topic: str) -> bool:
    return topic in (HALF_TOPIC, OP_TOPIC, "SCHEDULE_TOPIC_XXXX") or topic.startswith("rmq_sys_")


def _segments_since(commit_log: CommitLog, begin_ms: int) -> list[Segment]:
    """The files that hold records of `begin_ms` and later, oldest first; the first may begin earlier."""
    chosen: list[Segment] = []
    for segment in reversed(commit_log.segments):
        if segment.base >= commit_log.end:
            continue
        chosen.append(segment)
        try:
            first = decode_record(bytes(segment.file.buffer[: _size_at(segment, 0)]), check_crc=False)
        except MalformedRecord:
            continue  # only a blank: a file of one record that did not fit
        if first.store_timestamp < begin_ms:
            break
    return chosen[::-1]


def _size_at(segment: Segment, at: int) -> int:
    size, _ = _SIZE_AND_MAGIC.unpack_from(segment.file.buffer, at)
    return int(size)


def _marked_records(segment: Segment, log_end: int) -> list[Record]:
    """The records of one file in whose bytes the mark of a key stands."""
    data, end = segment.file.buffer, min(segment.size, log_end - segment.base)
    records: list[Record] = []
    hit = data.find(_MARK, 0, end)
    at = 0
    while hit >= 0 and at + _RECORD_BYTES_MIN <= end:
        size, magic = _SIZE_AND_MAGIC.unpack_from(data, at)
        if magic == MAGIC_BLANK or size < _RECORD_BYTES_MIN:
            break
        if hit < at + size:
            try:
                records.append(decode_record(bytes(data[at : at + size]), check_crc=False))
            except MalformedRecord as error:
                log.warning("a record at %d is left out: %s", segment.base + at, error)
            hit = data.find(_MARK, at + size, end)
        at += size
    return records
