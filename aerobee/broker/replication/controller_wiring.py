"""Assembles the replication of a broker in controller mode, and its ControllerAgent."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aerobee.broker.consumer.request_mode import RequestModes
from aerobee.broker.fastpath.choice import RawAppends
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.replication.auto_switch_follower import AutoSwitchFollower
from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.broker.replication.controller_agent import ControllerAgent
from aerobee.broker.replication.controller_calls import ControllerModeCalls
from aerobee.broker.replication.controller_client import ControllerClient
from aerobee.broker.replication.controller_files import Epochs, IdentityFiles
from aerobee.broker.replication.ha_listener import HaListener
from aerobee.broker.replication.replica_acks import ReplicaAcks
from aerobee.broker.replication.replica_hosts import ReplicaHosts
from aerobee.broker.replication.replication import CopyFeatures, Replication
from aerobee.broker.replication.tls_connection import secured
from aerobee.broker.replication.wiring import make_after_cut, make_metadata_sync
from aerobee.network import Network


class ControllerMode(NamedTuple):
    """The parts of a broker in controller mode."""

    replication: Replication
    agent: ControllerAgent
    calls: ControllerModeCalls


def make_controller_mode(
    *,
    parts: BrokerParts,
    modes: RequestModes,
    listener: HaListener,
    network: Network,
    raw_appends: RawAppends | None,
    on_cut: Callable[[int], None],
    copy_features: CopyFeatures,
    on_role: Callable[[int], None],
) -> ControllerMode:
    """`on_role` is called with a master's epoch whenever a role began, `on_cut` with the log's end after a cut. Raises StoreError for damaged epochs."""
    store, clock, identity, disk = parts.store, parts.clock, parts.identity, parts.disk
    config = store.config
    epochs = Epochs(disk, config.store_path_epoch_file or config.path("epochFileCheckpoint"))
    epochs.load()
    acks, copies = (
        ReplicaAcks(clock=clock, timeout_s=lambda: store.config.slave_timeout / 1000) for _ in range(2)
    )
    client = ControllerClient(parts.client, cluster=identity.cluster, name=identity.name)
    hosts = None
    if not (config.proves_ha_peers or config.ha_allowed_hosts):
        hosts = ReplicaHosts(ask=lambda: client.replica_addresses(agent.addresses), clock=clock)
    agent = ControllerAgent(
        live=parts.live,
        identity=identity,
        store=store,
        clock=clock,
        client=client,
        files=IdentityFiles(disk, config.store_path_broker_identity or config.path("brokerIdentity")),
        epochs=epochs,
        on_role=on_role,
        hosts=hosts,
    )
    after_cut = make_after_cut(parts, on_cut)
    follower = AutoSwitchFollower(
        store=store,
        clock=clock,
        network=secured(network, store.config),
        epochs=epochs,
        broker_id=lambda: agent.broker_id,
        master_epoch=lambda: parts.role.epoch,
        finish_cut=after_cut.finish,
        native=raw_appends,
    )
    mode = AutoSwitchMode(
        store=store,
        clock=clock,
        acks=acks,
        copies=copies,
        follower=follower,
        epochs=epochs,
        broker_id=lambda: agent.broker_id,
        hosts=hosts,
    )
    agent.mode = mode
    agent.replication = Replication(
        store=store,
        role=parts.role,
        ack=parts.ack,
        acks=acks,
        copies=copies,
        mode=mode,
        listener=listener,
        metadata=make_metadata_sync(parts, modes),
        after_cut=after_cut,
        copy_features=copy_features,
    )
    calls = ControllerModeCalls(agent=agent, epochs=epochs, identity=identity, role=parts.role, store=store)
    return ControllerMode(agent.replication, agent, calls)
