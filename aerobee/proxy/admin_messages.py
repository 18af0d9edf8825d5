"""RPCs of the Admin service about messages, at a proxy: QueryMessage, VerifyMessage, AdminSendMessage.

Messages are read as a tool reads them: by QUERY_MESSAGE from the index of each broker of the topic, or by pulls that commit no offset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.errors import QueryNotFound, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_queue, lite_topic_fault
from aerobee.message import Record
from aerobee.proxy.admin_brokers import AdminBrokers
from aerobee.proxy.admin_groups import ProxyAdminGroups
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.sends import ProxySends
from aerobee.remoting.body.subscription import TYPE_SQL92, TYPE_TAG, parse_tags
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import OFFSET_MAX
from aerobee.remoting.signature import UNIQUE_KEY_QUERY
from aerobee.store.queue.queue_table import LMQ_QUEUE_ID
from aerobee.system_names import TOOLS_GROUP

PULLS_MAX = 64  # of one call, each of BATCH_COUNT messages: a scroll_id says where the next one continues
VERIFY_S = 10.0  # time-out of a client's answer


class Scroll(NamedTuple):
    """Where a scan continues: an offset of a queue. Its text is `<broker>:<queue id>:<offset>`."""

    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.broker_name}:{self.queue_id}:{self.offset}"


class Wanted(NamedTuple):
    """What a scan looks for. `stored` is the topic or an LMQ; brokers evaluate `expression`, and `tags` is compared here."""

    stored: str
    expression_type: str
    expression: str
    tags: frozenset[str] | None
    begin_ms: int
    end_ms: int

    def matches(self, record: Record) -> bool:
        """Whether a record that a broker sent is wanted."""
        return self.begin_ms <= record.store_timestamp <= self.end_ms and (
            self.tags is None or record.tag in self.tags
        )


class ProxyAdminMessages:
    """Serves these RPCs."""

    def __init__(
        self,
        cluster: ProxyCluster,
        brokers: AdminBrokers,
        *,
        groups: ProxyAdminGroups,
        calls: AdminCalls,
        sends: ProxySends,
    ) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._groups = groups
        self._calls = calls
        self._sends = sends

    # --- QueryMessage

    async def query(self, context: RpcContext, request: pb.ListMessageRequest) -> pb.QueryMessageResponse:
        """Messages of a topic by id, by key, by filter or of a lite topic, stored within a time range, both ends included.

        Raises RpcRefused, AerobeeError.
        """
        self._calls.may_read(context)
        topic = topic_name(request.topic)
        self._calls.check(context, RequestCode.QUERY_MESSAGE, {"topic": topic})
        begin_ms, end_ms = time_range(request)
        kind = request.WhichOneof("search_key")
        if kind in ("message_id", "message_key"):
            is_id = kind == "message_id"
            key = request.message_id if is_id else request.message_key
            found = await self._by_key(topic, key, begin_ms, end_ms, is_id=is_id)
            return query_response(topic, page_of(request, [record for _, record, _ in found]))
        if kind == "lite_topic":
            if fault := lite_topic_fault(request.lite_topic):
                raise RpcRefused(pb.ILLEGAL_LITE_TOPIC, fault)
            wanted = Wanted(lite_queue(topic, request.lite_topic), TYPE_TAG, "*", None, begin_ms, end_ms)
        else:
            wanted = _wanted(topic, request.subscription, begin_ms, end_ms)
        queues = await self._queues(topic, request, is_lite=kind == "lite_topic")
        start = _scroll(request.scroll_id) if request.scroll_id else None
        return await self._scan(topic, queues, wanted, start, count_of(request))

    async def _by_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int, *, is_id: bool
    ) -> list[tuple[str, Record, bytes]]:
        """(address of the broker, record, its bytes), in the order in which they were stored."""
        if not key.strip():
            raise RpcRefused(pb.BAD_REQUEST, "the message id or key is blank")
        ext = {"topic": topic, "key": key, "maxNum": str(MESSAGES_MAX)}
        ext |= {
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "indexType": "U" if is_id else "K",
        }
        if is_id:
            ext[UNIQUE_KEY_QUERY] = "true"
        matches: Callable[[Record], bool] = has_key(key, is_id=is_id)
        found = []
        for address in (await self._brokers.addresses(topic)).values():
            try:
                answer = await self._brokers.at_broker(address, RequestCode.QUERY_MESSAGE, **ext)
            except QueryNotFound:
                continue
            found += [
                (address, record, data)
                for record, data in records_of(answer.body)
                if record.topic == topic and matches(record)
            ]
        return sorted(found, key=lambda each: (each[1].store_timestamp, each[1].physical_offset))

    async def _queues(
        self, topic: str, request: pb.ListMessageRequest, *, is_lite: bool
    ) -> list[tuple[str, int]]:
        """(broker, queue id) of what a scan reads, in its order. Raises RpcRefused."""
        route = await self._cluster.route(topic)
        found = sorted((each.broker_name, each.queue_id) for each in subscribe_queues(route))
        if request.HasField("broker_name") and request.broker_name:
            found = [each for each in found if each[0] == request.broker_name]
            if not found:
                raise RpcRefused(
                    pb.BAD_REQUEST, f"topic {topic} is at no broker {request.broker_name[:80]!r}"
                )
        if is_lite:
            return list(dict.fromkeys((name, LMQ_QUEUE_ID) for name, _ in found))
        if request.HasField("queue_id"):
            found = [each for each in found if each[1] == request.queue_id]
            if not found:
                raise RpcRefused(pb.BAD_REQUEST, f"topic {topic} has no queue {request.queue_id}")
        return found

    async def _scan(
        self, topic: str, queues: list[tuple[str, int]], wanted: Wanted, start: Scroll | None, count: int
    ) -> pb.QueryMessageResponse:
        found, pulls_left = list[Record](), PULLS_MAX
        for name, queue_id in queues:
            if start is not None and (name, queue_id) < (start.broker_name, start.queue_id):
                continue
            offset: int | None = await self._first(topic, name, queue_id, wanted)
            if start is not None and (name, queue_id) == (start.broker_name, start.queue_id):
                offset = max(offset or 0, start.offset)
            while offset is not None:
                if len(found) >= count or not pulls_left:
                    return query_response(topic, found, Scroll(name, queue_id, offset))
                pulls_left -= 1
                want = min(BATCH_COUNT, count - len(found))
                records, offset = await self._pull(topic, name, queue_id, offset, want, wanted)
                found += [record for record in records if wanted.matches(record)]
                if any(record.store_timestamp > wanted.end_ms for record in records):
                    break
        return query_response(topic, found)

    async def _first(self, topic: str, broker_name: str, queue_id: int, wanted: Wanted) -> int:
        """The offset at which a scan of a queue begins."""
        code, ext = RequestCode.GET_MIN_OFFSET, {"topic": wanted.stored, "queueId": str(queue_id)}
        if wanted.begin_ms:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            ext["timestamp"] = str(wanted.begin_ms)
        ext["bname"] = broker_name
        answer = await self._cluster.call(broker_name, topic, RemotingCommand(code, ext))
        return max(0, answer.integer("offset"))

    async def _pull(
        self, topic: str, broker_name: str, queue_id: int, offset: int, count: int, wanted: Wanted
    ) -> tuple[list[Record], int | None]:
        """Records of a queue from an offset on, and where it continues; None at its end. Raises RemoteError."""
        fields = {
            "consumerGroup": TOOLS_GROUP,
            "topic": wanted.stored,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": "4",  # the request contains the subscription, and does not wait
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": wanted.expression,
            "subVersion": "0",
            "expressionType": wanted.expression_type,
            "bname": broker_name,
        }
        session = self._cluster.session
        address = await session.broker_address(broker_name, topic)
        request = RemotingCommand(RequestCode.PULL_MESSAGE, fields)
        answer = await session.call(address, request, timeout_s=session.config.request_timeout_s)
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return [], None
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise RemoteError(answer.code, answer.remark or "")
        records = (
            [record for record, _ in records_of(answer.body)] if answer.code == ResponseCode.SUCCESS else []
        )
        following = answer.integer("nextBeginOffset")
        return records, following if following > offset else None

    # --- VerifyMessage

    async def verify(self, context: RpcContext, request: pb.VerifyMessageRequest) -> pb.VerifyMessageResponse:
        """Let one client consume a message once more: one of this proxy, or one of remoting. Raises RpcRefused, AerobeeError."""
        self._calls.may_change(context)
        topic, group = topic_name(request.topic), group_name(request.group)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        fields = {"topic": topic, "consumerGroup": group, "clientId": request.client_id}
        self._calls.check(context, code, fields)
        found = await self._by_key(topic, request.message_id, 0, OFFSET_MAX, is_id=True)
        if not found:
            text = f"topic {topic} has no message {request.message_id[:80]}"
            raise RpcRefused(pb.MESSAGE_NOT_FOUND, text)
        address, record, data = found[0]
        for client, _ in self._groups.members(group):
            if client.client_id == request.client_id:
                asked = RemotingCommand(code, fields, data)
                answer = await client.invoke(asked, timeout_s=VERIFY_S)
                return verify_response(answer.body)
        fields["msgId"] = record.offset_message_id
        return verify_response((await self._brokers.at_broker(address, code, **fields)).body)

    # --- AdminSendMessage

    async def send(
        self, context: RpcContext, request: pb.AdminSendMessageRequest
    ) -> pb.AdminSendMessageResponse:
        """Store a message as SendMessage does. Keys of ext_info have no effect here. Raises RpcRefused, AerobeeError."""
        self._calls.may_change(context)
        kind = await self._cluster.message_type(topic_name(request.topic))
        message_id = self._cluster.session.unique_ids().next_id(self._cluster.clock.now_ms())
        message = sent_message(request, kind, message_id)
        answer = await self._sends.send(context, pb.SendMessageRequest(messages=[message]))
        return pb.AdminSendMessageResponse(
            status=answer.status, message_id=message.system_properties.message_id
        )


def _wanted(topic: str, expression: pb.FilterExpression, begin_ms: int, end_ms: int) -> Wanted:
    if expression.type == pb.SQL:
        return Wanted(topic, TYPE_SQL92, expression.expression, None, begin_ms, end_ms)
    text = expression.expression.strip() or "*"
    tags = frozenset(parse_tags(text))
    return Wanted(topic, TYPE_TAG, text, None if not tags or "*" in tags else tags, begin_ms, end_ms)


def _scroll(text: str) -> Scroll:
    """Raises RpcRefused."""
    head, _, offset = text.rpartition(":")
    name, _, queue_id = head.rpartition(":")
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (queue_id, offset)):
        raise RpcRefused(pb.BAD_REQUEST, f"scroll_id {text[:80]!r} is of no earlier answer")
    return Scroll(name, int(queue_id), int(offset))
