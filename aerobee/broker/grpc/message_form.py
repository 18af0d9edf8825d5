"""Converts messages between their gRPC form and their stored form: properties, flags, body. Core.

Source: SendMessageActivity.buildMessageProperty, GrpcConverter (RocketMQ 5.5.0). The stored record equals that of a
remoting client, so that clients of both protocols consume it.
"""

from __future__ import annotations

import hashlib
import zlib

from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.times import duration_ms, set_ms, timestamp_ms
from aerobee.client.base.compression import decompress
from aerobee.errors import MalformedRecord
from aerobee.grpc.proto import messages as pb
from aerobee.host_port import join_address
from aerobee.message import (
    COMPRESSED,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    PRIORITY,
    SHARDING_KEY,
    TRANSACTION_PREPARED,
    Record,
)
from aerobee.property_names import (
    IMMUNITY,
    LITE_TOPIC,
    PRODUCER_GROUP,
    SYSTEM_PROPERTIES,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    UNIQUE_KEY,
)

BORN_HOST, BORN_TIMESTAMP, TRACE_CONTEXT = "__BORNHOST", "BORN_TIMESTAMP", "TRACE_CONTEXT"
TAGS, KEYS, TIMER_OUT = "TAGS", "KEYS", "TIMER_OUT_MS"
GZIP_WINDOW_BITS = 31
DELIVERED_BYTES_MAX = 16 * 1024 * 1024  # of a decompressed body: a larger one is delivered as it is stored


def stored_properties(message: pb.Message, topic: str) -> tuple[dict[str, str], int]:
    """The properties and the sys_flag with which a checked message is stored."""
    system = message.system_properties
    properties = dict(message.user_properties)
    properties[UNIQUE_KEY] = system.message_id
    properties[PRODUCER_GROUP] = topic  # gRPC has no producer groups: the topic is the group
    if system.tag:
        properties[TAGS] = system.tag
    if system.keys:
        properties[KEYS] = " ".join(system.keys)
    if system.HasField("message_group") and system.message_group:
        properties[SHARDING_KEY] = system.message_group
    if system.HasField("lite_topic") and system.lite_topic:
        properties[LITE_TOPIC] = system.lite_topic
    if system.HasField("priority"):
        properties[PRIORITY] = str(system.priority)
    if system.HasField("trace_context") and system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        properties[BORN_HOST] = system.born_host
    if system.HasField("born_timestamp"):
        properties[BORN_TIMESTAMP] = str(timestamp_ms(system.born_timestamp))
    sys_flag = 0
    if system.message_type == pb.TRANSACTION:
        properties[TRAN_MSG] = "true"
        sys_flag = TRANSACTION_PREPARED
        if system.HasField("orphaned_transaction_recovery_duration"):
            properties[IMMUNITY] = str(duration_ms(system.orphaned_transaction_recovery_duration) // 1000)
    elif system.HasField("delivery_timestamp"):
        properties[TIMER_DELIVER_MS] = str(timestamp_ms(system.delivery_timestamp))
    return properties, sys_flag


def stored_body(message: pb.Message, body_bytes_max: int) -> bytes:
    """The body as it is stored: never compressed by gzip, which consumers of remoting cannot read. Raises RpcRefused."""
    if message.system_properties.body_encoding != pb.GZIP:
        return message.body
    inflater = zlib.decompressobj(GZIP_WINDOW_BITS)
    try:
        body = inflater.decompress(message.body, body_bytes_max + 1)
    except zlib.error as error:
        raise RpcRefused(
            pb.MESSAGE_CORRUPTED, f"the body is not gzip, as body_encoding says: {error}"
        ) from error
    if len(body) > body_bytes_max:
        raise RpcRefused(pb.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {body_bytes_max}")
    if not inflater.eof:
        raise RpcRefused(pb.MESSAGE_CORRUPTED, "the body is gzip, as body_encoding says, and not complete")
    return body


def delivered_message(record: Record, *, topic: str, receipt_handle: str = "") -> pb.Message:
    """A stored message as a client gets it. `topic` is where it was sent, `receipt_handle` what acknowledges it."""
    properties = record.properties
    body = _plain_body(record)
    system = pb.SystemProperties(
        message_id=properties.get(UNIQUE_KEY) or record.offset_message_id,
        body_digest=pb.Digest(
            type=pb.MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        ),
        body_encoding=pb.IDENTITY,
        message_type=_type_of(record),
        born_host=properties.get(BORN_HOST) or record.born_host[0],
        store_host=join_address(*record.store_host),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        delivery_attempt=record.reconsume_times + 1,
    )
    set_ms(system.born_timestamp, record.born_timestamp)
    set_ms(system.store_timestamp, record.store_timestamp)
    if receipt_handle:
        system.receipt_handle = receipt_handle
    if TAGS in properties:
        system.tag = properties[TAGS]
    system.keys.extend(properties.get(KEYS, "").split())
    _set_optional(system, record)
    user = {
        name: value
        for name, value in properties.items()
        if name not in SYSTEM_PROPERTIES and name != SHARDING_KEY
    }
    return pb.Message(
        topic=pb.Resource(name=topic), user_properties=user, system_properties=system, body=body
    )


def _plain_body(record: Record) -> bytes:
    """The body without compression, which few clients know by the same names; as it is stored where it cannot be read."""
    try:
        return (
            decompress(record.body, record.sys_flag, DELIVERED_BYTES_MAX)
            if record.sys_flag & COMPRESSED
            else record.body
        )
    except MalformedRecord:
        return record.body


def _set_optional(system: pb.SystemProperties, record: Record) -> None:
    properties = record.properties
    due = properties.get(TIMER_OUT) or properties.get(TIMER_DELIVER_MS, "")
    if due.isascii() and due.isdigit() and len(due) < 20:
        set_ms(system.delivery_timestamp, min(int(due), 253_402_300_799_000))
    if SHARDING_KEY in properties:
        system.message_group = properties[SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    if LITE_TOPIC in properties:
        system.lite_topic = properties[LITE_TOPIC]
    priority = properties.get(PRIORITY, "")
    if priority.isascii() and priority.isdigit() and len(priority) < 10:
        system.priority = int(priority)
    if DLQ_ORIGIN_TOPIC in properties and DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[DLQ_ORIGIN_MESSAGE_ID]


def _type_of(record: Record) -> pb.MessageType:
    properties = record.properties
    if properties.get(TRAN_MSG, "").lower() == "true":
        return pb.TRANSACTION
    if any(name in properties for name in (TIMER_OUT, TIMER_DELIVER_MS, "DELAY")):
        return pb.DELAY
    if SHARDING_KEY in properties:
        return pb.FIFO
    if PRIORITY in properties:
        return pb.PRIORITY
    return pb.LITE if LITE_TOPIC in properties else pb.NORMAL
