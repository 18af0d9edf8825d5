"""SyncLiteSubscription by remoting: a client's lite topics are made known to every broker of the topic.

Brokers know a lite client by its id, whichever proxy passes its calls. With access control an id belongs to its user, so that no other
user's client takes its lite topics. Source: ClientActivity.syncLiteSubscription (RocketMQ 5.5.0).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client import GrpcClient
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.names import group_name, topic_name
from aerobee.broker.grpc.refusal import RpcRefused, status
from aerobee.broker.grpc.renewal_table import Client
from aerobee.broker.grpc.rpc import RpcContext
from aerobee.broker.lite.lite_group import lite_group
from aerobee.broker.lite.lite_service import QUOTA_SLACK, WILDCARD_REFUSED
from aerobee.client.base.topic_route import subscribe_queues
from aerobee.errors import AerobeeError
from aerobee.grpc.proto import messages as pb
from aerobee.lite_topic import lite_topic_fault
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.fastjson import dumps
from aerobee.remoting.peer import Peer

log = logging.getLogger(__name__)

GROUPS_MAX = 16  # lite groups of one client
_KINDS = {"offset": "OFFSET", "tail_n": "TAIL_N", "timestamp": "TIMESTAMP"}


def broker_client_id(client: Client) -> str:
    """The id under which brokers know a client: its own, with access control that of its user alone."""
    client_id, principal = client
    return f"{len(principal)}@{principal}@{client_id}" if principal else client_id


class ProxyLite:
    """Serves SyncLiteSubscription, and passes on that a lite topic went to another client."""

    def __init__(
        self, cluster: ProxyCluster, clients: ClientTable, renewals: ProxyRenewals, access: RpcAccess
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._renewals = renewals
        self._access = access
        self._subscribers: dict[
            str, dict[tuple[str, str], GrpcClient]
        ] = {}  # by broker client id, (group, topic)
        cluster.session.handlers[RequestCode.NOTIFY_UNSUBSCRIBE_LITE.value] = self._lost

    async def synchronize(
        self, context: RpcContext, request: pb.SyncLiteSubscriptionRequest
    ) -> pb.SyncLiteSubscriptionResponse:
        """Change the client's lite topics at every broker of the topic. Raises RpcRefused, AerobeeError."""
        topic, group = topic_name(request.topic), group_name(request.group)
        body = dumps({"subscriptionSet": [{"group": group, "topic": topic}]})
        asked = RemotingCommand(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)
        self._access.check(context.peer, context.metadata, asked)
        self._renewals.seen(context.client)
        await self._check(request, group, topic)
        entry = _entry(context.client, request, group, topic)
        client = self._clients.enter(context)
        if request.action != pb.COMPLETE_REMOVE:
            self._remember(client, group, topic)
        await self._tell(topic, entry)
        if client.is_closed and request.action != pb.COMPLETE_REMOVE:  # it left while the brokers answered
            await self._leave(broker_client_id(context.client), group, topic)
        return pb.SyncLiteSubscriptionResponse(status=status())

    async def _check(self, request: pb.SyncLiteSubscriptionRequest, group: str, topic: str) -> None:
        if request.action not in pb.LiteSubscriptionAction.values():
            raise RpcRefused(pb.BAD_REQUEST, f"action {request.action} is not known")
        if request.action == pb.PARTIAL_ADD:
            for name in request.lite_topic_set:
                if fault := lite_topic_fault(name):
                    raise RpcRefused(pb.ILLEGAL_LITE_TOPIC, fault)
        lite = lite_group(await self._cluster.group(group))
        if lite is None or lite.topic != topic:
            bound = "null" if lite is None else lite.topic
            text = f"lite group {group} is expected to bind topic {bound}, but actual is {topic}"
            raise RpcRefused(pb.ILLEGAL_TOPIC, text)
        if lite.is_wildcard and request.action == pb.PARTIAL_ADD:
            raise RpcRefused(pb.ILLEGAL_TOPIC, WILDCARD_REFUSED)
        if len(request.lite_topic_set) > lite.quota + QUOTA_SLACK:
            raise RpcRefused(
                pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded: {lite.quota}"
            )

    def _remember(self, client: GrpcClient, group: str, topic: str) -> None:
        """Unsubscribe when the client ends. Raises RpcRefused (TOO_MANY_REQUESTS)."""
        key = broker_client_id((client.client_id, client.principal))
        of_client = self._subscribers.setdefault(key, {})
        if of_client.get((group, topic)) is client:
            return
        if len(of_client) >= GROUPS_MAX:
            raise RpcRefused(
                pb.TOO_MANY_REQUESTS, f"the client consumes of {GROUPS_MAX} lite groups, the maximum"
            )
        of_client[group, topic] = client

        def left(_: object) -> None:
            if of_client.get((group, topic)) is client:
                del of_client[group, topic]
                if not of_client and self._subscribers.get(key) is of_client:
                    del self._subscribers[key]
                self._cluster.session.tasks.spawn(self._leave(key, group, topic), "proxy-lite")

        client.on_close(left)

    async def _leave(self, client_id: str, group: str, topic: str) -> None:
        entry = {
            "action": "COMPLETE_REMOVE",
            "clientId": client_id,
            "group": group,
            "topic": topic,
            "liteTopicSet": [],
            "version": 0,
        }
        try:
            await self._tell(topic, entry)
        except (RpcRefused, AerobeeError) as error:
            log.info("brokers may keep the lite topics of client %s for 3 minutes: %s", client_id, error)

    async def _tell(self, topic: str, entry: dict[str, Any]) -> None:
        """Send one subscription to every broker. Raises the first failure when all have answered."""
        route = await self._cluster.route(topic)
        body = dumps({"subscriptionSet": [entry]})
        brokers = dict.fromkeys(queue.broker_name for queue in subscribe_queues(route))
        if not brokers:
            raise RpcRefused(pb.FORBIDDEN, "no readable queue")
        outcomes = await asyncio.gather(
            *(
                self._cluster.call(name, topic, RemotingCommand(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body))
                for name in brokers
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _lost(self, peer: Peer, request: RemotingCommand) -> None:
        """A broker gave a lite topic to another client of the group."""
        group = request.field("consumerGroup")
        of_client = self._subscribers.get(request.field("clientId") or "", {})
        for (found, _), client in list(of_client.items()):
            if found == group:
                client.invoke_oneway(request)


def _entry(client: Client, request: pb.SyncLiteSubscriptionRequest, group: str, topic: str) -> dict[str, Any]:
    """One LiteSubscriptionDTO. Raises RpcRefused."""
    entry: dict[str, Any] = {
        "action": pb.LiteSubscriptionAction.Name(request.action),
        "clientId": broker_client_id(client),
        "group": group,
        "topic": topic,
        "liteTopicSet": list(request.lite_topic_set),
        "version": request.version,
    }
    if request.HasField("offset_option"):
        entry["offsetOption"] = _offset(request.offset_option)
    return entry


def _offset(option: pb.OffsetOption) -> dict[str, Any]:
    kind = option.WhichOneof("offset_type")
    if kind is None:
        raise RpcRefused(pb.INTERNAL_SERVER_ERROR, "Unknown OffsetOption type: OFFSETTYPE_NOT_SET")
    if kind != "policy":
        return {"type": _KINDS[kind], "value": getattr(option, kind)}
    if option.policy not in pb.OffsetOption.Policy.values():
        raise RpcRefused(pb.BAD_REQUEST, f"offset policy {option.policy} is not known")
    return {"type": "POLICY", "value": option.policy}
