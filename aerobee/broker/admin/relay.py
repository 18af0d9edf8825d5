"""Requests of a tool that the broker relays to a client: GET_CONSUMER_RUNNING_INFO 307, CONSUME_MESSAGE_DIRECTLY 309.

Source: AdminBrokerProcessor.callConsumer (RocketMQ). The client's code, remark and body go back to the tool as they
are. Clients may not reply to unknown codes at all (C++, Go), so every relay ends after 10 s.
"""

from __future__ import annotations

from aerobee.broker.admission.record_access import RecordAccess
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.producer_registry import ClientChannel
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import ConnectionLost, RequestTimeout, UsageError
from aerobee.message import parse_offset_message_id
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.signature import ACCESS_KEY, SIGNATURE
from aerobee.store.message_store import MessageStore

RELAY_TIMEOUT_S = 10.0
SIGNED_BY = frozenset({ACCESS_KEY, SIGNATURE})  # fields of the tool's request that are not relayed
RELAY_VERSION_MIN = 62  # V3_1_8_SNAPSHOT


class RelayCalls:
    """Answers 307 and 309."""

    def __init__(
        self,
        *,
        consumers: ConsumerRegistry,
        groups: GroupTable,
        topics: TopicTable,
        store: MessageStore,
        identity: BrokerIdentity,
        records: RecordAccess,
    ) -> None:
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._store = store
        self._identity = identity
        self._records = records

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    async def running_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """307: running info of a consumer, with `jstackEnable` also its threads."""
        return await self._relay(request, request.text("clientId"), dict(request.ext or {}), request.body)

    async def consume_directly(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """309: let a consumer consume one message now; its offsets do not change."""
        message_id = request.text("msgId", "")
        body = request.body
        if message_id:
            try:
                _, physical_offset = parse_offset_message_id(message_id)
            except UsageError as error:
                return request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
            record = self._store.named_record(physical_offset)
            if record is None or not self._records.may_view(peer, request, record):
                return request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"no message is at offset {physical_offset}, which {message_id} names",
                )
            body = record
        ext = {**(request.ext or {}), "brokerName": self._identity.name}
        topic = self._topics.get(request.text("topic", ""))
        group = self._groups.get(request.text("consumerGroup"))
        ext["topicSysFlag"] = str(topic.topic_sys_flag if topic is not None else 0)
        ext["groupSysFlag"] = str(group.group_sys_flag if group is not None else 0)
        return await self._relay(request, request.text("clientId", ""), ext, body)

    async def _relay(
        self, request: RemotingCommand, client_id: str, ext: dict[str, str], body: bytes
    ) -> RemotingCommand:
        """Relay the request to a member, any member without an id, and return its reply."""
        group = request.text("consumerGroup")
        channel = self._find(group, client_id)
        if channel is None:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"The Consumer <{group}> <{client_id}> not online"
            )
        if channel.version < RELAY_VERSION_MIN:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer <{channel.client_id}> Version <{channel.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        try:
            ext = {name: text for name, text in ext.items() if name not in SIGNED_BY}
            answer = await channel.peer.invoke(
                RemotingCommand(request.code, ext, body), timeout_s=RELAY_TIMEOUT_S
            )
        except RequestTimeout as error:
            return request.reply(
                ResponseCode.CONSUME_MSG_TIMEOUT,
                remark=f"consumer <{group}> <{channel.client_id}> Timeout: {error}",
            )
        except ConnectionLost as error:
            return request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The Consumer <{group}> <{channel.client_id}> left: {error}",
            )
        return request.reply(answer.code, remark=answer.remark, ext=answer.ext, body=answer.body)

    def _find(self, group_name: str, client_id: str) -> ClientChannel | None:
        group = self._consumers.group(group_name)
        if group is None:
            return None
        if client_id:
            return group.channel_of(client_id)
        return next((channel for channel in group.channels.values() if channel.peer.is_open), None)
