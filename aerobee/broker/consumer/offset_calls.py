"""Offset requests: a group's committed offset (14, 15), and a queue's first offset, end and offset at a time (29 to 32).

Source: ConsumerManageProcessor and AdminBrokerProcessor (RocketMQ). All are plain functions: nothing here waits.
"""

from __future__ import annotations

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import MalformedFrame
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.message_store import MessageStore

NOT_FOUND_REMARK = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
UPPER = "UPPER"


class OffsetCalls:
    """Answers 14, 15, 29, 30, 31 and 32."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        groups: GroupTable,
        topics: TopicTable,
        store: MessageStore,
        live: LiveConfig,
    ) -> None:
        self._offsets = offsets
        self._groups = groups
        self._topics = topics
        self._store = store
        self._live = live

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.commit,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def query(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """14: the committed offset. Without one a new queue gives 0, any other QUERY_NOT_FOUND.

        The client takes QUERY_NOT_FOUND as "start where the consumer says"; any other error makes it try again.
        """
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id = request.integer("queueId")
        offset = self._offsets.query(group, topic, queue_id)
        if offset is None and request.boolean("setZeroIfNotFound", True) and self._is_young(topic, queue_id):
            # A new group on a topic that still has its first message in memory reads from the beginning, so that
            # messages sent just before the group's first start are not missed.
            offset = 0
        if offset is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=NOT_FOUND_REMARK, ext={})
        return request.reply(ext={"offset": str(offset)})

    def commit(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """15: store the next offset to consume; it may be smaller than the previous one."""
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, offset = request.integer("queueId"), request.integer("commitOffset")
        if self._groups.get(group) is None:
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"Group {group} not exist!", ext={}
            )
        config = self._topics.get(topic)
        if config is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {topic} not exist!", ext={})
        queue_count = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_count or offset < 0:
            raise MalformedFrame(
                f"queueId {queue_id} and commitOffset {offset}: {topic} has queues 0 to {queue_count - 1}, and no "
                "offset is below 0"
            )
        if self._offsets.has_resets and self._offsets.reset_pending(group, topic, queue_id):
            return request.reply(remark="Offset has been previously reset", ext={})
        refusal = self._offsets.commit_by_client(group, topic, queue_id, offset, peer.address)
        if refusal:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=refusal, ext={})
        return request.reply(ext={})

    def by_time(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """29: LOWER (and anything else) the first offset stored at or after, UPPER the last at or before."""
        upper = request.text("boundaryType", "").upper() == UPPER
        offset = self._store.offset_by_time(
            request.text("topic"), request.integer("queueId"), request.integer("timestamp"), upper=upper
        )
        return request.reply(ext={"offset": str(offset)})

    def maximum(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """30: the offset that the next message will get."""
        offset = self._store.max_offset(request.text("topic"), request.integer("queueId"))
        return request.reply(ext={"offset": str(offset)})

    def minimum(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """31: the offset of the oldest stored message; -1 for a batch queue that never had one, as RocketMQ."""
        topic, queue_id = request.text("topic"), request.integer("queueId")
        offset = self._store.min_offset(topic, queue_id)
        config = self._topics.get(topic)
        if config is not None and config.is_batch and not self._store.max_offset(topic, queue_id):
            offset = -1
        return request.reply(ext={"offset": str(offset)}, remark="")

    def earliest_store_time(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """32: store time of the oldest message of a queue, ms; -1 without a message."""
        topic, queue_id = request.text("topic"), request.integer("queueId")
        offset = self._store.min_offset(topic, queue_id)
        time_ms = self._store.store_time(topic, queue_id, offset) if offset >= 0 else -1
        return request.reply(ext={"timestamp": str(time_ms)})

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether the queue's message at offset 0 is there and still in memory."""
        return (
            self._store.min_offset(topic, queue_id) <= 0
            and self._store.max_offset(topic, queue_id) > 0
            and not self._store.is_cold(topic, queue_id, 0)
        )
