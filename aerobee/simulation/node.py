"""A machine with its process, and the settings of a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aerobee.simulation.host import Host
from aerobee.simulation.simulated_loop import LaggingExecutor
from aerobee.simulation.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a cluster. By default two replicas have every acknowledged message, so any process may die."""

    sync_disk: bool = False  # SYNC_FLUSH: brokers acknowledge from their disk, so all of them may lose power
    waits_for_replicas: bool = (
        True  # False: a master acknowledges alone, under its lease; such messages may be lost with it
    )
    controllers: bool = (
        True  # False: a configured master and two slaves (SYNC_MASTER, SLAVE), without elections
    )
    # Records that this number of brokers confirmed must stay: one more than die simultaneously. In a group that waits for no replica,
    # a third member of the set may lack what two confirm.
    kept_by: int = 2
    features: bool = False  # with delays, transactions and POP
    has_grpc: bool = False  # clients of gRPC take part in the features
    changes_masters: bool = True  # random runs may have several deliberate changes of master
    # Of a group that waits for replicas:
    all_acks: bool = True  # allAckInSyncStateSet
    in_sync: int = 2  # inSyncReplicas
    min_in_sync: int = 2  # minInSyncReplicas
    has_ha_key: bool = False  # brokers authenticate at the HA port with a key
    is_indexed: bool = True  # message keys are indexed
    writer_delay_s: float = 0.0  # seconds between a change and the write of its config file
    byte_cost_s: float = 0.0  # seconds for a broker's loop or thread to read one byte of a mapped file
    # a topic is repeatedly deleted and recreated with the other kind of queues
    has_passing_topic: bool = False
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
    """A machine and its process, which is None while the process is down."""

    host: Host
    index: int
    process: Any = None
    is_paused: bool = False
    starts: int = 0
    writer: LaggingExecutor | None = None  # writer of a broker's config files
