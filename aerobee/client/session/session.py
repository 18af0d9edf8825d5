"""One client of a cluster: connections, NameServers, routes, heartbeats, and requests from brokers.

Follows MQClientInstance. Each Producer, PushConsumer, PullConsumer and Admin owns one. Invariant: once a producer or
consumer has joined, every broker of a cached route has received a heartbeat, or one is in flight.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from random import Random

from aerobee.client.base.config import ClientConfig
from aerobee.client.base.lost_peers import LostPeers
from aerobee.client.base.metering import METERS, ClientMeter
from aerobee.client.base.tasks import Tasks
from aerobee.client.base.topic_route import TopicRoute
from aerobee.client.base.unique_id import UniqueIds
from aerobee.client.session.codec import choose_codec
from aerobee.client.session.nameservers import Nameservers, parse_addresses
from aerobee.client.session.route_cache import RouteCache
from aerobee.client.session.send_header import Ids
from aerobee.client.session.stale_routes import StaleRoutes, is_not_executed
from aerobee.clock import Clock, SystemClock
from aerobee.errors import AerobeeError, RemoteError, RouteError, UsageError
from aerobee.host_port import split_address
from aerobee.message import MessageQueue
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from aerobee.remoting.body.queue_mapping import LOGICAL_BROKER_PREFIX
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode, request_name
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.connection import Connection
from aerobee.remoting.peer import Handler
from aerobee.remoting.protocol import MASTER_ID
from aerobee.remoting.tls import ClientTls, TlsFiles
from aerobee.system_names import LMQ_PREFIX

log = logging.getLogger(__name__)

# Group of the internal producer that sends messages back to retry topics.
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
FIRST_HEARTBEAT_S = 1.0
UNREGISTER_TIMEOUT_S = 2.0

ConsumerEntry = Callable[[], ConsumerData]


class Session:
    """Shared state of the parts of one client."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        *,
        config: ClientConfig,
        clock: Clock | None = None,
        network: Network | None = None,
        random: Random | None = None,
        id_suffix: str = "",
    ) -> None:
        addresses = parse_addresses(nameservers)
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.random = random or Random()
        self.tasks = Tasks()
        self.codec = choose_codec()
        self.handlers: dict[int, Handler] = {}
        self.remoting = RemotingClient(
            clock=self.clock,
            network=network or AsyncioNetwork(),
            handlers=self.handlers,
            tls=client_tls(config),
            on_connect=self._connected,
            burst=self.codec.take_send_replies,
            credentials=config.credentials,
        )
        self.nameservers = Nameservers(addresses, remoting=self.remoting, random=self.random)
        self.peers = LostPeers(monotonic=self.clock.monotonic, name_of=self._name_of)
        self.routes = RouteCache(
            self.nameservers,
            clock=self.clock,
            tasks=self.tasks,
            refresh_s=config.route_refresh_s,
            request_timeout_s=config.request_timeout_s,
            peers=self.peers,
        )
        self.stale = StaleRoutes(self.routes, clock=self.clock, tasks=self.tasks)
        self.client_id = ""
        self.client_ip = config.client_ip
        self.is_open = False
        # The event loop of start(); a client belongs to it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._id_suffix = id_suffix
        self._producer_groups: list[str] = []
        self._consumers: dict[str, ConsumerEntry] = {}
        self._known_by: set[str] = set()  # addresses of brokers that know this client
        self.beat_failures: dict[str, AerobeeError] = {}  # by address, of brokers that do not
        self._beating = asyncio.Lock()
        self._beating_now: set[str] = set()
        self._ids: Ids | None = None
        self.meter: ClientMeter | None = None  # set by the client; None: nothing is counted

    async def start(self) -> None:
        """Determine the local address and start the periodic tasks. Opens no connection yet."""
        if self.is_open:
            raise UsageError("this client is started already; use one object for each `async with`")
        if self._loop is not None:
            raise UsageError(
                "this client was closed, or its start failed: it does not open again, create a new one"
            )
        self._loop = asyncio.get_running_loop()
        if not self.client_ip:
            try:
                self.client_ip = await local_ip(self.nameservers.addresses)
            except BaseException:
                self._loop = None  # nothing was opened: an interrupted start may be repeated
                raise
        instance = self.config.instance or f"{os.getpid()}#{self.random.getrandbits(48)}"
        parts = [self.client_ip, instance, *filter(None, (self.config.unit_name, self._id_suffix))]
        self.client_id = "@".join(parts)
        self.is_open = True
        self.routes.on_change(self._route_changed)
        self.tasks.spawn(self.routes.keep_fresh(), "client-routes")
        self.tasks.spawn(self.routes.find_missing(), "client-missing-routes")
        self.tasks.spawn(self._keep_beating(), "client-heartbeat")

    async def require_nameserver(self, topic: str) -> None:
        """Request the route of `topic`, whatever the answer. Closes the client and raises NoNameServer without any answer.

        A wrong address is then an error of start(), not of the first send, which may be much later.
        """
        if not self.config.require_nameserver:
            return
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC.value, {"topic": topic})
        try:
            await self.nameservers.invoke(request, timeout_s=self.config.request_timeout_s)
        except BaseException:
            await self.close()
            raise

    def check_open(self) -> None:
        """Raise UsageError unless the client is open and belongs to the running event loop."""
        if not self.is_open:
            if self._loop is not None:
                raise UsageError("this client was closed and accepts no more calls: create a new one")
            raise UsageError("this client is not open: use it inside `async with`, or call start() first")
        self.check_loop()

    def check_loop(self) -> None:
        """Raise UsageError for a client that belongs to another event loop than the running one."""
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if not is_here:
            raise UsageError(
                "this client belongs to another event loop, in which it was opened: use it within one "
                "asyncio.run(), use one client per thread, or use a synchronous client (SyncProducer and similar)"
            )

    async def close(self) -> None:
        """Leave all groups, stop the periodic tasks, close the connections."""
        if not self.is_open:
            return
        self.check_open()
        self.is_open = False
        if self.meter is not None:
            METERS.close(self.meter)
        try:
            await self._unregister()
        finally:
            await self.tasks.close()
            await self.remoting.close()

    def _name_of(self, address: str) -> str:
        if address in self.nameservers.addresses:
            return "nameserver"
        names = (each.broker_name for each in self.routes.brokers() if address in each.broker_addrs.values())
        return f"broker {next(names, '')}".rstrip()

    # membership

    def join_producer(self, group: str) -> None:
        if group not in self._producer_groups:
            self._producer_groups.append(group)

    def leave_producer(self, group: str) -> None:
        """Heartbeats name the group no more; brokers forget it when they have heard nothing of it for two minutes."""
        if group in self._producer_groups:
            self._producer_groups.remove(group)

    def join_consumer(self, group: str, entry: ConsumerEntry) -> None:
        """`entry` returns the group's part of a heartbeat (ConsumerData)."""
        self._consumers[group] = entry

    def unique_ids(self) -> Ids:
        """Message ids of this client. Call after start()."""
        if self._ids is None:
            ids = UniqueIds(
                ip=self.client_ip,
                process_id=os.getpid(),
                salt=self.random.getrandbits(32),
                counter=self.random.getrandbits(16),
            )
            self._ids = self.codec.ids(ids)
        return self._ids

    def _targets(self) -> list[str]:
        """Addresses that receive heartbeats: masters for producers, masters and slaves for consumers."""
        addresses: dict[str, None] = {}
        for broker in self.routes.brokers():
            for broker_id, address in broker.broker_addrs.items():
                if self._consumers or broker_id == MASTER_ID:
                    addresses[address] = None
        return list(addresses)

    def _heartbeat_body(self) -> bytes:
        data = HeartbeatData(
            self.client_id,
            tuple(ProducerData(group) for group in self._producer_groups),
            tuple(entry() for entry in self._consumers.values()),
        )
        return data.encode()

    async def heartbeat(self) -> None:
        """Send a heartbeat to every known broker. Failures are logged; the next round retries."""
        if not self._producer_groups and not self._consumers:
            return
        async with self._beating:
            targets = self._targets()
            self._known_by.intersection_update(targets)
            for address in self.beat_failures.keys() - set(targets):
                del self.beat_failures[address]
            await asyncio.gather(*(self._beat(address) for address in targets))

    async def _beat(self, address: str) -> None:
        request = RemotingCommand(RequestCode.HEART_BEAT.value, {}, self._heartbeat_body())
        self._beating_now.add(address)
        try:
            await self.invoke(address, request)
            self._known_by.add(address)
            self.beat_failures.pop(address, None)
        except AerobeeError as error:
            self._known_by.discard(address)
            self.beat_failures[address] = error
            self.peers.trouble(log, error, "heartbeat to broker %s: %s", address, error)
        finally:
            self._beating_now.discard(address)

    def _connected(self, connection: Connection) -> None:
        # A broker removes a client with its connection: a new connection needs another heartbeat.
        if not self.is_open or not (self._producer_groups or self._consumers):
            return
        for address in self._targets():
            if self.remoting.connection_to(address) is connection and address not in self._beating_now:
                self.tasks.spawn(self._beat(address), "client-heartbeat-on-connect")

    async def heartbeat_to(self, address: str) -> None:
        """Send a heartbeat to one broker unless it knows this client already."""
        if address not in self._known_by:
            await self._beat(address)

    async def _keep_beating(self) -> None:
        await self.clock.sleep(FIRST_HEARTBEAT_S)
        while True:
            await self.heartbeat()
            await self.clock.sleep(self.config.heartbeat_s)

    def _route_changed(self, _route: TopicRoute) -> None:
        if self.is_open and not self._known_by.issuperset(self._targets()):
            self.tasks.spawn(self.heartbeat(), "client-heartbeat-now")

    async def _unregister(self) -> None:
        """Unregister at every broker that knows this client, so that the other members rebalance immediately."""
        leaving = [
            {"clientID": self.client_id, "producerGroup": group} for group in self._producer_groups
        ] + [{"clientID": self.client_id, "consumerGroup": group} for group in self._consumers]
        calls = [
            self.remoting.invoke(
                address,
                RemotingCommand(RequestCode.UNREGISTER_CLIENT.value, dict(ext)),
                timeout_s=UNREGISTER_TIMEOUT_S,
            )
            for address in sorted(self._known_by)
            for ext in leaving
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, AerobeeError):
                log.info("leaving: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    # calls

    async def invoke(
        self, address: str, command: RemotingCommand, *, timeout_s: float | None = None
    ) -> RemotingCommand:
        """Call a broker and return its answer of code 0. Raises RemoteError for any other code."""
        answer = await self.call(address, command, timeout_s=timeout_s or self.config.request_timeout_s)
        return self.checked(answer, address=address, request=request_name(command.code))

    async def call(self, address: str, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
        """Call a broker and return its reply, whatever its code. After a failure the routes that contain the address
        are refreshed."""
        try:
            answer = await self.remoting.invoke(address, command, timeout_s=timeout_s)
        except AerobeeError as error:
            self.stale.failed(address, error)
            raise
        if self.peers.lost:
            self.peers.answered(address)
        return answer

    def checked(self, answer: RemotingCommand, *, address: str, request: str) -> RemotingCommand:
        """The answer of a call() when its code is 0. Raises RemoteError for any other code."""
        try:
            checked(answer, address=address, request=request)
        except RemoteError as error:
            self.stale.failed(address, error)
            raise
        if self.stale.pauses_s:
            self.stale.answered(address)
        return answer

    async def invoke_broker(
        self, broker_name: str, topic: str, command: RemotingCommand, *, timeout_s: float | None = None
    ) -> RemotingCommand:
        """As invoke(), at the master of a broker name; retried once at the new master when the route was stale and the
        first broker surely did nothing. `topic`: a topic of the broker. Raises RouteError, too.
        """
        address = await self.broker_address(broker_name, topic)
        try:
            return await self.invoke(address, command, timeout_s=timeout_s)
        except AerobeeError as error:
            if not is_not_executed(error) or not await self._refreshed(topic):
                raise
            moved = self.routes.any_address_of(broker_name)
            if moved is None or moved == address:
                raise
        return await self._invoke_new(moved, command, timeout_s)

    async def _refreshed(self, topic: str) -> bool:
        """Read the route of a topic now; return whether that succeeded."""
        try:
            await self.routes.refresh(topic)
        except AerobeeError as error:
            log.debug("route of topic %s: %s", topic, error)
            return False
        return True

    async def _invoke_new(
        self, address: str, command: RemotingCommand, timeout_s: float | None = None
    ) -> RemotingCommand:
        await self.heartbeat_to(
            address
        )  # a broker that has just become master may not know this client's groups
        return await self.invoke(address, command, timeout_s=timeout_s)

    async def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a one-way request."""
        command.flag |= FLAG_ONEWAY
        try:
            await self.remoting.invoke_oneway(address, command, timeout_s=self.config.request_timeout_s)
        except AerobeeError as error:
            self.stale.failed(address, error)
            raise

    async def invoke_nameserver(self, command: RemotingCommand) -> RemotingCommand:
        """Call a nameserver and return its answer of code 0. Raises RemoteError for any other code."""
        address, answer = await self.nameservers.invoke(command, timeout_s=self.config.request_timeout_s)
        return checked(answer, address=address, request=request_name(command.code))

    async def invoke_queue(self, queue: MessageQueue, command: RemotingCommand) -> RemotingCommand:
        """As invoke(), at the broker that serves the queue; retried once when another broker serves it meanwhile."""
        address = await self.queue_address(queue)
        try:
            return await self.invoke(address, command)
        except AerobeeError as error:
            # An LMQ has no route: its broker has a topic named like the broker.
            topic = queue.broker_name if queue.topic.startswith(LMQ_PREFIX) else queue.topic
            if not is_not_executed(error) or not await self._refreshed(topic):
                raise
            moved = self.routes.any_address_of(self.routes.leader_of(queue))
            if moved is None or moved == address:
                raise
        return await self._invoke_new(moved, command)

    async def queue_address(self, queue: MessageQueue) -> str:
        """The address of the broker that serves a queue, as broker_address(). Raises RouteError."""
        if queue.broker_name.startswith(LOGICAL_BROKER_PREFIX):
            await self.routes.get(queue.topic)
        return await self.broker_address(self.routes.leader_of(queue), queue.topic)

    async def broker_address(self, broker_name: str, topic: str) -> str:
        """The master's address, else a slave's. Reads the route of `topic` once when the broker is unknown."""
        address = self.routes.any_address_of(broker_name)
        if address is None:
            await self.routes.refresh(topic)
            address = self.routes.any_address_of(broker_name)
        if address is None:
            raise RouteError(
                topic, f"broker {broker_name} of topic {topic} is not registered at any nameserver now"
            )
        return address


def client_tls(config: ClientConfig) -> ClientTls | None:
    """TLS context of this configuration, None without TLS. Raises ConfigError for unusable files."""
    if not config.tls:
        return None
    files = TlsFiles(
        key_path=config.tls_key_file,
        key_password=config.tls_key_password,
        cert_path=config.tls_cert_file,
        trust_cert_path=config.tls_ca_file,
        verify_peer=not config.tls_insecure,
    )
    tls = ClientTls(files, check_host=not config.tls_insecure)
    tls.context()  # an unusable file raises now, not at each connection
    return tls


async def local_ip(nameservers: Sequence[str]) -> str:
    """The local address from which a nameserver is reached; 127.0.0.1 when no route to any exists."""
    loop = asyncio.get_running_loop()
    for address in nameservers:
        host, port = split_address(address)
        try:
            family, _, _, _, target = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
            with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
                probe.connect(target)  # a datagram socket: no packet leaves, the kernel only picks the route
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError as error:
            log.debug("no local address towards %s: %s", address, error)
    return "127.0.0.1"
