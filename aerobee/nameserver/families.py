"""A NameServer's metrics as families of /metrics. RocketMQ's NameServer exports no metrics, so the names are
Aerobee's.
"""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.clock import Clock, steady_ms
from aerobee.monitoring.exposition import GAUGE, Family, joined, label_text
from aerobee.nameserver.route_table import RouteTable
from aerobee.remoting.protocol import MASTER_ID


def nameserver_families(table: RouteTable, *, connections: int, clock: Clock) -> Iterator[Family]:
    """Registered brokers and topics, and the time since each broker's last heartbeat."""
    common = label_text({"node_type": "nameserver"})
    for name, meaning, value in (
        ("aerobee_nameserver_topics", "Topics that some broker registered", len(table.topics)),
        ("aerobee_nameserver_brokers", "Brokers that give signs of life", len(table.live)),
        ("aerobee_nameserver_connections", "Of brokers, clients and tools", connections),
    ):
        yield Family(name, GAUGE, meaning, ((common, value),))
    groups = [
        (joined(common, label_text({"cluster": group.cluster, "broker": name})), group)
        for name, group in list(table.groups.items())
    ]
    meaning = "1: a master of this broker name is registered, else 0"
    yield Family(
        "aerobee_nameserver_has_master",
        GAUGE,
        meaning,
        ((label, int(MASTER_ID in group.members)) for label, group in groups),
    )
    members = ((label, len(group.members)) for label, group in groups)
    yield Family("aerobee_nameserver_replicas", GAUGE, "Registered brokers of one broker name", members)
    now_ms = steady_ms(clock)
    silent = (
        (
            joined(common, label_text({"cluster": each.identity.cluster, "address": each.identity.address})),
            max(0, now_ms - each.last_seen_ms) / 1000,
        )
        for each in list(table.live.values())
    )
    yield Family(
        "aerobee_nameserver_broker_silent_seconds",
        GAUGE,
        "Time since the broker's last registration or heartbeat, s",
        silent,
    )
