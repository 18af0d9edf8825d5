"""Requests of the send family (310, 320) as bytes, and their answers. Pure.

Source: SendMessageRequestHeaderV2, MessageBatch, MessageDecoder.encodeMessage. The header of an ordinary send is a text
template with queue id, flags, time, properties and opaque as variables: filling it costs a third of building and
dumping a dict.

    batch entry: int32 size | int32 0 | int32 0 | int32 flag | int32 n, body | int16 n, properties
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import orjson

from aerobee.client.base.results import SendResult, SendStatus
from aerobee.errors import MalformedFrame, UsageError, remote_error
from aerobee.message import BATCH_ENTRY_HEAD, PRIORITY, PROPERTIES_BYTES_MAX, Message, MessageQueue
from aerobee.property_names import ACK_LEVEL
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import VERSION, RemotingCommand
from aerobee.remoting.frame import FRAME_BYTES_MAX, PREFIX
from aerobee.remoting.protocol import BATCH_OFFSETS_FIELD, LEVEL_FIELD

RESERVED_PROPERTIES = frozenset({"UNIQ_KEY", "WAIT", "KEYS", "TAGS", "DELAY", ACK_LEVEL, PRIORITY})
STATUS = {
    0: SendStatus.SEND_OK,
    10: SendStatus.FLUSH_DISK_TIMEOUT,
    11: SendStatus.SLAVE_NOT_AVAILABLE,
    12: SendStatus.FLUSH_SLAVE_TIMEOUT,
}


class Ids(Protocol):
    """UniqueIds of both backends (codec.py)."""

    def next_id(self, now_ms: int) -> str: ...


def properties_text(message: Message, unique_id: str) -> str:
    """The property text, in the order of RocketMQ's client."""
    text = f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{'true' if message.wait_store_ok else 'false'}\x02"
    if message.keys:
        text = f"KEYS\x01{' '.join(message.keys)}\x02{text}"
    if message.properties:
        text = "".join([f"{name}\x01{value}\x02" for name, value in message.properties.items()]) + text
    if message.priority >= 0:
        text = f"{text}{PRIORITY}\x01{message.priority}\x02"
    if message.ack is not None:
        text = f"{text}{ACK_LEVEL}\x01{message.ack}\x02"
    if message.delay_level:
        text = f"{text}DELAY\x01{message.delay_level}\x02"
    if message.deliver_at is not None or message.deliver_after is not None:
        timer = message.timer_property()
        assert timer is not None
        text = f"{text}{timer[0]}\x01{timer[1]}\x02"
    if message.tag:
        text = f"{text}TAGS\x01{message.tag}\x02"
    return text


def check_properties(message: Message) -> None:
    """Raise UsageError for a property that belongs to a field of Message."""
    if not RESERVED_PROPERTIES.isdisjoint(message.properties):
        name = sorted(RESERVED_PROPERTIES & message.properties.keys())[0]
        raise UsageError(
            f"property {name!r} is set by the client; use Message's tag, keys, delay_level, priority, ack or "
            "wait_store_ok"
        )


class SendTemplate:
    """The constant parts of a send header for one group, topic and broker."""

    __slots__ = ("after_opaque", "after_properties", "before_queue")

    def __init__(
        self,
        *,
        code: int = RequestCode.SEND_MESSAGE_V2.value,
        group: str,
        queue: MessageQueue,
        default_topic: str,
        default_queue_count: int,
        reconsume_times: int = 0,
        reconsume_times_max: int | None = None,
        oneway: bool = False,
    ) -> None:
        def text(value: str) -> bytes:
            return orjson.dumps(value)

        batch = b"true" if code == RequestCode.SEND_BATCH_MESSAGE else b"false"
        limit = b"" if reconsume_times_max is None else b'"l":"%d",' % reconsume_times_max
        self.before_queue = b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","e":"' % (
            code,
            text(group),
            text(queue.topic),
            text(default_topic),
            default_queue_count,
        )
        self.after_properties = (
            b',"j":"%d","k":"false",%b"m":"%b","n":%b},"flag":%d,"language":"PYTHON","opaque":'
            % (
                reconsume_times,
                limit,
                batch,
                text(queue.broker_name),
                2 if oneway else 0,
            )
        )
        self.after_opaque = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION

    def begin(self, ids: Ids, opaque: int, queue_id: int, now_ms: int, message: Message) -> tuple[bytes, str]:
        """Assign an id to `message`, whose body is uncompressed bytes; return the frame and the id.

        Raises UsageError when the properties cannot be stored.
        """
        unique_id = ids.next_id(now_ms)
        properties = properties_text(message, unique_id)
        return self.frame(opaque, queue_id, 0, now_ms, message.flag, properties, message.body), unique_id

    def frame(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
    ) -> bytes:
        """Return the whole frame. Raises UsageError when the properties cannot be stored."""
        try:
            text = orjson.dumps(properties)
        except TypeError as error:
            raise UsageError(f"a property holds text that is not Unicode: {error}") from error
        if len(properties) > PROPERTIES_BYTES_MAX // 4 and len(properties.encode()) > PROPERTIES_BYTES_MAX:
            raise UsageError(
                f"the properties take {len(properties.encode())} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
            )
        header = b'%b%d","f":"%d","g":"%d","h":"%d","i":%b%b%d%b' % (
            self.before_queue,
            queue_id,
            sys_flag,
            born_timestamp_ms,
            flag,
            text,
            self.after_properties,
            opaque,
            self.after_opaque,
        )
        header_size = len(header)
        if header_size + len(body) > FRAME_BYTES_MAX - 8:
            raise UsageError(
                f"the message takes {header_size + len(body)} bytes with its properties; peers accept frames of at "
                f"most {FRAME_BYTES_MAX} bytes"
            )
        return b"".join((PREFIX.pack(4 + header_size + len(body), header_size), header, body))


