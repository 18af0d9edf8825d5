"""The header of the send family: 10 and 324 carry long field names; 310, 320 and 325 one-character names.

Source: SendMessageRequestHeader and SendMessageRequestHeaderV2. And the body of a batch (320), entries back to back:

    int32 size of the entry | int32 magic 0 | int32 crc 0 | int32 flag | int32 body size, body | int16 properties size,
    properties
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from aerobee.errors import MalformedRecord, UsageError
from aerobee.message import (
    BATCH_ENTRY_BYTES_MIN,
    BATCH_ENTRY_HEAD,
    PROPERTIES_BYTES_MAX,
    check_topic_name,
    decode_properties,
)
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand

FIRST_RETRY_LEVEL = 3  # 10 s
VERSION_WITH_MAX_RECONSUME = 121  # clients from 3.4.9 on: their maxReconsumeTimes counts
_SHORT_NAMES = tuple("abcdefghijklm")
_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)  # fmt: skip
LONG_NAMED = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})
# Maximum work for one batch before other tasks of the event loop run.
ENTRIES_PER_TURN = 512
# The same bound for bytes of properties: in the worst case every second byte is a key of the index.
PROPERTIES_PER_TURN = 32_768
# Maximum that the fast path stores in one call; the handlers store larger batches in slices.
FAST_BATCH_ENTRIES_MAX = 8_192
FAST_BATCH_HASHES_MAX = 32_768


@dataclass(slots=True)
class SendHeader:
    """The fields of one send request. `properties` are the message's, or those around a batch; `topic_fault` is the
    error in the topic's name, "" when it is legal."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool
    properties: dict[str, str]
    topic_fault: str


def parse_send_header(request: RemotingCommand) -> SendHeader:
    """Read the fields of a send request. Raises MalformedFrame for one that is missing or not a number."""
    (
        group,
        topic,
        template,
        template_queues,
        queue,
        sys_flag,
        born,
        flag,
        properties,
        tries,
        unit,
        tries_max,
        batch,
    ) = _NAMES if request.code in LONG_NAMED else _SHORT_NAMES
    text = request.text(properties, "")
    header = SendHeader(
        producer_group=request.text(group, ""),
        topic=request.text(topic),
        default_topic=request.text(template, ""),
        default_topic_queue_nums=request.int32(template_queues, 4),
        queue_id=request.int32(queue),
        sys_flag=request.int32(sys_flag, 0),
        born_timestamp=request.integer(born, 0),
        flag=request.int32(flag, 0),
        reconsume_times=request.int32(tries, 0),
        unit_mode=request.boolean(unit, False),
        max_reconsume_times=request.int32(tries_max)
        if request.version >= VERSION_WITH_MAX_RECONSUME and request.field(tries_max)
        else None,
        batch=request.code == RequestCode.SEND_BATCH_MESSAGE or request.boolean(batch, False),
        properties=decode_properties(text),
        topic_fault="",
    )
    try:
        check_topic_name(header.topic)
    except UsageError as error:
        header.topic_fault = str(error)
    return header


@dataclass(slots=True)
class BatchEntry:
    """One message of a batch; `properties` are the client's bytes, stored as they are."""

    flag: int
    body: bytes
    properties: bytes


def parse_batch(body: bytes) -> list[BatchEntry]:
    """Cut a batch body into its messages. Raises MalformedRecord for lying sizes or an empty batch."""
    return list(_entries(body))


def batch_count(body: bytes) -> int:
    """Number of messages of a batch body. Raises MalformedRecord as parse_batch()."""
    alike = _alike_sizes(body)
    return alike[0] if alike is not None else len(parse_batch(body))


def batch_pieces(body: bytes) -> Iterator[list[BatchEntry]]:
    """The same messages, as many at a time as are stored in one event loop iteration. Raises MalformedRecord on the way."""
    piece: list[BatchEntry] = []
    properties_bytes = 0
    for entry in _entries(body):
        piece.append(entry)
        properties_bytes += len(entry.properties)
        if len(piece) == ENTRIES_PER_TURN or properties_bytes >= PROPERTIES_PER_TURN:
            yield piece
            piece, properties_bytes = [], 0
    if piece:
        yield piece


def takes_turns(body: bytes) -> bool:
    """Whether a batch holds more than one piece. False for one that cannot be cut: it is refused immediately."""
    if len(body) <= min(ENTRIES_PER_TURN * BATCH_ENTRY_BYTES_MIN, PROPERTIES_PER_TURN):
        return False
    alike = _alike_sizes(body)
    if alike is not None:
        count, properties_size = alike
        return count * properties_size - properties_size >= PROPERTIES_PER_TURN
    try:
        first = next(batch_pieces(body))
    except MalformedRecord:
        return False
    return len(body) > sum(BATCH_ENTRY_BYTES_MIN + len(entry.body) + len(entry.properties) for entry in first)


def _alike_sizes(body: bytes) -> tuple[int, int] | None:
    """Number of messages, bytes of properties of each; None for a batch of more than one piece by its number, for messages of several
    sizes and for sizes that do not add up.

    Most batches hold messages of one size. One call reads the sizes of all of them, a tenth of the time of a loop.
    """
    if len(body) < BATCH_ENTRY_BYTES_MIN:
        return None
    size, _, _, _, body_size = BATCH_ENTRY_HEAD.unpack_from(body)
    properties_size = size - BATCH_ENTRY_BYTES_MIN - body_size
    if body_size < 0 or not 0 <= properties_size <= PROPERTIES_BYTES_MAX or len(body) % size:
        return None
    count = len(body) // size
    if count > ENTRIES_PER_TURN:
        return None
    sizes = _sizes_of(count, body_size, properties_size).unpack(body)
    is_true = sizes == (size, body_size, properties_size) * count
    return (count, properties_size) if is_true else None


@lru_cache(maxsize=64)
def _sizes_of(count: int, body_size: int, properties_size: int) -> struct.Struct:
    """The sizes in front of `count` messages of a batch, their bodies and their properties."""
    return struct.Struct(">" + f"i12xi{body_size}xH{properties_size}x" * count)


def _entries(body: bytes) -> Iterator[BatchEntry]:
    number = at = 0
    while at < len(body):
        if len(body) - at < BATCH_ENTRY_BYTES_MIN:
            raise MalformedRecord(f"entry {number} of the batch has {len(body) - at} bytes only")
        size, _, _, flag, body_size = BATCH_ENTRY_HEAD.unpack_from(body, at)
        body_at = at + BATCH_ENTRY_HEAD.size
        end = at + size
        if (
            size < BATCH_ENTRY_BYTES_MIN
            or end > len(body)
            or not 0 <= body_size <= size - BATCH_ENTRY_BYTES_MIN
        ):
            raise MalformedRecord(
                f"entry {number} of the batch claims {size} bytes, {body_size} of them body"
            )
        properties_at = body_at + body_size + 2
        properties_size = int.from_bytes(body[properties_at - 2 : properties_at], "big")
        if properties_size > PROPERTIES_BYTES_MAX or properties_at + properties_size != end:
            raise MalformedRecord(f"entry {number} of the batch claims {properties_size} bytes of properties")
        yield BatchEntry(flag, body[body_at : body_at + body_size], body[properties_at:end])
        number += 1
        at = end
    if not number:
        raise MalformedRecord("the batch is empty")
