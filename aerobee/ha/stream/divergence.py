"""Finds where a slave's log diverges from its master's in classic HA, whose protocol has no such check. Core.

A slave that was a master once may end in records that no other broker has. Before it follows, it asks for bytes that it
has already, from a little before its end, and compares. Two logs that were one and parted stay apart: each record holds
its own offset and time. So if the overlap is equal up to the slave's end, all earlier bytes are equal; if it diverges
within the overlap, the slave truncates to the last common record; if the first record of the overlap differs, the
search continues further back.

To a master a question for byte 0 means "I have nothing". Such a slave requests from 1, and prepends the byte before it,
the highest byte of a record's size and therefore 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from aerobee.errors import MalformedFrame

OVERLAP_BYTES = 64 << 10
GROWTH = 8  # factor by which each try searches further back


class Verdict(Enum):
    MORE = auto()  # equal up to here: more bytes are needed
    EQUAL = auto()  # up to the slave's end: follow from there
    PARTED = auto()  # cut at `common_end`, then follow from there
    FURTHER_BACK = auto()  # connect again and request bytes from `ask_from` on
    NOTHING_COMMON = auto()  # not even the first record that can be requested


@dataclass(frozen=True, slots=True)
class Comparison:
    verdict: Verdict
    common_end: int  # the logs are equal up to here, from `ask_from` on


class DivergenceSearch:
    """One search. `record_starts` are the offsets of the slave's records, ascending; `end` is the end of the slave's
    log.
    """

    def __init__(self, record_starts: Sequence[int], end: int, read: Callable[[int, int], bytes]) -> None:
        """`read(start, end)` returns bytes of the slave's log."""
        self._starts = list(record_starts)
        self._end = end
        self._read = read
        self._overlap_bytes = OVERLAP_BYTES
        self.ask_from = self._start_before(end - OVERLAP_BYTES)
        self._compared = self.ask_from

    def take(self, offset: int, body: bytes) -> Comparison:
        """Compare bytes that the master sent with the slave's. Raises MalformedFrame when they do not continue the
        previous ones.
        """
        if offset != self._compared:
            raise MalformedFrame(
                f"the master sent bytes at offset {offset}, the slave requested {self._compared}"
            )
        count = min(len(body), self._end - offset)
        mine = self._read(offset, offset + count)
        same = _equal_bytes(mine, body[:count])
        self._compared += same
        if same == count:
            verdict = Verdict.EQUAL if self._compared == self._end else Verdict.MORE
            return Comparison(verdict, self._compared)
        common_end = self._start_before(self._compared)
        if common_end > self.ask_from:
            return Comparison(Verdict.PARTED, common_end)
        if not self._starts or self.ask_from <= self._starts[0]:
            return Comparison(Verdict.NOTHING_COMMON, self.ask_from)
        self._overlap_bytes *= GROWTH
        # The logs diverge before this offset: the next search ends where this one began.
        self.ask_from = self._start_before(self.ask_from - self._overlap_bytes)
        self._compared = self.ask_from
        return Comparison(Verdict.FURTHER_BACK, self.ask_from)

    def _start_before(self, offset: int) -> int:
        """The last record's start at or before `offset`, else the first that may be requested."""
        low, high = 0, len(self._starts)
        while low < high:
            middle = (low + high) // 2
            if self._starts[middle] <= offset:
                low = middle + 1
            else:
                high = middle
        if not self._starts:
            return self._end
        return self._starts[max(0, low - 1)]


def _equal_bytes(one: bytes, other: bytes) -> int:
    """Number of equal bytes at the start."""
    if one == other:
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