def encode_batch_entry(message: Message, unique_id: str) -> bytes:
    """One message inside the body of a batch."""
    properties = properties_text(message, unique_id).encode()
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise UsageError(
            f"the properties take {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
        )
    body = bytes(message.body)
    size = BATCH_ENTRY_HEAD.size + len(body) + 2 + len(properties)
    return b"".join(
        (
            BATCH_ENTRY_HEAD.pack(size, 0, 0, message.flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def encode_plain_entry(message: Message, unique_id: str) -> bytes:
    """encode_batch_entry() for a message without a delay, `ack` and priority that waits for the store: most are even without
    keys, tag and properties, which takes half as long."""
    if message.properties or message.keys or message.tag is not None:
        return encode_batch_entry(message, unique_id)
    body, properties = message.body, f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01true\x02".encode()
    body_size, properties_size = len(body), len(properties)
    head = BATCH_ENTRY_HEAD.pack(
        BATCH_ENTRY_HEAD.size + body_size + 2 + properties_size, 0, 0, message.flag, body_size
    )
    return head + body + properties_size.to_bytes(2, "big") + properties


def decode_send_reply(
    reply: RemotingCommand, queue: MessageQueue, unique_id: str, address: str
) -> SendResult:
    """Turn an answer into a result. Raises the RemoteError of any code that does not mean "stored"."""
    status = STATUS.get(reply.code)
    if status is None:
        raise remote_error(
            reply.code, reply.remark, address=address, request="SEND_MESSAGE", opaque=reply.opaque
        )
    ext = reply.ext
    try:
        if ext is None:
            raise KeyError("extFields")
        queue_id = int(ext["queueId"])
        return SendResult(
            status,
            unique_id,
            ext["msgId"],
            queue if queue_id == queue.queue_id else MessageQueue(queue.topic, queue.broker_name, queue_id),
            int(ext["queueOffset"]),
            ext.get("transactionId", ""),
            ext.get("recallHandle", ""),
            ext.get("MSG_REGION", ""),
            ext.get("TRACE_ON") != "false",
            "duplicate" in ext,
            ext.get(LEVEL_FIELD, ""),
            int(ext.get("aerobeeEpoch", -1)),
            int(ext.get("aerobeeOffset", -1)),
        )
    except (KeyError, ValueError) as error:
        raise MalformedFrame(f"the send answer of {address} lacks a readable field: {error!r}") from error


def decode_batch_reply(
    reply: RemotingCommand, queue: MessageQueue, unique_ids: Sequence[str], address: str
) -> tuple[SendResult, ...]:
    """One result per message. A broker that stored the batch as one record returns the same offset message id for all."""
    first = decode_send_reply(reply, queue, unique_ids[0], address)
    offset_ids = first.offset_message_id.split(",")
    if len(offset_ids) != len(unique_ids):
        offset_ids = offset_ids[:1] * len(unique_ids)
    queue_offsets = _batch_offsets(reply, first.queue_offset, len(unique_ids), address)
    status, queue = first.status, first.queue
    region_id, trace_on = first.region_id, first.trace_on
    return tuple(
        [
            SendResult(status, unique_id, offset_id, queue, offset, unique_id, "", region_id, trace_on)
            for offset, unique_id, offset_id in zip(queue_offsets, unique_ids, offset_ids, strict=True)
        ]
    )


def _batch_offsets(reply: RemotingCommand, first: int, count: int, address: str) -> Sequence[int]:
    """The queue offset of each message: they follow each other, except where the broker says otherwise."""
    gaps = (reply.ext or {}).get(BATCH_OFFSETS_FIELD, "")
    if not gaps:
        return range(first, first + count)
    found: list[int] = []
    offset = first
    try:
        for gap in gaps.split(","):
            index, following = map(int, gap.split(":"))
            if not len(found) < index < count:
                raise ValueError(f"index {index}")
            found.extend(range(offset, offset + index - len(found)))
            offset = following
    except ValueError as error:
        raise MalformedFrame(
            f"the send answer of {address} lacks readable queue offsets: {error!r}"
        ) from error
    found.extend(range(offset, offset + count - len(found)))
    return found
