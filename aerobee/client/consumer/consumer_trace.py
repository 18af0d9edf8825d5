"""The tracer of a consumer: sends trace records with a separate producer, as RocketMQ's does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from aerobee.client.base.config import ClientConfig
from aerobee.client.producer.producer import Producer
from aerobee.client.tracing.trace import Tracer, trace_client, trace_group
from aerobee.clock import Clock
from aerobee.network import Network


def consumer_tracer(
    nameservers: str | Sequence[str],
    group: str,
    client: ClientConfig | None,
    clock: Clock,
    network: Network | None,
    random: Random | None,
) -> Tracer:
    """Make a tracer that records what a consumer of `group` does. The caller starts and closes it with the consumer."""
    sender = Producer(
        nameservers,
        trace_group(group, "CONSUME"),
        client=trace_client(client),
        clock=clock,
        network=network,
        random=random,
    )
    return Tracer(sender, group=group, clock=clock)
