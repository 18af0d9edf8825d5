"""Final checks of delays, transactions and the POP group of a simulated cluster."""

from __future__ import annotations

from aerobee.simulation.broken import Checker
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.features import SEND_TIMEOUT_S, Features

# Brokers check open transactions every few seconds, and unacknowledged messages are redelivered.
SETTLE_S = 120.0
LOOK_AGAIN_S = 3.5  # time to wait for messages that must not come back


async def settle(cluster: Cluster, features: Features) -> None:
    """After the last send: all due messages reach the group, and acknowledged messages are not redelivered.
    Raises Broken.
    """
    features.send_no_more()
    await cluster.until(
        lambda: not features.under_way, 2 * SEND_TIMEOUT_S, "a send of a delay or a transaction never ended"
    )
    await cluster.until(
        lambda: not features.missing or features.trouble is not None,
        SETTLE_S,
        "delayed or committed messages never reached the POP group",
        checker=Checker.DELIVERED,
    )
    features.look()
    await cluster.until(
        lambda: not features.unfinished or features.trouble is not None,
        SETTLE_S,
        "what a member of the POP group forgot never came back",
        checker=Checker.DELIVERED,
    )
    await cluster.clock.sleep(LOOK_AGAIN_S)
    features.look()
