"""The lane's batches: cutting the body of SEND_BATCH_MESSAGE and laying its records out. A core, see lane/core.py.

What parse_batch (send_header.py) is for the handlers, without an object a message: at 64 messages a batch each call
that is saved counts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from aerobee.broker.lane.topic import LaneTopic
from aerobee.broker.send.send_header import BATCH_ENTRY_BYTES_MIN, BATCH_ENTRY_HEAD
from aerobee.message import MAGIC_V1, PROPERTIES_BYTES_MAX
from aerobee.store.consume_queue import ENTRY

_SIZE = struct.Struct(">H")
_HEAD_BYTES = BATCH_ENTRY_HEAD.size
_UNIQUE_KEY, _WAITS = b"UNIQ_KEY\x01", b"\x02WAIT\x01true\x02"
_PLAIN = slice(len(_UNIQUE_KEY), -len(_WAITS))  # of a properties text that has nothing but these

# flag, body, properties as the client wrote them, their tags code
BatchMessage = tuple[int, bytes, bytes, int]


class Cut(NamedTuple):
    """A batch's messages, how many bytes their bodies and properties take, and all their index hashes in order."""

    messages: list[BatchMessage]
    byte_count: int
    hashes: list[int]
    hash_owners: list[int]  # the number of each hash's message in the batch


class Shared(NamedTuple):
    """What all records of a batch have in common."""

    head: struct.Struct  # up to and with the body's size
    queue_id: int
    sys_flag: int  # with the bits of the hosts
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    field: bytes  # length byte and topic


def cut_batch(body: bytes, topic: LaneTopic) -> Cut:
    """Cut a batch into its messages. Raises ValueError for lying sizes, loose properties or an empty batch."""
    messages: list[BatchMessage] = []
    hashes: list[int] = []
    hash_owners: list[int] = []
    at, end, byte_count = 0, len(body), 0
    unpack, unpack_size = BATCH_ENTRY_HEAD.unpack_from, _SIZE.unpack_from
    key_hash, plain_key_hash, tag_codes = topic.key_hash, topic.plain_key_hash, topic.tag
    while at < end:
        if end - at < BATCH_ENTRY_BYTES_MIN:
            raise ValueError
        size, _, _, flag, body_size = unpack(body, at)
        stop = at + size
        if stop > end or not 0 <= body_size <= size - BATCH_ENTRY_BYTES_MIN:
            raise ValueError
        body_at = at + _HEAD_BYTES
        properties_at = body_at + body_size + 2
        (properties_size,) = unpack_size(body, properties_at - 2)
        if properties_size > PROPERTIES_BYTES_MAX or properties_at + properties_size != stop:
            raise ValueError
        raw = body[properties_at:stop]
        byte_count += body_size + properties_size
        at = stop
        number = len(messages)
        if raw.startswith(_UNIQUE_KEY) and raw.endswith(_WAITS) and raw[_PLAIN].isalnum():
            # What a message without keys and tags says: half the cost of reading any text.
            hashes.append(plain_key_hash(raw[_PLAIN]))
            hash_owners.append(number)
            messages.append((flag, body[body_at : properties_at - 2], raw, 0))
            continue
        text = raw.decode()
        parts = text.replace("\x02", "\x01").split("\x01")
        if text.count("\x01") != len(parts) >> 1:
            raise ValueError
        names_and_values = iter(parts)
        get = dict(zip(names_and_values, names_and_values)).get  # noqa: B905 - a last, empty part has no partner
        before = len(hashes)
        unique_key, keys, tag = get("UNIQ_KEY"), get("KEYS"), get("TAGS")
        if unique_key:
            hashes.append(key_hash(unique_key))
        if keys:
            hashes += [key_hash(key) for key in keys.split(" ") if key]
        code = 0
        if tag:
            code, tag_hash = tag_codes(tag)
            hashes.append(tag_hash)
        hash_owners += [number] * (len(hashes) - before)
        messages.append((flag, body[body_at : properties_at - 2], raw, code))
    if not messages:
        raise ValueError
    return Cut(messages, byte_count, hashes, hash_owners)


def lay_out_batch(
    messages: list[BatchMessage], shared: Shared, offset: int, queue_offset: int
) -> tuple[bytes, bytes, list[int]]:
    """Return the records back to back, their queue entries, and the offset of each record. The first is at `offset`."""
    head, queue_id, sys_flag, born_timestamp, born_host, now_ms, store_host, tries, field = shared
    pack_head: Callable[..., bytes] = head.pack
    pack_size, pack_entry = _SIZE.pack, ENTRY.pack
    fixed_bytes = head.size + len(field) + _SIZE.size
    parts: list[bytes] = []
    entries: list[bytes] = []
    offsets: list[int] = []
    for flag, body, properties, code in messages:
        body_size, properties_size = len(body), len(properties)
        size = fixed_bytes + body_size + properties_size
        parts += (
            pack_head(
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset, sys_flag,
                born_timestamp, born_host, now_ms, store_host, tries, 0, body_size,
            ),
            body,
            field,
            pack_size(properties_size),
            properties,
        )  # fmt: skip
        entries.append(pack_entry(offset, size, code))
        offsets.append(offset)
        offset += size
        queue_offset += 1
    return b"".join(parts), b"".join(entries), offsets
