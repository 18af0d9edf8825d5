"""Messages of one queue that are pulled and not yet finished. Pure.

Follows ProcessQueue. What always holds: offsets are put in ascending order, and `commit_offset` is the smallest
unfinished offset, or the one after the newest when nothing is left, so a committed offset never passes a message
that no handler has finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Placed(Protocol):
    """What is used of a pulled message; `size_bytes` is that of its record."""

    queue_offset: int
    size_bytes: int


P = TypeVar("P", bound=Placed)


class ProcessQueue:
    """Bookkeeping of the offsets between the last commit and the newest pulled message."""

    __slots__ = ("_next", "_order", "_unfinished", "cached_bytes", "dropped")

    def __init__(self, next_offset: int) -> None:
        self.dropped = False  # the queue was given away: results of handlers that still run do not count
        self.cached_bytes = 0
        self._next = next_offset
        self._order: deque[int] = deque()  # ascending; holds finished offsets too until they reach the front
        self._unfinished: dict[int, int] = {}  # offset -> body bytes

    def put(self, offset: int, size_bytes: int) -> bool:
        """Add a pulled message. False when it is older than what was pulled before: it is there already."""
        if offset < self._next:
            return False
        self._unfinished[offset] = size_bytes
        self._order.append(offset)
        self._next = offset + 1
        self.cached_bytes += size_bytes
        return True

    def put_all(self, messages: list[P]) -> list[P]:
        """Add what a pull brought; returns those that were not there already."""
        added: list[P] = []
        unfinished, order, following, total = self._unfinished, self._order, self._next, 0
        for message in messages:
            offset = message.queue_offset
            if offset >= following:
                following = offset + 1
                size_bytes = unfinished[offset] = message.size_bytes
                total += size_bytes
                order.append(offset)
                added.append(message)
        self._next = following
        self.cached_bytes += total
        return added

    def finish(self, offset: int) -> bool:
        """Mark one message as done. False when it was not open."""
        size_bytes = self._unfinished.pop(offset, None)
        if size_bytes is None:
            return False
        self.cached_bytes -= size_bytes
        return True

    def finish_all(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.finish(offset)

    def pulled_up_to(self, next_offset: int) -> None:
        """The broker skipped entries (filtered, or not there): the next pull begins at `next_offset`."""
        self._next = max(self._next, next_offset)

    @property
    def count(self) -> int:
        return len(self._unfinished)

    @property
    def next_offset(self) -> int:
        """Where the next pull begins."""
        return self._next

    @property
    def commit_offset(self) -> int:
        """The first offset that a successor has to read."""
        order, unfinished = self._order, self._unfinished
        while order and order[0] not in unfinished:
            order.popleft()
        return order[0] if order else self._next

    @property
    def newest_offset(self) -> int:
        """The largest unfinished offset's upper bound; -1 when empty."""
        return self._order[-1] if self._unfinished else -1

    @property
    def span(self) -> int:
        """Offsets between the oldest unfinished message and the newest pulled one."""
        if not self._unfinished:
            return 0
        return self._order[-1] - self.commit_offset

    def is_full(self, *, count_max: int, bytes_max: int, span_max: int) -> bool:
        """True while no more should be pulled. Source: DefaultMQPushConsumerImpl.pullMessage."""
        return (
            len(self._unfinished) > count_max
            or self.cached_bytes > bytes_max
            or (len(self._unfinished) > 1 and self.span > span_max)
        )
