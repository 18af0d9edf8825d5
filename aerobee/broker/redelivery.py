"""From the record of a message that waited to the message under its real topic. Core.

Follows ScheduleMessageService.messageTimeUp and TimerMessageStore.convert of RocketMQ: topic and queue come from
REAL_TOPIC and REAL_QID, the property text stays as it is but for what is added at its end, born time, host, flags and
tries stay. The record of the delivery carries the mark of the one that waited (store/delivery_mark.py).

One is made per delivery, so it takes the record apart by hand: a third of decode_record and back.
"""

from __future__ import annotations

import struct
import zlib

from aerobee.broker.delay_level import REAL_QUEUE_ID, REAL_TOPIC
from aerobee.errors import MalformedRecord
from aerobee.message import (
    BORN_HOST_V6,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    check_topic_name,
    decode_properties,
    tags_code,
)
from aerobee.store.delivery_mark import delivery_mark
from aerobee.store.dispatch import index_texts
from aerobee.store.stored_message import StoredMessage

_HEAD = struct.Struct(">IIIiiqqiq")
_TAIL = struct.Struct(">iqi")  # tries, prepared offset, body size
_TIME = struct.Struct(">q")


class WaitingMessage:
    """A record of the schedule or timer topic, taken apart. `properties` may be changed before restored()."""

    __slots__ = (
        "_text", "body", "born_host", "born_timestamp", "flag", "physical_offset", "properties", "reconsume_times",
        "store_timestamp", "sys_flag", "topic",
    )  # fmt: skip

    def __init__(self, data: bytes) -> None:
        """`data` is one whole record. Raises MalformedRecord for bytes that are none."""
        if len(data) < RECORD_BYTES_MIN:
            raise MalformedRecord(f"{len(data)} bytes are less than the smallest record")
        total, magic, crc, _, self.flag, _, self.physical_offset, self.sys_flag, self.born_timestamp = (
            _HEAD.unpack_from(data, 0)
        )
        try:
            at = _HEAD.size
            end = at + (20 if self.sys_flag & BORN_HOST_V6 else 8)
            self.born_host = data[at:end]
            (self.store_timestamp,) = _TIME.unpack_from(data, end)
            at = end + 8 + (20 if self.sys_flag & STORE_HOST_V6 else 8)
            self.reconsume_times, _, body_size = _TAIL.unpack_from(data, at)
            at += _TAIL.size
            if body_size < 0 or at + body_size > len(data):
                raise MalformedRecord(
                    f"the record at {self.physical_offset} claims a body of {body_size} bytes"
                )
            self.body = data[at : at + body_size]
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
        if body_size and zlib.crc32(self.body) & 0x7FFFFFFF != crc:
            raise MalformedRecord(f"body of the record at {self.physical_offset} does not match its CRC")
        self.properties = decode_properties(self._text.decode(errors="surrogateescape"))

    def message(self, topic: str, queue_id: int, text: bytes) -> StoredMessage:
        """This message with another place and property text, marked as made from this record."""
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
            prepared_transaction_offset=delivery_mark(self.physical_offset),
            tags_code=tags_code(properties.get("TAGS")),
            index_keys=index_texts(properties),
        )

    def restored(self, added: bytes = b"") -> StoredMessage:
        """The message as it goes to its real topic, with `added` behind its property text where there is room.

        Raises ValueError when its properties do not tell where that is.
        """
        topic = self.properties.get(REAL_TOPIC, "")
        queue_text = self.properties.get(REAL_QUEUE_ID, "")
        if not (queue_text.isascii() and queue_text.isdigit() and len(queue_text) < 10):
            raise ValueError(f"REAL_TOPIC is {topic!r} and REAL_QID {queue_text!r}")
        if not topic or topic == self.topic:
            raise ValueError(f"its REAL_TOPIC {topic!r} is the broker's own")
        check_topic_name(topic)
        text = self._text
        if added and len(text) + len(added) + 1 <= PROPERTIES_BYTES_MAX:
            # Clients before 5.0 end their properties without the separator.
            text = text + added if not text or text.endswith(b"\x02") else text + b"\x02" + added
        return self.message(topic, int(queue_text), text)
