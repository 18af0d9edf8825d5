"""PullMessage, UpdateOffset, GetOffset and QueryOffset, served by the handlers of remoting's pulls and offsets.

No released client of RocketMQ calls them, and its proxy answers UNIMPLEMENTED. A queue is named as QueryRoute numbers it. The
stream of a pull is a status, the messages, and the offset to continue at: OK, MESSAGE_NOT_FOUND when the polling time has passed or
the filter left none, ILLEGAL_OFFSET when the queue has no such offset.
"""

from __future__ import annotations

from typing import Protocol

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.message_form import delivered_message
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, code_of, status
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import ResponseStream, RpcContext
from aerobee.broker.grpc.times import duration_ms, timestamp_ms
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.message import decode_records
from aerobee.remoting.body.subscription import TYPE_SQL92, TYPE_TAG
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import HOLD_MS_MAX, OFFSET_MAX, PULL_SUBSCRIPTION, PULL_SUSPEND

BATCH_SIZE_MAX = 32
DEADLINE_SLACK_MS = 500  # an answer needs that long before the client's deadline
_NOT_FOUND = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


class QueueRequests(Protocol):
    """Makes requests about a queue: to the broker's handlers, or from a proxy to the queue's broker.

    A protocol, because the proxy, which has the other implementation, lies above.
    """

    async def topic(self, name: str, broker_name: str) -> TopicConfig | None:
        """The topic at the queue's broker, None if it has no such topic. Raises RpcRefused, RemoteError."""
        ...

    async def reply(
        self, context: RpcContext, broker_name: str, code: int, ext: dict[str, str], *, hold_ms: int = 0
    ) -> RemotingCommand:
        """The reply, whatever its code. Raises RemoteError, RpcRefused."""
        ...


class OwnQueues:
    """The queues of this broker: a QueueRequests. The broker that a request names is not looked at."""

    def __init__(self, topics: TopicTable, requests: BrokerRequests) -> None:
        self._topics = topics
        self._requests = requests

    async def topic(self, name: str, broker_name: str) -> TopicConfig | None:
        """As QueueRequests."""
        return self._topics.get(name)

    async def reply(
        self, context: RpcContext, broker_name: str, code: int, ext: dict[str, str], *, hold_ms: int = 0
    ) -> RemotingCommand:
        """As QueueRequests."""
        return await self._requests.reply(context, code, ext)


