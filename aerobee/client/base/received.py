"""A received message, decoded from the records of a pull, query or view reply. No I/O, except ack and retry.

Layout of a record: message.py. Properties, ids and the decompressed body are created at their first use,
because most handlers read only the body: that halves the cost of a pulled message.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from zlib import crc32

from aerobee.client.base.compression import decompress
from aerobee.client.base.verdict import GiveBack, Reject, RetryLater, error_text, give_back_after
from aerobee.errors import AerobeeError, BodyUnreadable, MalformedRecord, MessageDamaged, UsageError
from aerobee.message import (
    BATCH_ENTRY_BYTES_MIN,
    BATCH_ENTRY_HEAD,
    COMPRESSED,
    HOSTS_V6,
    INNER_BATCH,
    MAGIC_V1,
    NEED_UNWRAP,
    ORIGIN_POSITION,
    RETRY_PREFIX,
    SHARDING_KEY,
    MessageQueue,
    Record,
    decode_properties,
    decode_record,
    offset_message_id,
)
from aerobee.record_head import HEAD_V4, RECORD_BYTES_MIN, head_struct
from aerobee.system_names import LMQ_PREFIX
from aerobee.visible_text import visible

_HEAD_BYTES = HEAD_V4.size
# The fields that decoding needs: total size, magic, queue offset, sys_flag, body size. The others are read at
# their first use.
_unpack_parts = head_struct("size", "magic", "queue_offset", "sys_flag", "body_size").unpack_from
_INNER_BATCH = NEED_UNWRAP | INNER_BATCH
POSITION_CHARS_MAX = 200  # a broker name and two numbers
_NO_CRC = 0  # CRC of a message inside a batch: the batch's CRC covers it


class Settles(Protocol):
    """Receives the verdict on a message of `async for`."""

    def settle(self, message: ReceivedMessage, verdict: GiveBack | None) -> None:
        """None: consumed; otherwise the message is given back to its broker."""
        ...


class ReceivedMessage:
    """A message as a consumer sees it. Read only.

    `queue` is where it was read; `topic` is its own topic, which differs from the queue's topic when the message came
    through a retry topic. `queue_offset` counts entries of `queue`. Times are ms since the epoch.
    """

    __slots__ = (
        "_body",
        "_head",
        "_is_checked",
        "_is_given_back",
        "_plain",
        "_properties",
        "_raw_properties",
        "_settler",
        "_value",
        "queue",
        "queue_offset",
        "size_bytes",
        "sys_flag",
        "topic",
    )

    topic: str
    """Topic to which the message was sent, also when the consumer read it from a retry topic."""
    queue: MessageQueue
    """Queue from which the consumer read the message."""
    queue_offset: int
    """Offset of the message in `queue`, in entries."""
    size_bytes: int
    """Size of the stored record, in bytes."""
    _is_given_back: bool
    _value: Any
    sys_flag: int
    """Flags of the record (MessageSysFlag): compression, transaction state, kinds of addresses."""

    def __init__(
        self,
        topic: str,
        queue: MessageQueue,
        queue_offset: int,
        body: bytes,
        raw_properties: bytes,
        head: tuple[Any, ...] | bytes,
        size_bytes: int,
        sys_flag: int,
    ) -> None:
        """`head`: the fields of HEAD_V4, or their bytes. `size_bytes`: of the whole record."""
        self._is_checked = False
        self.topic = topic
        self.queue = queue
        self.queue_offset = queue_offset
        self.size_bytes = size_bytes
        self.sys_flag = sys_flag
        self._body = body
        self._raw_properties = raw_properties
        self._head = head
        self._properties: dict[str, str] | None = None
        self._plain: bytes | None = None
        self._settler: Settles | None = None

    @property
    def body(self) -> bytes:
        """The body, decompressed. Raises MessageDamaged when it does not match its CRC or does not decompress."""
        if not self._is_checked:
            self._check_body()
        if not self.sys_flag & COMPRESSED:
            return self._body
        if self._plain is None:
            try:
                self._plain = decompress(self._body, self.sys_flag)
            except MalformedRecord as error:
                raise MessageDamaged(f"{self._name()} cannot be read: {error}") from error
        return self._plain

    def body_or_stored(self) -> tuple[bytes, str]:
        """(body, ""), or for a damaged message the body as stored and the reason: for displaying it."""
        try:
            return self.body, ""
        except MessageDamaged as error:
            return self._body, str(error)

    def _name(self) -> str:
        return (
            f"the body of message {self.queue_offset} of queue {self.queue.queue_id} of {self.topic} at broker "
            f"{self.queue.broker_name}"
        )

    def _check_body(self) -> None:
        head = self._head
        crc = int.from_bytes(head[8:12], "big") if type(head) is bytes else int(head[2])
        if crc and crc32(self._body) & 0x7FFFFFFF != crc:  # RocketMQ leaves out the sign bit
            raise MessageDamaged(
                f"{self._name()} does not match its CRC: it is damaged. Its record is at log byte "
                f"{self.physical_offset}; `aerobee store verify` there shows what is"
            )
        self._is_checked = True

    @property
    def value(self) -> Any:
        """The body as the consumer's deserializer reads it. Raises UsageError for a consumer without one, and BodyUnreadable or
        MessageDamaged for a message of poll() or receive() whose body it cannot read."""
        try:
            value = self._value
        except AttributeError:
            raise UsageError(
                "this consumer has no deserializer: give it deserializer=Json(), or read message.body"
            ) from None
        if type(value) is _Unreadable:
            raise value.error
        return value

    @property
    def stored_body(self) -> bytes:
        """The body as it is stored: still compressed if `sys_flag` says so."""
        return self._body

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties of the message, the system's included."""
        if self._properties is None:
            self._properties = decode_properties(self._raw_properties.decode(errors="replace"))
        return self._properties

    @property
    def tag(self) -> str | None:
        """Tag of the message. None: it has none."""
        return self.properties.get("TAGS")

    @property
    def keys(self) -> tuple[str, ...]:
        """Index keys of the message."""
        return tuple(self.properties.get("KEYS", "").split())

    @property
    def message_group(self) -> str | None:
        """Message group by which the producer ordered the message (__SHARDINGKEY). None: none."""
        return self.properties.get(SHARDING_KEY)

    @property
    def message_id(self) -> str:
        """The unique key that the producer set (Java: msgId), or the offset message id without one."""
        return self.properties.get("UNIQ_KEY") or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Id of the record: address of the broker and physical offset in its log."""
        return offset_message_id(self.store_host, self.physical_offset)

    def _fields(self) -> tuple[Any, ...]:
        """The fields of HEAD_V4, read at the first use of one of them."""
        head = self._head
        if type(head) is bytes:
            head = self._head = HEAD_V4.unpack(head)
        assert type(head) is tuple
        return head

    @property
    def flag(self) -> int:
        """Number that the producer set; Aerobee does not interpret it."""
        return int(self._fields()[4])

    @property
    def physical_offset(self) -> int:
        """Offset of the record in the broker's log, in bytes."""
        return int(self._fields()[6])

    @property
    def born_timestamp(self) -> int:
        """When the producer sent the message, ms since the epoch, by the producer's clock."""
        return int(self._fields()[8])

    @property
    def born_host(self) -> tuple[str, int]:
        """Address of the producer: IP address and port."""
        return str(ipaddress.ip_address(self._fields()[9])), int(self._fields()[10])

    @property
    def store_timestamp(self) -> int:
        """When the broker stored the message, ms since the epoch."""
        return int(self._fields()[11])

    @property
    def store_host(self) -> tuple[str, int]:
        """Address of the broker that stored the message: IP address and port."""
        return str(ipaddress.ip_address(self._fields()[12])), int(self._fields()[13])

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries; 0 at the first delivery."""
        return int(self._fields()[14])

    @property
    def prepared_transaction_offset(self) -> int:
        """Offset of the half message of a transaction in the log, 0 for other messages."""
        return int(self._fields()[15])

    def ack(self) -> None:
        """Acknowledge the message: its offset may be committed. Only for messages of `async for message in consumer`."""
        self._settle(None)

    def retry(self, delay_level: int = 0, *, after: float | None = None, reason: str = "") -> None:
        """Redeliver the message: level 0 lets the broker choose the delay, 1..18 is a delay level, -1 dead-letters it.

        `after`: selects the broker's shortest delay of at least this number of seconds.
        """
        self._settle(give_back_after(RetryLater(reason, delay_level=delay_level, after=after)))

    def reject(self, reason: str = "") -> None:
        """Dead-letter the message now."""
        self._settle(give_back_after(Reject(reason)))

    def _settle(self, verdict: GiveBack | None) -> None:
        if self._settler is None:
            raise UsageError(
                "only messages of `async for message in consumer` are acknowledged by hand; "
                "a handler acknowledges by returning, and asks for another delivery or for the dead letters by "
                "raising (aerobee.client.retry and reject do that)"
            )
        self._settler.settle(self, verdict)

    def __repr__(self) -> str:
        tries = f", retry {self.reconsume_times}" if self.reconsume_times else ""
        return f"ReceivedMessage({self.topic} {self._position()}{tries}, {len(self._body)} bytes, id {self.message_id})"

    def _position(self) -> str:
        """broker/queue@offset in `topic`, also of a copy in a retry topic if its broker kept the position."""
        here = f"{self.queue.broker_name}/{self.queue.queue_id}@{self.queue_offset}"
        if self.queue.topic == self.topic:
            return here
        return (
            visible(self.properties.get(ORIGIN_POSITION, "")[:POSITION_CHARS_MAX])
            or f"in {self.queue.topic} {here}"
        )


class _Unreadable:
    """Instead of a value: why the deserializer could not read the body."""

    __slots__ = ("error",)

    def __init__(self, error: AerobeeError) -> None:
        self.error = error


def read_value_or_error(message: ReceivedMessage, read: Callable[[bytes, Mapping[str, str]], Any]) -> None:
    """As read_value(); a body that cannot be read raises when the application reads `message.value`."""
    try:
        read_value(message, read)
    except (BodyUnreadable, MessageDamaged) as error:
        message._value = _Unreadable(error)


def read_value(message: ReceivedMessage, read: Callable[[bytes, Mapping[str, str]], Any]) -> None:
    """Give a message its value. Raises BodyUnreadable, MessageDamaged."""
    message._value = read(message.body, message.properties)


def note_given_back(message: ReceivedMessage) -> None:
    """A broker has taken this message back: it is given back no second time."""
    message._is_given_back = True


def was_given_back(message: ReceivedMessage) -> bool:
    """Whether a broker has taken it back, as one of a batch whose other messages are still in progress."""
    return getattr(message, "_is_given_back", False)


def verdict_on(message: ReceivedMessage, error: BaseException) -> GiveBack:
    """The verdict on one message of those whose handler raised `error`: of a batch only what is damaged dies of damage."""
    if isinstance(error, MessageDamaged) and not message.body_or_stored()[1]:
        return GiveBack(error=error_text(error))
    return give_back_after(error)


def attach(message: ReceivedMessage, settler: Settles) -> None:
    """Let ack() and retry() of this message reach `settler`."""
    message._settler = settler


def tried_again(message: ReceivedMessage) -> None:
    """Count one more delivery of a message that this process delivers to the handler again."""
    head = message._fields()
    message._head = (*head[:14], head[14] + 1, *head[15:])


# take(ReceivedMessage, data, queue, topic): the messages of the leading ordinary records, and the position
# after them
TakeRecords = Callable[[type[ReceivedMessage], bytes, MessageQueue, str], tuple[list[ReceivedMessage], int]]


def decode_messages(
    data: bytes, queue: MessageQueue, *, take_records: TakeRecords | None = None
) -> list[ReceivedMessage]:
    """Decode the records of an answer that all came from `queue`.

    `take_records`: the native backend's decoder for ordinary records. Raises MalformedRecord unless the data consists
    of whole records back to back.
    """
    messages: list[ReceivedMessage] = []
    end = len(data)
    at = 0
    queue_topic = queue.topic
    expected = queue_topic.encode()
    topic_size = len(expected)
    is_retry, is_light = queue_topic.startswith(RETRY_PREFIX), queue_topic.startswith(LMQ_PREFIX)
    if take_records is not None and not is_retry and not is_light:
        messages, at = take_records(ReceivedMessage, data, queue, queue_topic)
    while at < end:
        if end - at < RECORD_BYTES_MIN:
            raise MalformedRecord(f"{end - at} bytes at {at} are less than the smallest record")
        size, magic, queue_offset, sys_flag, body_size = _unpack_parts(data, at)
        body_at = at + _HEAD_BYTES
        topic_at = body_at + body_size
        topic_end = topic_at + 1 + topic_size
        if (
            magic != MAGIC_V1
            or sys_flag & HOSTS_V6
            or body_size < 0
            or not RECORD_BYTES_MIN <= size <= end - at
            or topic_end + 2 > at + size
            or data[topic_at] != topic_size
            or data[topic_at + 1 : topic_end] != expected
            or topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1]) != at + size
        ):
            # Not an ordinary record of this queue: the full decoder decodes it or reports the error.
            record = decode_record(data, at, check_crc=False)
            message = _from_record(record, queue)
            size, sys_flag = message.size_bytes, message.sys_flag
        else:
            message = ReceivedMessage(
                queue_topic,
                queue,
                queue_offset,
                data[body_at:topic_at],
                data[topic_end + 2 : at + size],
                data[at:body_at],
                size,
                sys_flag,
            )
        at += size
        if sys_flag & _INNER_BATCH == _INNER_BATCH:
            messages.extend(_unwrap(message))
            continue
        if is_retry:
            message.topic = message.properties.get("RETRY_TOPIC", message.topic)
        elif is_light:
            message.queue_offset = _light_offset(message)
        messages.append(message)
    return messages


def _light_offset(message: ReceivedMessage) -> int:
    """A message's offset in the LMQ from which it was read; the record itself contains the offset in its topic."""
    names = message.properties.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = message.properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    for name, offset in zip(names, offsets, strict=False):
        if name == message.queue.topic and offset.isdecimal() and len(offset) < 19:
            return int(offset)
    raise MalformedRecord(f"a message of {message.queue.topic} lacks its offset in that LMQ")


