"""Fast path hooks of messages that a consumer sends back."""

from __future__ import annotations

import random
from collections.abc import Callable

from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.dead_letter import tries_bound
from aerobee.broker.state.config import PERM_WRITE, LiveConfig
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable
from aerobee.message import RETRY_PREFIX
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.store.message_store import MessageStore


class SendBackFastPath:
    """seam.SendBackHooks. What send_back_service.py looks up, without anything new: that is the handler's."""

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        stats: BrokerStats,
        live: LiveConfig,
        role: RoleState,
        pick: Callable[[int], int] = random.randrange,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._live = live
        self._role = role
        self.pick = pick

    def group(self, name: str) -> tuple[TopicConfig, int] | None:
        """As SendBackHooks."""
        group, topic = self._groups.get(name), self._topics.get(RETRY_PREFIX + name)
        if (
            group is None
            or topic is None
            or group.retry_queue_nums <= 0
            or topic.write_queue_nums <= 0
            or not self._live.value.broker_permission & PERM_WRITE
            or not self._role.is_master
            or self._topics.retry_topic(name, group.retry_queue_nums) is not topic
        ):
            return None
        return topic, tries_bound(group, None)

    def is_record(
        self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int
    ) -> bool:
        """As SendBackHooks."""
        store = self._store
        if physical_offset + size > store.durability.readable_offset:
            return False
        try:
            return store.has_entry(topic, queue_id, queue_offset, physical_offset, size)
        except OSError:  # the queue's file cannot be opened: the handler answers with the reason
            return False

    def sent_back(self, group: str, topic: str, count: int) -> None:
        """As SendBackHooks."""
        for _ in range(count):
            self._stats.send_back(group, topic)
