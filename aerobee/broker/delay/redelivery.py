"""Converts the record of a delayed message to the message under its real topic.

Follows ScheduleMessageService.messageTimeUp and TimerMessageStore.convert of RocketMQ: topic and queue come from
REAL_TOPIC and REAL_QID, the property text stays as it is but for what is added at its end, born time, host, flags and
tries stay. The record of the delivery carries the mark of the one that waited (store/log/source_pointer.py).

Each delivery creates one record, so `Redelivery` patches a copy of the delayed record's head, which takes a third of
the time of decoding and encoding it.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable

from aerobee.broker.send.lmq import names_lmqs
from aerobee.broker.send.message_writer import LmqDispatch, append_accepted
from aerobee.errors import MalformedRecord
from aerobee.log_throttle import LogThrottle
from aerobee.message import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    check_topic_name,
    decode_properties,
    tags_code,
)
from aerobee.property_names import INNER_PREFIX, REAL_QUEUE_ID, REAL_TOPIC
from aerobee.record_head import (
    FIXED_HEAD,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    RECORD_BYTES_MIN,
    TAIL,
    field_at,
    head_struct,
)
from aerobee.store.append.log_appender import LaidOut
from aerobee.store.index.index_file import key_hash
from aerobee.store.log.dispatch import index_texts
from aerobee.store.log.source_pointer import source_pointer
from aerobee.store.log.stored_message import AppendResult, StoredMessage
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)
_TIME = struct.Struct(">q")
_QUEUE_AND_FLAG, _QUEUE_AND_FLAG_AT = head_struct("queue_id", "flag"), field_at("queue_id")
_SIZE_AND_MAGIC = head_struct("size", "magic")


ExistingQueue = Callable[[str, int], int]  # (topic, queue that it was sent to) -> queue that stores it


class WaitingMessage:
    """A record of the schedule or timer topic, taken apart. `properties` may be changed before restored()."""

    __slots__ = (
        "_body_at", "_body_end", "_data", "_store_time_at", "_text", "born_host", "born_timestamp", "flag", "physical_offset", "properties", "reconsume_times",
        "store_timestamp", "sys_flag", "topic",
    )  # fmt: skip

    def __init__(self, data: bytes) -> None:
        """`data` is one whole record. Raises MalformedRecord for invalid bytes."""
        if len(data) < RECORD_BYTES_MIN:
            raise MalformedRecord(f"{len(data)} bytes are less than the smallest record")
        self._data = data
        total, magic, _, _, self.flag, _, self.physical_offset, self.sys_flag, self.born_timestamp = (
            FIXED_HEAD.unpack_from(data, 0)
        )
        try:
            at = FIXED_HEAD.size
            end = at + (HOST_V6_BYTES if self.sys_flag & BORN_HOST_V6 else HOST_V4_BYTES)
            self.born_host = data[at:end]
            (self.store_timestamp,) = _TIME.unpack_from(data, end)
            at = end + 8 + (HOST_V6_BYTES if self.sys_flag & STORE_HOST_V6 else HOST_V4_BYTES)
            self.reconsume_times, _, body_size = TAIL.unpack_from(data, at)
            at += TAIL.size
            if body_size < 0 or at + body_size > len(data):
                raise MalformedRecord(
                    f"the record at {self.physical_offset} claims a body of {body_size} bytes"
                )
            self._store_time_at, self._body_at, self._body_end = end, at, at + body_size
            at += body_size
            width = 2 if magic == MAGIC_V2 else 1
            topic_end = at + width + int.from_bytes(data[at : at + width], "big")
            self.topic = data[at + width : topic_end].decode()
            self._text = data[topic_end + 2 :]
        except (struct.error, UnicodeDecodeError) as error:
            raise MalformedRecord(f"the record at {self.physical_offset}: {error}") from error
        if total != len(data) or len(self._text) != int.from_bytes(data[topic_end : topic_end + 2], "big"):
            raise MalformedRecord(
                f"parts of the record at {self.physical_offset} do not fill its {total} bytes"
            )
        self.properties = decode_properties(self._text.decode(errors="surrogateescape"))

    @property
    def body(self) -> bytes:
        """The body's bytes, a copy."""
        return self._data[self._body_at : self._body_end]

    def message(self, topic: str, queue_id: int, text: bytes) -> StoredMessage:
        """This message with another topic, queue and property text, with the pointer to this record."""
        properties = self.properties
        return StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=self.body,
            properties=text,
            born_host=self.born_host,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=source_pointer(self.physical_offset),
            tags_code=tags_code(properties.get("TAGS")),
            index_keys=index_texts(properties),
        )

    def destination(self) -> tuple[str, int]:
        """Real topic and queue. Raises ValueError or UsageError when the properties do not contain them."""
        topic = self.properties.get(REAL_TOPIC, "")
        queue_text = self.properties.get(REAL_QUEUE_ID, "")
        if not (queue_text.isascii() and queue_text.isdigit() and len(queue_text) < 10):
            raise ValueError(f"REAL_TOPIC is {topic!r} and REAL_QID {queue_text!r}")
        if not topic or topic == self.topic:
            raise ValueError(f"its REAL_TOPIC {topic!r} is the broker's own")
        check_topic_name(topic)
        return topic, int(queue_text)

    def text(self, added: bytes = b"") -> bytes:
        """The property text with `added` appended, where there is space."""
        text = self._text
        if added and len(text) + len(added) + 1 <= PROPERTIES_BYTES_MAX:
            # Clients before 5.0 end their properties without the separator.
            return text + added if not text or text.endswith(b"\x02") else text + b"\x02" + added
        return text

    def restored(self, added: bytes = b"") -> StoredMessage:
        """The message for its real topic. Raises as destination()."""
        topic, queue_id = self.destination()
        return self.message(topic, queue_id, self.text(added))

    def record(self, topic: bytes, text: bytes, store_host: bytes) -> bytearray | None:
        """The record under another topic, without its offsets and times; None when the store's host takes more space."""
        host_at = self._store_time_at + 8
        if (
            len(store_host) != (HOST_V6_BYTES if self.sys_flag & STORE_HOST_V6 else HOST_V4_BYTES)
            or len(topic) > TOPIC_BYTES_MAX
        ):
            return None
        record = bytearray(self._data[: self._body_end])
        record[host_at : host_at + len(store_host)] = store_host
        _TIME.pack_into(record, self._body_at - 12, source_pointer(self.physical_offset))
        record += b"%c%b%b%b" % (len(topic), topic, len(text).to_bytes(2, "big"), text)
        _SIZE_AND_MAGIC.pack_into(record, 0, len(record), MAGIC_V1)
        return record

    @property
    def store_time_at(self) -> int:
        """Position of the store time in the record."""
        return self._store_time_at


