"""A leader's state of one follower, and the next message to it. Core.

PROBE     the point at which the logs diverge is unknown: one message at a time
PIPELINE  messages are sent without waiting, at most `in_flight_max`
SNAPSHOT  the follower needs compacted entries: it gets the snapshot, one chunk at a time
"""

from __future__ import annotations

import zlib
from collections import deque
from enum import Enum, auto

from aerobee.ha.raft.entry import Snapshot


class Flow(Enum):
    PROBE = auto()
    PIPELINE = auto()
    SNAPSHOT = auto()


class FlowEvent(Enum):
    ACCEPTED = auto()  # an append fitted
    REJECTED = auto()  # an append did not fit, and that is news
    ENTRIES_GONE = auto()  # the entries that it needs are only in the snapshot
    INSTALLED = auto()  # it has the snapshot, or no longer needs it


NEXT: dict[tuple[Flow, FlowEvent], Flow] = {
    (Flow.PROBE, FlowEvent.ACCEPTED): Flow.PIPELINE,
    (Flow.PROBE, FlowEvent.REJECTED): Flow.PROBE,
    (Flow.PROBE, FlowEvent.ENTRIES_GONE): Flow.SNAPSHOT,
    (Flow.PIPELINE, FlowEvent.ACCEPTED): Flow.PIPELINE,
    (Flow.PIPELINE, FlowEvent.REJECTED): Flow.PROBE,
    (Flow.PIPELINE, FlowEvent.ENTRIES_GONE): Flow.SNAPSHOT,
    (Flow.SNAPSHOT, FlowEvent.INSTALLED): Flow.PROBE,
}


class Progress:
    """One follower. `match_index` is the last entry that it surely has on disk, `next_index` what it gets next."""

    __slots__ = (
        "contact_ms",
        "flow",
        "in_flight",
        "is_waiting",
        "match_index",
        "next_index",
        "round",
        "snapshot",
        "snapshot_crc",
        "snapshot_offset",
    )

    def __init__(self, next_index: int, now_ms: float) -> None:
        self.contact_ms = now_ms  # start of the newest round that it answered, or time of its addition
        self.flow = Flow.PROBE
        self.match_index = 0
        self.next_index = next_index
        self.round = 0  # the newest of the leader's rounds that it answered
        self.is_waiting = False  # PROBE and SNAPSHOT: the one message is under way
        self.in_flight: deque[int] = deque()  # PIPELINE: the last index of each message under way
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0
        self.snapshot_crc = 0

    def may_send(self, in_flight_max: int) -> bool:
        if self.flow is Flow.PIPELINE:
            return len(self.in_flight) < in_flight_max
        return not self.is_waiting

    def sent(self, last_index: int) -> None:
        """Entries up to `last_index` went out."""
        if self.flow is Flow.PIPELINE:
            self.next_index = last_index + 1
            self.in_flight.append(last_index)
        else:
            self.is_waiting = True

    def accepted(self, index: int) -> bool:
        """It has everything up to `index`. Return whether that is news."""
        is_news = index > self.match_index
        self.match_index = max(self.match_index, index)
        self.next_index = max(self.next_index, self.match_index + 1)
        while self.in_flight and self.in_flight[0] <= self.match_index:
            self.in_flight.popleft()
        assert self.next_index > self.match_index, "entries that the follower has are sent again"
        if self.flow is not Flow.SNAPSHOT:
            self._move(FlowEvent.ACCEPTED)
        elif self.snapshot is not None and self.match_index >= self.snapshot.index:
            self.snapshot = None
            self.next_index = self.match_index + 1
            self._move(FlowEvent.INSTALLED)
        else:
            return is_news  # still without the entries that are gone
        self.is_waiting = False
        return is_news

    def rejected(self, rejected_index: int, next_index: int) -> None:
        """It lacks the entry at `rejected_index`; try from `next_index`. An answer to an older message changes nothing."""
        if self.flow is Flow.SNAPSHOT or rejected_index <= self.match_index:
            return
        if self.flow is Flow.PROBE and rejected_index != self.next_index - 1:
            return
        self.next_index = max(self.match_index + 1, min(next_index, rejected_index))
        self.in_flight.clear()
        self.is_waiting = False
        self._move(FlowEvent.REJECTED)

    def needs_snapshot(self, snapshot: Snapshot) -> None:
        self._move(FlowEvent.ENTRIES_GONE)
        self.snapshot, self.snapshot_offset, self.snapshot_crc = snapshot, 0, zlib.crc32(snapshot.data)
        self.in_flight.clear()
        self.is_waiting = False

    def chunk_arrived(self, index: int, offset: int) -> None:
        """It has `offset` bytes of the snapshot at `index`; it may have fewer than before when it started again."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.index != index or offset > len(snapshot.data):
            return
        # A second answer to the same chunk must not send the next one twice, and that one's answers four times.
        if offset != self.snapshot_offset:
            self.snapshot_offset = offset
            self.is_waiting = False

    def _move(self, event: FlowEvent) -> None:
        self.flow = NEXT[self.flow, event]
