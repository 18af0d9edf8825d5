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
    ACCEPTED = auto()  # an append was accepted
    REJECTED = auto()  # an append was rejected, and not as a reply to an older message
    ENTRIES_GONE = auto()  # the follower needs entries that only the snapshot contains
    INSTALLED = auto()  # the follower has the snapshot, or no longer needs it


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
    """One follower. `match_index` is the last entry that it surely has on disk, `next_index` the next entry to send."""

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
        # start of the newest round that the follower answered, or time of its addition
        self.contact_ms = now_ms
        self.flow = Flow.PROBE
        self.match_index = 0
        self.next_index = next_index
        self.round = 0  # the newest round that the follower answered
        self.is_waiting = False  # PROBE and SNAPSHOT: the single message is in flight
        self.in_flight: deque[int] = deque()  # PIPELINE: last index of each message in flight
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0
        self.snapshot_crc = 0

    def may_send(self, in_flight_max: int) -> bool:
        if self.flow is Flow.PIPELINE:
            return len(self.in_flight) < in_flight_max
        return not self.is_waiting

    def sent(self, last_index: int) -> None:
        """Note that entries up to `last_index` were sent."""
        if self.flow is Flow.PIPELINE:
            self.next_index = last_index + 1
            self.in_flight.append(last_index)
        else:
            self.is_waiting = True

    def accepted(self, index: int) -> bool:
        """Note that the follower has every entry up to `index`. Return whether `match_index` rose."""
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
            return is_news  # it still needs dropped entries
        self.is_waiting = False
        return is_news

    def rejected(self, rejected_index: int, next_index: int) -> None:
        """The follower lacks the entry at `rejected_index`; continue at `next_index`. A reply to an older
        message changes nothing.
        """
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
        """The follower has `offset` bytes of the snapshot at `index`; fewer than before when it has restarted."""
        snapshot = self.snapshot
        if snapshot is None or snapshot.index != index or offset > len(snapshot.data):
            return
        # A duplicate reply must not send the next chunk twice: the replies to it would double again.
        if offset != self.snapshot_offset:
            self.snapshot_offset = offset
            self.is_waiting = False

    def _move(self, event: FlowEvent) -> None:
        self.flow = NEXT[self.flow, event]
