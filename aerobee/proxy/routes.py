"""QueryRoute and QueryAssignment: the queues of the whole cluster, at the proxy's endpoints.

Source: RouteActivity (RocketMQ 5.5.0). Every broker has the endpoints that the client named: any proxy behind them serves each call.
"""

from __future__ import annotations

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.names import echoed_topic, group_name
from aerobee.broker.grpc.query_route import asked_endpoints, own_endpoints, route_queues
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.lite.lite_group import lite_group
from aerobee.client.base.topic_route import TopicRoute
from aerobee.grpc.proto import messages as pb
from aerobee.proxy.cluster import ProxyCluster
from aerobee.remoting.body.route import QueueData
from aerobee.remoting.body.topic_config import PERM_READ, PERM_WRITE, TopicConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import ANY_QUEUE, MASTER_ID, TYPE_ATTRIBUTE


class ProxyRoutes:
    """Serves both RPCs."""

    def __init__(self, cluster: ProxyCluster, access: RpcAccess) -> None:
        self._cluster = cluster
        self._access = access

    async def query_route(self, context: RpcContext, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
        """The topic's queues at every broker. Raises RpcRefused, AerobeeError."""
        shown = echoed_topic(request.topic)
        asked = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": shown.name})
        self._access.check(context.peer, context.metadata, asked)
        route = await self._cluster.route(shown.name)
        kind = await self._cluster.message_type(shown.name)
        endpoints = _endpoints(context, request.endpoints)
        queues: list[pb.MessageQueue] = []
        for data in route.queue_datas:
            topic = TopicConfig(
                shown.name,
                data.read_queue_nums,
                data.write_queue_nums,
                perm=_permission(route, data),
                attributes={TYPE_ATTRIBUTE: kind},
            )
            queues += route_queues(
                topic, shown, pb.Broker(name=data.broker_name, id=MASTER_ID, endpoints=endpoints)
            )
        return pb.QueryRouteResponse(status=status(), message_queues=queues)

    async def query_assignment(
        self, context: RpcContext, request: pb.QueryAssignmentRequest
    ) -> pb.QueryAssignmentResponse:
        """Every consumer gets every broker: its queues as one, or one by one for a group that consumes in order. Raises RpcRefused,
        AerobeeError."""
        shown, group = echoed_topic(request.topic), group_name(request.group)
        asked = RemotingCommand(RequestCode.PULL_MESSAGE, {"topic": shown.name, "consumerGroup": group})
        self._access.check(context.peer, context.metadata, asked)
        route = await self._cluster.route(shown.name)
        config = await self._cluster.group(group)
        in_order = config.consume_message_orderly and lite_group(config) is None
        endpoints = _endpoints(context, request.endpoints)
        assignments = []
        for data in route.queue_datas:
            permission = _permission(route, data)
            if not permission & PERM_READ or data.read_queue_nums <= 0:
                continue
            broker = pb.Broker(name=data.broker_name, id=MASTER_ID, endpoints=endpoints)
            shown_permission = pb.READ_WRITE if permission & PERM_WRITE else pb.READ
            for queue_id in range(data.read_queue_nums) if in_order else (ANY_QUEUE,):
                queue = pb.MessageQueue(topic=shown, id=queue_id, permission=shown_permission, broker=broker)
                assignments.append(pb.Assignment(message_queue=queue))
        if not assignments:
            raise RpcRefused(pb.FORBIDDEN, "no readable queue")
        return pb.QueryAssignmentResponse(status=status(), assignments=assignments)


def _endpoints(context: RpcContext, asked: pb.Endpoints) -> pb.Endpoints:
    return asked_endpoints(asked) or own_endpoints(context.own_host_port, asked)


def _permission(route: TopicRoute, data: QueueData) -> int:
    """The queues' permission; without a master nothing is written there."""
    broker = route.broker(data.broker_name)
    has_master = broker is not None and MASTER_ID in broker.broker_addrs
    return data.perm if has_master else data.perm & ~PERM_WRITE
