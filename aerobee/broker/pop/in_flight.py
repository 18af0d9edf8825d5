"""In-flight table: every active check point of this process, with the bits of its acknowledgements.

The log is authoritative (check_point.py). This table is its copy in memory, for three uses: revive knows the
acknowledgements; a completely acknowledged check point and its acknowledgements need not go to the revive topic at all
(RocketMQ stores and reads each of them twice); operators see invisible messages, their time and their client. After a
restart it is filled from the timer's topic; check points outside the table are served, too. Core.

States of an entry: OUT (invisible), REVIVED (expired, unacknowledged messages were redelivered), DROPPED (completely
acknowledged and left out of the revive topic). The latter two are kept for a while to answer late acknowledgements.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from aerobee.broker.pop.check_point import CheckPoint, CheckPointKey

ENTRIES_MAX = (
    500_000  # at the limit further check points are not recorded: they pass through the revive topic
)
ENTRIES_PER_STEP = 1_024
MEMORY_MS = 60_000  # time for which ended check points are kept


class State(Enum):
    OUT = auto()
    REVIVED = auto()
    DROPPED = auto()


@dataclass(slots=True)
class InFlight:
    """One check point and its consumer (the address it popped from; empty when unknown)."""

    point: CheckPoint
    consumer: str
    state: State = State.OUT


class InFlightTable:
    """Check points by key. Belongs to the event loop."""

    def __init__(self) -> None:
        self._entries: dict[CheckPointKey, InFlight] = {}
        self._ends: list[tuple[int, CheckPointKey]] = []
        self._counts: Counter[tuple[str, str]] = Counter()  # (topic, group) -> messages in state OUT
        self.known_since_ms = (
            0  # a check point with a later pop time that is missing here has ended, or never existed
        )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def message_count(self) -> int:
        """Number of invisible messages of all groups."""
        return sum(self._counts.values())

    def count(self, group: str, topic: str) -> int:
        """Number of a topic's messages that are invisible to a group."""
        return self._counts[(topic, group)]

    def add(self, point: CheckPoint, consumer: str) -> None:
        """Add a written check point, whose messages `consumer` received. Not recorded beyond ENTRIES_MAX."""
        if len(self._entries) >= ENTRIES_MAX:
            self.known_since_ms = max(self.known_since_ms, point.pop_time + 1)
            return
        key = point.key
        self._entries[key] = InFlight(point, consumer)
        heapq.heappush(self._ends, (point.pop_time + point.invisible_ms, key))
        self._counts[key[:2]] += len(point.offsets) - point.bit_map.bit_count()

    def get(self, key: CheckPointKey) -> InFlight | None:
        """The entry of a check point; None when it is unknown, or ended long ago."""
        return self._entries.get(key)

    def bits(self, key: CheckPointKey) -> int | None:
        """The acknowledged bits of a check point; None when the table does not contain all its acknowledgements."""
        entry = self._entries.get(key)
        return None if entry is None else entry.point.bit_map

    def ack(self, key: CheckPointKey, *offsets: int) -> None:
        """Record acknowledgements that are in the log."""
        entry = self._entries.get(key)
        if entry is None:
            return
        point = entry.point
        before = point.bit_map.bit_count()
        for offset in offsets:
            point.ack(offset)
        acked_count = point.bit_map.bit_count() - before
        if acked_count and entry.state is State.OUT:
            self._less(entry, acked_count)

    def drop(self, key: CheckPointKey) -> bool:
        """Whether a due check point of the timer may be left out of the revive topic because it is completely
        acknowledged."""
        entry = self._entries.get(key)
        if entry is None or entry.state is State.REVIVED or not entry.point.is_acked:
            return False
        entry.state = State.DROPPED
        return True

    def is_dropped(self, key: CheckPointKey) -> bool:
        """Whether this check point was left out, so that its acknowledgements are not needed either."""
        entry = self._entries.get(key)
        return entry is not None and entry.state is State.DROPPED

    def revived(self, key: CheckPointKey) -> None:
        """The check point has ended."""
        entry = self._entries.get(key)
        if entry is not None and entry.state is State.OUT:
            self._less(entry, len(entry.point.unacked))
            entry.state = State.REVIVED

    def clear(self) -> None:
        """Drop everything: another broker delivers messages from now on."""
        self._entries.clear()
        self._ends.clear()
        self._counts.clear()
        self.known_since_ms = 0

    def settling_doubles(self, written_at: Mapping[CheckPointKey, int]) -> Iterator[None]:
        """After a crash: of two check points that hold the same message the newer one counts, for changing the time
        of a message writes its new check point before the old one's acknowledgement. In steps, with a pause at each yield.

        `written_at`: physical offset at which each check point was written. The newer one was popped later and written behind
        the other. The two disagree when the clock was set back, or when another master's clock was ahead: then neither is
        settled by the other, for the wrong choice would lose the message, and both bring it again.
        """
        newest: dict[tuple[str, str, int, int], InFlight] = {}
        for number, entry in enumerate(list(self._entries.values())):
            if not number % ENTRIES_PER_STEP:
                yield
            point = entry.point
            for offset in point.offsets:
                key = (point.topic, point.group, point.queue_id, offset)
                other = newest.get(key)
                if other is None:
                    newest[key] = entry
                    continue
                older, newer = sorted((entry, other), key=lambda each: written_at.get(each.point.key, 0))
                if older.point.pop_time <= newer.point.pop_time:
                    self.ack(older.point.key, offset)
                newest[key] = newer

    def forget_old(self, now_ms: int) -> None:
        """Drop entries that ended more than MEMORY_MS ago. Entries in state OUT stay: they are not revived yet."""
        kept: list[tuple[int, CheckPointKey]] = []
        while self._ends and self._ends[0][0] + MEMORY_MS <= now_ms:
            end_ms, key = heapq.heappop(self._ends)
            entry = self._entries.get(key)
            if entry is None or entry.point.revive_time != end_ms:
                continue
            if entry.state is State.OUT and not entry.point.is_acked:
                kept.append((end_ms, key))
                continue
            del self._entries[key]
        for item in kept:
            heapq.heappush(self._ends, item)

    def entries(self) -> list[InFlight]:
        """All entries, unordered, including ended check points: for callers that process them in slices."""
        return list(self._entries.values())

    def out(self, group: str | None = None, topic: str | None = None) -> list[InFlight]:
        """Invisible messages of one group or topic, or all, in the order of their redelivery."""
        found = [
            entry
            for entry in self._entries.values()
            if entry.state is State.OUT
            and not entry.point.is_acked
            and (group is None or entry.point.group == group)
            and (topic is None or entry.point.topic == topic)
        ]
        found.sort(
            key=lambda entry: (entry.point.revive_time, entry.point.queue_id, entry.point.start_offset)
        )
        return found

    def _less(self, entry: InFlight, count: int) -> None:
        key = (entry.point.topic, entry.point.group)
        self._counts[key] -= count
        if self._counts[key] <= 0:
            del self._counts[key]
