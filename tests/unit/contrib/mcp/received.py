"""A stored message as a client decodes it."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.client import ReceivedMessage
from aerobee.client.base.received import decode_messages
from aerobee.message import MessageQueue, encode_properties, encode_record, pack_host


def received(body: bytes, properties: Mapping[str, str] | None = None) -> ReceivedMessage:
    record = encode_record(
        topic=b"orders",
        queue_id=1,
        queue_offset=7,
        physical_offset=0,
        body=body,
        properties=encode_properties(dict(properties or {})).encode(),
        born_host=pack_host("127.0.0.1", 1),
        store_host=pack_host("127.0.0.1", 2),
    )
    return decode_messages(record, MessageQueue("orders", "broker-a", 1))[0]
