"""RPCs of the Admin service that a proxy answers: about topics of the whole cluster, and about its own clients.

It serves them with access control to users who may read (Get) or change (Update) the cluster, and without it only if adminOpen is set. RPCs that need a broker's own data are UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_forms import TYPES
from aerobee.broker.grpc.admin_rpcs import admin_rpc, log_level_rpc
from aerobee.broker.grpc.admin_server import LEVELS
from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import Rpc, RpcContext
from aerobee.broker.grpc.times import timestamp_ms
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.cluster import ProxyCluster
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import loads_object

log = logging.getLogger(__name__)

STACKS_S = 10.0  # time-out of a client's answer
CLIENTS_SHOWN_MAX = 10_000


class ProxyAdmin:
    """Serves these RPCs."""

    def __init__(self, cluster: ProxyCluster, clients: ClientTable, access: RpcAccess) -> None:
        self._cluster = cluster
        self._clients = clients
        self._calls = AdminCalls(BrokerRequests({}, access), access)

    def rpcs(self) -> tuple[Rpc, ...]:
        """Every RPC that is served."""
        return (
            log_level_rpc(self.change_log_level),
            admin_rpc("GetProxyRuntimeStats", self.runtime_stats),
            admin_rpc("DescribeTopicStatus", self.describe_topic),
            admin_rpc("GetTopicRoute", self.topic_route),
            admin_rpc("ListConsumerConnection", self.list_connections),
            admin_rpc("PrintThreadStackTrace", self.stack_trace),
            admin_rpc("ResetGroupOffset", self.reset_offset),
        )

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

    def runtime_stats(
        self, context: RpcContext, request: pb.GetProxyRuntimeStatsRequest
    ) -> pb.GetProxyRuntimeStatsResponse:
        """The proxy's clients; it does not count messages. Raises RpcRefused."""
        from importlib.metadata import version  # fifty modules that no other call needs

        self._calls.may_read(context)
        clients = list(self._clients.all())
        return pb.GetProxyRuntimeStatsResponse(
            status=status(),
            proxy_name=socket.gethostname(),
            version=version("aerobee"),
            connections=len(clients),
            producers=sum(1 for each in clients if each.heartbeat and each.heartbeat.producer_data_set),
            consumers=sum(1 for each in clients if each.heartbeat and each.heartbeat.consumer_data_set),
        )

    async def describe_topic(
        self, context: RpcContext, request: pb.DescribeTopicStatusRequest
    ) -> pb.DescribeTopicStatusResponse:
        """The type of a topic. Raises RpcRefused, AerobeeError."""
        self._calls.may_read(context)
        name = topic_name(request.topic)
        self._calls.check(context, RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        await self._cluster.route(name)
        kind = await self._cluster.message_type(name)
        return pb.DescribeTopicStatusResponse(
            status=status(), topic_message_type=TYPES.get(kind, pb.MESSAGE_TYPE_UNSPECIFIED)
        )

    async def topic_route(
        self, context: RpcContext, request: pb.GetTopicRouteRequest
    ) -> pb.GetTopicRouteResponse:
        """A topic's route at the NameServers, as remoting's JSON. Raises RpcRefused, AerobeeError."""
        self._calls.may_read(context)
        name = topic_name(request.topic)
        self._calls.check(context, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})
        route = await self._cluster.route(name)
        data = TopicRouteData(queue_datas=tuple(route.queue_datas), broker_datas=tuple(route.brokers))
        return pb.GetTopicRouteResponse(status=status(), topic_route_data=data.encode().decode())

    def list_connections(
        self, context: RpcContext, request: pb.ListConsumerConnectionRequest
    ) -> pb.ListConsumerConnectionResponse:
        """The clients of a group at this proxy, of one topic if the request names it. Raises RpcRefused."""
        self._calls.may_read(context)
        group = group_name(request.group)
        self._calls.check(context, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        topic = topic_name(request.topic) if request.HasField("topic") else ""
        found = [
            pb.ClientInfo(
                client_id=client.client_id,
                hostname=client.client_id.partition("@")[0],
                egress_ip=client.host_port[0],
                message_model=pb.CLUSTERING,
            )
            for client in self._members(group)
            if not topic or topic in _topics_of(client)
        ]
        return pb.ListConsumerConnectionResponse(status=status(), clients=found[:CLIENTS_SHOWN_MAX])

    async def stack_trace(
        self, context: RpcContext, request: pb.PrintThreadStackTraceRequest
    ) -> pb.PrintThreadStackTraceResponse:
        """The stacks of a consumer's threads, from a client of this proxy. Raises RpcRefused, AerobeeError."""
        self._calls.may_read(context)
        group = group_name(request.group)
        fields = {"consumerGroup": group, "clientId": request.client_id}
        self._calls.check(context, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        for client in self._members(group):
            if client.client_id == request.client_id:
                asked = RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
                reply = await client.invoke(asked, timeout_s=STACKS_S)
                info = ConsumerRunningInfo.from_dict(loads_object(reply.body, "ConsumerRunningInfo"))
                return pb.PrintThreadStackTraceResponse(status=status(), thread_stack_trace=info.jstack or "")
        text = f"no client {request.client_id[:80]} of group {group} is connected to this proxy"
        raise RpcRefused(pb.NOT_FOUND, text)

    async def reset_offset(
        self, context: RpcContext, request: pb.ResetGroupOffsetRequest
    ) -> pb.ResetGroupOffsetResponse:
        """Continue a group at the first message stored at or after a time, at every broker of the topic. Raises RpcRefused, AerobeeError."""
        self._calls.may_change(context)
        topic, group = topic_name(request.topic), group_name(request.group)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        self._calls.check(context, code, {"topic": topic, "group": group})
        if not request.HasField("reset_timestamp"):
            raise RpcRefused(pb.BAD_REQUEST, "the request has no reset_timestamp")
        time_ms = str(max(0, timestamp_ms(request.reset_timestamp)))
        fields = {"topic": topic, "group": group, "timestamp": time_ms, "isForce": "true"}
        route = await self._cluster.route(topic)
        names = dict.fromkeys(queue.broker_name for queue in subscribe_queues(route))
        await asyncio.gather(
            *(self._cluster.call(name, topic, RemotingCommand(code, dict(fields))) for name in names)
        )
        return pb.ResetGroupOffsetResponse(status=status())

    # --- inside

    def _members(self, group: str) -> Iterable[GrpcClient]:
        for client in self._clients.all():
            consumers = client.heartbeat.consumer_data_set if client.heartbeat else ()
            if any(each.group_name == group for each in consumers):
                yield client


def _topics_of(client: GrpcClient) -> set[str]:
    consumers = client.heartbeat.consumer_data_set if client.heartbeat else ()
    return {data.topic for consumer in consumers for data in consumer.subscription_data_set}
