"""The bytes of the log's files, and what a damaged range in one means. Core.

    file    magic 8 "AERORAFT" | sequence 8 | end of the file before 4 | crc32 of these 4 | zeros 8      32 bytes
    record  size 4 | size xor SIZE_CHECK 4 | crc32 4 | synced_end 4 | payload, zeros up to 16 bytes

All big-endian. The payload is an entry in MessagePack; the crc covers size, synced_end and payload. `synced_end` is the
position in this file up to which everything was on the disk when the record was written. Heads are aligned so that none
crosses a sector: the disk has one whole or not at all.

A synced record is never overwritten: an entry that replaces others is written behind them. Therefore an
incomplete record can only be

- lost: written by the last append, which was never answered. A sector of it never reached the disk and reads as zeros.
  Records of that same append may have survived behind it; their synced_end is at or before it.
- damaged: a later record says that it was synced, or all its sectors are there and the checksum is wrong.

One damaged record is indistinguishable from a lost one: a record of the last append whose data contains a whole
sector of zeros.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from aerobee.errors import MalformedFrame
from aerobee.ha.packed import pack, unpack
from aerobee.ha.raft.entry import Entry, decode_entry
from aerobee.store.files.disk import SECTOR_BYTES
from aerobee.store.files.zeros import is_zero

MAGIC = b"AERORAFT"
FILE_HEAD = struct.Struct(">8sQII8x")
RECORD_HEAD = struct.Struct(">IIII")
ALIGNMENT = RECORD_HEAD.size
SIZE_CHECK = 0x5EC7_0A11
_ZERO_STEP_BYTES = 64 * 1024
_FILE_CRC = struct.Struct(">8sQI")
_RECORD_CRC = struct.Struct(">II")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Scan:
    """Content of a file: whole records up to `end`. `fault` describes damage at `end`, "" without any."""

    entries: tuple[Entry, ...]
    end: int
    synced_end: int  # bytes of the file that were synced when the last whole record was written
    fault: str


def encode_file_head(sequence: int, previous_end: int) -> bytes:
    crc = zlib.crc32(_FILE_CRC.pack(MAGIC, sequence, previous_end))
    return FILE_HEAD.pack(MAGIC, sequence, previous_end, crc)


def decode_file_head(data: Buffer) -> tuple[int, int] | None:
    """(sequence, end of the previous file). None when the head is incomplete."""
    if len(data) < FILE_HEAD.size:
        return None
    magic, sequence, previous_end, crc = FILE_HEAD.unpack_from(data)
    if magic != MAGIC or crc != zlib.crc32(_FILE_CRC.pack(MAGIC, sequence, previous_end)):
        return None
    return sequence, previous_end


def encode_record(entry: Entry, synced_end: int) -> bytes:
    payload = pack(entry.values)
    size = len(payload)
    crc = zlib.crc32(payload, zlib.crc32(_RECORD_CRC.pack(size, synced_end)))
    head = RECORD_HEAD.pack(size, size ^ SIZE_CHECK, crc, synced_end)
    return head + payload + bytes(-size % ALIGNMENT)


def record_bytes_max(entry_bytes_max: int) -> int:
    """Maximum size of the record of an entry of up to this number of bytes."""
    return RECORD_HEAD.size + entry_bytes_max + 64


def scan_file(data: Buffer, *, is_last: bool) -> Scan:
    """Read the records of one file. Only the last file may end in a lost record."""
    view = memoryview(data)
    entries: list[Entry] = []
    at = synced_end = FILE_HEAD.size
    while at + RECORD_HEAD.size <= len(view):
        found = _whole_record(view, at)
        if found is None:
            break
        payload, synced_end = found
        try:
            entries.append(decode_entry(unpack(payload, "a record"), "a record"))
        except MalformedFrame as error:
            return Scan(
                tuple(entries), at, synced_end, f"its checksum is right and its content is not: {error}"
            )
        at += RECORD_HEAD.size + _padded(len(payload))
    return Scan(tuple(entries), at, min(synced_end, at), _fault_at(view, at, is_last=is_last))


def zeros_from(data: Buffer, start: int) -> int:
    """Start of the zeros at the end of the file; at least `start`."""
    view = memoryview(data)
    end = len(view)
    # In steps from the end: a file is mostly zeros, and stripping 4 MiB of them byte by byte takes 10 ms.
    while end > start and is_zero(view[(step := max(start, end - _ZERO_STEP_BYTES)) : end]):
        end = step
    return start + len(bytes(view[start:end]).rstrip(b"\0"))


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT


def _whole_record(view: memoryview, at: int) -> tuple[memoryview, int] | None:
    size, check, crc, synced_end = RECORD_HEAD.unpack_from(view, at)
    payload = view[at + RECORD_HEAD.size : at + RECORD_HEAD.size + size]
    if size == 0 or check != size ^ SIZE_CHECK or len(payload) < size:
        return None
    if crc != zlib.crc32(payload, zlib.crc32(_RECORD_CRC.pack(size, synced_end))):
        return None
    return payload, synced_end


def _fault_at(view: memoryview, at: int, *, is_last: bool) -> str:
    """Reason why the bytes after the last whole record are damage, or "" when they are the end or a lost append."""
    dirty_end = zeros_from(view, at)
    if dirty_end == at:
        return ""
    if not is_last:
        return "a later file exists, so this one was written to its end"
    for following in _records_behind(view, at, dirty_end):
        if following > at:
            return f"a record behind it was written when everything up to byte {following} was on the disk"
    size, check, _, _ = RECORD_HEAD.unpack_from(view, at)
    if (size, check) == (0, 0):
        return ""  # the sector with the record's head was not written
    if check != size ^ SIZE_CHECK or at + RECORD_HEAD.size + size > len(view):
        return "the sector of its head was written, and the size in it is wrong"
    if any(_lost_sectors(view, at, at + RECORD_HEAD.size + size)):
        return ""
    return "every sector of it was written, and the checksum is wrong"


def _records_behind(view: memoryview, at: int, dirty_end: int) -> Iterator[int]:
    """synced_end of each whole record behind a broken one."""
    for following in range(at + ALIGNMENT, dirty_end - RECORD_HEAD.size, ALIGNMENT):
        if (found := _whole_record(view, following)) is not None:
            yield found[1]


def _lost_sectors(view: memoryview, start: int, end: int) -> Iterator[bool]:
    """For each sector that the bytes touch, whether none of its bytes in the range were written."""
    while start < end:
        stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        yield not any(view[start:stop])
        start = stop
