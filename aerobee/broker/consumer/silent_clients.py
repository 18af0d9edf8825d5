"""Clients whose heartbeats do not come any more leave their groups, and their connections are closed.

Source: ClientHousekeepingService.scanExceptionChannel (RocketMQ), which closes the connection of each member that expired. Several
groups share a connection (producers and consumers of one process), and one that was shut down without a word, or lost its timer, must
not take the others' connection along (apache/rocketmq 10435): it is closed when no group of it is alive.
"""

from __future__ import annotations

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.state.producer_registry import ProducerRegistry


def close_silent_clients(consumers: ConsumerRegistry, producers: ProducerRegistry, expiry_s: float) -> None:
    """Remove the members without a heartbeat for `expiry_s`; close connections that have no member left."""
    for peer, why in (*consumers.scan(expiry_s), *producers.scan(expiry_s)):
        if not consumers.groups_of(peer) and not producers.groups_of(peer):
            peer.close(why)
