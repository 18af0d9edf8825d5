"""Lag of a group in one queue, from its position there: the only computation of lag. Core.

    min_offset .. committed .. pulled .. max_offset

Requests 208 and 317 and /metrics use this lag. Messages removed by retention are not lag, because no consumer can read
them.
"""

from __future__ import annotations

from typing import NamedTuple

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.store.message_store import MessageStore


class QueuePosition(NamedTuple):
    """Offsets of one queue and one group. `committed` is None when the group never committed one."""

    committed: int | None
    pulled: int | None  # from where it pulls next; None when it has not pulled since this broker's start
    min_offset: int
    max_offset: int  # one past the last message that consumers see

    @property
    def first_unread(self) -> int | None:
        """The first stored message that is not consumed, or the queue's end; None when unknown."""
        return None if self.committed is None else min(max(self.committed, self.min_offset), self.max_offset)

    @property
    def first_unsent(self) -> int | None:
        """The first message that was not delivered, or the queue's end; None when unknown."""
        first = self.first_unread
        return None if first is None else min(max(first, self.pulled or 0), self.max_offset)

    @property
    def lag(self) -> int | None:
        """Number of messages that are not consumed; None when unknown."""
        first = self.first_unread
        return None if first is None else self.max_offset - first


def queue_position(
    queues: MessageStore, offsets: ConsumerOffsets, group: str, topic: str, queue_id: int
) -> QueuePosition:
    """Read the position in one queue."""
    committed = offsets.query(group, topic, queue_id)
    return QueuePosition(
        committed if committed is not None and committed >= 0 else None,
        offsets.query_pulled(group, topic, queue_id),
        max(0, queues.min_offset(topic, queue_id)),
        max(0, queues.max_offset(topic, queue_id)),
    )
