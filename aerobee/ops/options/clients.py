"""The clients of the command line, connected as its options, environment and context say (shared_options.py)."""

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
    """The masters that are meant: all, those of a cluster, one by its name or HOST:PORT. Raises NotFound when none is."""
    registered = [info for info in await admin.brokers(cluster) if info.broker_id == MASTER_ID]
    found = [info for info in registered if broker in (None, info.broker_name, info.address)]
    if not registered:
        raise NotFound(
            "no broker is registered at the NameServer; start one, or let `aerobee doctor` say what is wrong"
        )
    if not found:
        known = ", ".join(sorted(info.broker_name for info in registered))
        raise NotFound(f"no master is called {broker}: there are {known}; `aerobee cluster list` shows them")
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
