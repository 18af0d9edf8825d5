"""The forms of a half message: in the half queue, committed, in a check, and given up. Core.

Follows TransactionalMessageBridge.parseHalfMessageInner, EndTransactionProcessor.endMessageTransaction and
AbstractTransactionalMessageCheckListener of RocketMQ. The half queue is queue 0 of RMQ_SYS_TRANS_HALF_TOPIC; a half
message there is an ordinary record with the transaction bits of sys_flag cleared and three properties more, which we
write last:

    __transactionId__ (its UNIQ_KEY) | REAL_TOPIC | REAL_QID

A committed message is stored without REAL_TOPIC and REAL_QID, with WAIT=true, the bits 8, and in
prepared_transaction_offset the physical offset of the half message: that makes the record itself the proof of the
decision. A copy for a check counts in TRANSACTION_CHECK_TIMES; in the check itself it has WAIT=false.

An op record (queue 0 of RMQ_SYS_TRANS_OP_HALF_TOPIC, tag `d`) holds offsets of the half queue that are decided, as text,
each followed by a comma.
"""

from __future__ import annotations

import dataclasses

from aerobee.errors import MalformedRecord, RemoteError
from aerobee.message import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    Record,
    encode_properties,
    encode_record,
    pack_host,
    tags_code,
)
from aerobee.property_names import (
    CHECK_TIMES,
    DELAY,
    IMMUNITY,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_REQUESTS,
    TRANSACTION_ID,
    UNIQUE_KEY,
)
from aerobee.remoting.codes import ResponseCode
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.system_names import HALF_TOPIC, OP_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC

OP_TAG = "d"
_OP_TAGS_CODE = tags_code(OP_TAG)
_OP_PROPERTIES = encode_properties({"WAIT": "true", "TAGS": OP_TAG}).encode()
_WAIT_TRUE, _WAIT_FALSE = b"\x02WAIT\x01true\x02", b"\x02WAIT\x01false\x02"
NUMBER_CHARS_MAX = 18  # of a number in a property or an op record: beyond it int64 ends


def is_half(message: StoredMessage) -> bool:
    """Whether a client sent it as a half message."""
    return message.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED


def to_half(message: StoredMessage, properties: dict[str, str]) -> StoredMessage:
    """The form for the half queue; `properties` become those of the result.

    A delay level is dropped: RocketMQ's client does the same, and in its broker such a message was lost or, before
    5.0, asked about for ever. Raises RemoteError (13) for a timer message, which cannot be a half message.
    """
    for name in TIMER_REQUESTS:
        if name in properties:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: a transaction message cannot be a timer message, remove {name}",
            )
    properties.pop(DELAY, None)
    for name in (TRANSACTION_ID, REAL_TOPIC, REAL_QUEUE_ID, CHECK_TIMES, PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    properties[TRANSACTION_ID] = properties[UNIQUE_KEY]
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    return dataclasses.replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        properties=encode_properties(properties).encode(errors="surrogateescape"),
    )


