"""Counts the fields of an encoded message before it is parsed: two bytes of it may become an object of a hundred. Core.

Layout, source protobuf's wire format: varint (field number << 3 | wire type), then a varint (0), 8 bytes (1), a varint length
and so many bytes (2), nothing (3 and 4, ends of a group), or 4 bytes (5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VARINT_BYTES_MAX = 10
_FIXED = {1: 8, 3: 0, 4: 0, 5: 4}

Nested = Mapping[int, Any]  # numbers of fields that are messages whose fields count, too -> the same of these


class _Ends(Exception):
    """The bytes are no message from here on, which the parser says with its own words."""


def has_more_fields(data: bytes, fields_max: int, nested: Nested) -> bool:
    """Whether a message has more fields than that, those of `nested` included. What is no message ends at its fault."""
    waiting: list[tuple[int, int, Nested]] = [(0, len(data), nested)]
    count = 0
    try:
        while waiting:
            at, end, inner = waiting.pop()
            while at < end:
                count += 1
                if count > fields_max:
                    return True
                tag, at = _varint(data, at)
                wire_type = tag & 7
                if wire_type == 0:
                    _, at = _varint(data, at)
                elif wire_type == 2:
                    length, at = _varint(data, at)
                    if tag >> 3 in inner:
                        waiting.append((at, min(end, at + length), inner[tag >> 3]))
                    at += length
                else:
                    at += _FIXED.get(wire_type, len(data))
    except _Ends:
        pass
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends)."""
    value = shift = 0
    for byte in data[at : at + VARINT_BYTES_MAX]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Ends
