"""Batches: splits the body of SEND_BATCH_MESSAGE into messages, and encodes their records. A core, see batch.py.

The counterpart of the handlers' parse_batch (send_header.py) without an object per message: with 64 messages per batch
each saved call matters. Most batches are Alike: bodies of one size, and the same properties but for UNIQ_KEY. One
struct cuts all of their messages, their properties are read once, and the rest is done by column (64 x 128 B: 1.9 us a
message instead of 3.0). Every other batch is Mixed. Both produce the same bytes for the same messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import NamedTuple
from zlib import crc32

from aerobee.broker.fastpath.request import read_pairs
from aerobee.broker.fastpath.topic import FastTopic
from aerobee.broker.send.send_header import (
    FAST_BATCH_ENTRIES_MAX,
    FAST_BATCH_HASHES_MAX,
)
from aerobee.message import BATCH_ENTRY_BYTES_MIN, BATCH_ENTRY_HEAD, MAGIC_V1, PROPERTIES_BYTES_MAX
from aerobee.record_head import format_between
from aerobee.store.queue.consume_queue import ENTRY

_SIZE = struct.Struct(">H")
_HEAD_BYTES = BATCH_ENTRY_HEAD.size
_UNIQUE_KEY, _WAITS = b"UNIQ_KEY\x01", b"\x02WAIT\x01true\x02"
_PLAIN = slice(len(_UNIQUE_KEY), -len(_WAITS))  # properties text that contains only these
_LAYOUTS_KEPT = 64

# flag, body, properties as the client wrote them, their tags code
BatchMessage = tuple[int, bytes, bytes, int]
# records back to back, their queue entries, the offset of each record
LaidOut = tuple[bytes, bytes, Sequence[int]]


class Layout(NamedTuple):
    """Common fields of all records of a batch."""

    queue_id: int
    hosts: bytes  # from the sys flag to the prepared transaction's offset, packed
    topic: bytes  # length byte and topic


class Mixed(NamedTuple):
    """A batch's messages, the total size of their bodies and properties, and all their index hashes in order."""

    messages: list[BatchMessage]
    byte_count: int
    hashes: list[int]
    hash_owners: list[int]  # the number of each hash's message in the batch

    @property
    def message_count(self) -> int:
        """How many messages the batch holds."""
        return len(self.messages)

    def index_entries(self, offsets: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Each hash with the offset of its record."""
        return zip(self.hashes, map(offsets.__getitem__, self.hash_owners), strict=True)

    def lay_out(self, layout: Layout, offset: int, queue_offset: int) -> LaidOut:
        """Lay the records out, the first at `offset`."""
        queue_id, hosts, topic = layout
        head = _record_head(len(hosts))
        fixed_bytes = head.size + len(topic) + _SIZE.size
        pack_head, pack_size, pack_entry = head.pack, _SIZE.pack, ENTRY.pack
        parts: list[bytes] = []
        entries: list[bytes] = []
        offsets: list[int] = []
        for flag, body, properties, code in self.messages:
            body_size, properties_size = len(body), len(properties)
            size = fixed_bytes + body_size + properties_size
            crc = crc32(body) & 0x7FFFFFFF
            parts += (
                pack_head(size, MAGIC_V1, crc, queue_id, flag, queue_offset, offset, hosts, body_size),
                body,
                topic,
                pack_size(properties_size),
                properties,
            )
            entries.append(pack_entry(offset, size, code))
            offsets.append(offset)
            offset += size
            queue_offset += 1
        return b"".join(parts), b"".join(entries), offsets


class Alike(NamedTuple):
    """A batch whose messages differ in flag, body and UNIQ_KEY only, and whose bodies and keys have one size each."""

    flags: Sequence[int]
    bodies: Sequence[bytes]
    keys: Sequence[bytes]
    before_key: bytes  # of the properties
    after_key: bytes
    code: int  # tags code
    byte_count: int
    hashes: list[int]  # as many of each message

    @property
    def message_count(self) -> int:
        """How many messages the batch holds."""
        return len(self.flags)

    def index_entries(self, offsets: Sequence[int]) -> Iterable[tuple[int, int]]:
        """Each hash with the offset of its record."""
        hash_count = len(self.hashes) // len(self.flags)  # of a message
        return zip(self.hashes, chain.from_iterable(zip(*[offsets] * hash_count, strict=True)), strict=True)

    def lay_out(self, layout: Layout, offset: int, queue_offset: int) -> LaidOut:
        """Lay the records out, the first at `offset`."""
        queue_id, hosts, topic = layout
        count, body_size = len(self.flags), len(self.bodies[0])
        properties_size = len(self.before_key) + len(self.keys[0]) + len(self.after_key)
        before_body = hosts + body_size.to_bytes(4, "big")
        before_key = topic + _SIZE.pack(properties_size) + self.before_key
        record = _record(len(before_body), body_size, len(before_key), len(self.keys[0]), len(self.after_key))
        offsets = list(range(offset, offset + count * record.size, record.size))
        records = map(
            record.pack, repeat(record.size), repeat(MAGIC_V1), [crc32(body) & 0x7FFFFFFF for body in self.bodies],
            repeat(queue_id), self.flags, range(queue_offset, queue_offset + count), offsets, repeat(before_body),
            self.bodies, repeat(before_key), self.keys, repeat(self.after_key),
        )  # fmt: skip
        entries = map(ENTRY.pack, offsets, repeat(record.size), repeat(self.code))
        return b"".join(records), b"".join(entries), offsets


_TO_FLAG = format_between("size", "physical_offset")


@lru_cache(_LAYOUTS_KEPT)
def _record_head(hosts_size: int) -> struct.Struct:
    """A record up to its body: size, magic, CRC, queue id, flag, queue offset, offset, hosts, body size."""
    return struct.Struct(f">{_TO_FLAG}{hosts_size}si")


@lru_cache(_LAYOUTS_KEPT)
def _record(
    before_body_size: int, body_size: int, before_key_size: int, key_size: int, after_key_size: int
) -> struct.Struct:
    """A whole record whose parts have these sizes."""
    return struct.Struct(
        f">{_TO_FLAG}{before_body_size}s{body_size}s{before_key_size}s{key_size}s{after_key_size}s"
    )


@lru_cache(_LAYOUTS_KEPT)
def _message(body_size: int, before_key_size: int, key_size: int, after_key_size: int) -> struct.Struct:
    """A message of a batch: size, flag, body size, body, size of the properties, these in three parts."""
    return struct.Struct(f">i8xii{body_size}sH{before_key_size}s{key_size}s{after_key_size}s")


def cut_batch(body: bytes, topic: FastTopic) -> Alike | Mixed:
    """Cut a batch into its messages. Raises ValueError for lying sizes, loose properties, an empty batch, or one that is too large
    for one event loop iteration."""
    return _cut_alike(body, topic) or cut_mixed(body, topic)


def _cut_alike(body: bytes, topic: FastTopic) -> Alike | None:
    """Cut a batch by the layout of its first message; None when other messages differ."""
    if len(body) < BATCH_ENTRY_BYTES_MIN:
        return None
    size, _, _, _, body_size = BATCH_ENTRY_HEAD.unpack_from(body)
    properties_at = _HEAD_BYTES + body_size + _SIZE.size
    if body_size < 0 or not properties_at < size <= len(body) or len(body) % size:
        return None
    if len(body) // size > FAST_BATCH_ENTRIES_MAX:
        raise ValueError
    properties = body[properties_at:size]
    before, name, rest = properties.partition(_UNIQUE_KEY)
    key, end, after = rest.partition(b"\x02")
    # Names and values in turn, each with its end, and the key's name once: then whatever key stands there is the key.
    if (
        len(properties) > PROPERTIES_BYTES_MAX
        or not (key and end)
        or (before and not before.endswith(b"\x02"))
        or _UNIQUE_KEY in after
        or not all(pair.count(b"\x01") == 1 for pair in properties.removesuffix(b"\x02").split(b"\x02"))
        or not properties.endswith(b"\x02")
    ):
        return None
    before += name
    after = end + after
    layout = _message(body_size, len(before), len(key), len(after))
    sizes, flags, body_sizes, bodies, properties_sizes, befores, keys, afters = zip(
        *layout.iter_unpack(body), strict=True
    )
    count = len(flags)
    alike = {
        sizes.count(size),
        body_sizes.count(body_size),
        properties_sizes.count(len(properties)),
        befores.count(before),
        afters.count(after),
    }
    if alike != {count} or not b"".join(keys).isalnum():
        return None
    (_, *others), code = _keys_and_tag(properties, topic)
    hashes = topic.plain_key_hashes(keys)
    if others:
        if count * (1 + len(others)) > FAST_BATCH_HASHES_MAX:
            raise ValueError
        hashes = list(chain.from_iterable(zip(hashes, *map(repeat, others))))  # noqa: B905 - repeats have no end
    return Alike(flags, bodies, keys, before, after, code, count * (body_size + len(properties)), hashes)


def _keys_and_tag(properties: bytes, topic: FastTopic) -> tuple[list[int], int]:
    """The index hashes of a message, that of UNIQ_KEY first, and its tags code. Raises ValueError for loose text."""
    text = properties.decode()
    get = read_pairs(text).get
    unique_key, keys, tag = get("UNIQ_KEY"), get("KEYS"), get("TAGS")
    hashes = [topic.key_hash(unique_key)] if unique_key else []
    if keys:
        hashes += [topic.key_hash(key) for key in keys.split(" ") if key]
    code = 0
    if tag:
        code, tag_hash = topic.tag(tag)
        hashes.append(tag_hash)
    return hashes, code


def cut_mixed(body: bytes, topic: FastTopic) -> Mixed:
    """Cut any batch, message by message. Raises ValueError as cut_batch does."""
    messages: list[BatchMessage] = []
    hashes: list[int] = []
    hash_owners: list[int] = []
    at, end, byte_count = 0, len(body), 0
    unpack, unpack_size, plain_key_hash = (
        BATCH_ENTRY_HEAD.unpack_from,
        _SIZE.unpack_from,
        topic.plain_key_hash,
    )
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
        number, code = len(messages), 0
        if number == FAST_BATCH_ENTRIES_MAX or len(hashes) > FAST_BATCH_HASHES_MAX:
            raise ValueError
        if raw.startswith(_UNIQUE_KEY) and raw.endswith(_WAITS) and raw[_PLAIN].isalnum():
            # The result for a message without keys and tags: half the cost of parsing a text.
            hashes.append(plain_key_hash(raw[_PLAIN]))
            hash_owners.append(number)
        else:
            found, code = _keys_and_tag(raw, topic)
            hashes += found
            hash_owners += [number] * len(found)
        messages.append((flag, body[body_at : properties_at - 2], raw, code))
    if not messages:
        raise ValueError
    return Mixed(messages, byte_count, hashes, hash_owners)
