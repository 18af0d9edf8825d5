"""Where a group begins in a queue of which it has no offset yet.

Follows RebalancePushImpl.computePullFromWhereWithException, with one difference. RocketMQ's brokers answer 0 for a
group without an offset while the queue's first message is still in memory, so that CONSUME_FROM_LAST_OFFSET replays
a new topic from its start. We ask without that rule (setZeroIfNotFound=false): last means last.

What must not be missed at "last" is what is sent while the consumer runs. So a queue that was not there at the start
(a topic that was created later, a further broker, more queues) begins with what was stored since the start.
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
    10_000  # a broker's clock may be so far behind ours: rather a message too many than one too few
)


class FirstOffset:
    """Decides for one consumer. `known` queues were there when it started."""

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
        """These queues are there at the start."""
        self.known.update(queues)

    async def of(self, queue: MessageQueue) -> int:
        """The offset to begin with. Raises AerobeeError when it cannot be known now."""
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
    """Commit the end of each queue of which the group has no offset, before it pops there for the first time.

    A broker that begins at the end (initMode 1) also delivers the newest message, which was stored before.
    """

    async def begin(queue: MessageQueue) -> None:
        if await committed_offset(session, group, queue) is None:
            await commit_offset(session, group, queue, await end_offset(session, queue))

    await asyncio.gather(*(begin(queue) for queue in queues if not queue.topic.startswith(RETRY_PREFIX)))
