"""The start offset of a group in a queue without a committed offset.

Follows RebalancePushImpl.computePullFromWhereWithException, with one difference. RocketMQ's brokers answer 0 for a
group without an offset while the queue's first message is still in memory, so that CONSUME_FROM_LAST_OFFSET replays a
new topic from its start. This client queries without that rule (setZeroIfNotFound=false), so that "last" is always the
end of the queue.

With "last", the group must not miss messages sent while the consumer runs. A queue that did not exist at the start (a
new topic, a new broker, more queues) therefore begins with the messages stored since the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aerobee.client.base.config import ConsumeFrom
from aerobee.client.consumer.broker_calls import (
    begin_offset,
    commit_offset,
    committed_offset,
    end_offset,
    offset_for_time,
)
from aerobee.client.session.session import Session
from aerobee.message import RETRY_PREFIX, MessageQueue

HALF_AN_HOUR_MS = 30 * 60 * 1000
CLOCKS_DIFFER_MS = (
    # Assumed maximum clock skew of a broker: the group may receive a message too many, never one too few.
    10_000
)


class FirstOffset:
    """Start offsets for one consumer. `known` queues existed when it started."""

    def __init__(self, session: Session, consume_from: ConsumeFrom, timestamp_ms: int) -> None:
        """`timestamp_ms`: for ConsumeFrom.TIMESTAMP; 0 is half an hour before the start."""
        self._session = session
        self._consume_from = consume_from
        self._timestamp_ms = timestamp_ms
        self._started_ms = 0
        self.known: set[MessageQueue] = set()

    def start(self, now_ms: int) -> None:
        """The consumer starts now, ms since the epoch."""
        self._started_ms = now_ms

    def know(self, queues: Iterable[MessageQueue]) -> None:
        """Record the queues that exist at the start."""
        self.known.update(queues)

    async def of(self, queue: MessageQueue) -> int:
        """The start offset. Raises AerobeeError when no broker can answer now."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if self._consume_from is ConsumeFrom.FIRST or (is_retry and self._consume_from is ConsumeFrom.LAST):
            return max(
                0, await begin_offset(self._session, queue)
            )  # RocketMQ: -1 for a batch queue without one
        if is_retry:
            return await end_offset(self._session, queue)
        if self._consume_from is ConsumeFrom.LAST:
            if queue in self.known:
                return await end_offset(self._session, queue)
            return await offset_for_time(self._session, queue, self._started_ms - CLOCKS_DIFFER_MS)
        timestamp_ms = self._timestamp_ms or self._started_ms - HALF_AN_HOUR_MS
        return await offset_for_time(self._session, queue, timestamp_ms)


async def begin_at_end(session: Session, group: str, queues: Iterable[MessageQueue]) -> None:
    """Commit the end of each queue without a committed offset, before the group's first pop from it.

    A broker that starts at the end itself (initMode 1) also delivers the newest stored message.
    """

    async def begin(queue: MessageQueue) -> None:
        if await committed_offset(session, group, queue) is None:
            await commit_offset(session, group, queue, await end_offset(session, queue))

    await asyncio.gather(*(begin(queue) for queue in queues if not queue.topic.startswith(RETRY_PREFIX)))
