"""The ports of a broker, and its advertised addresses once they are bound.

The main port has every listener of the configuration. The second one, two below the first, is for RocketMQ's slaves and its
clients before 4.5 (the fast remoting server, vipChannel).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping

from aerobee.access.addresses import networks_of
from aerobee.broker.assembly.grpc_packages import grpc_is_installed
from aerobee.broker.fastpath.fast_path import FastPath
from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.broker.state.config import BrokerConfig, Endpoint, LiveConfig
from aerobee.broker.state.identity import BrokerIdentity
from aerobee.clock import Clock
from aerobee.host_port import WILDCARDS, bare_host, is_ip, join_address, split_address
from aerobee.message import pack_host
from aerobee.network import Network
from aerobee.ordered_set import OrderedSet
from aerobee.remoting import not_served
from aerobee.remoting.codes import ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.direct import DirectNetwork
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.loop_watch import LoopWatch
from aerobee.remoting.other_protocol import OtherProtocol
from aerobee.remoting.peer import Handler, Peer, Reply
from aerobee.remoting.port_retry import PortRetry
from aerobee.remoting.request_stats import RequestStats
from aerobee.remoting.server import Listener, RemotingServer, connections_max
from aerobee.remoting.tls import ServerTls

VIP_OFFSET = -2
VIP_LISTENER = "vip"
HA_OFFSET = 1
# Several servers on one machine: the next broker's port, for the offsets above, and the controllers of one quorum.
BROKER_PORT_STEP = 10
CONTROLLERS_OF_A_QUORUM = 3
GRPC_LISTENER = "grpc"  # of grpcServerPort


class Ports:
    """Both servers. `main` serves the listeners, `vip` the second port."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Clock,
        network: Network,
        direct: DirectNetwork | None,
        tls: ServerTls | None,
    ) -> None:
        """`direct`: where native code reads the sockets, the network in which the ports are opened instead."""
        self._live = live
        self._clock = clock
        self._direct = direct
        self._vip_retry: PortRetry | None = None
        self._is_serving = False
        self._has_grpc_port = False
        self._handlers: dict[int, Handler] = {}
        self.watch = watch = LoopWatch(clock.monotonic)
        self.requests = requests = RequestStats()
        self.grpc_traffic = GrpcTraffic()
        config, handlers = live.value, self._handlers

        def make() -> RemotingServer:
            return RemotingServer(
                clock=clock,
                network=direct or network,
                handlers=handlers,
                default=self._unknown,
                tls=tls,
                limits=ConnectionLimits(
                    idle_close_s=config.server_channel_max_idle_time_seconds,
                    handshake_s=config.tls_handshake_timeout_millis / 1000,
                    frame_s=config.frame_receive_timeout_millis / 1000,
                ),
                admits=self._admits,
                watch=watch,
                stats=requests,
                proxied_from=networks_of(config.proxy_protocol_from, "proxyProtocolFrom"),
            )

        self.main, self.vip = make(), make()

    @property
    def connections(self) -> OrderedSet[Connection]:
        """The open connections of clients."""
        return self.main.connections.union(self.vip.connections)

    @property
    def grpc_port(self) -> int:
        """The bound port of grpcServerPort; 0 without."""
        return self.main.address_of(GRPC_LISTENER)[1] if self._has_grpc_port else 0

    async def open(self, ha_port: int = 0) -> BrokerIdentity:
        """Bind. `ha_port` is where slaves connect, 0: one above the first listener's port. Raises OSError when an address is taken; the second port may be taken unless the configuration requires it; it is then bound as soon as it is free."""
        config = self._live.value
        listeners = [Listener(e.name, e.host, e.port) for e in config.bound_listeners]
        if config.grpc_server_port and grpc_is_installed():
            listeners.append(Listener(GRPC_LISTENER, listeners[0].host, config.grpc_server_port))
        await self.main.start(listeners)
        self._has_grpc_port = len(listeners) > len(config.bound_listeners)
        identity = self._identity(config, ha_port)
        await self._open_vip(config)
        return identity

    def serve_grpc(self, session: Callable[[Connection], OtherProtocol]) -> None:
        """From now on `session` makes what takes the connections that begin as HTTP/2's, at any port."""
        self.main.use_http2(session)
        self.vip.use_http2(session)

    def serve(self, handlers: Mapping[int, Handler], fast_path: FastPath | None) -> None:
        """Serve requests from now on: the fast path first, if there is one, then the handlers."""
        self._handlers.update(handlers)
        if fast_path is not None:
            for server in (self.main, self.vip):
                server.use_burst(fast_path.burst)
            if self._direct is not None:
                self._direct.serve(fast_path.receive, fast_path.host_of)
        self._is_serving = True

    async def close(self) -> None:
        """Redirect clients to other brokers, finish running requests, close."""
        await self._stop_retry()
        await self.main.stop()
        await self.vip.stop()

    async def abandon(self) -> None:
        """Close without notifying peers."""
        await self._stop_retry()
        await self.main.stop(go_away=False, drain_s=0)
        await self.vip.stop(go_away=False, drain_s=0)

    @property
    def missing(self) -> str:
        """The second port while it is not bound although the configuration has it, and why."""
        return self._vip_retry.missing if self._vip_retry is not None else ""

    def runtime_info(self) -> dict[str, str]:
        """Keys for GET_BROKER_RUNTIME_INFO (28)."""
        return {
            "connections": str(len(self.main.connections) + len(self.vip.connections)),
            "refusedConnections": str(self.main.refused_count + self.vip.refused_count),
            **self.watch.runtime_info(),
            "slowPeersClosed": str(self.main.too_slow_count + self.vip.too_slow_count),
            "grpcPort": str(self.grpc_port),
            "grpcConnections": str(self.grpc_traffic.connection_count),
            "grpcCalls": str(self.grpc_traffic.call_count),
            "grpcRefused": " ".join(f"{bound}={n}" for bound, n in sorted(self.grpc_traffic.refused.items())),
        }

    def _admits(self) -> bool:
        """Whether one more connection is accepted: the store and the NameServers need descriptors too."""
        count = len(self.main.connections) + len(self.vip.connections)
        return count < connections_max(self._live.value.server_connections_max)

    def _unknown(self, peer: Peer, request: RemotingCommand) -> Reply:
        if not self._is_serving:
            return request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE, remark="service not available now. the broker is starting"
            )
        return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=not_served.remark(request.code))

    def _identity(self, config: BrokerConfig, ha_port: int) -> BrokerIdentity:
        addresses = [(e.name, self._advertised(config, e)) for e in config.bound_listeners]
        first = addresses[0][1]
        host, port = split_address(first)
        # Replicas do not use the addresses advertised to clients (advertisedListeners).
        ha_host = config.broker_ip2 or config.broker_ip1 or advertised_ip(config.bound_listeners[0].host)
        return BrokerIdentity(
            cluster=config.broker_cluster_name,
            name=config.broker_name,
            broker_id=config.broker_id,
            address=first,
            ha_address=join_address(ha_host, ha_port or port + HA_OFFSET),
            store_host=pack_host(packable_ip(host), port),
            region=config.region_id,
            listeners=tuple(addresses) if config.listeners else (),
        )

    def _advertised(self, config: BrokerConfig, bound: Endpoint) -> str:
        """The address that a listener advertises: the configured one, else brokerIP1 and the bound port."""
        named = config.advertised.get(bound.name)
        if named is not None:
            return named.address
        return join_address(
            config.broker_ip1 or advertised_ip(bound.host), self.main.address_of(bound.name)[1]
        )

    async def _open_vip(self, config: BrokerConfig) -> None:
        if not has_vip_listener(config):
            return
        first = config.bound_listeners[0]
        port = self.main.address_of(first.name)[1] + VIP_OFFSET
        listeners = [Listener(VIP_LISTENER, first.host, port)]
        try:
            await self.vip.start(listeners)
        except OSError as error:
            if config.enable_vip_listener:
                raise
            self._vip_retry = PortRetry(
                self._clock,
                lambda: self.vip.start(listeners),
                port=port,
                purpose="for clients before 4.5 and replicas",
                advice="enableVipListener=false disables the port",
            )
            self._vip_retry.start(error)

    async def _stop_retry(self) -> None:
        if self._vip_retry is not None:
            await self._vip_retry.stop()


