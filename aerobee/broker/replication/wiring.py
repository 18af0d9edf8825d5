"""Assembles the replication of a broker, and determines the address of its HA port."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from aerobee.broker.consumer.request_mode import RequestModes
from aerobee.broker.fastpath.choice import RawAppends
from aerobee.broker.parts.parts import BrokerParts
from aerobee.broker.pop.revive_log import revive_topic
from aerobee.broker.replication.after_cut import AfterCut
from aerobee.broker.replication.classic_mode import ClassicMode
from aerobee.broker.replication.ha_listener import HaListener
from aerobee.broker.replication.metadata_sync import MetadataSync
from aerobee.broker.replication.replica_acks import ReplicaAcks
from aerobee.broker.replication.replication import CopyFeatures, Replication
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.master_questions import MasterQuestions
from aerobee.clock import Clock
from aerobee.errors import ConfigError
from aerobee.host_port import PORT_MAX, split_address
from aerobee.network import Network
from aerobee.remoting.protocol import MASTER_ID
from aerobee.store.files.config import BrokerRole, StoreConfig

if TYPE_CHECKING:
    from aerobee.broker.replication.classic_follower import ClassicFollower

log = logging.getLogger(__name__)


def check_roles(config: BrokerConfig, store: StoreConfig) -> None:
    """Raises ConfigError for settings of role and replicas that contradict each other."""
    if config.enable_controller_mode:
        _check_controller_mode(config, store)
        return
    if store.broker_role is BrokerRole.SLAVE and config.broker_id == MASTER_ID:
        raise ConfigError(
            "brokerRole is SLAVE and brokerId is 0, which is the master's: give each slave of a broker name a separate id"
        )
    if store.broker_role is not BrokerRole.SLAVE and config.broker_id != MASTER_ID:
        raise ConfigError(
            f"brokerRole is {store.broker_role.value} and brokerId is {config.broker_id}: a master's id is 0; write "
            "brokerRole=SLAVE for a slave"
        )


def _check_controller_mode(config: BrokerConfig, store: StoreConfig) -> None:
    addresses = [part.strip() for part in config.controller_addr.split(";") if part.strip()]
    if not addresses:
        raise ConfigError(
            "enableControllerMode is true and controllerAddr is empty: name the controllers, host:port;host:port"
        )
    for address in addresses:
        split_address(address, "controllerAddr")
    if config.enable_slave_acting_master:
        raise ConfigError(
            "enableControllerMode and enableSlaveActingMaster are both true: controllers elect a master that takes messages, so "
            "no slave acts for one; set one of them"
        )
    if store.ha_master_address:
        raise ConfigError(
            "haMasterAddress is set and enableControllerMode is true: the controllers say who is master"
        )
    if store.async_learner and store.all_ack_in_sync_state_set:
        log.warning(
            "asyncLearner is true: this broker never leads, so allAckInSyncStateSet has no effect here"
        )


async def open_ha_port(listener: HaListener, config: BrokerConfig, store: StoreConfig, clock: Clock) -> int:
    """Bind the HA port; return it, 0 when it is taken and not configured. Raises OSError, ConfigError when there is no such port.

    A master without replicas starts although another process has the port behind its own; the listener then binds it as soon as
    that process releases it. The broker advertises the port from its start.
    """
    first = config.bound_listeners[0]
    port = store.ha_listen_port or (first.port + 1 if first.port else 0)
    if port > PORT_MAX:
        raise ConfigError(f"the HA port, one above {first.port}, would be {port}: set haListenPort")
    try:
        await listener.open(first.host, port)
    except OSError as error:
        if (
            store.ha_listen_port
            or store.broker_role is not BrokerRole.ASYNC_MASTER
            or config.enable_controller_mode
        ):
            raise
        listener.retry_open(clock, first.host, port, error)
    return listener.port


def make_replication(
    *,
    parts: BrokerParts,
    modes: RequestModes,
    listener: HaListener,
    network: Network,
    raw_appends: RawAppends | None,
    on_cut: Callable[[int], None],
    copy_features: CopyFeatures,
) -> Replication:
    """Make it in classic mode; it begins with Replication.start(). `raw_appends`: native code that copies a master's log.

    `on_cut` is called with where the log ends when it was cut. `copy_features` runs while it follows a master."""
    store, clock, live = parts.store, parts.clock, parts.live
    questions = MasterQuestions(parts.client)
    acks, copies = (
        ReplicaAcks(clock=clock, timeout_s=lambda: store.config.slave_timeout / 1000) for _ in range(2)
    )
    after_cut = make_after_cut(parts, on_cut)

    def make_follower() -> ClassicFollower:
        from aerobee.broker.replication.classic_follower import ClassicFollower  # a master has no use for it
        from aerobee.broker.replication.tls_connection import secured

        return ClassicFollower(
            store=store,
            clock=clock,
            network=secured(network, store.config),
            ask_bounds=questions.log_bounds,
            finish_cut=after_cut.finish,
            native=raw_appends,
        )

    mode = ClassicMode(
        store=store,
        clock=clock,
        acks=acks,
        copies=copies,
        make_follower=make_follower,
        is_guarded=lambda: (
            live.value.enable_slave_acting_master and store.config.broker_role is BrokerRole.SYNC_MASTER
        ),
    )
    return Replication(
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


def make_after_cut(parts: BrokerParts, on_cut: Callable[[int], None]) -> AfterCut:
    """Create the clean-up after a truncation of the log, for either mode. `on_cut` is called first, with where the log
    ends.
    """
    return AfterCut(
        store=parts.store,
        topics=parts.topics,
        offsets=parts.offsets,
        schedule=parts.schedule,
        escaped=parts.escaped,
        disk=parts.disk,
        clock=parts.clock,
        config_file=parts.config_file,
        revive_topic=revive_topic(parts.identity.cluster),
        on_cut=on_cut,
    )


def make_metadata_sync(parts: BrokerParts, modes: RequestModes) -> MetadataSync:
    """Create the copying of the master's tables by a slave, for either mode."""
    return MetadataSync(
        questions=MasterQuestions(parts.client),
        store=parts.store,
        topics=parts.topics,
        mappings=parts.mappings,
        groups=parts.groups,
        offsets=parts.offsets,
        schedule=parts.schedule,
        modes=modes,
        filters=parts.filters,
        decisions=parts.decisions,
        clock=parts.clock,
    )
