"""A machine with the process on it, and what differs between clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.simulation.host import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What differs between clusters. The defaults: two replicas have what is acknowledged, whoever dies."""

    sync_disk: bool = (
        False  # brokers answer when their disk has it (SYNC_FLUSH); then a power loss may hit all of them
    )
    waits_for_replicas: bool = (
        True  # else a master answers alone, under its lease: what it answered may be lost with it
    )
    controllers: bool = (
        True  # else a master and two slaves by their files (SYNC_MASTER, SLAVE), and nobody is elected
    )
    features: bool = False  # with delays, transactions and POP


@dataclass(slots=True)
class Node:
    """A machine and the process on it, which is None while it is down."""

    host: Host
    index: int
    process: Any = None
    is_paused: bool = False
    starts: int = 0
