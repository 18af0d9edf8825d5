"""The log offset before which every decision about a transaction has its op record. Core.

A starting master searches the log from that offset on for commits without an op record. A slave receives the offset
from its master, with the table of offsets. Without it, a promoted slave would search the log from the oldest open
transaction on, which may be as old as the log.

Invariant: the op records of all decisions before `offset` are before `offset`, too. So a truncation of the log does not
affect decisions before the cut.
"""

from __future__ import annotations

from collections.abc import Callable


class SettledDecisions:
    """Holds the offset. Belongs to the event loop."""

    def __init__(self) -> None:
        self.offset = 0  # physical; 0 is always right
        self._has_unwritten: Callable[[], bool] | None = None

    def lead(self, has_unwritten: Callable[[], bool]) -> None:
        """This broker decides from here on; `has_unwritten` says whether a decision has no op record yet."""
        self._has_unwritten = has_unwritten

    def resign(self) -> None:
        """Another broker decides."""
        self._has_unwritten = None

    def told(self, log_end: int) -> int:
        """The offset that a master sends to slaves: its log's end, or the last settled offset; 0 from a broker that
        does not decide transactions.
        """
        if self._has_unwritten is None:
            return 0
        if not self._has_unwritten():
            self.offset = log_end
        return self.offset

    def copied(self, offset: int, log_end: int) -> None:
        """A master told `offset`, and this log ends at `log_end`: taken once it is that long."""
        if self.offset < offset <= log_end:
            self.offset = offset

    def cut(self) -> None:
        """The end of the log was cut off, perhaps with op records of earlier decisions."""
        self.offset = 0
