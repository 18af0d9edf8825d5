"""Replies of request-reply: SEND_REPLY_MESSAGE 324 and 325 in, PUSH_REPLY_MESSAGE_TO_CLIENT 326 out to the requester.

Source: ReplyMessageProcessor (RocketMQ). A reply is a message for `<cluster>_REPLY_TOPIC` with MSG_TYPE=reply; its
REPLY_TO_CLIENT names the client that waits, CORRELATION_ID the request. The broker calls that client over the connection
of its producer heartbeats and answers the replier with the outcome: code 1 when no client of that id is connected here or
it did not take the reply within 3 s. With `storeReplyMessageEnable` the reply is stored as well, whatever became of the
call; only then the answer names an offset, else msgId, queueId and queueOffset are 0.
"""

from __future__ import annotations

from aerobee.broker.metrics.stats import BrokerStats
from aerobee.broker.send.message_writer import MessageWriter
from aerobee.broker.send.send_header import SendHeader, parse_send_header
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.producer_registry import ProducerRegistry
from aerobee.broker.state.refusal import store_refusal
from aerobee.broker.state.role import RoleState
from aerobee.broker.state.topic_table import TopicTable, takes_client_sends
from aerobee.clock import Clock
from aerobee.errors import RemoteError, StoreError, TransportError
from aerobee.message import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    encode_properties,
    offset_message_id,
    pack_host,
    unpack_host,
)
from aerobee.property_names import REPLY_TO_CLIENT
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.log.stored_message import StoredMessage
from aerobee.store.message_store import MessageStore

PUSH_TIMEOUT_S = 3.0  # RocketMQ's own limit for the call to the requester


class RequestReply(Feature):
    """Answers 324 and 325."""

    name = "request-reply"

    def __init__(
        self,
        *,
        store: MessageStore,
        writer: MessageWriter,
        topics: TopicTable,
        producers: ProducerRegistry,
        stats: BrokerStats,
        live: LiveConfig,
        identity: BrokerIdentity,
        role: RoleState,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._topics = topics
        self._producers = producers
        self._stats = stats
        self._live = live
        self._identity = identity
        self._role = role
        self._clock = clock
        self._pushed = 0
        self._failed = 0

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def runtime_info(self) -> dict[str, str]:
        return {"repliesPushed": str(self._pushed), "repliesNotPushed": str(self._failed)}

    async def reply(self, peer: Peer, request: RemotingCommand) -> RemotingCommand | None:
        """Hand a reply to the client that waits for it, and store it if so configured."""
        config = self._live.value
        trace = {"MSG_REGION": config.region_id, "TRACE_ON": boolean_text(config.trace_on)}
        try:
            header = parse_send_header(request)
            self._check(header, request.body)
            properties = {**header.properties, **trace}
            now_ms = self._clock.now_ms()
            failure = await self._push(peer, header, properties, request.body, now_ms)
            ext = {**trace, "msgId": "0", "queueId": "0", "queueOffset": "0"}
            if config.store_reply_message_enable:
                ext.update(self._keep(peer, header, properties, request.body))
        except RemoteError as error:
            return request.reply(error.code, remark=error.remark, ext=trace)
        except StoreError as error:
            refusal = store_refusal(error)
            return request.reply(refusal.code, remark=refusal.remark, ext=trace)
        if failure:
            self._failed += 1
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=failure, ext=ext)
        self._pushed += 1
        return request.reply(ext=ext)

    def _check(self, header: SendHeader, body: bytes) -> None:
        if not self._role.is_master:
            raise RemoteError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"service not available now. broker {self._identity.name} id {self._identity.broker_id} is a slave: "
                "reply to the master of that name",
            )
        if not takes_client_sends(header.topic):
            raise RemoteError(
                ResponseCode.NO_PERMISSION,
                f"Sending message to topic[{header.topic}] is forbidden: it is the broker's own",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RemoteError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist: replies go to {self._identity.cluster}_REPLY_TOPIC here",
            )
        queue_count = max(topic.read_queue_nums, topic.write_queue_nums)
        if header.queue_id >= queue_count:
            raise RemoteError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, topic {header.topic} takes 0 to {queue_count - 1}",
            )
        limit = self._store.config.max_message_size
        if len(body) > limit:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its body has {len(body)} bytes, at most {limit} are allowed (maxMessageSize)",
            )

    async def _push(
        self,
        peer: Peer,
        header: SendHeader,
        properties: dict[str, str],
        body: bytes,
        now_ms: int,
    ) -> str:
        """Call the requester; return why it did not take the reply, or nothing. It is called once, never again."""
        client_id = properties.get(REPLY_TO_CLIENT, "")
        if not client_id:
            return f"{REPLY_TO_CLIENT} is empty: the request's property of that name says who waits for the reply"
        requester = self._producers.connection_of(client_id)
        if requester is None:
            return (
                f"push reply message to requester fail: no producer with client id {client_id} is connected to broker "
                f"{self._identity.name}"
            )
        born_host = peer.address
        fields = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_topic_queue_nums),
            "queueId": str(header.queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp),
            "flag": str(header.flag),
            "properties": encode_properties({**properties, "PUSH_REPLY_TIME": str(now_ms)}),
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": boolean_text(header.unit_mode),
            "bornHost": born_host,
            "storeHost": self._identity.address,
            "storeTimestamp": str(now_ms),
        }
        push = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT.value, fields, body)
        try:
            answer = await requester.invoke(push, timeout_s=PUSH_TIMEOUT_S)
        except TransportError as error:
            return f"push reply message to requester fail: client {client_id}: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return (
                f"push reply message to requester fail: client {client_id} answered code {answer.code}: "
                f"{answer.remark or 'no reason given'}"
            )
        return ""

    def _keep(
        self, peer: Peer, header: SendHeader, properties: dict[str, str], body: bytes
    ) -> dict[str, str]:
        """Store the reply; return the fields that say where."""
        text = encode_properties(properties).encode(errors="surrogateescape")
        if len(text) > PROPERTIES_BYTES_MAX:
            raise RemoteError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its properties take {len(text)} bytes with the broker's own, at most "
                f"{PROPERTIES_BYTES_MAX} are allowed",
            )
        queue_id = max(0, header.queue_id)
        result = self._writer.put(
            StoredMessage(
                topic=header.topic,
                queue_id=queue_id,
                body=body,
                properties=text,
                born_host=pack_host(*peer.host_port),
                flag=header.flag,
                sys_flag=header.sys_flag & ~TRANSACTION_MASK,  # a reply is part of no transaction
                born_timestamp=header.born_timestamp,
                reconsume_times=header.reconsume_times,
            ),
            properties,
        )
        self._stats.topic_put(header.topic, result.count, result.size, 1)
        return {
            "msgId": offset_message_id(unpack_host(self._identity.store_host), result.physical_offset),
            "queueId": str(queue_id),
            "queueOffset": str(result.queue_offset),
        }
