"""A broker: opens the store and the ports, serves, registers, and shuts down orderly (BrokerController).

    foundation.py  parts that exist before the address is known: settings, store, tables
    ports.py       the ports, and the advertised addresses once they are bound
    serving.py     parts that serve from then on: role, features, the dispatch, the fast path

Everything belongs to one event loop; what can block runs in the store's executor.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from aerobee.access.config import AccessConfig
from aerobee.broker.admission.overload import Overload
from aerobee.broker.assembly.foundation import Foundation
from aerobee.broker.assembly.grpc_endpoint import serve_grpc
from aerobee.broker.assembly.ports import Ports
from aerobee.broker.assembly.services import Services
from aerobee.broker.assembly.serving import Serving
from aerobee.broker.delay.schedule import Schedule
from aerobee.broker.fastpath.choice import choose_backend, wanted_backend
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.membership.registration import Registration
from aerobee.broker.pull.pending_pulls import PendingPulls
from aerobee.broker.replication.ha_listener import HaListener
from aerobee.broker.replication.replication import Replication
from aerobee.broker.replication.wiring import open_ha_port
from aerobee.broker.state.config import BrokerConfig
from aerobee.broker.state.feature import Feature
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.broker.state.role import RoleState
from aerobee.clock import Clock, SystemClock
from aerobee.errors import UsageError
from aerobee.network import AsyncioNetwork, Network
from aerobee.ordered_set import OrderedSet
from aerobee.remoting.connection import Connection
from aerobee.remoting.direct import DirectNetwork
from aerobee.remoting.peer import Handler
from aerobee.remoting.tls import ServerTls
from aerobee.store.files.config import StoreConfig
from aerobee.store.files.disk import Disk, RealDisk

if TYPE_CHECKING:
    from aerobee.broker.exporter.exporter import Exporter
    from aerobee.broker.replication.controller_wiring import ControllerMode

log = logging.getLogger(__name__)

FIRST_REGISTRATION_WAIT_S = 3.0
# Longest wait for the controllers at the start; a broker without a role retries afterwards.
FIRST_ROLE_WAIT_S = 10.0


class Broker:
    """One broker process. Call start() once, then stop() or kill() once.

    `store`, `topics`, `groups`, `offsets`, `consumers`, `producers`, `locks`, `stats`, `bounds`, `ports` are its parts; after
    start() `identity`, `role`, `held`, `overload`, `registration`, `schedule`, too.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        disk: Disk | None = None,
        executor: Executor | None = None,
        tls: ServerTls | None = None,
        settings_path: str | None = None,
        config_writer: Executor | None = None,
        access: AccessConfig | None = None,
    ) -> None:
        """`access`: the permissions; None disables access control, for a broker embedded in a process. `settings_path`:
        the configuration file, into which settings changed at run time (25) are written.

        `config_writer` writes this file and all small ones; default: a separate thread of this broker.
        """
        network = network or AsyncioNetwork()
        base = self._base = Foundation(
            config,
            store_config,
            clock=clock or SystemClock(),
            network=network,
            disk=disk or RealDisk(),
            executor=executor,
            settings_path=settings_path,
            config_writer=config_writer,
            access=access,
            identity=lambda: self.identity,
        )
        self.live, self.clock, self.bounds = base.live, base.clock, base.bounds
        self.store, self.topics, self.groups, self.offsets = (
            base.store,
            base.topics,
            base.groups,
            base.offsets,
        )
        self.consumers, self.producers, self.locks = base.consumers, base.producers, base.locks
        self.stats = base.stats
        self.backend_choice = choose_backend(wanted_backend(os.environ))
        # Native code reads real sockets only.
        make_sockets = self.backend_choice.make_sockets if type(network) is AsyncioNetwork else None
        self.ports = Ports(
            live=self.live,
            clock=self.clock,
            network=network,
            direct=DirectNetwork(make_sockets) if make_sockets is not None else None,
            tls=tls,
        )
        self._ha_listener = HaListener(network, store_config)
        self.exporter = _make_exporter(config, self.clock) if config.exporters else None
        self._is_started = False
        self._is_running = False
        self.identity: BrokerIdentity
        self._serving: Serving

    # --- available after start()

    @property
    def config(self) -> BrokerConfig:
        """The effective settings."""
        return self.live.value

    @property
    def address(self) -> str:
        """The advertised "ip:port"."""
        return self.identity.address

    @property
    def role(self) -> RoleState:
        """The present role of this broker."""
        return self._serving.role

    @property
    def pending_pulls(self) -> PendingPulls:
        """The pending pulls."""
        return self._serving.pending_pulls

    @property
    def overload(self) -> Overload:
        """The overload protection."""
        return self._serving.overload

    @property
    def registration(self) -> Registration:
        """The registration at the NameServers."""
        return self._serving.registration

    @property
    def replication(self) -> Replication:
        """Replication: the slaves of this master, or this slave's connection to its master."""
        return self._serving.replication

    @property
    def controllers(self) -> ControllerMode | None:
        """The link to the controllers in controller mode; None otherwise."""
        return self._serving.controllers

    @property
    def schedule(self) -> Schedule:
        """The delay levels and their progress."""
        return self._serving.schedule

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features: kinds of messages and of consumption."""
        return self._serving.features

    @property
    def services(self) -> Services:
        """The broker's services for clients, independent of the protocol."""
        return self._serving.services

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """Request code -> handler, for all requests of this broker."""
        return self._serving.handlers

    @property
    def fast_path(self) -> FastPath:
        """The fast path, which serves ordinary frames before the handlers."""
        return self._serving.fast_path

    @property
    def connections(self) -> OrderedSet[Connection]:
        """The open connections of clients."""
        return self.ports.connections

    # --- life

    async def start(self) -> None:
        """Open the store, bind, serve, register. Returns after one registration attempt at each NameServer, within 3 s.

        Raises StoreLocked, StoreError, ConfigError, OSError (an address is taken); nothing is left open then.
        """
        if self._is_started:
            raise UsageError("this broker was started before: create a new one")
        self._is_started = True
        base = self._base
        if self.exporter is not None:
            await self.exporter.open()
        try:
            await base.load_store()
        except BaseException:
            await self._close_exporter()
            raise
        try:
            await base.load_tables()
            ha_port = await open_ha_port(self._ha_listener, self.config, base.store_config, self.clock)
            self.identity = await self.ports.open(ha_port)
            serving = self._serving = Serving(
                base,
                self.identity,
                ports=self.ports,
                ha_listener=self._ha_listener,
                choice=self.backend_choice,
            )
            await self.store.start()
        except BaseException:
            await self._close_exporter()
            await self._ha_listener.close()
            await self.ports.abandon()
            base.files.close(wait=False)
            base.access.close()
            await self.store.stop()
            raise
        self._is_running = True
        await serving.prepare()
        serving.start()
        # No request is answered before start() has set replication, which decides when a reply may be sent.
        self.ports.serve(serving.handlers, serving.fast_path)
        serve_grpc(
            self.ports,
            serving,
            base,
            port=self.config.grpc_server_port,
            make_http2=self.backend_choice.make_http2,
        )
        base.start()
        has_id = True
        if serving.controllers is not None:
            # The registration contains the id that the controllers assigned; without an id there is no
            # registration.
            await serving.controllers.agent.start(wait_s=FIRST_ROLE_WAIT_S)
            has_id = serving.controllers.agent.broker_id > 0
        nameservers = self.config.nameservers if has_id else ()
        await serving.registration.start(nameservers, wait_s=FIRST_REGISTRATION_WAIT_S)
        if self.exporter is not None:
            agent = None if serving.controllers is None else serving.controllers.agent
            self.exporter.serve(
                serving.parts,
                serving.registration,
                replication=serving.replication.state,
                features=serving.features,
                watch=self.ports.watch,
                requests=self.ports.requests,
                grpc_traffic=self.ports.grpc_traffic,
                out_of_sync=None if agent is None else agent.out_of_sync,
            )
        log.info(
            "broker %s of %s serves at %s (%s fast path: %s)",
            self.identity.name,
            self.identity.cluster,
            self.address,
            self.backend_choice.name,
            self.backend_choice.why,
        )

    @property
    def is_running(self) -> bool:
        """Whether start() has opened the store and the ports, and neither stop() nor kill() has begun."""
        return self._is_running

    async def stop(self) -> None:
        """Shut down orderly: unregister, answer pending requests, finish running ones, flush, close.

        Completes all steps even if one fails; raises StoreError when the last flush failed. Does nothing for a stopped
        broker.
        """
        if not self._is_running:
            return
        self._is_running = False
        await self._close_exporter()
        await self._leave(unregister=True)
        self.pending_pulls.end()
        try:
            await self.ports.close()
        finally:
            self._stop_timers()
            await self.replication.stop()
            await self._base.settled()
            self._base.files.close(wait=True)
            self.save()
            self._serving.close()
            self._base.access.close()
            await self.store.stop()

    async def kill(self) -> None:
        """End like a killed process: flush nothing, notify no peer. For tests."""
        if not self._is_running:
            return
        self._is_running = False
        await self._close_exporter(last_round=False)
        await self._leave(unregister=False)
        self._stop_timers()
        for connection in list(self.connections):
            connection.abort("the broker was killed")
        await self.replication.stop()
        await self.ports.abandon()
        self._base.abandon()
        self._base.files.close(wait=True)
        self._serving.close()
        self._base.access.close()
        await self.store.abandon()

    def save(self) -> None:
        """Write every config file now, blocking. A running broker does so periodically in another thread.

        The log is flushed first, because the files refer to its records; if that fails, nothing is written.
        """
        self._serving.save()

    async def _close_exporter(self, *, last_round: bool = True) -> None:
        if self.exporter is not None:
            await self.exporter.close(last_round=last_round)

    def _stop_timers(self) -> None:
        self._serving.stop()
        self._base.stop()

    async def _leave(self, *, unregister: bool) -> None:
        if self._serving.controllers is not None:
            await self._serving.controllers.agent.stop()
        if self._serving.acting is not None:
            await self._serving.acting.stop()
        await self.registration.stop(unregister=unregister)
        await self._base.client.close()


def _make_exporter(config: BrokerConfig, clock: Clock) -> Exporter:
    # The exporter is a tenth of the code that a start loads, so it is loaded only if it is enabled.
    from aerobee.broker.exporter.exporter import Exporter

    return Exporter(config, clock)