def has_vip_listener(config: BrokerConfig) -> bool:
    """Whether the second port is configured. Unless the configuration requires the port, a broker runs without it when
    it is in use."""
    if config.enable_vip_listener is None:
        return config.listen_port != 0
    return config.enable_vip_listener


# The address that a broker advertises without a configured one belongs to its route to these. No packet is sent: connecting
# a datagram socket only looks up the route.
_ELSEWHERE = ((socket.AF_INET, "10.255.255.255"), (socket.AF_INET6, "2001:db8::1"))


def advertised_ip(bound_host: str) -> str:
    """Return the bound host if it is a single address or name, else the address from which this machine connects to
    others.

    A wildcard host takes the address of the same family: 0.0.0.0 of IPv4, :: of IPv6, an empty one of IPv4 if there is a
    route, else of IPv6. Loopback when there is no route.
    """
    host = bare_host(bound_host)
    if host not in WILDCARDS:
        return host
    families = {"0.0.0.0": _ELSEWHERE[:1], "::": _ELSEWHERE[1:]}.get(host, _ELSEWHERE)
    for family, elsewhere in families:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((elsewhere, 1))
                return str(probe.getsockname()[0]).partition("%")[0]
            except OSError:
                continue
    return WILDCARDS[host]


def packable_ip(host: str) -> str:
    """Return the IP address to store in records for an advertised host, which may be a name.

    A name with addresses of both kinds resolves to its IPv4 address, as RocketMQ's brokers do. Loopback when the name
    is unknown.
    """
    host = bare_host(host)
    if is_ip(host):
        return str(ipaddress.ip_address(host)).partition("%")[0]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return "127.0.0.1"
    by_family = {family: str(address[0]) for family, _, _, _, address in reversed(found)}
    return by_family.get(socket.AF_INET) or by_family[socket.AF_INET6].partition("%")[0]
