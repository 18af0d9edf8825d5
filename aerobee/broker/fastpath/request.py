"""One request of a burst with its parsed header, and parsers shared by all frame handlers. A core."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import methodcaller
from typing import Any

from aerobee.broker.fastpath.exclusions import NUMBER_CHARS_MAX
from aerobee.errors import MalformedRecord, RecordInvalid, StoreError, StoreFull, StoreNotWritable, WireError
from aerobee.message import PROPERTY_SEPARATOR
from aerobee.remoting.command import RemotingCommand

REPLY_BYTES_MAX = 1 << 20  # a burst with more reply bytes ends, because the peer must read them first
# Exceptions from parsing a frame that is not ordinary.
UNREADABLE = (
    KeyError, ValueError, TypeError, AttributeError, struct.error, OverflowError, WireError, MalformedRecord,
    StoreError,
)  # fmt: skip
# Exceptions of an append before its first byte is written; any other exception is a fault.
NO_ROOM = (StoreFull, StoreNotWritable, RecordInvalid, struct.error, OverflowError)
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_NO_VALUE = "\x01\x02"
_split_pair: Callable[[str], list[str]] = methodcaller("split", "\x01")  # into a name and its value


class FallBackToHandler(Exception):
    """The frame belongs to another frame handler, or to the request handlers. Nothing was written."""


def read_pairs(text: str) -> dict[str, str]:
    """Parse a properties text; the last of equal names counts.

    Raises ValueError for a text in which pairs do not have their separators in turn: its pieces would be taken for names
    and values that the message does not have, as `WAIT` in `A^Ab^AWAIT^Bfalse^Ax^B`. Likewise for an empty value: `WAIT^A^B` is
    no WAIT at all, and neither hides one that came before.
    """
    if not text:
        return {}
    if text[-1] != PROPERTY_SEPARATOR:
        text += PROPERTY_SEPARATOR
    if _NO_VALUE in text:
        raise ValueError
    # Raises ValueError for another number of separators. All of it in C.
    return dict(map(_split_pair, text[:-1].split(PROPERTY_SEPARATOR)))


def repeated_names(text: str) -> list[str]:
    """The names of a properties text that read_pairs() accepts, in order and with repetitions."""
    return [piece.partition("\x01")[0] for piece in text.removesuffix("\x02").split("\x02")]


class Request:
    """The present frame; a backend reuses one object for all frames."""

    __slots__ = (
        "body_at",
        "code",
        "command",
        "data",
        "end",
        "ext",
        "flag",
        "opaque",
        "pairs",
        "start",
    )

    def __init__(self) -> None:
        self.data: bytes | bytearray = b""
        self.start = self.body_at = self.end = 0
        self.code = self.flag = self.opaque = 0
        self.ext: dict[str, Any] = {}
        self.command: RemotingCommand | None = None  # when the header was binary
        self.pairs: dict[str, str] | None = None  # the properties, once they were read

    @property
    def body(self) -> bytes | bytearray:
        """The frame's bytes behind the header."""
        return self.data[self.body_at : self.end]

    @property
    def frame(self) -> bytes:
        """The whole frame with its length, a copy that outlives the burst."""
        return bytes(self.data[self.start : self.end])


def number(value: object) -> int:
    """Read a header's number: a JSON integer, or text of at most 20 characters. Raises ValueError beyond 64 bits."""
    if type(value) is str:
        if len(value) < 19 and value.isdigit() and value.isascii():  # nearly all: in range without a check
            return int(value)
        if not (len(value) <= NUMBER_CHARS_MAX and value.isascii() and value.removeprefix("-").isdigit()):
            raise ValueError
        value = int(value)
    if type(value) is not int or not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError
    return value


def born_time(value: Any) -> int:
    """Read a born timestamp, which is text. Raises ValueError as number() does."""
    if type(value) is not str:
        raise ValueError
    return number(value)