class PullRpcs:
    """Serves the four RPCs."""

    def __init__(self, *, queues: QueueRequests, access: RpcAccess, clock: Clock) -> None:
        self._queues = queues
        self._access = access
        self._clock = clock

    async def pull(self, context: RpcContext, request: pb.PullMessageRequest, stream: ResponseStream) -> None:
        """Send what the queue has from the offset on; wait for it if asked to. Raises RpcRefused, RemoteError."""
        group = group_name(request.group)
        topic, queue_id = await self._queue(request.message_queue, "PULL_MESSAGE", context, group)
        if not 0 <= request.offset <= OFFSET_MAX:
            raise RpcRefused(pb.ILLEGAL_OFFSET, f"offset {request.offset} is below 0")
        hold_ms = self._hold_ms(context, request)
        is_sql = request.filter_expression.type == pb.SQL
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(request.offset),
            "maxMsgNums": str(min(max(1, request.batch_size), BATCH_SIZE_MAX)),
            "sysFlag": str(PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0)),
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": request.filter_expression.expression or "*",
            "expressionType": TYPE_SQL92 if is_sql else TYPE_TAG,
            "subVersion": "0",
            "commitOffset": "0",
        }
        broker = request.message_queue.broker.name
        reply = await self._queues.reply(context, broker, RequestCode.PULL_MESSAGE, ext, hold_ms=hold_ms)
        if reply.code == ResponseCode.SUCCESS:
            await stream.send(pb.PullMessageResponse(status=status()))
            for record in decode_records(reply.body, check_crc=False):
                await stream.send(pb.PullMessageResponse(message=delivered_message(record, topic=topic)))
        elif reply.code in _NOT_FOUND:
            found = status(pb.MESSAGE_NOT_FOUND, "no new message")
            await stream.send(pb.PullMessageResponse(status=found))
        elif reply.code == ResponseCode.PULL_OFFSET_MOVED:
            text = f"the queue has no offset {request.offset}: continue at the next_offset"
            await stream.send(pb.PullMessageResponse(status=status(pb.ILLEGAL_OFFSET, text)))
        else:
            raise RpcRefused(code_of(reply.code), reply.remark or "")
        await stream.send(
            pb.PullMessageResponse(next_offset=reply.integer("nextBeginOffset", request.offset))
        )

    async def update_offset(
        self, context: RpcContext, request: pb.UpdateOffsetRequest
    ) -> pb.UpdateOffsetResponse:
        """Store where the group continues. Raises RpcRefused, RemoteError."""
        group = group_name(request.group)
        topic, queue_id = await self._queue(request.message_queue, "UPDATE_CONSUMER_OFFSET", context, group)
        if request.offset < 0:
            raise RpcRefused(pb.ILLEGAL_OFFSET, f"offset {request.offset} is below 0")
        ext = {**_offset_fields(group, topic, queue_id), "commitOffset": str(request.offset)}
        await self._ask(context, request.message_queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        return pb.UpdateOffsetResponse(status=status())

    async def get_offset(self, context: RpcContext, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
        """The group's committed offset. Raises RpcRefused, RemoteError."""
        group = group_name(request.group)
        topic, queue_id = await self._queue(request.message_queue, "QUERY_CONSUMER_OFFSET", context, group)
        ext = {**_offset_fields(group, topic, queue_id), "setZeroIfNotFound": "false"}
        try:
            reply = await self._ask(context, request.message_queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except RemoteError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                raise RpcRefused(pb.OFFSET_NOT_FOUND, "the group has no offset of this queue") from error
            raise
        return pb.GetOffsetResponse(status=status(), offset=reply.integer("offset"))

    async def query_offset(
        self, context: RpcContext, request: pb.QueryOffsetRequest
    ) -> pb.QueryOffsetResponse:
        """An offset of the queue: its first, its next, or the first of a time. Raises RpcRefused, RemoteError."""
        policy = request.query_offset_policy
        codes = {pb.BEGINNING: RequestCode.GET_MIN_OFFSET, pb.END: RequestCode.GET_MAX_OFFSET}
        code = codes.get(policy, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        topic, queue_id = await self._queue(request.message_queue, code.name, context)
        ext = {"topic": topic, "queueId": str(queue_id)}
        if code is RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            if not request.HasField("timestamp"):
                raise RpcRefused(pb.BAD_REQUEST, "the query by TIMESTAMP has no timestamp")
            ext["timestamp"] = str(max(0, timestamp_ms(request.timestamp)))
        reply = await self._ask(context, request.message_queue, code, ext)
        return pb.QueryOffsetResponse(status=status(), offset=reply.integer("offset"))

    async def _ask(
        self, context: RpcContext, queue: pb.MessageQueue, code: RequestCode, ext: dict[str, str]
    ) -> RemotingCommand:
        reply = await self._queues.reply(context, queue.broker.name, code, ext)
        if reply.code != ResponseCode.SUCCESS:
            raise RemoteError(reply.code, reply.remark or "")
        return reply

    async def _queue(
        self, queue: pb.MessageQueue, code: str, context: RpcContext, group: str = ""
    ) -> tuple[str, int]:
        """Topic and queue id at the broker. The user is checked before anything is looked up. Raises RpcRefused."""
        name = topic_name(queue.topic)
        ext = {"topic": name, "consumerGroup": group} if group else {"topic": name}
        self._access.check(context.peer, context.metadata, RemotingCommand(RequestCode[code], ext))
        topic = await self._queues.topic(name, queue.broker.name)
        if topic is None:
            raise RpcRefused(pb.TOPIC_NOT_FOUND, f"the topic {name} does not exist")
        queue_id = queue_at_broker(topic, queue.id)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise RpcRefused(pb.BAD_REQUEST, f"topic {name} has no queue {queue.id} to read")
        return name, queue_id

    def _hold_ms(self, context: RpcContext, request: pb.PullMessageRequest) -> int:
        hold_ms = duration_ms(request.long_polling_timeout)
        if context.deadline is not None:
            left_ms = int((context.deadline - self._clock.monotonic()) * 1000) - DEADLINE_SLACK_MS
            hold_ms = min(hold_ms, left_ms)
        return min(max(0, hold_ms), HOLD_MS_MAX)


def queue_at_broker(topic: TopicConfig, number: int) -> int:
    """The queue that QueryRoute shows under this number: it numbers queues for writing alone before those for both."""
    reads = topic.read_queue_nums if topic.is_readable else 0
    writes = topic.write_queue_nums if topic.is_writable else 0
    return number - max(0, writes - reads)


def _offset_fields(group: str, topic: str, queue_id: int) -> dict[str, str]:
    return {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
