"""The Admin service of apache.rocketmq.v2 (rocketmq-apis 2026): its RPCs, over the handlers that serve remoting's administration.

No release of RocketMQ serves it. `deployment_name` is ignored: a broker is of one deployment.
"""

from __future__ import annotations

from typing import Any

from aerobee.broker.grpc.admin_calls import AdminCalls
from aerobee.broker.grpc.admin_groups import AdminGroupRpcs
from aerobee.broker.grpc.admin_messages import AdminMessageRpcs
from aerobee.broker.grpc.admin_server import AdminServerRpcs
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.rpc import Rpc, Unary
from aerobee.broker.grpc.send_message import SendRpc
from aerobee.broker.lite.lite_service import LiteService
from aerobee.broker.parts.parts import BrokerParts
from aerobee.grpc.proto import messages as pb

ADMIN_SERVICE = "apache.rocketmq.v2.Admin"


def make_admin_rpcs(
    parts: BrokerParts, *, lite: LiteService, clients: ClientTable, calls: AdminCalls, send: SendRpc
) -> tuple[Rpc, ...]:
    """Every RPC of the service."""
    server = AdminServerRpcs(parts=parts, clients=clients, calls=calls)
    groups = AdminGroupRpcs(parts=parts, lite=lite, calls=calls)
    messages = AdminMessageRpcs(parts=parts, calls=calls, send=send)

    def change_refused(status: pb.Status) -> pb.ChangeLogLevelResponse:  # the one response without a status
        return pb.ChangeLogLevelResponse(remark=f"{pb.Code.Name(status.code)}: {status.message}")

    return (
        Rpc(
            "ChangeLogLevel",
            pb.ChangeLogLevelRequest,
            change_refused,
            unary=server.change_log_level,
            service=ADMIN_SERVICE,
            has_status=False,
        ),
        _admin("DescribeTopicStatus", server.describe_topic),
        _admin("ListSubscription", groups.list_subscriptions),
        _admin("DescribeSubscription", groups.describe_subscriptions),
        _admin("DeleteSubscription", groups.delete_subscription),
        _admin("DescribeGroupAccumulation", groups.accumulation),
        _admin("ListConsumerConnection", groups.list_connections),
        _admin("ResetGroupOffset", groups.reset_offset),
        _admin("QueryMessage", messages.query, pb.ListMessageRequest),
        _admin("PrintThreadStackTrace", server.stack_trace),
        _admin("VerifyMessage", messages.verify),
        _admin("AdminSendMessage", messages.send),
        _admin("GetConsumerRunningInfo", server.running_info),
        _admin("GetTopicRoute", server.topic_route),
        _admin("QueryTimeSpan", groups.time_spans),
        _admin("GetProxyRuntimeStats", server.runtime_stats),
    )


def _admin(name: str, serve: Unary, request: type[Any] | None = None) -> Rpc:
    response = getattr(pb, f"{name}Response")
    return Rpc(
        name,
        request or getattr(pb, f"{name}Request"),
        lambda status: response(status=status),
        unary=serve,
        service=ADMIN_SERVICE,
    )
