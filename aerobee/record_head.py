"""The head of a record in the commit log: its fields, from which everything that packs or reads a part of it is made. Core.

    size 4 | magic 4 | body_crc 4 | queue_id 4 | flag 4 | queue_offset 8 | physical_offset 8 | sys_flag 4 | born_timestamp 8
    | born_host 8 or 20 | store_timestamp 8 | store_host 8 or 20
    | reconsume_times 4 | prepared_transaction_offset 8 | body_size 4

Big-endian, as MessageDecoder and CommitLog of RocketMQ. Offsets and parts behind the born timestamp hold for records of which both
hosts are IPv4; sys_flag tells which are. The native backend exports its own offsets, which a test compares with these.
"""

from __future__ import annotations

import struct

_FIXED = {
    "size": "I", "magic": "I", "body_crc": "I", "queue_id": "i", "flag": "i", "queue_offset": "q", "physical_offset": "q",
    "sys_flag": "i", "born_timestamp": "q",
}  # fmt: skip
_TAIL = {"reconsume_times": "i", "prepared_transaction_offset": "q", "body_size": "i"}
_FIELDS = {
    **_FIXED, "born_ip": "4s", "born_port": "i", "store_timestamp": "q", "store_ip": "4s", "store_port": "i", **_TAIL,
}  # fmt: skip
HOST_V4_BYTES = 8  # address and port
HOST_V6_BYTES = 20


def field_at(name: str) -> int:
    """Where a field begins, in bytes from the record's start."""
    return struct.calcsize(">" + "".join(list(_FIELDS.values())[: list(_FIELDS).index(name)]))


def field_end(name: str) -> int:
    """Where a field ends, in bytes from the record's start."""
    return field_at(name) + struct.calcsize(">" + _FIELDS[name])


def format_between(first: str, last: str) -> str:
    """The struct format of the fields from `first` to `last`, both included, without a byte order."""
    names = list(_FIELDS)
    return "".join(_FIELDS[name] for name in names[names.index(first) : names.index(last) + 1])


def format_of(*names: str) -> str:
    """The struct format of these fields alone, in the record's order; what lies between them is skipped. Begins at the first."""
    parts, at = [], field_at(names[0])
    for name in names:
        gap = field_at(name) - at
        assert gap >= 0, "fields are named in the order of the record"
        parts.append(f"{gap}x" if gap else "")
        parts.append(_FIELDS[name])
        at = field_end(name)
    return "".join(parts)


def head_struct(*names: str) -> struct.Struct:
    """Reads or packs these fields alone, as format_of()."""
    return struct.Struct(">" + format_of(*names))


HEAD_V4 = struct.Struct(">" + "".join(_FIELDS.values()))  # up to and with body_size
FIXED_HEAD = struct.Struct(">" + "".join(_FIXED.values()))  # what has its offset in every record
TAIL = struct.Struct(">" + "".join(_TAIL.values()))  # behind the hosts
RECORD_BYTES_MIN = HEAD_V4.size + 1 + 2  # and the sizes of topic and properties
