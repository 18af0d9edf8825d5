"""A machine with the process on it, and what differs between clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.simulation.host import Host
from aerobee.simulation.simulated_loop import LaggingExecutor
from aerobee.simulation.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Parameters of a cluster. Defaults: two replicas have every acknowledged message, so that any process may die."""

    sync_disk: bool = (
        False  # brokers answer when their disk has it (SYNC_FLUSH); then a power loss may hit all of them
    )
    waits_for_replicas: bool = (
        True  # else a master answers alone, under its lease: what it answered may be lost with it
    )
    controllers: bool = (
        True  # else a master and two slaves by their files (SYNC_MASTER, SLAVE), without elections
    )
    keeps_confirmed: bool = True  # records confirmed by two brokers must stay: no script kills both
    features: bool = False  # with delays, transactions and POP
    changes_masters: bool = True  # random runs may have several deliberate changes of master
    # Of a group that waits for replicas:
    all_acks: bool = True  # allAckInSyncStateSet
    in_sync: int = 2  # inSyncReplicas
    min_in_sync: int = 2  # minInSyncReplicas
    has_ha_key: bool = False  # brokers show each other a key at the HA port
    is_indexed: bool = True  # keys of messages go to the index
    writer_delay_s: float = 0.0  # seconds between a change and the small file that has it
    byte_cost_s: float = 0.0  # seconds in which a broker's loop or thread reads a byte of a mapped file
    has_passing_topic: bool = False  # a topic is repeatedly deleted and recreated, of the other kind
    streams: tuple[Traffic, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The drawn parameters as words, for the coverage table."""
        replicas = (
            f"acknowledged by {'the set' if self.all_acks else f'{self.in_sync} copies'}, {self.min_in_sync} in sync at least"
            if self.waits_for_replicas
            else "acknowledged by the master"
        )
        named = (
            ("SYNC_FLUSH" if self.sync_disk else "ASYNC_FLUSH", True),
            (replicas, True),
            ("key at the HA port", self.has_ha_key),
            ("no index of keys", not self.is_indexed),
            ("small files lag", self.writer_delay_s > 0),
            ("reading takes time", self.byte_cost_s > 0),
        )
        return tuple(name for name, is_so in named if is_so)


@dataclass(slots=True)
class Node:
    """A machine and the process on it, which is None while it is down."""

    host: Host
    index: int
    process: Any = None
    is_paused: bool = False
    starts: int = 0
    writer: LaggingExecutor | None = None  # of a broker's small files
