"""SendMessage, EndTransaction and RecallMessage by remoting.

The id of a transaction names broker and offsets of its half message, so that any proxy can end it, at any time; RocketMQ's proxy
remembers them for 30 s:

    unique key @ broker name @ queue offset @ physical offset

Source: SendMessageActivity, TransactionService (RocketMQ 5.5.0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.message_checks import check_message
from aerobee.broker.grpc.message_form import stored_body, stored_properties
from aerobee.broker.grpc.names import topic_name
from aerobee.broker.grpc.refusal import RpcRefused, code_of, status, status_of
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.send_message import BODIES_BYTES_MAX, MESSAGES_MAX
from aerobee.broker.grpc.times import timestamp_ms
from aerobee.broker.send.message_type import MIXED, type_of
from aerobee.client.base.topic_route import publish_queues
from aerobee.client.producer.recall import recall_message
from aerobee.errors import AerobeeError, RemoteError, TransportError, UsageError
from aerobee.grpc.proto import messages as pb
from aerobee.message import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    MessageQueue,
    encode_properties,
    parse_offset_message_id,
)
from aerobee.proxy.cluster import ProxyCluster
from aerobee.queue_choice import group_queue
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.store.queue.queue_table import MULTI_DISPATCH
from aerobee.system_names import AUTO_CREATE_TEMPLATE

PROXIED_BODY_BYTES_MAX = 4 * 1024 * 1024  # maxMessageSize of RocketMQ's proxy
AVOIDED_S = 3.0  # a broker that did not answer gets no ordinary message for this time, if there are others
_DECISIONS = {pb.COMMIT: TRANSACTION_COMMIT, pb.ROLLBACK: TRANSACTION_ROLLBACK}
_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


class TransactionId(NamedTuple):
    """What ends a transaction."""

    unique_key: str
    broker_name: str
    queue_offset: int
    physical_offset: int

    def __str__(self) -> str:
        return "@".join(map(str, self))


def parse_transaction_id(text: str) -> TransactionId:
    """Raises RpcRefused (INVALID_TRANSACTION_ID)."""
    words = text.rsplit("@", 3)
    if len(text) > 1_024 or len(words) != 4 or not all(_is_number(word) for word in words[2:]):
        raise RpcRefused(pb.INVALID_TRANSACTION_ID, f"{text[:120]!r} is not the id of a transaction")
    return TransactionId(words[0], words[1], int(words[2]), int(words[3]))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 20


class ProxySends:
    """Serves the three RPCs."""

    def __init__(
        self,
        cluster: ProxyCluster,
        *,
        access: RpcAccess,
        note_producer: Callable[[RpcContext, str], None],
    ) -> None:
        """`note_producer` is called with a client that sends a half message, and its topic."""
        self._cluster = cluster
        self._access = access
        self._note_producer = note_producer
        self._turn = 0
        self._avoided: dict[str, float] = {}

    async def send(self, context: RpcContext, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Store the messages, each by itself: in their order if they have a message group. Raises RpcRefused, AerobeeError."""
        bodies = self._checked(request)
        topic = topic_name(request.messages[0].topic)
        for message in request.messages:
            self._check_access(context, topic, message)
        await self._check_types(topic, request)
        queues = publish_queues(await self._cluster.route(topic))
        if not queues:
            raise RpcRefused(pb.FORBIDDEN, "no writable queue")
        sent = []
        for message, body in zip(request.messages, bodies, strict=True):
            if message.system_properties.message_type == pb.TRANSACTION:
                self._note_producer(context, topic)
            work = self._send(topic, queues, message, body)
            ordered = bool(message.system_properties.message_group)
            sent.append(await work if ordered else asyncio.ensure_future(work))
        entries = [each if isinstance(each, pb.SendResultEntry) else await each for each in sent]
        codes = {entry.status.code for entry in entries}
        whole = entries[0].status if len(codes) == 1 else status(pb.MULTIPLE_RESULTS, "multiple results")
        return pb.SendMessageResponse(status=whole, entries=entries)

    def _checked(self, request: pb.SendMessageRequest) -> list[bytes]:
        messages, now_ms = request.messages, self._cluster.clock.now_ms()
        if not messages:
            raise RpcRefused(pb.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MESSAGES_MAX:
            text = f"the request has {len(messages)} messages, at most {MESSAGES_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)
        bodies, left_bytes = [], BODIES_BYTES_MAX
        for message in messages:
            if message.topic != messages[0].topic:
                raise RpcRefused(pb.MESSAGE_CORRUPTED, "topic in message is not same")
            check_message(message, body_bytes_max=PROXIED_BODY_BYTES_MAX, now_ms=now_ms)
            bodies.append(stored_body(message, PROXIED_BODY_BYTES_MAX))
            left_bytes -= len(bodies[-1])
            if left_bytes < 0:
                text = f"the bodies of one request have more than {BODIES_BYTES_MAX} bytes inflated"
                raise RpcRefused(pb.MESSAGE_BODY_TOO_LARGE, text)
        return bodies

    def _check_access(self, context: RpcContext, topic: str, message: pb.Message) -> None:
        """Raises RpcRefused. A message may name LMQs, which need a permission, too."""
        fields = {"b": topic}
        if MULTI_DISPATCH in message.user_properties:
            fields["i"] = encode_properties(stored_properties(message, topic)[0])
        asked = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields)
        self._access.check(context.peer, context.metadata, asked)

    async def _check_types(self, topic: str, request: pb.SendMessageRequest) -> None:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        expected = await self._cluster.message_type(topic)
        for message in request.messages:
            actual = type_of(stored_properties(message, topic)[0])
            if expected not in (actual, MIXED):
                text = f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"
                raise RpcRefused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)

    def _queue(self, queues: tuple[MessageQueue, ...], in_order: str) -> MessageQueue:
        """`in_order`: the message group or the lite topic, whose messages go to one queue."""
        if in_order:
            return queues[group_queue(in_order, len(queues))]
        now = self._cluster.clock.monotonic()
        for _ in queues:
            self._turn = (self._turn + 1) % len(queues)
            if self._avoided.get(queues[self._turn].broker_name, 0.0) <= now:
                break
        return queues[self._turn]

    async def _send(
        self, topic: str, queues: tuple[MessageQueue, ...], message: pb.Message, body: bytes
    ) -> pb.SendResultEntry:
        system = message.system_properties
        queue = self._queue(queues, system.message_group or system.lite_topic)
        properties, sys_flag = stored_properties(message, topic)
        born_ms = timestamp_ms(system.born_timestamp) if system.HasField("born_timestamp") else 0
        fields = {
            "a": topic,
            "b": topic,
            "c": AUTO_CREATE_TEMPLATE,
            "d": "4",
            "e": str(queue.queue_id),
            "f": str(sys_flag),
            "g": str(born_ms if 0 < born_ms < 1 << 62 else self._cluster.clock.now_ms()),
            "h": "0",
            "i": encode_properties(properties),
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body)
        session = self._cluster.session
        try:
            address = await session.queue_address(queue)
            answer = await session.call(address, request, timeout_s=session.config.request_timeout_s)
            if answer.code not in _STORED:
                raise RemoteError(answer.code, answer.remark or "")
        except AerobeeError as error:
            if isinstance(error, TransportError):
                self._avoided[queue.broker_name] = self._cluster.clock.monotonic() + AVOIDED_S
            return pb.SendResultEntry(status=status_of(error))
        found = (
            status()
            if answer.code == ResponseCode.SUCCESS
            else status(code_of(answer.code), answer.remark or "")
        )
        entry = pb.SendResultEntry(
            status=found,
            message_id=system.message_id,
            transaction_id=answer.field("transactionId") or system.message_id,
            offset=answer.integer("queueOffset"),
        )
        if sys_flag & TRANSACTION_PREPARED:
            physical_offset = parse_offset_message_id(answer.text("msgId"))[1]
            entry.transaction_id = str(
                TransactionId(system.message_id, queue.broker_name, entry.offset, physical_offset)
            )
        if recall_handle := answer.field("recallHandle"):
            entry.recall_handle = recall_handle
        return entry

    async def end(self, context: RpcContext, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """Commit or roll back. Raises RpcRefused, AerobeeError."""
        topic = topic_name(request.topic)
        ended = RemotingCommand(RequestCode.END_TRANSACTION, {"topic": topic})
        self._access.check(context.peer, context.metadata, ended)
        if not request.transaction_id.strip():
            raise RpcRefused(pb.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        found = parse_transaction_id(request.transaction_id)
        flag = _DECISIONS.get(request.resolution)
        if flag is not None:  # without a decision the broker asks again
            fields = {
                "topic": topic,
                "producerGroup": topic,
                "tranStateTableOffset": str(found.queue_offset),
                "commitLogOffset": str(found.physical_offset),
                "commitOrRollback": str(flag),
                "fromTransactionCheck": boolean_text(request.source == pb.SOURCE_SERVER_CHECK),
                "msgId": request.message_id,
                "transactionId": found.unique_key,
                "bname": found.broker_name,
            }
            asked = RemotingCommand(RequestCode.END_TRANSACTION, fields)
            await self._cluster.route(topic)
            await self._cluster.call(found.broker_name, topic, asked)
        return pb.EndTransactionResponse(status=status())

    async def recall(self, context: RpcContext, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        """Recall a timer message that is not delivered yet. Raises RpcRefused, AerobeeError."""
        topic = topic_name(request.topic)
        recalled = RemotingCommand(RequestCode.RECALL_MESSAGE, {"topic": topic})
        self._access.check(context.peer, context.metadata, recalled)
        kind = await self._cluster.message_type(topic)
        if kind not in ("DELAY", MIXED):
            text = f"TopicMessageType validate failed, the expected type is {kind}, but actual type is DELAY"
            raise RpcRefused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        session = self._cluster.session
        try:
            message_id = await recall_message(
                session, topic, topic, request.recall_handle, timeout_s=session.config.request_timeout_s
            )
        except UsageError as error:
            raise RpcRefused(pb.INTERNAL_SERVER_ERROR, "recall handle is invalid") from error
        except RemoteError as error:
            busy = error.code == ResponseCode.SYSTEM_BUSY
            raise RpcRefused(
                pb.TOO_MANY_REQUESTS if busy else pb.INTERNAL_SERVER_ERROR, error.remark
            ) from error
        return pb.RecallMessageResponse(status=status(), message_id=message_id)
