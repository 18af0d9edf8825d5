"""Offset requests: a group's committed offset (14, 15), and a queue's first offset, end and offset at a time (29 to 32).

Source: ConsumerManageProcessor and AdminBrokerProcessor (RocketMQ). All are plain functions: nothing here waits.
"""

from __future__ import annotations

from aerobee.broker.consumer.offset_service import OffsetService
from aerobee.broker.state.refusal import Refused, remote_refusal
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer

NOT_FOUND_REMARK = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
UPPER = "UPPER"


class OffsetCalls:
    """Answers 14, 15, 29, 30, 31 and 32."""

    def __init__(self, service: OffsetService) -> None:
        self._service = service

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
        offset = self._service.committed(
            request.text("consumerGroup"),
            request.text("topic"),
            request.integer("queueId"),
            new_queue_from_zero=request.boolean("setZeroIfNotFound", True),
        )
        if offset is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=NOT_FOUND_REMARK, ext={})
        return request.reply(ext={"offset": str(offset)})

    def commit(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """15: store the next offset to consume; it may be smaller than the previous one."""
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, offset = request.integer("queueId"), request.integer("commitOffset")
        try:
            is_stored = self._service.commit(group, topic, queue_id, offset, peer.address)
        except Refused as refused:
            refusal = remote_refusal(refused)
            return request.reply(refusal.code, remark=refusal.remark, ext={})
        return request.reply(remark=None if is_stored else "Offset has been previously reset", ext={})

    def by_time(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """29: LOWER (and anything else) the first offset stored at or after, UPPER the last at or before."""
        upper = request.text("boundaryType", "").upper() == UPPER
        offset = self._service.by_time(
            request.text("topic"), request.integer("queueId"), request.integer("timestamp"), upper=upper
        )
        return request.reply(ext={"offset": str(offset)})

    def maximum(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """30: the offset that the next message will get."""
        offset = self._service.maximum(request.text("topic"), request.integer("queueId"))
        return request.reply(ext={"offset": str(offset)})

    def minimum(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """31: the offset of the oldest stored message; -1 for a batch queue that never had one, as RocketMQ."""
        offset = self._service.minimum(request.text("topic"), request.integer("queueId"))
        return request.reply(ext={"offset": str(offset)}, remark="")

    def earliest_store_time(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """32: store time of the oldest message of a queue, ms; -1 without a message."""
        time_ms = self._service.earliest_store_time(request.text("topic"), request.integer("queueId"))
        return request.reply(ext={"timestamp": str(time_ms)})
