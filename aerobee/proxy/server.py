"""The proxy process: a port that speaks gRPC, in front of a cluster that it reaches by remoting.

    gRPC clients ── port ── GrpcSession (as at a broker) ── RPCs of this package ── one client session ── NameServers, brokers

It keeps nothing that another proxy would miss: routes and settings are read again, receipts and ids of transactions name all that a
broker needs. Source: ProxyStartup in cluster mode (RocketMQ 5.5.0).
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from aerobee.access.addresses import networks_of
from aerobee.access.gate import Gate
from aerobee.broker.fastpath.choice import choose_backend, wanted_backend
from aerobee.broker.grpc.access import RpcAccess
from aerobee.broker.grpc.client_table import ClientTable
from aerobee.broker.grpc.connections import GrpcConnections, SharedBounds
from aerobee.broker.grpc.endpoint import NESTED_IN_SEND, GrpcEndpoint
from aerobee.broker.grpc.requests import BrokerRequests
from aerobee.broker.grpc.rpc import Rpc, bidirectional, streaming, unary
from aerobee.broker.grpc.telemetry import Telemetry
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.client.base.config import ClientConfig
from aerobee.clock import Clock, SystemClock
from aerobee.errors import ConfigError
from aerobee.grpc.core import MakeHttp2
from aerobee.grpc.http2_connection import Http2Connection
from aerobee.grpc.limits import Http2Limits
from aerobee.grpc.proto import messages as pb
from aerobee.host_port import is_loopback, join_address
from aerobee.log_throttle import LogThrottle
from aerobee.network import AsyncioNetwork, Network
from aerobee.proxy.acks import ProxyAcks
from aerobee.proxy.cluster import ProxyCluster
from aerobee.proxy.handles import Handles
from aerobee.proxy.members import ProxyMembers
from aerobee.proxy.receives import ProxyReceives
from aerobee.proxy.renewals import ProxyRenewals
from aerobee.proxy.routes import ProxyRoutes
from aerobee.proxy.sends import PROXIED_BODY_BYTES_MAX, ProxySends
from aerobee.remoting.server import Listener, RemotingServer, connections_max
from aerobee.remoting.tls import ServerTls
from aerobee.remoting.unread_replies import UnreadReplies

log = logging.getLogger(__name__)

PORT = 8_081
LISTENER = "grpc"
UNREAD_LOOK_S = 1.0  # interval of the check for clients that do not read their responses


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Settings of one proxy. `trusts_clients`: serve clients from any address with the permissions of the
    proxy's own user: it does not check its clients' users."""

    nameservers: str
    host: str = "0.0.0.0"
    port: int = PORT
    trusts_clients: bool = False
    proxied_from: str = ""  # as proxyProtocolFrom of a broker
    calls_max: int = 100_000  # as grpcCallsMax
    request_bytes_max: int = 256 * 1024 * 1024  # as grpcRequestBytesMax
    pending_reply_bytes_max: int = 256 * 1024 * 1024  # as pendingReplyBytesMax
    client: ClientConfig = field(default_factory=ClientConfig)

    def __post_init__(self) -> None:
        networks_of(self.proxied_from, "proxy protocol")
        if self.client.access_key and not self.trusts_clients and not is_loopback(self.host):
            raise ConfigError(
                f"the proxy signs its requests as {self.client.access_key} and does not check the users of its clients: at {self.host} "
                "every client would have that user's permissions. Listen at 127.0.0.1, or pass --trust-clients"
            )


