"""Pulled, unfinished messages of one queue. Pure.

Follows ProcessQueue. Invariants: offsets are added in ascending order, and `commit_offset` is the smallest unfinished
offset, or the one after the newest when all are finished, so a committed offset never passes an unfinished message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Placed(Protocol):
    """The fields of a pulled message that are used here; `size_bytes` is the size of its record."""

    queue_offset: int
    size_bytes: int


P = TypeVar("P", bound=Placed)


class ProcessQueue:
    """Bookkeeping of the offsets between the last commit and the newest pulled message."""

    __slots__ = ("_next", "_order", "_unfinished", "cached_bytes", "dropped")

    def __init__(self, next_offset: int) -> None:
        self.dropped = False  # the queue was released: results of running handlers are ignored
        self.cached_bytes = 0
        self._next = next_offset
        self._order: deque[int] = deque()  # ascending; holds finished offsets too until they reach the front
        self._unfinished: dict[int, int] = {}  # offset -> body bytes

    def put(self, offset: int, size_bytes: int) -> bool:
        """Add a pulled message. False when it is not newer than the last pulled one: it is a repetition."""
        if offset < self._next:
            return False
        self._unfinished[offset] = size_bytes
        self._order.append(offset)
        self._next = offset + 1
        self.cached_bytes += size_bytes
        return True

    def put_all(self, messages: list[P]) -> list[P]:
        """Add the messages of one pull; returns the new ones."""
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
        """Mark one message as finished. False when it was not pending."""
        size_bytes = self._unfinished.pop(offset, None)
        if size_bytes is None:
            return False
        self.cached_bytes -= size_bytes
        return True

    def finish_all(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self.finish(offset)

    def pulled_up_to(self, next_offset: int) -> None:
        """The broker skipped entries (filtered or deleted): the next pull begins at `next_offset`."""
        self._next = max(self._next, next_offset)

    @property
    def count(self) -> int:
        return len(self._unfinished)

    @property
    def next_offset(self) -> int:
        """Offset of the next pull."""
        return self._next

    @property
    def commit_offset(self) -> int:
        """The first offset that the queue's next owner has to read."""
        order, unfinished = self._order, self._unfinished
        while order and order[0] not in unfinished:
            order.popleft()
        return order[0] if order else self._next

    def peek_commit_offset(self) -> int:
        """As `commit_offset`, without a change: may be called in any thread. The first unfinished offset is the smallest one,
        because offsets are added in ascending order."""
        unfinished = self._unfinished
        while True:
            try:
                return next(iter(unfinished), self._next)
            except RuntimeError:  # changed by the event loop's thread meanwhile
                continue

    @property
    def newest_offset(self) -> int:
        """Upper bound of the unfinished offsets; -1 when empty."""
        return self._order[-1] if self._unfinished else -1

    @property
    def span(self) -> int:
        """Distance in offsets between the oldest unfinished message and the newest pulled one."""
        if not self._unfinished:
            return 0
        return self._order[-1] - self.commit_offset

    def is_full(self, *, count_max: int, bytes_max: int, span_max: int) -> bool:
        """True while the cache bounds forbid another pull. Source: DefaultMQPushConsumerImpl.pullMessage."""
        return (
            len(self._unfinished) > count_max
            or self.cached_bytes > bytes_max
            or (len(self._unfinished) > 1 and self.span > span_max)
        )
