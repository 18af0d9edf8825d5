"""Removes clients without heartbeats from their groups, and closes their connections.

Source: ClientHousekeepingService.scanExceptionChannel (RocketMQ), which closes the connection of each member that
expired. Several groups share a connection (producers and consumers of one process). A group that stops sending
heartbeats without unregistering must not close the connection of the others (apache/rocketmq 10435): the connection is
closed when all its groups have expired.
"""

from __future__ import annotations

from aerobee.broker.consumer.consumer_registry import ConsumerRegistry
from aerobee.broker.state.producer_registry import ProducerRegistry


def close_silent_clients(consumers: ConsumerRegistry, producers: ProducerRegistry, expiry_s: float) -> None:
    """Remove the members without a heartbeat for `expiry_s`; close connections that have no member left."""
    for peer, why in (*consumers.scan(expiry_s), *producers.scan(expiry_s)):
        if not consumers.groups_of(peer) and not producers.groups_of(peer):
            peer.close(why)
