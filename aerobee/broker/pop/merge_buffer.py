"""Check points that are kept in memory for a few seconds (PopBufferMergeService; enablePopBufferMerge, default off).

A check point whose messages are all acknowledged within STAY_MS is never written, which saves the log most of POP's
records; but after a crash those messages are redelivered, acknowledged ones too. Other check points are written after
STAY_MS, or STAY_BEFORE_END_MS before they end, with an acknowledgement record for the set bits. The group's offset
follows in the order of the pops: it never passes a check point that is only in memory, so that a crash causes
redeliveries but no loss. Core.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aerobee.broker.pop.check_point import Acks, CheckPoint, CheckPointKey

STAY_MS = 10_000  # popCkStayBufferTime
STAY_BEFORE_END_MS = 3_000  # popCkStayBufferTimeOut
ENTRIES_MAX = 200_000  # popCkMaxBufferSize

QueueKey = tuple[str, str, int]  # topic, group, queue id


@dataclass(slots=True)
class _Buffered:
    point: CheckPoint | None  # None: written already; only its position in the order matters
    revive_queue_id: int
    next_offset: int
    since_ms: int


@dataclass(slots=True)
class BufferActions:
    """Result of a scan: write `points` and `acks`; then commit the offsets with stored()."""

    points: list[tuple[CheckPoint, int]] = field(default_factory=list)
    acks: list[tuple[Acks, int, int]] = field(default_factory=list)


class MergeBuffer:
    """Check points that are not in the log. Belongs to the event loop."""

    def __init__(self) -> None:
        self._entries: dict[CheckPointKey, _Buffered] = {}
        self._queues: dict[QueueKey, deque[_Buffered]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def forget_all(self) -> None:
        """Drop everything: another broker delivers messages from now on."""
        self._entries.clear()
        self._queues.clear()

    @property
    def offset_count(self) -> int:
        """Number of offsets that wait until earlier ones may be committed."""
        return sum(map(len, self._queues.values()))

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Start of the next pop of a queue; None without an entry of the queue."""
        queue = self._queues.get((topic, group, queue_id))
        return queue[-1].next_offset if queue else None

    def add(self, point: CheckPoint, revive_queue_id: int, next_offset: int, now_ms: int) -> bool:
        """Keep a check point. False: the caller writes it, and calls keep_offset() instead."""
        if len(self._entries) >= ENTRIES_MAX or point.invisible_ms <= STAY_BEFORE_END_MS:
            return False
        return self.keep(point, revive_queue_id, next_offset, now_ms)

    def keep(self, point: CheckPoint, revive_queue_id: int, next_offset: int, now_ms: int) -> bool:
        """Like add(), but without the check of bounds; always True."""
        entry = _Buffered(point, revive_queue_id, next_offset, now_ms)
        self._entries[point.key] = entry
        self._queues.setdefault((point.topic, point.group, point.queue_id), deque()).append(entry)
        return True

    def keep_offset(self, topic: str, group: str, queue_id: int, next_offset: int) -> bool:
        """A pop of this queue is in the log; its offset waits for earlier ones. False: there is no earlier one."""
        queue = self._queues.get((topic, group, queue_id))
        if not queue:
            return False
        queue.append(_Buffered(None, -1, next_offset, 0))
        return True

    def ack(self, key: CheckPointKey, offset: int) -> bool:
        """Record an acknowledgement. False: the check point is not in the buffer, so the log must contain it."""
        entry = self._entries.get(key)
        return entry is not None and entry.point is not None and entry.point.ack(offset)

    def holds(self, key: CheckPointKey) -> bool:
        """Whether the check point is only in this buffer."""
        return key in self._entries

    def scan(self, now_ms: int, *, everything: bool = False) -> BufferActions:
        """Find what must be written now. Call stored() when it is."""
        actions = BufferActions()
        for entry in self._entries.values():
            point = entry.point
            if point is None or point.is_acked:
                continue
            if (
                everything
                or now_ms - entry.since_ms >= STAY_MS
                or point.revive_time - now_ms <= STAY_BEFORE_END_MS
            ):
                actions.points.append((point, entry.revive_queue_id))
                acked = tuple(offset for offset in point.offsets if offset not in point.unacked)
                if acked:
                    acks = Acks(
                        topic=point.topic,
                        group=point.group,
                        queue_id=point.queue_id,
                        start_offset=point.start_offset,
                        pop_time=point.pop_time,
                        broker_name=point.broker_name,
                        offsets=acked,
                    )
                    actions.acks.append((acks, entry.revive_queue_id, point.revive_time))
        return actions

    def stored(self, actions: BufferActions) -> list[tuple[QueueKey, int]]:
        """The actions are in the log. Returns the offsets that may be committed now, by queue."""
        for point, _ in actions.points:
            entry = self._entries.pop(point.key, None)
            if entry is not None:
                entry.point = None
        commits: list[tuple[QueueKey, int]] = []
        for key, queue in list(self._queues.items()):
            offset = -1
            while queue and (queue[0].point is None or queue[0].point.is_acked):
                entry = queue.popleft()
                offset = entry.next_offset
                if entry.point is not None:
                    self._entries.pop(entry.point.key, None)
            if offset >= 0:
                commits.append((key, offset))
            if not queue:
                del self._queues[key]
        return commits

    def points(self) -> list[CheckPoint]:
        """Every check point that is only here."""
        return [each.point for each in self._entries.values() if each.point is not None]

    def drop_from(self, point: CheckPoint) -> list[CheckPoint]:
        """Remove a check point and the later ones of its queue: the next pop starts at its offset. Returns them."""
        queue = self._queues.get((point.topic, point.group, point.queue_id), deque())
        dropped: list[CheckPoint] = []
        while any(each.point is point for each in queue):
            last = queue.pop().point
            if last is not None:
                self._entries.pop(last.key, None)
                dropped.append(last)
        if not queue:
            self._queues.pop((point.topic, point.group, point.queue_id), None)
        return dropped

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """The group's offset was reset: earlier pops no longer advance it."""
        for entry in self._queues.pop((topic, group, queue_id), ()):
            if entry.point is not None:
                self._entries.pop(entry.point.key, None)
