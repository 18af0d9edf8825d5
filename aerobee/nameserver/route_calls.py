"""GET_ROUTEINFO_BY_TOPIC and GET_BROKER_CLUSTER_INFO. Core. Source: ClientRequestProcessor (RocketMQ).

A reply contains, for each broker, the address of the listener of the same name as the one through which the
request came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aerobee.clock import Clock
from aerobee.nameserver.answers import STANDARD_JSON_VERSION_MIN, cluster_info_body, route_body
from aerobee.nameserver.config import LiveNameServerConfig
from aerobee.nameserver.kv_config import KvConfig
from aerobee.nameserver.route_table import RouteTable, RouteView
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.protocol import FAQ, MASTER_ID, ORDER_TOPIC_NAMESPACE


class RouteCalls:
    """Request handlers for routes, used by clients and brokers."""

    def __init__(
        self, *, table: RouteTable, kv_config: KvConfig, config: LiveNameServerConfig, clock: Clock
    ) -> None:
        self._table = table
        self._kv_config = kv_config
        self._config = config
        self._clock = clock
        self._started = clock.monotonic()

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
        }

    def route(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        config = self._config.value
        if config.need_wait_for_service:
            left = config.wait_seconds_for_service - (self._clock.monotonic() - self._started)
            if left > 0:
                return request.reply(
                    ResponseCode.SYSTEM_ERROR,
                    remark=f"name server not ready: it waits {left:.0f} s more for brokers to register",
                )
        topic = request.text("topic")
        route = self._table.route(
            topic, listener=peer.listener, support_acting_master=config.support_acting_master
        )
        if route is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {topic}\n{FAQ}",
            )
        if request.boolean("__ZONE_MODE", False) and (zone := request.field("__ZONE_NAME")):
            route = filter_by_zone(route, zone)
        order_conf = None
        if config.order_message_enable:
            order_conf = self._kv_config.get(ORDER_TOPIC_NAMESPACE, topic) or None
        standard = request.version >= STANDARD_JSON_VERSION_MIN or request.boolean(
            "acceptStandardJsonOnly", False
        )
        return request.reply(body=route_body(route, standard=standard, order_conf=order_conf))

    def cluster_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        groups = self._table.group_views(listener=peer.listener)
        return request.reply(body=cluster_info_body(groups, self._table.clusters))


def filter_by_zone(route: RouteView, zone: str) -> RouteView:
    """Return the route without the groups of another zone that have a master. Source: ZoneRouteRPCHook (RocketMQ).

    A client that sends `__ZONE_MODE=true` and a `__ZONE_NAME` gets only the brokers of that zone. A group without a master
    stays in every route: consumers of all zones must be able to read its remaining messages.
    """
    removed = {
        group.name: group
        for group in route.groups
        if MASTER_ID in group.addresses and (group.zone or "").lower() != zone.lower()
    }
    if not removed:
        return route
    removed_addresses = {address for group in removed.values() for address in group.addresses.values()}
    return replace(
        route,
        groups=tuple(group for group in route.groups if group.name not in removed),
        queues=tuple((name, queues) for name, queues in route.queues if name not in removed),
        filter_servers={a: s for a, s in route.filter_servers.items() if a not in removed_addresses},
    )
