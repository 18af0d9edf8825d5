"""SyncLiteSubscription: a client of a lite group says which lite topics it subscribes.

Source: ClientActivity.syncLiteSubscription (RocketMQ 5.5.0). Differences: the offset option `timestamp` has its effect; RocketMQ's proxy in
local mode serves no lite topics.
"""

from __future__ import annotations

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.renewals import Renewals
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.lite.lite_service import LiteService, LiteSync, OffsetKind, OffsetOption, SyncAction
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps

_ACTIONS = {
    pb.PARTIAL_ADD: SyncAction.PARTIAL_ADD,
    pb.PARTIAL_REMOVE: SyncAction.PARTIAL_REMOVE,
    pb.COMPLETE_ADD: SyncAction.COMPLETE_ADD,
    pb.COMPLETE_REMOVE: SyncAction.COMPLETE_REMOVE,
}
_POLICIES = {
    pb.OffsetOption.LAST: OffsetKind.LAST,
    pb.OffsetOption.MIN: OffsetKind.MIN,
    pb.OffsetOption.MAX: OffsetKind.MAX,
}
_KINDS = {
    "offset": OffsetKind.OFFSET,
    "tail_n": OffsetKind.TAIL_N,
    "timestamp": OffsetKind.TIMESTAMP,
}


class LiteRpcs:
    """Serves SyncLiteSubscription."""

    def __init__(
        self, *, lite: LiteService, clients: ClientTable, renewals: Renewals, access: RpcAccess
    ) -> None:
        self._lite = lite
        self._clients = clients
        self._renewals = renewals
        self._access = access

    def synchronize(
        self, context: RpcContext, request: pb.SyncLiteSubscriptionRequest
    ) -> pb.SyncLiteSubscriptionResponse:
        """Change the client's lite topics. Raises RpcRefused, Refused."""
        topic, group = topic_name(request.topic), group_name(request.group)
        body = dumps({"subscriptionSet": [{"group": group, "topic": topic}]})
        asked = RemotingCommand(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)
        self._access.check(context.peer, context.metadata, asked)
        self._renewals.seen(context.client)
        action = _ACTIONS.get(request.action)
        if action is None:
            raise RpcRefused(pb.BAD_REQUEST, f"action {request.action} is not known")
        sync = LiteSync(
            action=action,
            client_id=context.client_id,
            group=group,
            topic=topic,
            lite_topics=tuple(request.lite_topic_set),
            offset=_offset(request),
        )
        client = self._clients.enter(context)
        is_new = self._lite.subscriptions.get(group, context.client_id) is None
        self._lite.synchronize(sync, client)
        if is_new and action is not SyncAction.COMPLETE_REMOVE:
            self._leave_with(client, group)
        return pb.SyncLiteSubscriptionResponse(status=status())

    def _leave_with(self, client: GrpcClient, group: str) -> None:
        """Unsubscribe when the client ends."""

        def left(_: object) -> None:
            subscriber = self._lite.subscriptions.get(group, client.client_id)
            if subscriber is not None and subscriber.peer is client:
                self._lite.leave(group, client.client_id)

        client.on_close(left)


def _offset(request: pb.SyncLiteSubscriptionRequest) -> OffsetOption | None:
    """Raises RpcRefused for an option that says nothing."""
    if not request.HasField("offset_option"):
        return None
    option = request.offset_option
    kind = option.WhichOneof("offset_type")
    if kind is None:
        raise RpcRefused(pb.INTERNAL_SERVER_ERROR, "Unknown OffsetOption type: OFFSETTYPE_NOT_SET")
    if kind != "policy":
        return OffsetOption(_KINDS[kind], getattr(option, kind))
    policy = _POLICIES.get(option.policy)
    if policy is None:
        raise RpcRefused(pb.BAD_REQUEST, f"offset policy {option.policy} is not known")
    return OffsetOption(policy)
