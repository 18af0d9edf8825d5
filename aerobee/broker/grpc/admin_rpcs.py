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
    return (
        log_level_rpc(server.change_log_level),
        admin_rpc("DescribeTopicStatus", server.describe_topic),
        admin_rpc("ListSubscription", groups.list_subscriptions),
        admin_rpc("DescribeSubscription", groups.describe_subscriptions),
        admin_rpc("DeleteSubscription", groups.delete_subscription),
        admin_rpc("DescribeGroupAccumulation", groups.accumulation),
        admin_rpc("ListConsumerConnection", groups.list_connections),
        admin_rpc("ResetGroupOffset", groups.reset_offset),
        admin_rpc("QueryMessage", messages.query, pb.ListMessageRequest),
        admin_rpc("PrintThreadStackTrace", server.stack_trace),
        admin_rpc("VerifyMessage", messages.verify),
        admin_rpc("AdminSendMessage", messages.send),
        admin_rpc("GetConsumerRunningInfo", server.running_info),
        admin_rpc("GetTopicRoute", server.topic_route),
        admin_rpc("QueryTimeSpan", groups.time_spans),
        admin_rpc("GetProxyRuntimeStats", server.runtime_stats),
    )


def log_level_rpc(serve: Unary) -> Rpc:
    """ChangeLogLevel, whose response is the only one without a status: its remark says what was refused."""

    def refused(status: pb.Status) -> pb.ChangeLogLevelResponse:
        return pb.ChangeLogLevelResponse(remark=f"{pb.Code.Name(status.code)}: {status.message}")

    return Rpc(
        "ChangeLogLevel",
        pb.ChangeLogLevelRequest,
        refused,
        unary=serve,
        service=ADMIN_SERVICE,
        has_status=False,
    )


def admin_rpc(name: str, serve: Unary, request: type[Any] | None = None) -> Rpc:
    """An RPC of the Admin service. `request`: its message, if it is not named as the RPC is."""
    response = getattr(pb, f"{name}Response")
    return Rpc(
        name,
        request or getattr(pb, f"{name}Request"),
        lambda status: response(status=status),
        unary=serve,
        service=ADMIN_SERVICE,
    )
