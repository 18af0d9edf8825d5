"""Offsets, independent of the protocol: committed offsets of groups; first offset, end, and offset by time of queues.

Source: ConsumerManageProcessor and AdminBrokerProcessor (RocketMQ). All are plain functions: nothing here waits. offset_calls.py is
the encoder for remoting. Queues are this broker's own: static_topic/ maps logical ones.
"""

from __future__ import annotations

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.state.refusal import Reason, Refused
from aerobee.broker.state.topic_table import TopicTable
from aerobee.store.message_store import MessageStore


class OffsetService:
    """Reads and commits offsets. Belongs to the event loop."""

    def __init__(
        self, *, offsets: ConsumerOffsets, groups: GroupTable, topics: TopicTable, store: MessageStore
    ) -> None:
        self._offsets = offsets
        self._groups = groups
        self._topics = topics
        self._store = store

    def committed(
        self, group: str, topic: str, queue_id: int, *, new_queue_from_zero: bool = False
    ) -> int | None:
        """The group's next offset; None without one. `new_queue_from_zero`: 0 instead, while the queue's first message is in memory."""
        offset = self._offsets.query(group, topic, queue_id)
        if offset is None and new_queue_from_zero and self._is_young(topic, queue_id):
            # A new group on a topic that still has its first message in memory reads from the beginning, so that
            # messages sent just before the group's first start are not missed.
            return 0
        return offset

    def commit(self, group: str, topic: str, queue_id: int, offset: int, address: str) -> bool:
        """Store the next offset to consume; it may be smaller than the previous one. `address`: of who commits.

        False: an operator has reset the offset, and this one is not stored. Raises Refused.
        """
        if self._groups.get(group) is None:
            raise Refused(Reason.GROUP_UNKNOWN, f"Group {group} not exist!")
        config = self._topics.get(topic)
        if config is None:
            raise Refused(Reason.TOPIC_UNKNOWN, f"Topic {topic} not exist!")
        queue_count = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_count or offset < 0:
            raise Refused(
                Reason.OFFSET_IMPOSSIBLE,
                f"queueId {queue_id} and commitOffset {offset}: {topic} has queues 0 to {queue_count - 1}, and no "
                "offset is below 0",
            )
        if self._offsets.has_resets and self._offsets.reset_pending(group, topic, queue_id):
            return False
        refusal = self._offsets.commit_by_client(group, topic, queue_id, offset, address)
        if refusal:
            raise Refused(Reason.OFFSET_ILLEGAL, refusal)
        return True

    def by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at that time or after; with `upper` the last at that time or before."""
        return self._store.offset_by_time(topic, queue_id, time_ms, upper=upper)

    def maximum(self, topic: str, queue_id: int) -> int:
        """The offset that the next message will get."""
        return self._store.max_offset(topic, queue_id)

    def minimum(self, topic: str, queue_id: int) -> int:
        """The offset of the oldest stored message; -1 for a batch queue that never had one, as RocketMQ."""
        config = self._topics.get(topic)
        if config is not None and config.is_batch and not self._store.max_offset(topic, queue_id):
            return -1
        return self._store.min_offset(topic, queue_id)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the oldest message of a queue, ms; -1 without a message."""
        offset = self._store.min_offset(topic, queue_id)
        return self._store.store_time(topic, queue_id, offset) if offset >= 0 else -1

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether the queue still has its message at offset 0, and has it in memory."""
        return (
            self._store.min_offset(topic, queue_id) <= 0
            and self._store.max_offset(topic, queue_id) > 0
            and not self._store.is_cold(topic, queue_id, 0)
        )
