"""Start a process that is down."""

from __future__ import annotations

from aerobee.errors import AerobeeError
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.node import Node

RETRY_S = 2.0


async def start(cluster: Cluster, node: Node) -> None:
    """Start a process; retry until a start succeeds."""
    while node.process is None:
        try:
            await cluster.start_node(node)
        except (AerobeeError, OSError):
            await cluster.clock.sleep(RETRY_S)