class Redelivery:
    """Stores due messages under their real topics."""

    def __init__(
        self, store: MessageStore, *, existing_queue: ExistingQueue, lmqs: LmqDispatch | None = None
    ) -> None:
        """`existing_queue` is TopicTable.existing_queue. `lmqs` lets messages with INNER_MULTI_DISPATCH be read from
        LMQs, too.
        """
        self._store = store
        self._existing_queue = existing_queue
        self._lmqs = lmqs
        self._throttle = LogThrottle(log, time.monotonic)

    def deliver(self, message: WaitingMessage, added: bytes = b"") -> tuple[str, int]:
        """Store one delivery; returns its topic and its bytes. Readable and durable as after MessageStore.append.

        Raises StoreFull and StoreNotWritable, changing nothing; ValueError, UsageError or RecordInvalid for an
        undeliverable message.
        """
        store = self._store
        topic, sent_to = message.destination()
        queue_id = self._existing_queue(topic, sent_to)
        store.check_writable()
        queue = store.queue(topic, queue_id)
        text = message.text(added)
        record = None
        is_inner = any(name.startswith(INNER_PREFIX) for name in message.properties)
        if not queue.is_batch and not is_inner:
            record = message.record(topic.encode(), text, store.store_host)
        if record is None or not isinstance(queue, ConsumeQueue):
            return topic, self._append(message, topic, queue_id, text).size
        now_ms = store.store_time_now()
        _QUEUE_AND_FLAG.pack_into(record, _QUEUE_AND_FLAG_AT, queue_id, message.flag)
        _TIME.pack_into(record, message.store_time_at, now_ms)
        properties = message.properties
        hashes = [key_hash(f"{topic}#{key}") for key in index_texts(properties)]
        laid_out = LaidOut(record, text, tags_code(properties.get("TAGS")), hashes)
        result = store.appender.append_records(queue, (laid_out,), now_ms)
        store.burst_done()
        return topic, result.size

    def _append(self, waiting: WaitingMessage, topic: str, queue_id: int, text: bytes) -> AppendResult:
        """The store's append method."""
        message = waiting.message(topic, queue_id, text)
        if self._lmqs is not None and names_lmqs(topic, waiting.properties):
            return append_accepted(self._store, self._lmqs, message, self._throttle)
        return self._store.append(message)
