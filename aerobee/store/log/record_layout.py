"""Encodes messages as records: one message (StoredMessage), or the records of a burst. Core.

Follows MessageExtEncoder of RocketMQ; the layout itself is in aerobee/message.py.
"""

from __future__ import annotations

import struct

from aerobee.errors import RecordInvalid
from aerobee.message import (
    BORN_HOST_V6,
    PROPERTIES_BYTES_MAX,
    RETRY_TOPIC_BYTES_MAX,
    STORE_HOST_V6,
    TRIES_MAX,
    encode_record,
)
from aerobee.record_head import format_between
from aerobee.store.log.stored_message import StoredMessage


def lay_out(
    message: StoredMessage, queue_offset: int, now: int, *, store_host: bytes, body_bytes_max: int
) -> bytes:
    """The whole record, with physical offset 0. Raises RecordInvalid for what no record can hold."""
    topic = message.topic.encode()
    if not topic or len(topic) > RETRY_TOPIC_BYTES_MAX:
        raise RecordInvalid(f"the topic takes {len(topic)} bytes: 1 to {RETRY_TOPIC_BYTES_MAX} are allowed")
    if len(message.properties) > PROPERTIES_BYTES_MAX:
        raise RecordInvalid(
            f"the properties take {len(message.properties)} bytes: at most {PROPERTIES_BYTES_MAX} are allowed"
        )
    if len(message.body) > body_bytes_max:
        raise RecordInvalid(f"the body has {len(message.body)} bytes: maxMessageSize allows {body_bytes_max}")
    if not 0 <= message.queue_id <= 0x7FFFFFFF:
        raise RecordInvalid(f"queue id {message.queue_id} is not from 0 to 2147483647")
    if not -TRIES_MAX - 1 <= message.reconsume_times <= TRIES_MAX:
        raise RecordInvalid(f"{message.reconsume_times} tries do not fit a record")
    return encode_record(
        topic=topic,
        queue_id=message.queue_id,
        queue_offset=queue_offset,
        physical_offset=0,
        body=bytes(message.body),
        properties=message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=now,
        store_host=message.store_host or store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


_TO_FLAG = format_between("size", "physical_offset")
_FLAG_AND_TIME = format_between("sys_flag", "born_timestamp")
_TRIES_AND_PREPARED = format_between("reconsume_times", "prepared_transaction_offset")


class Origin:
    """Common fields of the records of a burst: the hosts (enter() sets the sender's) and the store time, ms.

    `head` packs all of a record up to its body, `hosts` the part from the sys flag to the prepared transaction's offset.
    """

    __slots__ = ("born_host", "head", "host_flags", "hosts", "now_ms", "store_host")

    def __init__(self, store_host: bytes) -> None:
        self.store_host = store_host
        self.born_host = b""
        self.host_flags = 0
        self.head = self.hosts = struct.Struct("")
        self.now_ms = 0

    def enter(self, born_host: bytes) -> None:
        """The next records come from this host (packed)."""
        changes_size = len(born_host) != len(self.born_host)
        self.born_host = born_host
        if changes_size:
            hosts = f"{_FLAG_AND_TIME}{len(born_host)}sq{len(self.store_host)}s{_TRIES_AND_PREPARED}"
            self.head, self.hosts = struct.Struct(f">{_TO_FLAG}{hosts}i"), struct.Struct(f">{hosts}")
            self.host_flags = (BORN_HOST_V6 if len(born_host) != 8 else 0) | (
                STORE_HOST_V6 if len(self.store_host) != 8 else 0
            )

    def pack_hosts(self, sys_flag: int, born_timestamp: int, reconsume_times: int) -> bytes:
        """The part that `hosts` packs, of a message that belongs to no transaction. Raises struct.error."""
        return self.hosts.pack(
            sys_flag | self.host_flags, born_timestamp, self.born_host, self.now_ms, self.store_host, reconsume_times, 0
        )  # fmt: skip
