"""The unsettled records of one queue of the revive topic: the core of PopReviveService (RocketMQ).

Records are read in order. A check point waits until its revive time; later acknowledgements set its bits. When it is
due, the messages without a bit are redelivered, and the check point is settled. The group CID_RMQ_SYS_REVIVE_GROUP
commits the last offset before the oldest unsettled check point, so that a restart neither repeats nor misses a check
point.

A check point is due when its time has come and every acknowledgement that was given in time is known: those of this
process are known (`known_acks`), earlier ones are in the queue once the timer has delivered up to the revive time.
RocketMQ waits two seconds after the largest delivery time that it has seen; Aerobee waits for exactly this condition.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from aerobee.broker.pop.check_point import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CK_LEAD_MS,
    CK_TAG,
    CLOCK_SLACK_MS,
    CheckPoint,
    CheckPointKey,
    decode_acks,
    decode_check_point,
)

# Maximum number of acknowledgements read before their check point, which may happen after a crash.
EARLY_MAX = 1_000
# Maximum number of check points in memory per revive queue; at the limit reading pauses.
PENDING_MAX = 200_000


class ReviveQueue:
    """The unsettled check points of one revive queue. `next_offset` is where reading continues."""

    def __init__(self, settled: int = -1) -> None:
        """`settled`: the committed offset, the last settled one; -1 for none."""
        self.next_offset = settled + 1
        self._pending: dict[CheckPointKey, CheckPoint] = {}
        self._by_time: list[tuple[int, int, CheckPoint]] = []  # (revive time, offset in the queue)
        self._by_offset: list[tuple[int, CheckPointKey]] = []
        self._early: OrderedDict[CheckPointKey, list[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether reading pauses until check points are settled."""
        return len(self._pending) >= PENDING_MAX

    @property
    def settled(self) -> int:
        """The offset to commit: everything up to it is settled."""
        while self._by_offset:
            offset, key = self._by_offset[0]
            waiting = self._pending.get(key)
            if waiting is not None and waiting.revive_offset == offset:
                return offset - 1
            heapq.heappop(self._by_offset)
        return self.next_offset - 1

    def take(self, offset: int, tag: str | None, body: bytes, now_ms: int) -> CheckPoint | None:
        """Add one record of the queue; returns its check point, if it is one. Raises MalformedFrame for an invalid
        record, which counts as read."""
        self.next_offset = offset + 1
        if tag == CK_TAG:
            point = decode_check_point(body)
            point.revive_offset = offset
            before = self._pending.get(point.key)
            if before is not None:  # stored again after a crash or a take-over: its acknowledgements stay
                point.bit_map |= before.bit_map
            for acked in self._early.pop(point.key, ()):
                point.ack(acked)
            self._pending[point.key] = point
            heapq.heappush(self._by_time, (_due_ms(point, now_ms), offset, point))
            heapq.heappush(self._by_offset, (offset, point.key))
            return point
        if tag in (ACK_TAG, BATCH_ACK_TAG):
            acks = decode_acks(body)
            waiting = self._pending.get(acks.key)
            if waiting is None:
                self._early.setdefault(acks.key, []).extend(acks.offsets)
                if len(self._early) > EARLY_MAX:
                    self._early.popitem(last=False)
                return None
            for acked in acks.offsets:
                waiting.ack(acked)
        return None

    def skip_to(self, offset: int) -> None:
        """Records before `offset` were deleted."""
        self.next_offset = max(self.next_offset, offset)

    def clock_set_back(self, now_ms: int) -> None:
        """The wall clock was set back: limit the wait of each check point to that of one that is popped now."""
        self._by_time = [
            (min(due, _due_ms(point, now_ms)), offset, point) for due, offset, point in self._by_time
        ]
        heapq.heapify(self._by_time)

    def next_due_ms(self) -> int | None:
        """Revive time of the check point that is due first; None without one."""
        while self._by_time:
            due_ms, offset, point = self._by_time[0]
            waiting = self._pending.get(point.key)
            if waiting is not None and waiting.revive_offset == offset:
                return due_ms
            heapq.heappop(self._by_time)
        return None

    def due(
        self, now_ms: int, delivered_until_ms: int, known_acks: Callable[[CheckPointKey], int | None]
    ) -> CheckPoint | None:
        """Return the first check point that is due, with its bits up to date; None when none is. Call done() with it.

        `delivered_until_ms`: everything due in the timer up to then is in the queue and was read. `known_acks` returns
        the bits of a check point whose acknowledgements all went through this process, else None.
        """
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        # A check point whose acknowledgements are all known does not wait for an earlier one that needs the
        # timer.
        held: list[tuple[int, int, CheckPoint]] = []
        found: CheckPoint | None = None
        while self._by_time and self._by_time[0][0] <= now_ms:
            entry = self._by_time[0]
            point = entry[2]
            waiting = self._pending.get(point.key)
            if waiting is None or waiting.revive_offset != entry[1]:
                heapq.heappop(self._by_time)
                continue
            bits = known_acks(point.key)
            if bits is not None:
                point.bit_map |= bits
            if bits is not None or entry[0] < delivered_until_ms or point.is_acked:
                found = point
                break
            held.append(heapq.heappop(self._by_time))
        for entry in held:
            heapq.heappush(self._by_time, entry)
        return found

    def done(self, point: CheckPoint) -> None:
        """The check point is settled."""
        waiting = self._pending.get(point.key)
        if waiting is not None and waiting.revive_offset == point.revive_offset:
            del self._pending[point.key]


def _due_ms(point: CheckPoint, now_ms: int) -> int:
    """Due time of a check point, ms. A check point whose pop time is in the future, because the clock was set back
    since, has waited in the timer for its invisible time except CK_LEAD_MS.
    """
    return (
        point.revive_time
        if point.pop_time <= now_ms + CLOCK_SLACK_MS
        else now_ms + min(point.invisible_ms, CK_LEAD_MS)
    )