def number(text: str | None, default: int) -> int:
    """A number of a property; `default` for an invalid number."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > NUMBER_CHARS_MAX:
        return default
    return int(text)


def immunity_ms(properties: dict[str, str]) -> int | None:
    """Time before the first check, as requested by the sender; None without a request (-1 and invalid numbers count as
    none)."""
    seconds = number(properties.get(IMMUNITY), -1)
    return seconds * 1000 if seconds >= 0 else None


@dataclasses.dataclass(frozen=True, slots=True)
class HalfMessage:
    """A decoded record of the half queue or of the given-up ones."""

    record: Record
    topic: str  # its destination after a commit
    queue_id: int
    group: str
    transaction_id: str
    checks: int
    immunity_ms: int | None

    @property
    def key(self) -> tuple[str, str]:
        """(producer group, transaction id): all copies of a transaction have it."""
        return self.group, self.transaction_id


def read_half(record: Record) -> HalfMessage:
    """Understand a record. Raises MalformedRecord when it does not say where it belongs."""
    properties = dict(record.properties)
    topic, queue_text = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    queue_id = number(queue_text, -1)
    if not topic or topic in (HALF_TOPIC, OP_TOPIC) or not 0 <= queue_id <= 0x7FFFFFFF:
        raise MalformedRecord(
            f"the half message at {record.physical_offset} belongs to topic {topic!r} queue {queue_text!r}"
        )
    return HalfMessage(
        record,
        topic,
        queue_id,
        properties.get(PRODUCER_GROUP, ""),
        # Without an id, which no client leaves out, it is a separate transaction.
        properties.get(UNIQUE_KEY) or properties.get(TRANSACTION_ID) or f"at-{record.physical_offset}",
        number(properties.get(CHECK_TIMES), 0),
        immunity_ms(properties),
    )


def committed(half: HalfMessage) -> tuple[StoredMessage, dict[str, str]]:
    """The message for its real topic, and its properties."""
    properties = dict(half.record.properties)
    for name in (REAL_TOPIC, REAL_QUEUE_ID, DELAY):
        properties.pop(name, None)
    properties["WAIT"] = "true"
    message = _stored(half.record, half.topic, half.queue_id, properties)
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.record.physical_offset
    return message, properties


def asked_again(half: HalfMessage, checks: int) -> StoredMessage:
    """The copy for the half queue about which a check is sent; with 0 checks, one that begins again (323)."""
    properties = dict(half.record.properties)
    for name in ("WAIT", CHECK_TIMES, PREPARED_QUEUE_OFFSET, REAL_TOPIC, REAL_QUEUE_ID):
        properties.pop(name, None)
    properties["WAIT"] = "true"
    properties[CHECK_TIMES] = str(checks)
    properties[REAL_TOPIC] = half.topic
    properties[REAL_QUEUE_ID] = str(half.queue_id)
    return _stored(half.record, HALF_TOPIC, 0, properties)


def given_up(half: HalfMessage) -> StoredMessage:
    """The copy for TRANS_CHECK_MAX_TIME_TOPIC."""
    return _stored(half.record, TRANS_CHECK_MAX_TIME_TOPIC, 0, dict(half.record.properties))


def check_body(half: HalfMessage, copy: StoredMessage, result: AppendResult, store_host: bytes) -> bytes:
    """The body of CHECK_TRANSACTION_STATE: the stored copy as a record, with the topic and queue that it is meant for."""
    return encode_record(
        topic=half.topic.encode(),
        queue_id=half.queue_id,
        queue_offset=result.queue_offset,
        physical_offset=result.physical_offset,
        body=bytes(copy.body),
        properties=copy.properties.replace(_WAIT_TRUE, _WAIT_FALSE),
        flag=copy.flag,
        sys_flag=copy.sys_flag,
        born_timestamp=copy.born_timestamp,
        born_host=copy.born_host,
        store_timestamp=result.store_timestamp,
        store_host=store_host,
        reconsume_times=copy.reconsume_times,
    )


def op_record(offsets: list[int], *, now_ms: int, host: bytes) -> StoredMessage:
    """The op record that says that these half-queue offsets are decided. `host` is the broker's own, packed."""
    return StoredMessage(
        topic=OP_TOPIC,
        queue_id=0,
        body="".join([f"{offset}," for offset in offsets]).encode(),
        properties=_OP_PROPERTIES,
        born_host=host,
        born_timestamp=now_ms,
        tags_code=_OP_TAGS_CODE,
        index_keys=(f"T#{OP_TAG}",),
    )


def op_offsets(record: Record) -> list[int]:
    """The offsets in an op record, one or many (RocketMQ before 5.1 wrote one). Raises MalformedRecord."""
    offsets = []
    for text in record.body.split(b","):
        if not text:
            continue
        if not text.isdigit() or len(text) > NUMBER_CHARS_MAX:
            raise MalformedRecord(
                f"the op record at {record.physical_offset} names half message {bytes(text[:40])!r}"
            )
        offsets.append(int(text))
    return offsets


def _stored(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> StoredMessage:
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=encode_properties(properties).encode(errors="surrogateescape"),
        born_host=pack_host(*record.born_host),
        flag=record.flag,
        sys_flag=record.sys_flag & ~TRANSACTION_MASK,
        born_timestamp=record.born_timestamp,
        reconsume_times=record.reconsume_times,
    )
