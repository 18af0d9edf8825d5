"""The Admin service of a proxy: RPCs about topics, groups and messages of the whole cluster, and about its own clients.

It serves them with access control to users who may read (Get) or change (Update) the cluster, and without it only if adminOpen is set.
This file has the RPCs about the proxy, topics and single clients.
"""

from __future__ import annotations

import logging
import socket

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_forms import TYPES, consumer_running_info
from aerobee.broker.grpc.admin_rpcs import admin_rpc, log_level_rpc
from aerobee.broker.grpc.admin_server import LEVELS
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import Rpc, RpcContext
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.admin_brokers import AdminBrokers
from aerobee.proxy.admin_groups import ProxyAdminGroups
from aerobee.proxy.admin_messages import ProxyAdminMessages
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.sends import ProxySends
from aerobee.remoting.body.consumer_running_info import ConsumerRunningInfo
from aerobee.remoting.body.route import TopicRouteData
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.remoting.fastjson import loads_object

log = logging.getLogger(__name__)

STACKS_S = 10.0  # time-out of a client's answer


class ProxyAdmin:
    """Serves these RPCs."""

    def __init__(
        self, cluster: ProxyCluster, clients: ClientTable, access: RpcAccess, sends: ProxySends
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._calls = calls = AdminCalls(BrokerRequests({}, access), access)
        self._brokers = brokers = AdminBrokers(cluster.session)
        self._groups = ProxyAdminGroups(cluster, brokers, clients, calls)
        self._messages = ProxyAdminMessages(cluster, brokers, groups=self._groups, calls=calls, sends=sends)

    def rpcs(self) -> tuple[Rpc, ...]:
        """Every RPC of the service."""
        groups, messages = self._groups, self._messages
        return (
            log_level_rpc(self.change_log_level),
            admin_rpc("GetProxyRuntimeStats", self.runtime_stats),
            admin_rpc("DescribeTopicStatus", self.describe_topic),
            admin_rpc("GetTopicRoute", self.topic_route),
            admin_rpc("PrintThreadStackTrace", self.stack_trace),
            admin_rpc("GetConsumerRunningInfo", self.running_info),
            admin_rpc("ListSubscription", groups.list_subscriptions),
            admin_rpc("DescribeSubscription", groups.describe_subscriptions),
            admin_rpc("DeleteSubscription", groups.delete_subscription),
            admin_rpc("DescribeGroupAccumulation", groups.accumulation),
            admin_rpc("ListConsumerConnection", groups.list_connections),
            admin_rpc("ResetGroupOffset", groups.reset_offset),
            admin_rpc("QueryTimeSpan", groups.time_spans),
            admin_rpc("QueryMessage", messages.query, pb.ListMessageRequest),
            admin_rpc("VerifyMessage", messages.verify),
            admin_rpc("AdminSendMessage", messages.send),
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

    # --- single clients

    async def stack_trace(
        self, context: RpcContext, request: pb.PrintThreadStackTraceRequest
    ) -> pb.PrintThreadStackTraceResponse:
        """The stacks of a consumer's threads, from the client. Raises RpcRefused, AerobeeError."""
        info = await self._running_info(context, request.group, request.client_id, stacks=True)
        return pb.PrintThreadStackTraceResponse(status=status(), thread_stack_trace=info.jstack or "")

    async def running_info(
        self, context: RpcContext, request: pb.GetConsumerRunningInfoRequest
    ) -> pb.GetConsumerRunningInfoResponse:
        """What a consumer reports of itself. Raises RpcRefused, AerobeeError."""
        info = await self._running_info(context, request.group, request.client_id, stacks=False)
        return pb.GetConsumerRunningInfoResponse(
            status=status(), consumer_running_info=consumer_running_info(info)
        )

    async def _running_info(
        self, context: RpcContext, resource: pb.Resource, client_id: str, *, stacks: bool
    ) -> ConsumerRunningInfo:
        """From a client of this proxy, or by the brokers from one of remoting."""
        self._calls.may_read(context)
        group, code = group_name(resource), RequestCode.GET_CONSUMER_RUNNING_INFO
        fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": boolean_text(stacks)}
        self._calls.check(context, code, fields)
        reply: RemotingCommand | None = None
        for client, _ in self._groups.members(group):
            if client.client_id == client_id:
                reply = await client.invoke(RemotingCommand(code, fields), timeout_s=STACKS_S)
                break
        else:
            reply = await self._brokers.of_client(group, code, **fields)
        if reply is None:
            raise RpcRefused(pb.NOT_FOUND, f"no client {client_id[:80]} of group {group} is connected")
        # From the client, so not to be trusted.
        return ConsumerRunningInfo.from_dict(loads_object(reply.body, "ConsumerRunningInfo"))