def _unwrap(batch: ReceivedMessage) -> list[ReceivedMessage]:
    """The messages of a batch that a queue of type BatchCQ stores as one record; all have the record's physical offset.

    entry: int32 size | int32 magic | int32 crc | int32 flag | int32 n, body | int16 n, properties
    """
    data, base = batch.stored_body, batch.queue_offset
    messages: list[ReceivedMessage] = []
    at = 0
    while at < len(data):
        if len(data) - at < BATCH_ENTRY_BYTES_MIN:
            raise MalformedRecord(f"{len(data) - at} bytes at {at} of an inner batch are less than an entry")
        size, _, _, flag, body_size = BATCH_ENTRY_HEAD.unpack_from(data, at)
        body_at = at + BATCH_ENTRY_HEAD.size
        body_end = body_at + body_size
        if not BATCH_ENTRY_BYTES_MIN <= size <= len(data) - at or body_size < 0 or body_end + 2 > at + size:
            raise MalformedRecord(f"an entry at {at} of an inner batch claims {size} and {body_size} bytes")
        if body_end + 2 + int.from_bytes(data[body_end : body_end + 2], "big") != at + size:
            raise MalformedRecord(f"the properties of an entry at {at} of an inner batch do not fit it")
        offset = base + len(messages)
        head = batch._fields()
        own_head = (
            size,
            head[1],
            _NO_CRC,
            head[3],
            flag,
            offset,
            head[6],
            head[7] & ~_INNER_BATCH,
            *head[8:16],
            body_size,
        )
        messages.append(
            ReceivedMessage(
                batch.topic,
                batch.queue,
                offset,
                data[body_at:body_end],
                data[body_end + 2 : at + size],
                own_head,
                size,
                own_head[7],
            )
        )
        at += size
    return messages


def _from_record(record: Record, queue: MessageQueue) -> ReceivedMessage:
    head = (
        record.total_size,
        MAGIC_V1,
        record.body_crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        ipaddress.ip_address(record.born_host[0]).packed,
        record.born_host[1],
        record.store_timestamp,
        ipaddress.ip_address(record.store_host[0]).packed,
        record.store_host[1],
        record.reconsume_times,
        record.prepared_transaction_offset,
        len(record.body),
    )
    text = "".join(f"{name}\x01{value}\x02" for name, value in record.properties.items())
    raw = text.encode(errors="surrogateescape")
    return ReceivedMessage(
        record.topic, queue, record.queue_offset, record.body, raw, head, record.total_size, record.sys_flag
    )


def decode_stored_messages(data: bytes, broker_name: str) -> list[ReceivedMessage]:
    """Decode records of any topic and queue of one broker, as query and view answers hold them."""
    messages: list[ReceivedMessage] = []
    at = 0
    while at < len(data):
        record = decode_record(data, at, check_crc=False)
        queue = MessageQueue(record.topic, broker_name, record.queue_id)
        messages.append(_from_record(record, queue))
        at += record.total_size
    return messages
