"""Names by the time at which they are due: a heap, so that a thousand schedules cost no more than the one that is due. Core."""

from __future__ import annotations

import heapq

_STALE_MAX = 64  # entries of names that were set again, beyond as many as there are names


class DueQueue:
    """Each name has one time, the last that was set."""

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def set(self, name: str, due_ms: int) -> None:
        """`name` is due at `due_ms`, and at no other time."""
        self._due[name] = due_ms
        heapq.heappush(self._heap, (due_ms, name))
        if len(self._heap) > 2 * len(self._due) + _STALE_MAX:
            self._heap = [(due, name) for name, due in self._due.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """`name` is not due any more."""
        self._due.pop(name, None)

    def first_ms(self) -> int | None:
        """The earliest time of any name; None without names."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now_ms: int) -> str | None:
        """Remove and return the earliest name that is due; None when none is."""
        first = self.first_ms()
        if first is None or first > now_ms:
            return None
        _, name = heapq.heappop(self._heap)
        del self._due[name]
        return name
