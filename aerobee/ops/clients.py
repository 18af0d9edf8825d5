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
from aerobee.ops.shared_options import client_config


def open_admin(nameservers: str | list[str]) -> Admin:
    return Admin(nameservers, client=client_config())


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
