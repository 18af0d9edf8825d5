"""Encodes response headers without state. Core. Layout, source RFC 7541:

    0x20                                the table's size is 0: at the beginning of the first block
    1xxxxxxx                            a header of the static table, name and value
    0000xxxx | value                    a value for a name of the static table, not kept
    00000000 | name | value             both as they are, not kept

HPACK's dynamic table stays empty, so the peer cannot make this side store anything, and blocks that come again are encoded
once. Texts are not Huffman coded.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_TABLE = b"\x20"  # before the first block of a connection
_STATUS_NAME = 8  # index of ":status"
_CONTENT_TYPE_NAME = 31
_WHOLE = {(b":status", b"200"): b"\x88"}
_NAMES = {b":status": _STATUS_NAME, b"content-type": _CONTENT_TYPE_NAME}


def encode_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """The block of these headers, without NO_TABLE."""
    return b"".join([_encode(name.encode(), value.encode()) for name, value in headers])


def _encode(name: bytes, value: bytes) -> bytes:
    whole = _WHOLE.get((name, value))
    if whole is not None:
        return whole
    index = _NAMES.get(name)
    if index is not None:
        return _integer(index, 4) + _text(value)
    return b"\0" + _text(name) + _text(value)


def _text(data: bytes) -> bytes:
    return _integer(len(data), 7) + data


def _integer(number: int, bits: int) -> bytes:
    """A number in `bits` bits of the first byte, and in further bytes when it is larger."""
    most = (1 << bits) - 1
    if number < most:
        return bytes((number,))
    found = bytearray((most,))
    number -= most
    while number >= 128:
        found.append(number % 128 + 128)
        number //= 128
    found.append(number)
    return bytes(found)
