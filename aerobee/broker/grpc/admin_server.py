"""RPCs of the Admin service about the broker, its topics, and single clients.

ChangeLogLevel, GetProxyRuntimeStats, DescribeTopicStatus, GetTopicRoute, PrintThreadStackTrace, GetConsumerRunningInfo.
"""

from __future__ import annotations

import logging

from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_forms import TYPES, consumer_running_info
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.send.message_type import NORMAL
from aerobee.grpc.proto import messages as pb
from aerobee.remoting import fastjson
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.kv_table import KVTable
from aerobee.remoting.body.route import BrokerData, QueueData, TopicRouteData
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.protocol import TYPE_ATTRIBUTE

log = logging.getLogger(__name__)

LEVELS = {
    pb.ChangeLogLevelRequest.TRACE: logging.DEBUG,
    pb.ChangeLogLevelRequest.DEBUG: logging.DEBUG,
    pb.ChangeLogLevelRequest.INFO: logging.INFO,
    pb.ChangeLogLevelRequest.WARN: logging.WARNING,
    pb.ChangeLogLevelRequest.ERROR: logging.ERROR,
}


class AdminServerRpcs:
    """Serves these RPCs."""

    def __init__(self, *, parts: BrokerParts, clients: ClientTable, calls: AdminCalls) -> None:
        self._parts = parts
        self._clients = clients
        self._calls = calls

    def change_log_level(
        self, context: RpcContext, request: pb.ChangeLogLevelRequest
    ) -> pb.ChangeLogLevelResponse:
        """Set the level of the process's log until it ends. Raises RpcRefused."""
        self._calls.may_change(context)
        level = LEVELS.get(request.level)
        if level is None:
            raise RpcRefused(pb.BAD_REQUEST, f"level {request.level} is not known")
        logging.getLogger("aerobee").setLevel(level)
        name = logging.getLevelName(level)
        log.warning("the log's level is %s from now on, by %s", name, context.peer.address)
        return pb.ChangeLogLevelResponse(remark=f"the log's level is {name}")

    async def runtime_stats(
        self, context: RpcContext, request: pb.GetProxyRuntimeStatsRequest
    ) -> pb.GetProxyRuntimeStatsResponse:
        """The broker's rates and clients. Raises RpcRefused, RemoteError."""
        from importlib.metadata import version  # fifty modules that no other call needs

        self._calls.may_read(context)
        reply = await self._calls.ask(context, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.decode(reply.body).table
        parts = self._parts
        return pb.GetProxyRuntimeStatsResponse(
            status=status(),
            proxy_name=parts.identity.name,
            version=version("aerobee"),
            in_tps=_first(table.get("putTps", "")),
            out_tps=_first(table.get("getTransferredTps", "")),
            connections=len(self._clients),
            producers=parts.producers.member_count,
            consumers=parts.consumers.member_count,
        )

    async def describe_topic(
        self, context: RpcContext, request: pb.DescribeTopicStatusRequest
    ) -> pb.DescribeTopicStatusResponse:
        """The type of a topic, and its attributes as tags. Raises RpcRefused, RemoteError."""
        self._calls.may_read(context)
        name = topic_name(request.topic)
        await self._calls.ask(context, RequestCode.GET_TOPIC_CONFIG, topic=name)
        config = self._parts.topics.get(name)
        if config is None:
            raise RpcRefused(pb.TOPIC_NOT_FOUND, f"the topic {name} does not exist")
        kind = config.attributes.get(TYPE_ATTRIBUTE, NORMAL)
        return pb.DescribeTopicStatusResponse(
            status=status(),
            topic_message_type=TYPES.get(kind, pb.MESSAGE_TYPE_UNSPECIFIED),
            tags=dict(config.attributes),
        )

    def topic_route(self, context: RpcContext, request: pb.GetTopicRouteRequest) -> pb.GetTopicRouteResponse:
        """This broker's part of a topic's route, as remoting's JSON. Raises RpcRefused."""
        self._calls.may_read(context)
        name = topic_name(request.topic)
        self._calls.check(context, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        config, identity = self._parts.topics.get(name), self._parts.identity
        if config is None:
            raise RpcRefused(pb.TOPIC_NOT_FOUND, f"the topic {name} does not exist")
        route = TopicRouteData(
            queue_datas=(
                QueueData(
                    identity.name,
                    config.read_queue_nums,
                    config.write_queue_nums,
                    config.perm,
                    config.topic_sys_flag,
                ),
            ),
            broker_datas=(
                BrokerData(identity.cluster, identity.name, {identity.broker_id: identity.address}),
            ),
        )
        return pb.GetTopicRouteResponse(status=status(), topic_route_data=route.encode().decode())

    # --- single clients

    async def stack_trace(
        self, context: RpcContext, request: pb.PrintThreadStackTraceRequest
    ) -> pb.PrintThreadStackTraceResponse:
        """The stacks of a consumer's threads, from the client. Raises RpcRefused, RemoteError."""
        self._calls.may_read(context)
        info = await self._running_info(context, request.group, request.client_id, stacks="true")
        return pb.PrintThreadStackTraceResponse(status=status(), thread_stack_trace=info.jstack or "")

    async def running_info(
        self, context: RpcContext, request: pb.GetConsumerRunningInfoRequest
    ) -> pb.GetConsumerRunningInfoResponse:
        """What a consumer reports of itself. Raises RpcRefused, RemoteError."""
        self._calls.may_read(context)
        info = await self._running_info(context, request.group, request.client_id, stacks="false")
        return pb.GetConsumerRunningInfoResponse(
            status=status(), consumer_running_info=consumer_running_info(info)
        )

    async def _running_info(
        self, context: RpcContext, group: pb.Resource, client_id: str, *, stacks: str
    ) -> ConsumerRunningInfo:
        reply = await self._calls.ask(
            context,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            consumerGroup=group_name(group),
            clientId=client_id,
            jstackEnable=stacks,
        )
        # From the client, so not to be trusted.
        return ConsumerRunningInfo.from_dict(fastjson.loads_object(reply.body, "ConsumerRunningInfo"))


def _first(rates: str) -> float:
    """The first of several rates in a text; 0 for a text without."""
    try:
        return float(rates.split(" ")[0])
    except ValueError:
        return 0.0
