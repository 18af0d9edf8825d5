"""Removes lite topics that had no message for as long as their topic's attribute lite.topic.expiration says.

A lite topic with messages that a group has not consumed stays, and so does every one younger than 15 minutes. Lite topics of a deleted
topic are removed. Source: AbstractLiteLifecycleManager (RocketMQ 5.5.0).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.pop.order_info import OrderInfo
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.lite_topic import LITE_PREFIX, split_lite_queue
from aerobee.remoting.protocol import LITE_EXPIRATION
from aerobee.store.message_store import MessageStore
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID

log = logging.getLogger(__name__)

IDLE_MS_MIN = 900_000  # minLiteTTl
SLICE_COUNT = 50  # lite topics looked at in one event loop iteration


class LiteExpiry:
    """Finds and removes expired lite topics of one broker."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        orders: OrderInfo,
        stats: BrokerStats,
        clock: Clock,
        may_delete: Callable[[], bool],
    ) -> None:
        """`may_delete`: whether this broker is master."""
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._orders = orders
        self._stats = stats
        self._clock = clock
        self._may_delete = may_delete
        self._is_running = False

    async def run(self) -> None:
        """Remove what has expired; other requests are served in between. Does nothing while it runs already."""
        if self._is_running:
            return
        self._is_running = True
        try:
            names = [name for name, _ in self._store.queues if name.startswith(LITE_PREFIX)]
            for start in range(0, len(names), SLICE_COUNT):
                if not self._may_delete():
                    return
                await self._remove(
                    [each for each in names[start : start + SLICE_COUNT] if self.has_expired(each)]
                )
                await asyncio.sleep(0)
        finally:
            self._is_running = False

    def has_expired(self, lmq: str) -> bool:
        """Whether the lite topic of this LMQ is to be removed."""
        found = split_lite_queue(lmq)
        high = self._store.max_offset(lmq, LMQ_QUEUE_ID)
        if found is None or not high:
            return False
        idle_ms = self._clock.now_ms() - self._store.store_time(lmq, LMQ_QUEUE_ID, high - 1)
        if idle_ms < IDLE_MS_MIN:
            return False
        topic = self._topics.get(found[0])
        if topic is None:
            return True
        text = topic.attributes.get(LITE_EXPIRATION, "")
        minutes = int(text) if text.isdecimal() and len(text) < 12 else 0
        return 0 < minutes * 60_000 <= idle_ms and not self._is_wanted(lmq, high)

    def _is_wanted(self, lmq: str, high: int) -> bool:
        offsets = (self._offsets.query(group, lmq, LMQ_QUEUE_ID) for group in self._offsets.groups_of(lmq))
        return any(offset is not None and offset < high for offset in offsets)

    async def _remove(self, lmqs: list[str]) -> None:
        if not lmqs:
            return
        for lmq in lmqs:
            for group in self._offsets.groups_of(lmq):
                self._orders.clear(lmq, group)
            self._offsets.remove_topic(lmq)
            self._stats.remove_topic(lmq)
        await self._store.delete_topics(lmqs)
        log.info("%d lite topics expired, the first is %s", len(lmqs), lmqs[0])
