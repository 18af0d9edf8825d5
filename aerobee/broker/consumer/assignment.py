"""Assignment of queues to consumers by the broker: QUERY_ASSIGNMENT 400, SET_MESSAGE_REQUEST_MODE 401,
GET_ALL_MESSAGE_REQUEST_MODE 402.

Source: QueryAssignmentProcessor (RocketMQ). Consumers that rebalance here send 400 instead of requesting the members;
the answer is the averaged share of the topic's queues, sorted as clients sort them. A client queries every broker of a
topic for all of the topic's queues, so the broker reads them from the route. A group that pops a topic (401) gets queue
-1, "any", of each broker, or with popShareQueueNum its own share and those of the next members.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.consumer.request_mode import POP, RequestMode, RequestModes
from aerobee.broker.state.config import LiveConfig
from aerobee.errors import MalformedFrame, UsageError
from aerobee.message import RETRY_PREFIX, MessageQueue, check_group_name, check_topic_name
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.heartbeat import BROADCASTING, CLUSTERING, MESSAGE_MODELS
from aerobee.remoting.body.message_queue import queue_to_dict
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import ANY_QUEUE

log = logging.getLogger(__name__)

AVERAGE, AVERAGE_BY_CIRCLE = "AVG", "AVG_BY_CIRCLE"
MODES_MAX = 20_000  # maximum number of request modes; each change writes them all

Queues = Callable[[str], Awaitable[Sequence[MessageQueue]]]


class AssignmentCalls:
    """Answers 400, 401 and 402."""

    def __init__(
        self, *, consumers: ConsumerRegistry, live: LiveConfig, modes: RequestModes, queues_of: Queues
    ) -> None:
        """`queues_of` returns the readable queues of a topic at all brokers; empty when it has no route."""
        self._modes = modes
        self._consumers = consumers
        self._live = live
        self._queues_of = queues_of

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    async def assignment(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """400: the queues assigned to one member of a group."""
        fields = fastjson.loads_object(request.body, "QueryAssignmentRequestBody")
        topic, group = json_fields.text(fields, "topic"), json_fields.text(fields, "consumerGroup")
        client_id = json_fields.text(fields, "clientId")
        model = json_fields.enum_name(fields, "messageModel", MESSAGE_MODELS, CLUSTERING)
        strategy = json_fields.text(fields, "strategyName", AVERAGE)
        if not topic or not group or not client_id:
            raise MalformedFrame("an assignment needs topic, consumerGroup and clientId")
        queues = sorted(await self._queues_of(topic))
        request_mode = self._modes.get(topic, group)
        if model != BROADCASTING and self._live.value.server_load_balancer_enable:
            members = self._consumers.group(group)
            position = (
                members.ids.position_of(client_id, peer, members.client_ids())
                if members is not None
                else None
            )
            if position is None:
                log.warning(
                    "client %s of group %s requests queues of %s without being a member",
                    client_id,
                    group,
                    topic,
                )
                queues = []
            else:
                index, count = position
                if request_mode.mode == POP:
                    queues = pop_share(queues, index, count, request_mode.share_queue_num, strategy)
                else:
                    queues = average_share(queues, index, count, strategy)
        found = [{"messageQueue": queue_to_dict(queue), "mode": request_mode.mode} for queue in queues]
        return request.reply(body=fastjson.dumps({"messageQueueAssignments": found}))

    async def set_mode(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """401: set pull or POP for one group and topic. The mode is durable when the reply is sent."""
        fields = fastjson.loads_object(request.body, "SetMessageRequestModeRequestBody")
        mode = RequestMode.from_dict(fields)
        if not mode.topic or not mode.group:
            raise MalformedFrame("a request mode needs topic and consumerGroup")
        try:
            check_topic_name(mode.topic)
            check_group_name(mode.group)
        except UsageError as error:
            return request.reply(ResponseCode.INVALID_PARAMETER, remark=str(error))
        if self._modes.count >= MODES_MAX and not self._modes.has(mode.topic, mode.group):
            return request.reply(
                ResponseCode.SYSTEM_ERROR, remark=f"{MODES_MAX} request modes are set already"
            )
        if mode.topic.startswith(RETRY_PREFIX):
            return request.reply(
                ResponseCode.NO_PERMISSION,
                remark="retry topic is not allowed to set mode: it is always pulled",
            )
        await self._modes.put_async(mode)
        return request.reply()

    def modes(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        """402: the explicit modes, for slaves."""
        return request.reply(body=fastjson.dumps(self._modes.to_dict()))


def pop_share(
    queues: Sequence[MessageQueue],
    index: int,
    member_count: int,
    share_queue_num: int,
    strategy: str = AVERAGE,
) -> list[MessageQueue]:
    """The queues that member `index` pops: any queue of each broker, or its share and those of the next
    `share_queue_num` members. Source: QueryAssignmentProcessor.allocate4Pop.
    """
    if share_queue_num <= 0 or share_queue_num >= member_count - 1:
        return list(dict.fromkeys(MessageQueue(q.topic, q.broker_name, ANY_QUEUE) for q in queues))
    if member_count > len(queues):
        return [queues[index % len(queues)]] if queues else []
    found: dict[MessageQueue, None] = {}
    for step in range(share_queue_num + 1):
        found.update(
            dict.fromkeys(average_share(queues, (index + step) % member_count, member_count, strategy))
        )
    return list(found)


def average_share(
    queues: Sequence[MessageQueue], index: int, member_count: int, strategy: str = AVERAGE
) -> list[MessageQueue]:
    """Return the share of member `index` of `member_count`: a run of the sorted queues, the first members getting
    one more when the division leaves a rest; by circle: each `member_count`-th queue.
    """
    if strategy == AVERAGE_BY_CIRCLE:
        return list(queues[index::member_count])
    size, rest = divmod(len(queues), member_count)
    start = index * size + min(index, rest)
    return list(queues[start : start + size + (1 if index < rest else 0)])
