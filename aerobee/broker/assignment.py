"""Which queues a consumer gets, decided by the broker: QUERY_ASSIGNMENT 400, SET_MESSAGE_REQUEST_MODE 401,
GET_ALL_MESSAGE_REQUEST_MODE 402.

Source: QueryAssignmentProcessor (RocketMQ). Consumers that rebalance here send 400 instead of asking for the members; the
answer is the averaged share of the topic's queues, sorted as clients sort them, in PULL mode. Every broker of a topic is
asked for all of the topic's queues, so they come from the route.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from aerobee.broker.config import LiveConfig
from aerobee.broker.consumer_registry import ConsumerRegistry
from aerobee.errors import MalformedFrame
from aerobee.message import MessageQueue
from aerobee.remoting import fastjson
from aerobee.remoting.body import json_fields
from aerobee.remoting.body.heartbeat import BROADCASTING, CLUSTERING, MESSAGE_MODELS
from aerobee.remoting.body.message_queue import queue_to_dict
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection, Handler

log = logging.getLogger(__name__)

AVERAGE, AVERAGE_BY_CIRCLE = "AVG", "AVG_BY_CIRCLE"
PULL = "PULL"

Queues = Callable[[str], Awaitable[Sequence[MessageQueue]]]


class AssignmentCalls:
    """Answers 400, 401 and 402."""

    def __init__(self, *, consumers: ConsumerRegistry, live: LiveConfig, queues_of: Queues) -> None:
        """`queues_of` returns the readable queues of a topic at all brokers; empty when it has no route."""
        self._consumers = consumers
        self._live = live
        self._queues_of = queues_of

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_ASSIGNMENT: self.assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    async def assignment(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """400: the queues that one member of a group should consume."""
        fields = fastjson.loads_object(request.body, "QueryAssignmentRequestBody")
        topic, group = json_fields.text(fields, "topic"), json_fields.text(fields, "consumerGroup")
        client_id = json_fields.text(fields, "clientId")
        model = json_fields.enum_name(fields, "messageModel", MESSAGE_MODELS, CLUSTERING)
        strategy = json_fields.text(fields, "strategyName", AVERAGE)
        if not topic or not group or not client_id:
            raise MalformedFrame("an assignment needs topic, consumerGroup and clientId")
        queues = sorted(await self._queues_of(topic))
        if model != BROADCASTING and self._live.value.server_load_balancer_enable:
            members = self._consumers.group(group)
            client_ids = sorted(members.client_ids()) if members is not None else []
            if client_id not in client_ids:
                log.warning(
                    "client %s of group %s asks for queues of %s without being a member",
                    client_id,
                    group,
                    topic,
                )
                queues = []
            else:
                queues = average_share(queues, client_ids.index(client_id), len(client_ids), strategy)
        found = [{"messageQueue": queue_to_dict(queue), "mode": PULL} for queue in queues]
        return request.reply(body=fastjson.dumps({"messageQueueAssignments": found}))

    def set_mode(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """401: choose between pulling and popping. This broker has pulling only, which it then is already."""
        fields = fastjson.loads_object(request.body, "SetMessageRequestModeRequestBody")
        mode = json_fields.text(fields, "mode", PULL)
        if mode == PULL:
            return request.reply()
        return request.reply(
            ResponseCode.NO_PERMISSION,
            remark=f"mode is {mode}: this broker serves consumers in PULL mode only",
        )

    def modes(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """402: the modes that were set, for slaves: none, all consumers pull."""
        return request.reply(body=fastjson.dumps({"messageRequestModeMap": {}}))


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
