"""Progress of one delay level whose messages are delivered in any order. Core."""

from __future__ import annotations

from collections import deque


class LevelProgress:
    """The level's offset moves over messages that were delivered, up to the first one that was not."""

    def __init__(self) -> None:
        self._pending: deque[int] = deque()  # queue offsets after the level's offset, in order
        self._done: set[int] = set()

    def add(self, queue_offset: int) -> None:
        """Add a pending message after those that were added before."""
        assert not self._pending or self._pending[-1] < queue_offset
        self._pending.append(queue_offset)

    def done(self, queue_offset: int) -> int:
        """The message was delivered. Returns the queue offset below which all messages are delivered."""
        self._done.add(queue_offset)
        passed = -1
        while self._pending and self._pending[0] in self._done:
            passed = self._pending.popleft()
            self._done.discard(passed)
        return self._pending[0] if self._pending else max(passed, queue_offset) + 1