class ProxyServer:
    """One proxy. Start it, and stop it."""

    def __init__(
        self,
        config: ProxyConfig,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        tls: ServerTls | None = None,
        make_http2: MakeHttp2 | None = None,
    ) -> None:
        clock, network = clock or SystemClock(), network or AsyncioNetwork()
        self._config = config
        self._cluster = ProxyCluster(config.nameservers, config=config.client, clock=clock, network=network)
        self.traffic = GrpcTraffic()
        throttle = LogThrottle(log, clock.monotonic)
        bounds = SharedBounds(
            calls_max=lambda: config.calls_max,
            request_bytes_max=lambda: config.request_bytes_max,
            reached=lambda key, text, address: throttle.warn(key, "%s (%s), asked by %s", text, key, address),
        )
        handles = Handles(self._cluster)
        self._renewals = ProxyRenewals(handles, self._cluster.session.tasks, clock)
        self._endpoint = GrpcEndpoint(
            make_rpcs(self._cluster, handles, self._renewals, clock),
            clock=clock,
            connections=GrpcConnections(bounds, self.traffic),
            prove=lambda context: None,
            make_http2=make_http2 or choose_backend(wanted_backend(os.environ)).make_http2 or Http2Connection,
        )
        self._server = RemotingServer(
            clock=clock,
            network=network,
            handlers={},
            tls=tls,
            admits=lambda: len(self._server.connections) < connections_max(0),
            proxied_from=networks_of(config.proxied_from, "proxy protocol"),
        )
        self._server.use_http2(self._endpoint.session)
        self._clock = clock
        self._unread = UnreadReplies(
            lambda: self._server.connections, limit_bytes=config.pending_reply_bytes_max
        )

    @property
    def address(self) -> str:
        """host:port of the gRPC port."""
        return join_address(*self._server.address_of(LISTENER))

    async def start(self) -> None:
        """Raises NoNameServer when no NameServer answers, OSError when the port is taken."""
        await self._cluster.start()
        try:
            await self._server.start([Listener(LISTENER, self._config.host, self._config.port)])
        except BaseException:
            await self._cluster.close()
            raise
        tasks = self._cluster.session.tasks
        tasks.spawn(self._renewals.run(), "proxy-renewals")
        tasks.spawn(self._look_for_unread(), "proxy-unread")

    async def _look_for_unread(self) -> None:
        while True:
            await self._clock.sleep(UNREAD_LOOK_S)
            self._unread.look()

    async def stop(self) -> None:
        """Let running calls end, then leave the cluster."""
        await self._server.stop()
        await self._cluster.close()


def make_rpcs(
    cluster: ProxyCluster, handles: Handles, renewals: ProxyRenewals, clock: Clock
) -> tuple[Rpc, ...]:
    """Every RPC that a proxy serves: those of RocketMQ's proxy, without lite topics."""
    access = RpcAccess(Gate(keeper=None, admin_open=True))
    clients = ClientTable(clock)
    members = ProxyMembers(cluster, clients, renewals)
    routes = ProxyRoutes(cluster)
    sends = ProxySends(cluster, note_producer=members.note_producer)
    acks = ProxyAcks(cluster, handles, renewals)
    telemetry = Telemetry(
        clients=clients,
        requests=BrokerRequests(members.handlers(), access),
        access=access,
        groups=cluster,
        body_bytes_max=lambda: PROXIED_BODY_BYTES_MAX,
        clock=clock,
    )
    return (
        unary("QueryRoute", routes.query_route),
        unary("QueryAssignment", routes.query_assignment),
        unary(
            "SendMessage",
            sends.send,
            request_bytes_max=Http2Limits().message_bytes_max,
            nested=NESTED_IN_SEND,
        ),
        streaming("ReceiveMessage", ProxyReceives(cluster, handles, renewals).receive),
        unary("AckMessage", acks.acknowledge, nested={}),
        unary("ChangeInvisibleDuration", acks.change),
        unary("ForwardMessageToDeadLetterQueue", acks.forward),
        unary("Heartbeat", members.heartbeat),
        unary("NotifyClientTermination", members.terminate),
        bidirectional("Telemetry", pb.TelemetryCommand, telemetry.open),
        unary("EndTransaction", sends.end),
        unary("RecallMessage", sends.recall),
    )
