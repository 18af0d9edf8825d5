"""The messages of one slot of the wheel that are in memory: the slot being delivered, and the one after it. Core.

A slot is read from its chain in steps, so that a slot of a million messages does not stop the event loop. Waiting
messages are a heap of one integer each, `due ms << 64 | physical offset`: 50 bytes a message.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping

from aerobee.store.timer.timer_log import DELETE, ROLL, TimerUnit

OFFSET_BITS = 64
OFFSET_MASK = (1 << OFFSET_BITS) - 1
Chain = Iterator[tuple[int, TimerUnit]]


class WaitingSlot:
    """One slot in memory. `time_ms` is the slot's begin. No message is due before the slot is loaded."""

    def __init__(
        self,
        time_ms: int,
        chain: Chain | None,
        *,
        latest_ms: int,
        due_of: Callable[[TimerUnit], int],
        delete_key_of: Callable[[TimerUnit], str | None],
    ) -> None:
        """A unit that says a time after `latest_ms` is not believed. `due_of` and `delete_key_of` read the message, for
        values that its unit does not contain.
        """
        self.time_ms = time_ms
        # Physical offsets of messages to store again for a later slot, the oldest last, as they are taken from the end:
        # a slave's chain may have another order than its master's.
        self.rolls: list[int] = []
        self.deleted: set[str] = set()  # keys of messages that are not delivered
        self._chain = chain
        self._latest_ms = latest_ms
        self._due_of = due_of
        self._delete_key_of = delete_key_of
        self._heap: list[int] = []

    @property
    def is_loaded(self) -> bool:
        """Whether its chain has been read to the end."""
        return self._chain is None

    def load(self, count: int) -> bool:
        """Read up to `count` units. Returns whether everything is loaded."""
        chain = self._chain
        if chain is None:
            return True
        for _, unit in chain:
            self._take(unit)
            count -= 1
            if count <= 0:
                return False
        self._chain = None
        heapq.heapify(self._heap)
        self.rolls.sort(reverse=True)
        return True

    def _take(self, unit: TimerUnit) -> None:
        if unit.magic & ROLL:
            self.rolls.append(unit.physical_offset)
        elif unit.magic & DELETE:
            key = self._delete_key_of(unit)
            if key is not None:
                self.deleted.add(key)
        else:
            due = unit.due_ms if 0 < unit.due_ms <= self._latest_ms else self._due_of(unit)
            self._heap.append(due << OFFSET_BITS | unit.physical_offset)

    def add(self, unit: TimerUnit) -> None:
        """A message joined the slot after its chain was looked up."""
        before = len(self._heap)
        self._take(unit)
        if self._chain is None and len(self._heap) > before:
            heapq.heappush(self._heap, self._heap.pop())

    @property
    def next_due_ms(self) -> int | None:
        """Due time of the first pending message."""
        return self._heap[0] >> OFFSET_BITS if self._heap else None

    @property
    def next_offset(self) -> int:
        """Physical offset of the message that is due first."""
        return self._heap[0] & OFFSET_MASK

    def pop(self) -> None:
        """The first one is delivered, or will never be."""
        heapq.heappop(self._heap)

    def take_due(self, now_ms: int, count_max: int) -> list[int]:
        """Remove the due messages, ordered by due time: `due ms << 64 | physical offset`. put_back() undoes it."""
        heap, limit = self._heap, (now_ms + 1) << OFFSET_BITS
        taken: list[int] = []
        while heap and heap[0] < limit and len(taken) < count_max:
            taken.append(heapq.heappop(heap))
        return taken

    def put_back(self, keys: list[int]) -> None:
        """Put back messages of take_due() that were not delivered."""
        for key in keys:
            heapq.heappush(self._heap, key)

    def waiting_after(self, now_ms: int) -> list[tuple[int, int]]:
        """Due time, ms, and physical offset of what waits for longer than now; 0 for what is to be stored again."""
        limit = (now_ms + 1) << OFFSET_BITS
        rest = [(key >> OFFSET_BITS, key & OFFSET_MASK) for key in self._heap if key >= limit]
        return rest + [(0, physical_offset) for physical_offset in self.rolls]

    def move(self, new_dues: Mapping[int, int]) -> int:
        """Let messages be due at other times, ms, by their physical offsets; those that do not wait any more are left
        out. Returns how many were moved.
        """
        if not new_dues:
            return 0
        rolls = [physical_offset for physical_offset in self.rolls if physical_offset not in new_dues]
        rolled = set(self.rolls).difference(rolls)
        heap = [
            new_dues.get(key & OFFSET_MASK, key >> OFFSET_BITS) << OFFSET_BITS | key & OFFSET_MASK
            for key in self._heap
        ]
        count = sum(before != after for before, after in zip(self._heap, heap, strict=True)) + len(rolled)
        heap += [new_dues[physical_offset] << OFFSET_BITS | physical_offset for physical_offset in rolled]
        heapq.heapify(heap)
        self._heap, self.rolls = heap, rolls
        return count

    def offsets(self) -> list[int]:
        """Physical offsets of the pending messages, ordered by due time."""
        return [key & OFFSET_MASK for key in sorted(self._heap)]

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def is_done(self) -> bool:
        """Whether the slot is loaded and has no pending message."""
        return self._chain is None and not self._heap and not self.rolls
