"""RPCs of the Admin service about messages: QueryMessage, VerifyMessage, AdminSendMessage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aerobee.broker.filter.sql92 import FilterSyntaxError
from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_forms import (
    BATCH_COUNT,
    MESSAGES_MAX,
    count_of,
    has_key,
    page_of,
    query_response,
    records_of,
    sent_message,
    time_range,
    verify_response,
)
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.send_message import SendRpc
from aerobee.broker.parts.parts import BrokerParts
from aerobee.errors import RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue, lite_topic_fault
from aerobee.message import Record
from aerobee.remoting.body.subscription import parse_tags
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.protocol import OFFSET_MAX, TYPE_ATTRIBUTE
from aerobee.remoting.signature import UNIQUE_KEY_QUERY
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID

SCANNED_MAX = 2_000  # messages that one call reads: a scroll_id says where the next one continues


class Scroll(NamedTuple):
    """Where a scan continues: an offset of a queue. Its text is `<queue id>:<offset>`."""

    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.queue_id}:{self.offset}"


class AdminMessageRpcs:
    """Serves these RPCs."""

    def __init__(self, *, parts: BrokerParts, calls: AdminCalls, send: SendRpc) -> None:
        self._parts = parts
        self._calls = calls
        self._send = send

    # --- QueryMessage

    async def query(self, context: RpcContext, request: pb.ListMessageRequest) -> pb.QueryMessageResponse:
        """Messages of a topic by id, by key, by filter or of a lite topic, stored within a time range, both ends included.

        Raises RpcRefused, RemoteError.
        """
        self._calls.may_read(context)
        topic = topic_name(request.topic)
        count, (begin_ms, end_ms) = count_of(request), time_range(request)
        kind = request.WhichOneof("search_key")
        if kind in ("message_id", "message_key"):
            is_id = kind == "message_id"
            key = request.message_id if is_id else request.message_key
            records = await self._by_key(context, topic, key, begin_ms, end_ms, is_id=is_id)
            return query_response(topic, page_of(request, records))
        self._calls.check(context, RequestCode.QUERY_MESSAGE, {"topic": topic})
        wanted: Callable[[Record, bytes], bool] = _everything
        if kind == "lite_topic":
            if fault := lite_topic_fault(request.lite_topic):
                raise RpcRefused(pb.ILLEGAL_LITE_TOPIC, fault)
            stored, queues = lite_queue(topic, request.lite_topic), [LMQ_QUEUE_ID]
        else:
            stored, queues, wanted = topic, self._queues(topic, request), self._filter(request.subscription)
        start = _scroll(request.scroll_id) if request.scroll_id else None
        return await self._scan(topic, stored, queues, wanted, start, count, begin_ms, end_ms)

    async def _by_key(
        self, context: RpcContext, topic: str, key: str, begin_ms: int, end_ms: int, *, is_id: bool
    ) -> list[Record]:
        if not key.strip():
            raise RpcRefused(pb.BAD_REQUEST, "the message id or key is blank")
        ext = {"topic": topic, "key": key, "maxNum": str(MESSAGES_MAX)}
        ext |= {"beginTimestamp": str(begin_ms), "endTimestamp": str(end_ms)}
        if is_id:
            ext[UNIQUE_KEY_QUERY] = "true"
        try:
            reply = await self._calls.ask(context, RequestCode.QUERY_MESSAGE, **ext)
        except RemoteError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return []
        wanted = has_key(key, is_id=is_id)
        return [record for record, _ in records_of(reply.body) if wanted(record)]

    def _queues(self, topic: str, request: pb.ListMessageRequest) -> list[int]:
        config = self._parts.topics.get(topic)
        if config is None:
            raise RpcRefused(pb.TOPIC_NOT_FOUND, f"the topic {topic} does not exist")
        name = self._parts.identity.name
        if request.HasField("broker_name") and request.broker_name not in ("", name):
            raise RpcRefused(pb.BAD_REQUEST, f"this broker is {name}, not {request.broker_name[:80]}")
        if not request.HasField("queue_id"):
            return list(range(config.read_queue_nums))
        if not 0 <= request.queue_id < config.read_queue_nums:
            raise RpcRefused(pb.BAD_REQUEST, f"topic {topic} has no queue {request.queue_id}")
        return [request.queue_id]

    def _filter(self, expression: pb.FilterExpression) -> Callable[[Record, bytes], bool]:
        """Raises RpcRefused."""
        if expression.type != pb.SQL:
            tags = frozenset(parse_tags(expression.expression or "*"))
            return _everything if not tags or "*" in tags else lambda record, data: record.tag in tags
        try:
            program = self._parts.expressions.get(expression.expression)
        except FilterSyntaxError as error:
            raise RpcRefused(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
        test = program.test.record
        return lambda record, data: test(data)

    async def _scan(
        self,
        topic: str,
        stored: str,
        queues: list[int],
        wanted: Callable[[Record, bytes], bool],
        start: Scroll | None,
        count: int,
        begin_ms: int,
        end_ms: int,
    ) -> pb.QueryMessageResponse:
        """Read queue by queue, from the first message of the time range on, in small pieces."""
        store, found = self._parts.store, list[Record]()
        left = SCANNED_MAX
        for queue_id in queues:
            if start is not None and queue_id < start.queue_id:
                continue
            offset = store.min_offset(stored, queue_id)
            if start is not None and queue_id == start.queue_id:
                offset = max(offset, start.offset)
            elif begin_ms:
                offset = max(offset, store.offset_by_time(stored, queue_id, begin_ms))
            while offset < store.max_offset(stored, queue_id):
                if len(found) >= count or left <= 0:
                    return query_response(topic, found, Scroll(queue_id, offset))
                want = min(BATCH_COUNT, count - len(found))
                result = await store.get_messages_cold(stored, queue_id, offset, count_max=want)
                for record, data in records_of(result.body):
                    left -= 1
                    if record.store_timestamp > end_ms:
                        break
                    if record.store_timestamp >= begin_ms and wanted(record, data):
                        found.append(record)
                else:
                    if result.next_offset <= offset:
                        break
                    offset = result.next_offset
                    await asyncio.sleep(0)
                    continue
                break
        return query_response(topic, found)

    # --- VerifyMessage

    async def verify(self, context: RpcContext, request: pb.VerifyMessageRequest) -> pb.VerifyMessageResponse:
        """Let one client consume a message once more. Raises RpcRefused, RemoteError."""
        self._calls.may_change(context)
        topic, group = topic_name(request.topic), group_name(request.group)
        records = await self._by_key(context, topic, request.message_id, 0, OFFSET_MAX, is_id=True)
        if not records:
            text = f"topic {topic} has no message {request.message_id[:80]}"
            raise RpcRefused(pb.MESSAGE_NOT_FOUND, text)
        reply = await self._calls.ask(
            context,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            topic=topic,
            consumerGroup=group,
            clientId=request.client_id,
            msgId=records[0].offset_message_id,
        )
        return verify_response(reply.body)

    # --- AdminSendMessage

    def send(
        self, context: RpcContext, request: pb.AdminSendMessageRequest
    ) -> Awaitable[pb.AdminSendMessageResponse]:
        """Store a message as SendMessage does. Keys of ext_info have no effect here. Raises RpcRefused."""
        self._calls.may_change(context)
        name = topic_name(request.topic)
        config = self._parts.topics.get(name)
        kind = "" if config is None else config.attributes.get(TYPE_ATTRIBUTE, "")
        message_id = self._parts.unique_keys.next(self._parts.clock.now_ms())
        message = sent_message(request, kind, message_id)
        return self._sent(context, message)

    async def _sent(self, context: RpcContext, message: pb.Message) -> pb.AdminSendMessageResponse:
        sent = self._send.send(context, pb.SendMessageRequest(messages=[message]))
        answer = sent if isinstance(sent, pb.SendMessageResponse) else await sent
        return pb.AdminSendMessageResponse(
            status=answer.status, message_id=message.system_properties.message_id
        )


def _scroll(text: str) -> Scroll:
    """Raises RpcRefused."""
    queue_id, _, offset = text.partition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (queue_id, offset)):
        raise RpcRefused(pb.BAD_REQUEST, f"scroll_id {text[:80]!r} is of no earlier answer")
    return Scroll(int(queue_id), int(offset))


def _everything(record: Record, data: bytes) -> bool:
    return True
