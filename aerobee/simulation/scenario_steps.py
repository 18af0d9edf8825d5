"""Steps of scenarios: who leads, until when all replicas are in sync, kills and starts."""

from __future__ import annotations

import asyncio

from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.errors import AerobeeError
from aerobee.ha.stream.sync_state_set import SyncStateSet
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.node import Node

LONG_S = 60.0
FINE_S = 0.001
RETRY_S = 1.0
ACKNOWLEDGED_FIRST = 4  # messages that all replicas have before the first fault


async def find_master(cluster: Cluster) -> Node:
    """The broker that leads, as soon as one does."""
    await cluster.until(lambda: cluster.master() is not None, LONG_S, "no master")
    node = cluster.master()
    assert node is not None
    return node


def set_of(node: Node) -> SyncStateSet | None:
    """The sync state set of a master; None at others."""
    if node.process is None:
        return None
    mode = node.process.replication.mode
    assert isinstance(mode, AutoSwitchMode)
    return mode.sync_state_set


async def full_set(cluster: Cluster) -> Node:
    """The master, when all replicas are in sync."""

    def is_full() -> bool:
        node = cluster.master()
        found = set_of(node) if node is not None else None
        return (
            found is not None
            and len(found.counted) == len(cluster.brokers) == len(found.members)
            and sum(each.offset >= 0 for each in cluster.clients.sent) >= ACKNOWLEDGED_FIRST
        )

    await cluster.until(is_full, LONG_S, "the replicas were never in sync", step_s=0.02)
    return await find_master(cluster)


def other_brokers(cluster: Cluster, *nodes: Node) -> list[Node]:
    """The brokers except these."""
    return [node for node in cluster.brokers if node not in nodes]


def leading_controller(cluster: Cluster) -> Node | None:
    """The controller that leads; None without one."""
    for node in cluster.controllers:
        if node.process is not None and node.process.is_leading:
            return node
    return None


async def start(cluster: Cluster, *nodes: Node) -> None:
    """Start what does not run, again where the disk refuses."""
    for node in nodes:
        while node.process is None:
            try:
                await cluster.start_node(node)
            except (AerobeeError, OSError):
                await cluster.clock.sleep(RETRY_S)


async def kill(cluster: Cluster, *nodes: Node, power: bool = False) -> None:
    """Kill processes, or take their power, simultaneously."""
    await asyncio.gather(*(cluster.kill(node, power=power) for node in nodes))
