"""SendMessage: messages of every kind, by the same SendService as sends of remoting.

Source: SendMessageActivity, SendMessageProcessor (RocketMQ 5.5.0). Differences: a request with several messages is stored as so
many messages and answered with one entry for each, in their order, where RocketMQ stores one batch and gives one entry. All
are checked before the first one is stored; the broker may still refuse a later one, as its entry says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aerobee.broker.admission.ack import AckPolicy, Safety
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.message_checks import check_message
from aerobee.broker.grpc.message_form import stored_body, stored_properties
from aerobee.broker.grpc.names import topic_name
from aerobee.broker.grpc.refusal import RpcRefused, safety_status, status, status_of
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.grpc.times import timestamp_ms
from aerobee.broker.send.message_type import MIXED, NORMAL, type_of
from aerobee.broker.send.send_header import SendHeader
from aerobee.broker.send.send_service import SendOutcome, SendService
from aerobee.broker.state.topic_table import TopicTable
from aerobee.clock import Clock
from aerobee.errors import AerobeeError
from aerobee.grpc.proto import messages as pb
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX, TRANSACTION_PREPARED, encode_properties
from aerobee.queue_choice import group_queue
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import TYPE_ATTRIBUTE
from aerobee.store.files.config import StoreConfig
from aerobee.store.queue.queue_table import MULTI_DISPATCH

MESSAGES_MAX = 1_000  # of one request
BODIES_BYTES_MAX = (
    16 * 1024 * 1024
)  # of all messages of a request, inflated; or maxMessageSize, if that is more


class SendRpc:
    """Serves SendMessage. A plain call, unless the reply must wait for the disk or for replicas."""

    def __init__(
        self,
        *,
        service: SendService,
        topics: TopicTable,
        ack: AckPolicy,
        config: StoreConfig,
        access: RpcAccess,
        clock: Clock,
        note_producer: Callable[[RpcContext, str], None],
        takes_lite: bool,
    ) -> None:
        """`note_producer` is called with a client that sends a half message, and its topic. `takes_lite`: this broker has LMQs."""
        self._takes_lite = takes_lite
        self._note_producer = note_producer
        self._service = service
        self._topics = topics
        self._ack = ack
        self._config = config
        self._access = access
        self._clock = clock

    def send(
        self, context: RpcContext, request: pb.SendMessageRequest
    ) -> pb.SendMessageResponse | Awaitable[pb.SendMessageResponse]:
        """Store the messages. Raises RpcRefused and AerobeeError while none of them is stored."""
        headers = self._checked(context, request)
        sent = [
            self._send(context, header, body, message)
            for (header, body), message in zip(headers, request.messages, strict=True)
        ]
        entries = [entry for entry in sent if isinstance(entry, pb.SendResultEntry)]
        if len(entries) == len(sent):
            return _response(entries)
        return self._answer_when_ready(sent)

    async def _answer_when_ready(
        self, sent: list[pb.SendResultEntry | Awaitable[pb.SendResultEntry]]
    ) -> pb.SendMessageResponse:
        return _response([entry if isinstance(entry, pb.SendResultEntry) else await entry for entry in sent])

    # --- checks

    def _checked(self, context: RpcContext, request: pb.SendMessageRequest) -> list[tuple[SendHeader, bytes]]:
        messages = request.messages
        if not messages:
            raise RpcRefused(pb.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MESSAGES_MAX:
            text = f"the request has {len(messages)} messages, at most {MESSAGES_MAX} are allowed"
            raise RpcRefused(pb.BAD_REQUEST, text)
        topic, now_ms = topic_name(messages[0].topic), self._clock.now_ms()
        bytes_max = self._config.max_message_size
        for message in messages:
            if message.topic != messages[0].topic:
                raise RpcRefused(pb.MESSAGE_CORRUPTED, "topic in message is not same")
            check_message(message, body_bytes_max=bytes_max, now_ms=now_ms)
        found = []
        left_bytes = max(BODIES_BYTES_MAX, bytes_max)
        for message in messages:
            header = _header(message, topic, now_ms)
            self._check_access(context, header)
            self._check_type(header)
            if header.sys_flag & TRANSACTION_PREPARED:
                self._note_producer(context, topic)
            self._choose_queue(header, message, len(messages))
            body = stored_body(message, bytes_max)
            left_bytes -= len(body)
            if left_bytes < 0:
                text = f"the bodies of one request have more than {max(BODIES_BYTES_MAX, bytes_max)} bytes inflated"
                raise RpcRefused(pb.MESSAGE_BODY_TOO_LARGE, text)
            found.append((header, body))
        return found

    def _check_access(self, context: RpcContext, header: SendHeader) -> None:
        """Check permissions for the message's topic and for the LMQs that it names."""
        ext = {"b": header.topic}
        if MULTI_DISPATCH in header.properties:
            ext["i"] = encode_properties(header.properties)
        asked = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext)
        self._access.check(context.peer, context.metadata, asked)

    def _check_type(self, header: SendHeader) -> None:
        """As RocketMQ's proxy compares a message's kind with its topic's, whatever the broker does for remoting."""
        if header.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        topic = self._topics.get(header.topic)
        expected = "UNSPECIFIED" if topic is None else topic.attributes.get(TYPE_ATTRIBUTE, NORMAL)
        actual = type_of(header.properties)
        if expected not in (actual, MIXED) or topic is None:
            text = f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"
            raise RpcRefused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        if actual == "LITE" and not self._takes_lite:
            text = "LITE messages need the settings enableLmq and enableMultiDispatch, which this broker does not have"
            raise RpcRefused(pb.NOT_IMPLEMENTED, text)
        if not topic.is_writable or topic.write_queue_nums <= 0:
            raise RpcRefused(pb.FORBIDDEN, "no writable queue")

    def _choose_queue(self, header: SendHeader, message: pb.Message, count: int) -> None:
        topic = self._topics.get(header.topic)
        system = message.system_properties
        group = system.message_group or system.lite_topic
        if topic is not None and group and count == 1:
            header.queue_id = group_queue(group, topic.write_queue_nums)

    # --- one message

    def _send(
        self, context: RpcContext, header: SendHeader, body: bytes, message: pb.Message
    ) -> pb.SendResultEntry | Awaitable[pb.SendResultEntry]:
        try:
            outcome = self._service.store(header, body, context.peer)
        except AerobeeError as error:
            return pb.SendResultEntry(status=status_of(error))
        known: list[tuple[Safety, str]] = []
        waiting: asyncio.Future[tuple[Safety, str]] | None = None

        def release(safety: Safety, text: str) -> None:
            if waiting is None:
                known.append((safety, text))
            elif not waiting.done():
                waiting.set_result((safety, text))

        self._ack.when_safe(
            context.peer,
            outcome.append.end,
            release,
            wants_to_wait=outcome.wants_to_wait,
            level=outcome.level,
        )
        if known:
            return self._entry(outcome, *known[0], message)
        waiting = asyncio.get_running_loop().create_future()
        return self._entry_when_safe(outcome, waiting, message)

    async def _entry_when_safe(
        self, outcome: SendOutcome, waiting: asyncio.Future[tuple[Safety, str]], message: pb.Message
    ) -> pb.SendResultEntry:
        return self._entry(outcome, *await waiting, message)

    def _entry(
        self, outcome: SendOutcome, safety: Safety, text: str, message: pb.Message
    ) -> pb.SendResultEntry:
        if safety is Safety.SYNC_FAILED:
            return pb.SendResultEntry(status=status(pb.INTERNAL_SERVER_ERROR, text))
        system = message.system_properties
        entry = pb.SendResultEntry(
            status=safety_status(safety, text),
            message_id=system.message_id,
            transaction_id=outcome.unique_key,
            offset=outcome.append.queue_offset,
        )
        if outcome.recall_handle and timestamp_ms(system.delivery_timestamp) > self._clock.now_ms():
            entry.recall_handle = outcome.recall_handle
        return entry


def _response(entries: list[pb.SendResultEntry]) -> pb.SendMessageResponse:
    codes = {entry.status.code for entry in entries}
    whole = entries[0].status if len(codes) == 1 else status(pb.MULTIPLE_RESULTS, "multiple results")
    return pb.SendMessageResponse(status=whole, entries=entries)


def _header(message: pb.Message, topic: str, now_ms: int) -> SendHeader:
    properties, sys_flag = stored_properties(message, topic)
    system = message.system_properties
    born = timestamp_ms(system.born_timestamp) if system.HasField("born_timestamp") else now_ms
    return SendHeader(
        producer_group=topic,
        topic=topic,
        default_topic="",
        default_topic_queue_nums=0,
        queue_id=-1,
        sys_flag=sys_flag,
        born_timestamp=born if 0 <= born < 1 << 62 else now_ms,
        flag=0,
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=None,
        batch=False,
        properties=properties,
        topic_fault="",
    )
