"""Clients for commands, configured by options, environment and context (shared_options.py)."""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.client import (
    Admin,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from aerobee.client.base.results import BrokerInfo
from aerobee.ops.options.shared_options import client_config
from aerobee.ops.terminal.failure import NotFound
from aerobee.remoting.protocol import MASTER_ID


def open_admin(nameservers: str | list[str]) -> Admin:
    return Admin(nameservers, client=client_config())


async def masters(admin: Admin, *, cluster: str | None = None, broker: str | None = None) -> list[BrokerInfo]:
    """All masters, the masters of one cluster, or one master by name or HOST:PORT. Raises NotFound when there is none."""
    registered = [info for info in await admin.brokers(cluster) if info.broker_id == MASTER_ID]
    found = [info for info in registered if broker in (None, info.broker_name, info.address)]
    if not registered:
        raise NotFound(
            "no broker is registered at the NameServer: start one, or run `aerobee doctor` to find the cause"
        )
    if not found:
        known = ", ".join(sorted(info.broker_name for info in registered))
        raise NotFound(f"no master is called {broker}; known masters: {known} (`aerobee cluster list`)")
    return found


def open_producer(
    nameservers: str, group: str, *, config: ProducerConfig | None = None, trace: bool = False
) -> Producer:
    return Producer(nameservers, group, config=config, client=client_config(), trace=trace)


def open_pull_consumer(
    nameservers: str, group: str, *, config: PullConsumerConfig | None = None, trace: bool = False
) -> PullConsumer:
    return PullConsumer(nameservers, group, config=config, client=client_config(), trace=trace)


def open_simple_consumer(
    nameservers: str,
    group: str,
    *,
    subscriptions: Mapping[str, str],
    config: SimpleConsumerConfig | None = None,
) -> SimpleConsumer:
    return SimpleConsumer(
        nameservers, group, subscriptions=subscriptions, config=config, client=client_config()
    )
