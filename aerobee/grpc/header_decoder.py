"""Decodes the header blocks of requests, with HPACK's dynamic table. Core. Layout, source RFC 7541:

    1xxxxxxx                            a header of the table, name and value
    01xxxxxx | value                    a value for a name of the table, kept in the table; x = 0: a name precedes it
    001xxxxx                            the table's size, at the beginning of a block
    0000xxxx, 0001xxxx | value          as 01xxxxxx, not kept

Header fields of the table come again with every call: what request_headers.py has to know of one is found when it is made.
After an error a decoder is not used again: its table is no longer the peer's.
"""

from __future__ import annotations

import re
from operator import itemgetter

from aerobee.grpc.huffman import decode_huffman
from aerobee.grpc.request_headers import HeaderField, make_field

_INTEGER_BYTES_MAX = 5  # behind the first byte
_TABLE_BYTES_AT_FIRST = 4_096
_RUN = re.compile(rb"[\x81-\xfe]*")  # headers of the table whose index takes one byte
_INDEX = bytes(byte & 0x7F for byte in range(256))
_SIZE = itemgetter(2)

_STATIC = (
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"), (":scheme", "http"),
    (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""), ("accept-encoding", "gzip, deflate"), ("accept-language", ""),
    ("accept-ranges", ""), ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""),
    ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""),
    ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""),
    ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""),
    ("via", ""), ("www-authenticate", ""),
)  # fmt: skip
_NO_FIELD = make_field(b"", b"")  # index 0, which no block may name
_STATIC_TABLE = [_NO_FIELD, *(make_field(name.encode(), value.encode()) for name, value in _STATIC)]
_DYNAMIC = len(_STATIC_TABLE)  # index of the newest entry


class HeaderBlockMalformed(Exception):
    """A block that HPACK does not allow."""


class HeaderListTooLarge(Exception):
    """The headers of a block take more bytes than the limit."""


class HeaderDecoder:
    """Decodes the blocks of one connection."""

    __slots__ = ("_allowed_bytes_max", "_entries_bytes", "_list_bytes_max", "_table", "_table_bytes_max")

    def __init__(self, allowed_bytes_max: int, list_bytes_max: int) -> None:
        """`allowed_bytes_max`: maximum size of the dynamic table that the peer may choose; `list_bytes_max` bounds the headers of a block."""
        self._table = list(_STATIC_TABLE)  # the entries of the peer follow, the newest first
        self._entries_bytes = 0
        self._table_bytes_max = _TABLE_BYTES_AT_FIRST
        self._allowed_bytes_max = allowed_bytes_max
        self._list_bytes_max = list_bytes_max

    def decode(self, block: bytes) -> list[HeaderField]:
        """The headers of one block, in their order. Raises HeaderBlockMalformed and HeaderListTooLarge."""
        found: list[HeaderField] = []
        at, end, list_bytes = 0, len(block), 0
        try:
            while at < end:
                first = block[at]
                if 0x80 < first < 0xFF:
                    run_end = _end_of_run(block, at)
                    indexes = block[at:run_end].translate(_INDEX)
                    try:
                        run = [self._table[index] for index in indexes]
                    except IndexError:
                        self._check_in_order(indexes, list_bytes)
                        raise
                    at = run_end
                    found += run
                    list_bytes += sum(map(_SIZE, run))
                else:
                    field, at = self._field(block, at, first, is_first=not found)
                    if field is None:
                        continue
                    found.append(field)
                    list_bytes += field[2]
                if list_bytes > self._list_bytes_max:
                    raise HeaderListTooLarge
        except (IndexError, ValueError) as error:
            raise HeaderBlockMalformed from error
        if self._table_bytes_max > self._allowed_bytes_max:  # the peer should have made its table smaller
            raise HeaderBlockMalformed
        return found

    def _check_in_order(self, indexes: bytes, list_bytes: int) -> None:
        """Raise HeaderListTooLarge where the list is too large before an index that names no header, else IndexError."""
        for index in indexes:
            list_bytes += self._table[index][2]
            if list_bytes > self._list_bytes_max:
                raise HeaderListTooLarge

    def _field(self, block: bytes, at: int, first: int, *, is_first: bool) -> tuple[HeaderField | None, int]:
        """The field at an offset, and the next offset; None for a new size of the table. Raises IndexError, ValueError."""
        if first & 0x80:
            index, at = _integer(block, at, 7)
            return self._entry(index), at
        if first & 0x40:
            field, at = self._literal(block, at, 6)
            self._add(field)
            return field, at
        if first & 0x20:
            if not is_first:
                raise ValueError("the table's size changes inside a block")
            bytes_max, at = _integer(block, at, 5)
            if bytes_max > self._allowed_bytes_max:
                raise ValueError("the table's size is above the limit")
            self._table_bytes_max = bytes_max
            self._shrink()
            return None, at
        return self._literal(block, at, 4)

    def _entry(self, index: int) -> HeaderField:
        if index == 0:
            raise ValueError("index 0 names no header")
        return self._table[index]

    def _literal(self, block: bytes, at: int, index_bits: int) -> tuple[HeaderField, int]:
        index, at = _integer(block, at, index_bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        return make_field(name, value), at

    def _add(self, field: HeaderField) -> None:
        if field[2] > self._table_bytes_max:
            del self._table[_DYNAMIC:]
            self._entries_bytes = 0
        else:
            self._table.insert(_DYNAMIC, field)
            self._entries_bytes += field[2]
            self._shrink()

    def _shrink(self) -> None:
        while self._entries_bytes > self._table_bytes_max:
            self._entries_bytes -= self._table.pop()[2]


def _end_of_run(block: bytes, at: int) -> int:
    run = _RUN.match(block, at)
    assert run is not None  # the pattern matches nothing, too
    return run.end()


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number in the last `bits` bits of the first byte, and in further bytes when it is larger; and the offset behind it."""
    most = (1 << bits) - 1
    number = block[at] & most
    at += 1
    if number < most:
        return number, at
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("a number has too many bytes")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    is_packed = block[at] & 0x80
    length, at = _integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise ValueError("a text is longer than its block")
    data = block[at:end]
    return (decode_huffman(data) if is_packed else data), end
