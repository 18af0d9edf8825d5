"""Encodes response headers without state. Core. Layout, source RFC 7541:

    0x20                                the table's size is 0: at the beginning of the first block
    1xxxxxxx                            a header of the static table, name and value
    0000xxxx | value                    a value for a name of the static table, not kept
    00000000 | name | value             both as they are, not kept

Responses repeat a few headers, so whole blocks are cached: a block costs one look-up. HPACK's dynamic table
stays empty, so the peer cannot make this side store anything. Texts are not Huffman coded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BLOCKS_MAX = 256  # cached blocks; a block with a status message is not cached
BLOCK_HEADERS_MAX = 3
_NO_TABLE = b"\x20"
_STATUS_NAME = 8  # index of ":status"
_CONTENT_TYPE_NAME = 31
_WHOLE = {(b":status", b"200"): b"\x88"}
_NAMES = {b":status": _STATUS_NAME, b"content-type": _CONTENT_TYPE_NAME}


class HeaderEncoder:
    """The part of hpack's Encoder that h2 uses. `header_table_size`: the size that the peer allows; the
    encoder never uses it.
    """

    def __init__(self) -> None:
        self.header_table_size = 4_096
        self._blocks: dict[tuple[Any, ...], bytes] = {}
        self._has_begun = False

    def encode(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> bytes:
        """The block of these headers."""
        key = tuple(headers)
        block = self._blocks.get(key)
        if block is None:
            block = b"".join(_encode(_bytes(name), _bytes(value)) for name, value in key)
            if len(key) <= BLOCK_HEADERS_MAX and len(self._blocks) < BLOCKS_MAX:
                self._blocks[key] = block
        if not self._has_begun:
            self._has_begun = True
            return _NO_TABLE + block
        return block


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


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
