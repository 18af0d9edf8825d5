"""Start what is down."""

from __future__ import annotations

from aerobee.errors import AerobeeError
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.node import Node

RETRY_S = 2.0


async def start(cluster: Cluster, node: Node) -> None:
    """Start a process, again and again until it comes up."""
    while node.process is None:
        try:
            await cluster.start_node(node)
        except (AerobeeError, OSError):
            await cluster.clock.sleep(RETRY_S)
