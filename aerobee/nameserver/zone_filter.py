"""Routes limited to the client's zone. Core. Source: ZoneRouteRPCHook (RocketMQ).

A client that sends `__ZONE_MODE=true` and a `__ZONE_NAME` gets only the brokers of that zone. A group without
a master stays in every route: consumers of all zones must be able to read its remaining messages.
"""

from __future__ import annotations

from dataclasses import replace

from aerobee.nameserver.route_table import RouteView
from aerobee.remoting.protocol import MASTER_ID


def filter_by_zone(route: RouteView, zone: str) -> RouteView:
    """Return the route without the groups of another zone that have a master."""
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
