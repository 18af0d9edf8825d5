"""Derives a record's queue entry and index keys from its bytes in the log. Follows CommitLog.checkMessageAndReturnSize,
CommitLogDispatcherBuildConsumeQueue and CommitLogDispatcherBuildIndex of RocketMQ. Core.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from aerobee.message import (
    BORN_HOST_V6,
    DLQ_PREFIX,
    INNER_BATCH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RETRY_PREFIX,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    tags_code,
)
from aerobee.record_head import FIXED_HEAD, HOST_V4_BYTES, HOST_V6_BYTES, RECORD_BYTES_MIN, TAIL, head_struct
from aerobee.store.files.disk import SECTOR_BYTES
from aerobee.store.files.zeros import is_zero
from aerobee.system_names import LMQ_PREFIX, SCHEDULE_TOPIC

# Topics whose queues are never batch queues: copies of a batch record that lie there keep its sysFlag.
_SIMPLE_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX, SCHEDULE_TOPIC, "rmq_sys_", "RMQ_SYS_")
BATCH_MESSAGES_MAX = 0x7FFF  # an entry of a batch queue has 16 bits for it
_SIZE_AND_MAGIC = head_struct("size", "magic")
NUMBER_CHARS_MAX = 10  # of a 32-bit number


class ScanKind(Enum):
    RECORD = auto()
    BLANK = auto()  # continue in the next file
    END = auto()  # zeros: nothing was written here
    BAD = auto()


@dataclass(frozen=True, slots=True)
class DispatchRecord:
    """The fields of one record that dispatch uses. `properties` in text form."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    properties: str

    @property
    def has_queue_entry(self) -> bool:
        """Normal and commit records have one; prepared and rollback records none."""
        return self.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)

    @property
    def is_indexed(self) -> bool:
        """Whether its keys belong into the key index: not those of a rolled back transaction."""
        return self.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of the log at one offset. `reason` is the error of a BAD one."""

    kind: ScanKind
    size: int = 0
    record: DispatchRecord | None = None
    reason: str = ""


def scan_record(data: bytes, physical_offset: int, *, check_crc: bool) -> Scan:
    """Judge the bytes at `physical_offset`: `data` begins there and goes to the end of the file, or further than
    the record. Anything may be in it.
    """
    if len(data) < 8:
        return Scan(ScanKind.BAD, reason=f"{len(data)} bytes are left in the file")
    total, magic = _SIZE_AND_MAGIC.unpack_from(data)
    if magic == MAGIC_BLANK:
        return Scan(ScanKind.BLANK, size=total)
    if total == 0 and magic == 0:
        return Scan(ScanKind.END)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return Scan(ScanKind.BAD, reason=f"magic {magic:#010x} is not a record's")
    if not RECORD_BYTES_MIN <= total <= len(data):
        return Scan(ScanKind.BAD, reason=f"the size field says {total}, the file has {len(data)} more bytes")
    _, _, crc, queue_id, _, queue_offset, own_offset, sys_flag, _ = FIXED_HEAD.unpack_from(data, 0)
    if own_offset != physical_offset:
        return Scan(ScanKind.BAD, reason=f"the record says that it is at {own_offset}")
    at = FIXED_HEAD.size + (HOST_V6_BYTES if sys_flag & BORN_HOST_V6 else HOST_V4_BYTES)
    try:
        (store_timestamp,) = struct.unpack_from(">q", data, at)
        at += 8 + (HOST_V6_BYTES if sys_flag & STORE_HOST_V6 else HOST_V4_BYTES)
        _, _, body_size = TAIL.unpack_from(data, at)
        at += TAIL.size
        if body_size < 0 or at + body_size > total:
            return Scan(ScanKind.BAD, reason=f"the body size field says {body_size}")
        body_at = at
        at += body_size
        if magic == MAGIC_V2:
            (topic_size,) = struct.unpack_from(">H", data, at)
            at += 2
        else:
            topic_size = data[at]
            at += 1
        topic = data[at : at + topic_size].decode()
        at += topic_size
        (properties_size,) = struct.unpack_from(">H", data, at)
        at += 2
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        return Scan(ScanKind.BAD, reason=str(error))
    if at + properties_size != total:
        return Scan(ScanKind.BAD, reason=f"its parts take {at + properties_size} bytes of {total}")
    text_at = body_at + body_size
    if b"\0" in data[at:total] and _has_lost_sector(data, physical_offset, text_at, total):
        return Scan(ScanKind.BAD, reason="a sector of its properties was never written")
    if check_crc and body_size and zlib.crc32(data[body_at : body_at + body_size]) & 0x7FFFFFFF != crc:
        return Scan(ScanKind.BAD, size=total, reason="the body does not match its CRC")
    record = DispatchRecord(
        physical_offset,
        total,
        topic,
        queue_id,
        queue_offset,
        sys_flag,
        store_timestamp,
        data[at:total].decode(errors="surrogateescape"),
    )
    return Scan(ScanKind.RECORD, size=total, record=record)


def _has_lost_sector(data: bytes, physical_offset: int, start: int, stop: int) -> bool:
    """Whether a whole disk sector's share of [start, stop) is zero: no checksum covers topic and properties.

    Files begin at multiples of a sector or the sectors are taken as if they did.
    """
    at = start
    while at < stop:
        end = min(stop, at + SECTOR_BYTES - (physical_offset + at) % SECTOR_BYTES)
        if end - at > 3 and is_zero(data[at:end]):
            return True
        at = end
    return False


def index_texts(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Key texts of a record's index entries, without `topic#`: UNIQ_KEY, each of KEYS, the tag."""
    texts: list[str] = []
    unique = properties.get("UNIQ_KEY")
    if unique:
        texts.append(unique)
    keys = properties.get("KEYS")
    if keys:
        texts.extend(key for key in keys.split(" ") if key)
    tag = properties.get("TAGS")
    if tag:
        texts.append(f"T#{tag}")
    return tuple(texts)


def entry_tags_code(
    topic: str, properties: dict[str, str], store_timestamp: int, delay_levels_ms: tuple[int, ...]
) -> int:
    """The filter field of a record's queue entry: delivery time in the schedule topic, else the tag's hash."""
    if topic == SCHEDULE_TOPIC and delay_levels_ms:
        level = _number(properties.get("DELAY", ""))
        if level > 0:
            return store_timestamp + delay_levels_ms[min(level, len(delay_levels_ms)) - 1]
    return tags_code(properties.get("TAGS"))


def is_batch_record(topic: str, sys_flag: int) -> bool:
    """Whether a record says that it lies in a batch queue. A single message does not say which kind its queue has."""
    return sys_flag & INNER_BATCH != 0 and not topic.startswith(_SIMPLE_PREFIXES)


def message_count(topic: str, sys_flag: int, properties: dict[str, str]) -> int:
    """Number of queue offsets of a record."""
    return batch_size_of(sys_flag, properties) if is_batch_record(topic, sys_flag) else 1


def batch_size_of(sys_flag: int, properties: dict[str, str]) -> int:
    """Number of messages in a record of a batch queue."""
    count = _number(properties.get("INNER_NUM", "")) if sys_flag & INNER_BATCH else 1
    return count if 0 < count <= BATCH_MESSAGES_MAX else 1


def _number(text: str) -> int:
    """The number in a property, 0 for an invalid one. A producer may have written any digits, and int() refuses very
    many."""
    return int(text) if len(text) <= NUMBER_CHARS_MAX and text.isdecimal() else 0
