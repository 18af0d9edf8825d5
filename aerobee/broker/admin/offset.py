"""Offsets that an administrator resets or reads from clients: INVOKE_BROKER_TO_RESET_OFFSET 222,
INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223. Or removes: AEROBEE_REMOVE_OFFSETS 910025, of a group in one topic.

Source: AdminBrokerProcessor, Broker2Client (RocketMQ). A reset is done here by default (useServerSideResetOffset): the
new offsets are stored, and the reply to the group's next pull of each queue contains the new offset. The older form
pushes the offsets to every member (RESET_CONSUMER_CLIENT_OFFSET 220, oneway), which stops, resets and continues;
members in languages other than Java and Go receive the body as a list, because JSON allows no object as key of a map.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aerobee.broker.consumer.consumer_offsets import ConsumerOffsets
from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.group_table import GroupTable, check_client_group
from aerobee.broker.state.config import LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.producer_registry import ClientChannel
from aerobee.broker.state.topic_table import TopicTable
from aerobee.errors import TransportError, UsageError, WireError
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body.message_queue import offset_map, queue_to_dict
from aerobee.remoting.codes import LanguageCode, RequestCode, ResponseCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.store.message_store import MessageStore

log = logging.getLogger(__name__)

RESET_VERSION_MIN = 28  # V3_0_7_SNAPSHOT: older clients know neither 220 nor 221
STATUS_DIALECT_BYTES_MAX = 128 * 1024  # bound on a body from a client; 1,000 queues, whose keys are objects
STATUS_TIMEOUT_S = 5.0
NOT_SUPPORTED_REMARK = "the client does not support this feature. version={}"


class AdminOffsetCalls:
    """Answers 222, 223 and 910025."""

    def __init__(
        self,
        *,
        groups: GroupTable,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        consumers: ConsumerRegistry,
        store: MessageStore,
        live: LiveConfig,
        identity: BrokerIdentity,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._live = live
        self._identity = identity

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.AEROBEE_REMOVE_OFFSETS: self.remove,
        }

    # --- reset

    def reset(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """222: reset a group to a time (-1: the end) or one queue to an offset; returns the new offsets."""
        group, topic = request.text("group"), request.text("topic")
        check_client_group(group)
        if self._topics.get(topic) is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {topic} does not exist")
        if self._groups.get(group) is None:
            return request.reply(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"Group {group} does not exist"
            )
        try:
            offsets = self._new_offsets(request, group, topic)
        except UsageError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        if self._live.value.use_server_side_reset_offset:
            self._offsets.assign_reset(group, topic, offsets)
            log.info("group %s on %s is reset to %s by %s", group, topic, offsets, peer.address)
        else:
            refusal = self._push_reset(request, group, topic, offsets)
            if refusal is not None:
                return refusal
        return request.reply(body=fastjson.dumps({"offsetTable": self._by_queue(topic, offsets)}))

    def remove(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """910025: forget a group's offsets of a topic, unless a member subscribes it."""
        group, topic = request.text("group"), request.text("topic")
        check_client_group(group)
        members = self._consumers.group(group)
        if members is not None and any(topic in wanted for wanted in members.wanted.values()):
            text = f"clients of group {group} subscribe topic {topic}: stop them first"
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=text)
        for queue_id in self._offsets.queues_of(group, topic):
            self._offsets.remove_queue(group, topic, queue_id)
        log.info("the offsets of group %s on %s are removed by %s", group, topic, peer.address)
        return request.reply()

    def _new_offsets(self, request: RemotingCommand, group: str, topic: str) -> dict[int, int]:
        """Return {queue id: offset}. Raises UsageError for an unknown queue or an offset out of range."""
        config = self._topics.get(topic)
        assert config is not None
        queue_id, offset = request.integer("queueId", -1), request.integer("offset", -1)
        time_ms = request.integer("timestamp")
        # As in RocketMQ, isForce has no effect with useServerSideResetOffset: the group moves to the
        # requested offset.
        force = request.boolean("isForce", True) or self._live.value.use_server_side_reset_offset
        if queue_id >= config.read_queue_nums:
            raise UsageError(
                f"queueId is {queue_id}, topic {topic} has queues 0 to {config.read_queue_nums - 1}"
            )
        if queue_id >= 0 and offset >= 0:
            begin, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            if not begin <= offset <= end:
                raise UsageError(f"offset is {offset}, queue {queue_id} of {topic} has {begin} to {end}")
            return {queue_id: offset}
        offsets = {}
        for each in range(config.read_queue_nums) if queue_id < 0 else [queue_id]:
            target = (
                self._store.max_offset(topic, each)
                if time_ms < 0
                else self._store.offset_by_time(topic, each, time_ms)
            )
            current = self._offsets.query(group, topic, each)
            # Without force, offsets only move back: members skip no unconsumed message.
            if not force and current is not None:
                target = min(target, current)
            offsets[each] = max(0, target)
        return offsets

    def _push_reset(
        self, request: RemotingCommand, group: str, topic: str, offsets: dict[int, int]
    ) -> RemotingCommand | None:
        """Send the new offsets to all members; return an error reply when that cannot be done."""
        members = self._consumers.group(group)
        if members is None:
            return request.reply(
                ResponseCode.CONSUMER_NOT_ONLINE,
                remark=f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {request.text('timestamp')}",
            )
        channels = list(members.channels.values())
        for channel in channels:
            if channel.version < RESET_VERSION_MIN:
                return request.reply(
                    ResponseCode.SYSTEM_ERROR, remark=NOT_SUPPORTED_REMARK.format(channel.version)
                )
        ext = {
            "topic": topic,
            "group": group,
            "timestamp": request.text("timestamp"),
            "isForce": request.text("isForce", "true"),
        }
        by_queue = self._by_queue(topic, offsets)
        as_map = fastjson.dumps({"offsetTable": by_queue})
        as_list = fastjson.dumps(
            {
                "offsetTable": [
                    {**queue_to_dict(queue), "offset": offset} for queue, offset in by_queue.items()
                ]
            }
        )
        for channel in channels:
            channel.peer.invoke_oneway(
                RemotingCommand(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    dict(ext),
                    as_list if channel.language == LanguageCode.CPP else as_map,
                    flag=FLAG_ONEWAY,
                )
            )
        return None

    def _by_queue(self, topic: str, offsets: dict[int, int]) -> dict[MessageQueue, int]:
        return {
            MessageQueue(topic, self._identity.name, queue_id): offset for queue_id, offset in offsets.items()
        }

    # --- status

    async def consumer_status(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """223: read the in-memory offsets of the members, or of the member named by `clientAddr`."""
        group, topic = request.text("group"), request.text("topic")
        wanted = request.text("clientAddr", "")
        members = self._consumers.group(group)
        channels = [
            channel
            for channel in (members.channels.values() if members is not None else ())
            if not wanted or channel.client_id == wanted
        ]
        if not channels:
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"No Any Consumer online in the consumer group: [{group}]"
            )
        for channel in channels:
            if channel.version < RESET_VERSION_MIN:
                return request.reply(
                    ResponseCode.SYSTEM_ERROR, remark=NOT_SUPPORTED_REMARK.format(channel.version)
                )
        answers = await asyncio.gather(*(self._ask_status(channel, group, topic) for channel in channels))
        table = {
            channel.client_id: answer
            for channel, answer in zip(channels, answers, strict=True)
            if answer is not None
        }
        return request.reply(body=fastjson.dumps({"consumerTable": table, "messageQueueTable": {}}))

    async def _ask_status(
        self, channel: ClientChannel, group: str, topic: str
    ) -> dict[MessageQueue, int] | None:
        """Offsets of one member; None when it does not reply, which C++ clients never do."""
        question = RemotingCommand(
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": group}
        )
        try:
            answer = await channel.peer.invoke(question, timeout_s=STATUS_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                return None
            fields: dict[str, Any] = fastjson.loads_object(
                answer.body, "GetConsumerStatusBody", STATUS_DIALECT_BYTES_MAX
            )
            return offset_map(fields, "messageQueueTable")
        except (TransportError, WireError) as error:
            log.warning("consumer %s of %s did not return its offsets: %s", channel.client_id, group, error)
            return None
