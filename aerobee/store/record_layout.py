"""From a StoredMessage to the bytes of its record and the entries of a batch queue. Core.

Follows MessageExtEncoder of RocketMQ; the layout itself is in aerobee/message.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee.errors import RecordInvalid
from aerobee.message import PROPERTIES_BYTES_MAX, RETRY_TOPIC_BYTES_MAX, decode_properties, encode_record
from aerobee.store.batch_consume_queue import BatchConsumeQueue, BatchEntry
from aerobee.store.dispatch import batch_size_of
from aerobee.store.stored_message import StoredMessage


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


def append_batch_entries(
    queue: BatchConsumeQueue,
    messages: Sequence[StoredMessage],
    offset: int,
    sizes: Sequence[int],
    codes: Sequence[int],
    now: int,
) -> None:
    """Write the entries of records that stand back to back from `offset` on; ensure_room() was called."""
    for message, size, code in zip(messages, sizes, codes, strict=True):
        properties = decode_properties(message.properties.decode(errors="surrogateescape"))
        count = batch_size_of(message.sys_flag, properties)
        queue.append_batch_entry(
            BatchEntry(offset, size, 0 if count > 1 else code, now, queue.max_offset, count)
        )
        offset += size
