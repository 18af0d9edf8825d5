"""The NameServer: wires table, request handlers and listeners, and removes expired brokers.

Source: NamesrvController (RocketMQ). State is in memory, except the KV configuration. NameServers do not
communicate with each other; brokers register with each of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from aerobee.access.addresses import networks_of
from aerobee.access.config import AccessConfig
from aerobee.access.opening import RELOAD_S, Access, open_access, say_what_is_open
from aerobee.clock import Clock, SystemClock, steady_ms
from aerobee.errors import ConfigError
from aerobee.host_port import WILDCARDS, bare_host, is_loopback, join_address
from aerobee.monitoring.export import Export
from aerobee.monitoring.exposition import Family
from aerobee.monitoring.health import Health
from aerobee.nameserver.bounds import NameServerBounds
from aerobee.nameserver.config import LiveNameServerConfig, NameServerConfig
from aerobee.nameserver.config_calls import config_calls
from aerobee.nameserver.families import nameserver_families
from aerobee.nameserver.kv_config import KvConfig
from aerobee.nameserver.kv_config_calls import KvConfigCalls
from aerobee.nameserver.min_broker_notice import MinBrokerNotices
from aerobee.nameserver.registration_calls import RegistrationCalls
from aerobee.nameserver.route_calls import RouteCalls
from aerobee.nameserver.route_table import RouteTable
from aerobee.nameserver.topic_admin_calls import TopicAdminCalls
from aerobee.nameserver.topic_list_calls import TopicListCalls
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.body_limits import NAMESERVER_BODIES, limit_bodies
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.connection import Connection
from aerobee.remoting.limits import ConnectionLimits
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.server import Listener, RemotingServer, connections_max, parse_listeners
from aerobee.remoting.tls import ServerTls
from aerobee.remoting.unread_replies import UnreadReplies
from aerobee.store.files.disk import Disk, RealDisk

log = logging.getLogger("aerobee.nameserver")
DEFAULT_LISTENER = "default"
NAMED_MAX = 8  # maximum number of brokers in one log line
UNREAD_LOOK_S = 1.0  # interval of the check for peers that do not read their replies


class NameServer:
    """One NameServer in the running event loop. `await start()`, and `await stop()` when done; not started twice."""

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        clock: Clock | None = None,
        network: Network | None = None,
        disk: Disk | None = None,
        tls: ServerTls | None = None,
        access: AccessConfig | None = None,
        settings_path: str | None = None,
    ) -> None:
        """`access`: access control, None for none; users are stored next to kvConfigPath, accounts next to `settings_path`. Without arguments: RocketMQ's defaults, the system's clock, network and disk. Raises ConfigError."""
        self._config = LiveNameServerConfig(config or NameServerConfig())
        self._clock = clock or SystemClock()
        network = network or AsyncioNetwork()
        self._listeners = listeners_of(self._config.value)
        self._disk = disk or RealDisk()
        self.bounds = NameServerBounds(self._config, self._clock.monotonic)
        self._kv_config = KvConfig(self._config.value.kv_config_path, self._disk, self.bounds)
        self.table = RouteTable()
        self._access_config = access
        self._settings_path = settings_path
        self._access: Access | None = None
        self._client = RemotingClient(
            clock=self._clock,
            network=network,
            credentials=None if access is None else access.inner_credentials,
        )
        self._notices = MinBrokerNotices(client=self._client, config=self._config)
        self._watched: set[Peer] = set()
        self._handlers = self._make_handlers()
        self._server = RemotingServer(
            clock=self._clock,
            network=network,
            handlers=self._handlers,
            tls=tls,
            limits=ConnectionLimits(
                idle_close_s=self._config.value.server_channel_max_idle_time_seconds,
                handshake_s=self._config.value.tls_handshake_timeout_millis / 1000,
                frame_s=self._config.value.frame_receive_timeout_millis / 1000,
            ),
            admits=lambda: self.connection_count < connections_max(self.config.server_connections_max),
            proxied_from=networks_of(self._config.value.proxy_protocol_from, "proxyProtocolFrom"),
        )
        self._unread = UnreadReplies(
            lambda: self._server.connections, limit_bytes=self._config.value.pending_reply_bytes_max
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._other_families: Callable[[], Iterable[Family]] = tuple
        self.health = Health("nameserver")
        self.export = self._make_export() if self.config.exporters else None

    @property
    def config(self) -> NameServerConfig:
        """The settings in force."""
        return self._config.value

    @property
    def connection_count(self) -> int:
        """Connections that are open now, of brokers, clients and tools."""
        return len(self._server.connections)

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The handler of each served request code."""
        return self._handlers

    @property
    def address(self) -> str:
        """host:port of the first listener, for clients on this machine: a wildcard host is shown as 127.0.0.1 or [::1]."""
        return self.address_of(self._listeners[0].name)

    def address_of(self, listener: str) -> str:
        """host:port of one listener. Raises KeyError for an unknown listener name."""
        host, port = self._server.address_of(listener)
        return join_address(WILDCARDS.get(bare_host(host), host), port)

    async def start(self) -> None:
        """Listen. Raises StoreError for an unreadable kvConfig.json, OSError when an address cannot be bound."""
        await asyncio.to_thread(self._kv_config.load)
        await self._open_access()
        await self._server.start(self._listeners)
        if self.export is not None:
            try:
                await self.export.start()
            except BaseException:
                await self._server.stop(drain_s=0)
                raise
        self.health.is_started = True
        self._tasks = [
            *([asyncio.create_task(self._reload_accounts())] if self._access and self._access.reload else []),
            asyncio.create_task(self._scan_brokers(), name="nameserver-scan"),
            asyncio.create_task(self._look_for_unread(), name="nameserver-unread"),
        ]

    async def stop(self) -> None:
        """Finish the replies in progress and close everything. A second call does nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.export is not None:
            await self.export.stop()
        await self._server.stop(drain_s=self._config.value.shutdown_wait_time_seconds)
        await self._notices.close()
        await self._client.close()
        if self._access is not None:
            self._access.close()

    async def __aenter__(self) -> NameServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def _open_access(self) -> None:
        """Put the gate before the handlers. Raises ConfigError, StoreError."""
        config = self._access_config
        if config is None:
            return
        directory = os.path.dirname(self.config.kv_config_path or "")
        if config.authentication_enabled and not directory:
            raise ConfigError("authenticationEnabled stores users next to kvConfigPath, which is not set")
        access = self._access = await asyncio.to_thread(
            open_access,
            config,
            directory=directory,
            settings_path=self._settings_path,
            cluster=lambda: config.auth_cluster_name,
            now_ms=self._clock.now_ms,
            exempt=lambda peer: peer.listener in config.open_listeners,
        )
        say_what_is_open(
            config,
            beyond_loopback=not all(is_loopback(each.host) for each in self._listeners),
        )
        self._handlers.update(access.gate.guard({**self._handlers, **access.calls.handlers()}))

    async def _reload_accounts(self) -> None:
        while self._access is not None and self._access.reload is not None:
            await self._clock.sleep(RELOAD_S)
            await asyncio.to_thread(self._access.reload)

    def show_too(self, families: Callable[[], Iterable[Family]]) -> None:
        """Also export the metrics of another server in this process at /metrics."""
        self._other_families = families

    def _families(self) -> Iterator[Family]:
        yield from nameserver_families(self.table, connections=self.connection_count, clock=self._clock)
        yield from self._other_families()

    def _make_export(self) -> Export:
        return Export(
            self.config,
            scope="nameserver",
            health=self.health,
            families=self._families,
            clock=self._clock,
            by_registry=True,
        )

    def _make_handlers(self) -> dict[int, Handler]:
        registration = RegistrationCalls(
            table=self.table,
            kv_config=self._kv_config,
            config=self._config,
            clock=self._clock,
            notices=self._notices,
            bounds=self.bounds,
            watch=self._watch,
        )
        routes = RouteCalls(
            table=self.table, kv_config=self._kv_config, config=self._config, clock=self._clock
        )
        handlers = {
            **registration.handlers(),
            **routes.handlers(),
            **TopicListCalls(table=self.table, config=self._config).handlers(),
            **TopicAdminCalls(self.table, self.bounds).handlers(),
            **KvConfigCalls(self._kv_config).handlers(),
            **config_calls(self._config, self._disk).handlers(),
        }
        return dict(limit_bodies(handlers, NAMESERVER_BODIES))

    def _watch(self, connection: Peer) -> None:
        """Remove the brokers of this connection as soon as it closes."""
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_close(self._connection_closed)

    def _connection_closed(self, connection: Peer) -> None:
        self._watched.discard(connection)
        gone = [live.identity for live in self.table.live.values() if live.connection is connection]
        self._notices.send(self.table.connection_closed(connection))
        if gone:
            # One log line: a connection may have registered thousands of brokers.
            named = ", ".join(f"{each.address} (id {each.broker_id})" for each in gone[:NAMED_MAX])
            more = f" and {len(gone) - NAMED_MAX} more" if len(gone) > NAMED_MAX else ""
            log.info("gone, the connection closed: broker %s%s", named, more)

    async def _scan_brokers(self) -> None:
        while True:
            await self._clock.sleep(self._config.value.scan_not_active_broker_interval / 1000)
            for live in self.table.expired(now_ms=steady_ms(self._clock)):
                log.warning("broker %s gave no sign for %d ms", live.identity.address, live.timeout_ms)
                self._notices.send(self.table.unregister(live.identity))
                connection = live.connection
                shared = any(other.connection is connection for other in self.table.live.values())
                if isinstance(connection, Connection) and not shared:
                    connection.close("the broker gave no sign of life")

    async def _look_for_unread(self) -> None:
        while True:
            await self._clock.sleep(UNREAD_LOOK_S)
            self._unread.look()


def listeners_of(config: NameServerConfig) -> tuple[Listener, ...]:
    """Addresses of a NameServer's listeners. Raises ConfigError."""
    if config.listeners:
        return tuple(parse_listeners(config.listeners))
    return (Listener(DEFAULT_LISTENER, config.bind_address, config.listen_port),)
