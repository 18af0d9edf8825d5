"""MessagePack with a checksum, and checks of decoded values.

    crc32 4 | payload        big-endian; the checksum (zlib.crc32) covers the payload

Bytes from peers and disks are never trusted: sizes are bounded before decoding, and each value's type and range are
checked before use. A value that fails raises MalformedFrame, and nothing else is raised.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgpack

from aerobee.errors import MalformedFrame

INTEGER_MAX = (1 << 63) - 1
TEXT_BYTES_MAX = 255  # ids, names and addresses
_CRC = struct.Struct(">I")
CRC_BYTES = _CRC.size


def pack(value: object) -> bytes:
    """Encode without a checksum, for what another layer checks already."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpack(data: bytes | memoryview, what: str) -> Any:
    """Decode one value; arrays become tuples. Raises MalformedFrame; bytes behind the value are a fault too."""
    try:
        # Lengths inside are bounded by the length of `data`: msgpack refuses an array that cannot fit.
        return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedFrame(f"{what} is not MessagePack: {error}") from error


def pack_checked(value: object) -> bytes:
    """Encode one value of numbers, texts, bytes, tuples and dicts with its checksum."""
    payload = pack(value)
    return _CRC.pack(zlib.crc32(payload)) + payload


def unpack_checked(data: bytes, *, bytes_max: int, what: str) -> Any:
    """Decode what pack_checked made. Raises MalformedFrame when it is too large, damaged or not MessagePack."""
    if not CRC_BYTES < len(data) <= bytes_max:
        raise MalformedFrame(f"{what} has {len(data)} bytes, {CRC_BYTES + 1} to {bytes_max} are allowed")
    payload = memoryview(data)[CRC_BYTES:]
    if zlib.crc32(payload) != _CRC.unpack_from(data)[0]:
        raise MalformedFrame(f"the checksum of {what} is wrong")
    return unpack(payload, what)


def unpack_first(data: bytes, count: int, *, bytes_max: int, what: str) -> tuple[object, ...]:
    """The first `count` values of an array that pack_checked made, by its first `bytes_max` bytes alone.

    The checksum and later elements are not read, so the cost is bounded for any array. Raises MalformedFrame.
    """
    unpacker = msgpack.Unpacker(use_list=False, raw=False, strict_map_key=False, max_buffer_size=bytes_max)
    unpacker.feed(data[CRC_BYTES:bytes_max])
    try:
        if unpacker.read_array_header() < count:
            raise MalformedFrame(f"{what} has fewer than {count} values")
        return tuple(unpacker.unpack() for _ in range(count))
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedFrame(f"the first {count} values of {what} cannot be read: {error}") from error


Check = Callable[[object, str], Any]


def integer(value: object, what: str, maximum: int = INTEGER_MAX) -> int:
    """Check that `value` is an integer from 0 to `maximum`, and no bool."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected a number of 0 to {maximum}")
    return value


def signed(value: object, what: str) -> int:
    """Check that `value` is a signed 64-bit integer."""
    if type(value) is not int or not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected a number of 64 bits")
    return value


def flag(value: object, what: str) -> bool:
    if type(value) is not bool:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected true or false")
    return value


def text(value: object, what: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """A text of at most `bytes_max` bytes of UTF-8, empty ones included."""
    if type(value) is not str or len(value) > bytes_max or len(value.encode()) > bytes_max:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected a text of at most {bytes_max} bytes")
    return value


def blob(value: object, what: str) -> bytes:
    if type(value) is not bytes:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected bytes")
    return value


def array(value: object, what: str, count_max: int) -> tuple[object, ...]:
    if type(value) is not tuple or len(value) > count_max:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected an array of at most {count_max}")
    return value


def array_of(value: object, what: str, count: int) -> tuple[object, ...]:
    """An array of exactly `count` values."""
    if type(value) is not tuple or len(value) != count:
        raise MalformedFrame(f"{what} is {value!r:.40}, expected an array of {count}")
    return value
