"""A page of /metrics in pieces that are kept from page to page, each packed once. Core.

A broker of 5,000 topics and 20 groups has 800,000 lines, of which few change from one scrape to the next. A family may come in
slices: each with a token that says what its lines were made from. While the token of a slice stays equal its lines are not made
again: the piece of the page before, packed already, is taken.

The packed page is one gzip stream (RFC 1952). Each piece is deflated by itself and ends at a byte without a back reference into
another one, so that pieces are put one behind the other; the checksum of the whole is combined from theirs.

Source: crc32_combine (zlib).
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

from aerobee.monitoring.exposition import Family, heading, sample_lines

LINES_A_PIECE = 256
_LEVEL = 1  # numbers and labels shrink to a twentieth at any level
_RAW = -15
_GZIP_BEGIN = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"  # an empty one
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # the polynomial 1: bits are reflected


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines, deflated. `shift` moves a checksum over so many bytes."""

    token: Hashable
    packed: bytes
    length: int
    crc: int
    shift: int


@dataclass(frozen=True, slots=True)
class Page:
    """One finished page."""

    pieces: tuple[Piece, ...]
    crc: int

    @property
    def length(self) -> int:
        """Bytes of the text."""
        return sum(piece.length for piece in self.pieces)

    @property
    def gzip_length(self) -> int:
        """Bytes of gzip_parts()."""
        return len(_GZIP_BEGIN) + sum(len(piece.packed) for piece in self.pieces) + len(_LAST_BLOCK) + 8

    def gzip_parts(self) -> Iterator[bytes]:
        """The page as one gzip stream, piece by piece."""
        yield _GZIP_BEGIN
        for piece in self.pieces:
            yield piece.packed
        size = self.length % (1 << 32)
        yield _LAST_BLOCK + self.crc.to_bytes(4, "little") + size.to_bytes(4, "little")

    def texts(self) -> Iterator[bytes]:
        """The page as text, piece by piece."""
        for piece in self.pieces:
            yield zlib.decompress(piece.packed + _LAST_BLOCK, _RAW)


class PageMaker:
    """Makes pages one after the other."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Piece] = {}
        self.made_count = 0  # pieces that were made for the last page, not kept

    def make(self, families: Iterable[Family]) -> Iterator[Page | None]:
        """None after each step, between which others may have their turn; the page at last."""
        pieces: list[Piece] = []
        kept: dict[tuple[str, int], Piece] = {}
        crc = made = 0
        for family in families:
            is_empty = True
            for number, piece in self._pieces(family):
                if is_empty and piece.length:
                    is_empty = False
                    pieces.append(_piece(None, heading(family)))
                    crc = _combined(crc, pieces[-1])
                key = (family.name, number)
                made += self._kept.get(key) is not piece
                if number >= 0:
                    kept[key] = piece
                if piece.length:
                    pieces.append(piece)
                    crc = _combined(crc, piece)
                yield None
        self._kept, self.made_count = kept, made
        yield Page(tuple(pieces), crc)

    def _pieces(self, family: Family) -> Iterator[tuple[int, Piece]]:
        """What a family has to say, each piece with the number of its slice; -1 for samples that are in none."""
        lines = sample_lines(family.name, family.samples)
        while text := "".join(islice(lines, LINES_A_PIECE)):
            yield -1, _piece(None, text)
        for number, part in enumerate(family.slices):
            piece = self._kept.get((family.name, number))
            if piece is None or piece.token != part.token:
                piece = _piece(part.token, "".join(sample_lines(family.name, part.samples())))
            yield number, piece


def _piece(token: Hashable, text: str) -> Piece:
    data = text.encode()
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    packed = packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)
    return Piece(token, packed, len(data), zlib.crc32(data), _shift_of(len(data)))


def _combined(crc: int, piece: Piece) -> int:
    """The checksum of what has `crc` with the piece behind it."""
    return _product(piece.shift, crc) ^ piece.crc


def _product(one: int, other: int) -> int:
    """Of two polynomials over GF(2), modulo that of CRC-32."""
    result = 0
    while one:
        if one & _ONE:
            result ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = (other >> 1) ^ _POLYNOMIAL if other & 1 else other >> 1
    return result


def _powers() -> tuple[int, ...]:
    powers = [_ONE >> 8]  # x to the 8: one byte
    while len(powers) < 40:
        powers.append(_product(powers[-1], powers[-1]))
    return tuple(powers)


_BYTES = _powers()  # x to the (8 times 2 to the n)


def _shift_of(length: int) -> int:
    result, place = _ONE, 0
    while length:
        if length & 0xFF:
            result = _product(_byte_shift(length & 0xFF, place), result)
        length >>= 8
        place += 8
    return result


@cache
def _byte_shift(byte: int, place: int) -> int:
    """The shift over `byte` times 2 to the `place` bytes: kept, so that a length costs a product for each of its bytes."""
    result, bit = _ONE, place
    while byte:
        if byte & 1:
            result = _product(_BYTES[bit], result)
        byte >>= 1
        bit += 1
    return result
