"""Where a group stands in one queue: the only computation of lag. Core.

    min_offset .. committed .. pulled .. max_offset

Who shows lag, requests 208 and 317 and /metrics, takes it from here. What retention took is no lag: no consumer can read it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Offsets(Protocol):
    """What consumers have said."""

    def query(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int | None: ...


class Queues(Protocol):
    """What is stored."""

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


class QueuePosition(NamedTuple):
    """Offsets of one queue and one group. `committed` is None when the group never committed one."""

    committed: int | None
    pulled: int | None  # from where it pulls next; None when it has not pulled since this broker's start
    min_offset: int
    max_offset: int  # one past the last message that consumers see

    @property
    def first_unread(self) -> int | None:
        """The first message that is not consumed and still there, or the queue's end; None when that is not known."""
        return None if self.committed is None else min(max(self.committed, self.min_offset), self.max_offset)

    @property
    def first_unsent(self) -> int | None:
        """The first message that was not handed out, or the queue's end; None when that is not known."""
        first = self.first_unread
        return None if first is None else min(max(first, self.pulled or 0), self.max_offset)

    @property
    def lag(self) -> int | None:
        """Messages that are not consumed; None when that is not known."""
        first = self.first_unread
        return None if first is None else self.max_offset - first


def queue_position(queues: Queues, offsets: Offsets, group: str, topic: str, queue_id: int) -> QueuePosition:
    """Look at one queue."""
    committed = offsets.query(group, topic, queue_id)
    return QueuePosition(
        committed if committed is not None and committed >= 0 else None,
        offsets.query_pulled(group, topic, queue_id),
        max(0, queues.min_offset(topic, queue_id)),
        max(0, queues.max_offset(topic, queue_id)),
    )
