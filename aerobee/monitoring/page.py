"""A page of /metrics in compressed pieces, which the next page reuses. Core.

A broker with 5,000 topics and 20 groups has 800,000 lines, of which few change between two scrapes. A family
may consist of slices, each with a token that identifies the data of its lines. While the token of a slice
stays equal, the page reuses the compressed piece of the previous page.

The compressed page is one gzip stream (RFC 1952). Each piece is deflated separately, ends at a byte boundary
and refers to no other piece, so pieces can be concatenated; the checksum of the page is combined from theirs.

Source: crc32_combine (zlib).
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import NamedTuple

from aerobee.monitoring.exposition import Family, heading, sample_text

SAMPLES_A_PIECE = 64  # samples in one piece; a histogram has many lines
_LEVEL = 1  # numbers and labels shrink to a twentieth at any level
_RAW = -15
_GZIP_BEGIN = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"  # an empty one
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31  # the polynomial 1 in reflected bits


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines, deflated. `shift` advances a checksum by the length of the piece."""

    token: Hashable
    packed: bytes
    length: int
    crc: int
    shift: int


@dataclass(frozen=True, slots=True)
class Page:
    """Concatenated pieces.

    `is_whole`: the page has all families; otherwise each family is complete or absent. `begun_at`: time of
    the first read, in monotonic seconds.
    """

    pieces: tuple[Piece, ...]
    crc: int
    begun_at: float
    is_whole: bool

    def with_last(self, families: Iterable[Family]) -> Page:
        """A page with further families at the end."""
        text = "".join(heading(family) + sample_text(family.name, family.samples) for family in families)
        piece = _piece(None, text)
        return replace(self, pieces=(*self.pieces, piece), crc=_combined(self.crc, piece))

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


class _Placed(NamedTuple):
    """The piece of a slice, and the checksum of its family's slices including this one."""

    piece: Piece
    crc: int


class PageMaker:
    """Renders successive pages."""

    def __init__(self) -> None:
        self._kept: dict[str, list[_Placed]] = {}  # slices of the last page, by family name
        self._pieces: list[Piece] = []  # pieces of the completed families
        self._crc = 0
        self._begun_at, self._is_whole = 0.0, False
        self.length = 0  # bytes of text of the page so far, including the family in progress
        self.made_count = 0  # number of newly rendered pieces of the page

    @property
    def page(self) -> Page:
        """The last page, or the completed families of the page in progress."""
        return Page(tuple(self._pieces), self._crc, self._begun_at, self._is_whole)

    def make(self, families: Iterable[Family], begun_at: float) -> Iterator[None]:
        """Render `page` in steps, between which the caller may serve other tasks."""
        self._pieces, self._crc, self.length, self.made_count = [], 0, 0, 0
        self._begun_at, self._is_whole = begun_at, False
        names: set[str] = set()
        for family in families:
            names.add(family.name)
            yield from self._add(family)
        for name in self._kept.keys() - names:
            del self._kept[name]
        self._is_whole = True

    def _add(self, family: Family) -> Iterator[None]:
        """Append a completed family to the page. A family without samples is omitted."""
        loose = [_piece(None, heading(family))]
        samples = iter(family.samples)
        while some := list(islice(samples, SAMPLES_A_PIECE)):
            loose.append(_piece(None, sample_text(family.name, some)))
            self.length += loose[-1].length
            self.made_count += 1
            yield None
        before = self._kept.get(family.name, [])
        kept: list[_Placed] = []
        crc = length = 0
        are_same = True  # whether all slices so far are those of the last page
        for number, part in enumerate(family.slices):
            known = before[number] if number < len(before) else None
            if known is None or known.piece.token != part.token:
                piece = _piece(part.token, sample_text(family.name, part.samples(), part.common))
                known, are_same = _Placed(piece, _combined(crc, piece)), False
                self.made_count += 1
            elif not are_same:
                known = _Placed(known.piece, _combined(crc, known.piece))
            kept.append(known)
            crc = known.crc
            length += known.piece.length
            self.length += known.piece.length
            yield None
        self._kept[family.name] = kept
        if length or len(loose) > 1:
            for piece in loose:
                self._crc = _combined(self._crc, piece)
            self._crc = _product(_shift_of(length), self._crc) ^ crc
            self._pieces += loose
            self._pieces += (placed.piece for placed in kept if placed.piece.length)


def _piece(token: Hashable, text: str) -> Piece:
    data = text.encode()
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    packed = packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)
    return Piece(token, packed, len(data), zlib.crc32(data), _shift_of(len(data)))


def _combined(crc: int, piece: Piece) -> int:
    """The checksum of bytes with checksum `crc` followed by the piece."""
    return _product(piece.shift, crc) ^ piece.crc


def _product(one: int, other: int) -> int:
    """The product of two polynomials over GF(2), modulo the polynomial of CRC-32."""
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
    result, exponent = _ONE, 0
    while length:
        if length & 0xFF:
            result = _product(_byte_shift(length & 0xFF, exponent), result)
        length >>= 8
        exponent += 8
    return result


@cache
def _byte_shift(byte: int, exponent: int) -> int:
    """The shift by `byte` * 2**`exponent` bytes. Cached: the shift of a length costs one product for each
    byte of the length.
    """
    result, bit = _ONE, exponent
    while byte:
        if byte & 1:
            result = _product(_BYTES[bit], result)
        byte >>= 1
        bit += 1
    return result
