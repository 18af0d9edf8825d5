"""The proxy process: a port that speaks gRPC, in front of a cluster that it reaches by remoting.

    gRPC clients ── port ── GrpcSession (as at a broker) ── RPCs of this package ── one client session ── NameServers, brokers

It keeps nothing that another proxy would miss: routes and settings are read again, receipts and ids of transactions name all that a
broker needs. The port also takes the requests of remoting about the proxy's own users. Source: ProxyStartup in cluster mode (RocketMQ
5.5.0).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace

from aerobee.access.addresses import networks_of
from aerobee.access.config import AccessConfig
from aerobee.access.opening import RELOAD_S, Access, open_access
from aerobee.broker.exporter.grpc_families import grpc_families
from aerobee.broker.fastpath.choice import choose_backend, wanted_backend
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.connections import GrpcConnections, SharedBounds
from aerobee.broker.grpc.endpoint import GrpcEndpoint
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.client.base.config import ClientConfig
from aerobee.clock import Clock, SystemClock
from aerobee.grpc.core import MakeHttp2, python_core
from aerobee.host_port import join_address
from aerobee.log_throttle import LogThrottle
from aerobee.monitoring.export import Export
from aerobee.monitoring.exposition import GAUGE, Family, label_text
from aerobee.monitoring.health import Health
from aerobee.network import AsyncioNetwork, Network
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.config import ProxyConfig, check_trust
from aerobee.proxy.handles import Handles
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.proxy.rpcs import make_rpcs
from aerobee.remoting.peer import Handler
from aerobee.remoting.server import Listener, RemotingServer, connections_max
from aerobee.remoting.tls import ServerTls
from aerobee.remoting.unread_replies import UnreadReplies

log = logging.getLogger(__name__)

LISTENER = "grpc"
UNREAD_LOOK_S = 1.0  # interval of the check for clients that do not read their responses


class ProxyServer:
    """One proxy. Start it, and stop it."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        client: ClientConfig | None = None,
        access: AccessConfig | None = None,
        settings_path: str | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
        tls: ServerTls | None = None,
        make_http2: MakeHttp2 | None = None,
    ) -> None:
        """`client`: how it reaches the cluster. `access`: the access control of its clients; account files are next to `settings_path`.
        Raises ConfigError, also for a proxy that would lend its user to every client."""
        client, access = client or ClientConfig(), access or AccessConfig()
        if access.inner_credentials is not None and not client.access_key:
            pair = access.inner_credentials
            client = replace(client, access_key=pair.access_key, secret_key=pair.secret_key)
        check_trust(config, access, client)
        clock, network = clock or SystemClock(), network or AsyncioNetwork()
        self._config, self._access_config, self._settings_path = config, access, settings_path
        self._cluster = ProxyCluster(config.nameservers, config=client, clock=clock, network=network)
        self._clock = clock
        self.traffic = GrpcTraffic()
        self._make_http2 = (
            make_http2 or choose_backend(wanted_backend(os.environ)).make_http2 or python_core()
        )
        self._handles = Handles(self._cluster)
        self._renewals = ProxyRenewals(self._handles, self._cluster.session.tasks, clock)
        self.clients = ClientTable(clock)
        self._remoting: dict[int, Handler] = {}
        self._server = RemotingServer(
            clock=clock,
            network=network,
            handlers=self._remoting,
            tls=tls,
            admits=lambda: len(self._server.connections) < connections_max(0),
            proxied_from=networks_of(config.proxied_from, "proxy protocol"),
        )
        self._unread = UnreadReplies(
            lambda: self._server.connections, limit_bytes=config.pending_reply_bytes_max
        )
        self.health = Health("proxy")
        self.export = (
            Export(
                config,
                scope="proxy",
                health=self.health,
                families=self._families,
                clock=clock,
                by_registry=True,
            )
            if config.exporters
            else None
        )
        self._opened = AsyncExitStack()
        self.access: Access | None = None  # since start()

    @property
    def address(self) -> str:
        """host:port of the gRPC port."""
        return join_address(*self._server.address_of(LISTENER))

    @property
    def name(self) -> str:
        """Its name in metrics."""
        return self._config.name or socket.gethostname()

    async def start(self) -> None:
        """Raises NoNameServer when no NameServer answers, ConfigError and StoreError for unreadable users, OSError when the port is taken."""
        async with AsyncExitStack() as opened:
            access = self.access = await asyncio.to_thread(self._open_access)
            opened.callback(access.close)
            await self._cluster.start()
            opened.push_async_callback(self._cluster.close)
            self._server.use_http2(self._endpoint(access).session)
            self._remoting.update(access.gate.guard(access.calls.handlers()))
            await self._server.start([Listener(LISTENER, self._config.host, self._config.port)])
            opened.push_async_callback(self._server.stop)
            if self.export is not None:
                await self.export.start()
                opened.push_async_callback(self.export.stop)
            self._opened = opened.pop_all()
        tasks = self._cluster.session.tasks
        tasks.spawn(self._renewals.run(), "proxy-renewals")
        tasks.spawn(self._look_for_unread(), "proxy-unread")
        if access.reload is not None:
            tasks.spawn(self._reload_accounts(access), "proxy-accounts")
        self.health.is_started = True

    async def stop(self) -> None:
        """Let running calls end, then leave the cluster."""
        await self._opened.aclose()

    def _open_access(self) -> Access:
        """A proxy without access control is open: clients have the permissions of its user, or need none."""
        config = self._access_config
        return open_access(
            config,
            directory=self._config.users_path,
            settings_path=self._settings_path,
            cluster=lambda: config.auth_cluster_name,
            now_ms=self._clock.now_ms,
        )

    def _endpoint(self, access: Access) -> GrpcEndpoint:
        config, checks = self._config, RpcAccess(access.gate)
        throttle = LogThrottle(log, self._clock.monotonic)
        bounds = SharedBounds(
            calls_max=lambda: config.calls_max,
            request_bytes_max=lambda: config.request_bytes_max,
            reached=lambda key, text, address: throttle.warn(key, "%s (%s), asked by %s", text, key, address),
        )
        return GrpcEndpoint(
            make_rpcs(
                self._cluster,
                handles=self._handles,
                renewals=self._renewals,
                clients=self.clients,
                gate=access.gate,
                clock=self._clock,
            ),
            clock=self._clock,
            connections=GrpcConnections(bounds, self.traffic),
            prove=lambda context: checks.prove(context.peer, context.metadata),
            make_http2=self._make_http2,
        )

    def _families(self) -> Iterator[Family]:
        common = label_text({"node_type": "proxy", "node_id": self.name})
        yield from grpc_families(self.traffic, common)
        for name, meaning, value in (
            ("aerobee_proxy_clients", "Clients that are known", len(self.clients)),
            ("aerobee_proxy_renewed_messages", "Messages whose invisible time is renewed", len(self._renewals.table)),
            ("aerobee_proxy_waiting_renewals", "Renewals that are due and wait for others", self._renewals.waiting_count),
            ("aerobee_proxy_waiting_returns", "Messages that are given back and wait for others", self._handles.waiting_count),
        ):  # fmt: skip
            yield Family(name, GAUGE, meaning, ((common, value),))

    async def _reload_accounts(self, access: Access) -> None:
        while access.reload is not None:
            await self._clock.sleep(RELOAD_S)
            await asyncio.to_thread(access.reload)

    async def _look_for_unread(self) -> None:
        while True:
            await self._clock.sleep(UNREAD_LOOK_S)
            self._unread.look()
