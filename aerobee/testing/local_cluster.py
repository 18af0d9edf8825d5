"""LocalCluster: NameServers and brokers in the caller's event loop, on free ports, with small store files.

Everything is real: sockets on 127.0.0.1, files in a directory that is removed afterwards. Only the clock is special:
it runs with the system's and jumps when the test says so, for every part of the cluster and for the clients that the
cluster makes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from aerobee.broker.assembly.broker import Broker
from aerobee.broker.state.config import BrokerConfig
from aerobee.client.admin.admin import Admin
from aerobee.client.base.config import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    SimpleConsumerConfig,
)
from aerobee.client.consumer.pull_consumer import PullConsumer
from aerobee.client.consumer.push_consumer import PushConsumer
from aerobee.client.consumer.simple_consumer import SimpleConsumer
from aerobee.client.producer.producer import Producer
from aerobee.client.producer.transaction_producer import (
    Checker,
    Executor,
    TransactionConfig,
    TransactionProducer,
)
from aerobee.client.serialize.serializer import Deserializer, Serializer
from aerobee.clock import AdvancingClock, Clock, ManualClock
from aerobee.config import Setting, build, fields_by_key
from aerobee.errors import UsageError
from aerobee.host_port import join_address, split_address
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.network import AsyncioNetwork, Network
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand, boolean_text
from aerobee.store.files.config import StoreConfig
from aerobee.testing.ports import free_block, free_broker_port

log = logging.getLogger("aerobee.testing")
HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0
# Small enough that a cluster starts in a blink, large enough for any message that a broker takes.
SMALL_STORE: Mapping[str, Any] = {
    "mapped_file_size_commit_log": 8 * 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 5_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
    "commit_log_reserve_bytes": 1024 * 1024,
    # Other files may fill the disk of the test machine: a test of a few megabytes should still run.
    "disk_max_used_space_ratio": 95,
    "disk_space_clean_forcibly_ratio": 98,
    "disk_space_warning_level_ratio": 99,
}
# Brokers report to NameServers every 30 s and are forgotten after 120 s: a jump over both is made in steps, so that
# what happens in between happens.
ADVANCE_STEP_S = 5.0
# Passes of the event loop that a request, its answer and what follows from it take between parts of one process.
SETTLE_PASSES = 20


class LocalCluster:
    """A cluster for tests: `async with LocalCluster(brokers=2) as cluster: ...`.

    Brokers are counted from 0 and keep their port, name and directory over stop_broker() and start_broker().
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        nameservers: int = 1,
        clock: Clock | None = None,
        network: Network | None = None,
        directory: str | Path | None = None,
        host: str = HOST,
        cluster_name: str = "DefaultCluster",
        broker_config: Mapping[str, Any] | None = None,
        store_config: Mapping[str, Any] | None = None,
        nameserver_config: Mapping[str, Any] | None = None,
    ) -> None:
        """The three `*_config` contain settings that differ from the defaults, by RocketMQ's keys or by the fields of NameServerConfig,
        BrokerConfig and StoreConfig; `broker_config` takes the store's keys, too. Sends are refused as OVERLOAD when they have waited
        for 30 s, not 200 ms, because tests block the event loop that the brokers run on. Old messages are deleted early and
        new ones refused only on a disk that is 95 and 99 % full, not 75 and 90: others' files fill it.

        `host`: the loopback address that everything binds to and advertises, "::1" for IPv6. `clock`: an AdvancingClock unless given. `directory`: kept afterwards when given, else one that is removed.
        Starts nothing before start() or `async with`.
        """
        for name, count in (("brokers", brokers), ("nameservers", nameservers)):
            if isinstance(count, bool) or not isinstance(count, int):
                raise UsageError(f"{name} is {count!r}: it must be a whole number")
        if brokers < 0 or nameservers < 1:
            raise UsageError("a cluster has at least one nameserver and no negative number of brokers")
        self.clock: Clock = clock or AdvancingClock()
        self.network: Network = network or AsyncioNetwork()
        self.cluster_name = cluster_name
        self._host = host
        (self._nameserver_fields,) = fields_of(nameserver_config or {}, "nameserver_config", NameServerConfig)
        # As in broker.conf, which holds the keys of both.
        self._broker_fields, store_fields = fields_of(
            broker_config or {}, "broker_config", BrokerConfig, StoreConfig
        )
        (more,) = fields_of(store_config or {}, "store_config", StoreConfig)
        self._store_fields = {**SMALL_STORE, **store_fields, **more}
        self._given_directory = Path(directory) if directory is not None else None
        self._directory: Path | None = None
        # A server that is started again needs its old port, so the kernel does not choose it (ports.py).
        self._is_on_sockets = isinstance(self.network, AsyncioNetwork)
        self._nameservers = [_NameServerNode(f"nameserver-{index}") for index in range(nameservers)]
        self._brokers = [_BrokerNode(_broker_name(index)) for index in range(brokers)]
        self._remoting: RemotingClient | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything; returns when every broker is known to every nameserver."""
        if self._directory is not None:
            raise UsageError("this cluster is started already")
        self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix="aerobee-"))
        self._remoting = RemotingClient(clock=self.clock, network=self.network)
        try:
            await _all(self.start_nameserver(index) for index in range(len(self._nameservers)))
            await _all(self.start_broker(index) for index in range(len(self._brokers)))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop everything in order, and remove the directory unless it was given. A second call does nothing."""
        if self._directory is None:
            return
        directory, self._directory = self._directory, None
        try:
            for node in self._brokers:
                if node.broker is not None:
                    await node.broker.stop()
                    node.broker = None
            if self._remoting is not None:
                await self._remoting.close()
            for nameserver in self._nameservers:
                if nameserver.server is not None:
                    await nameserver.server.stop()
                    nameserver.server = None
        finally:
            if self._given_directory is None:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    @property
    def directory(self) -> Path:
        """Parent directory of the brokers' stores, with one directory per broker, named after it."""
        if self._directory is None:
            raise UsageError("this cluster is not started: use `async with`, or await start()")
        return self._directory

    @property
    def nameserver_addresses(self) -> tuple[str, ...]:
        """ "host:port" of each nameserver, also of those that are stopped."""
        return tuple(join_address(self._host, node.port) for node in self._nameservers)

    @property
    def nameserver_address(self) -> str:
        """All nameservers as clients take them, "host:port;host:port"."""
        return ";".join(self.nameserver_addresses)

    @property
    def broker_addresses(self) -> tuple[str, ...]:
        """ "host:port" of each broker, also of those that are stopped."""
        return tuple(join_address(self._host, node.port) for node in self._brokers)

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._brokers)

    def broker(self, index: int = 0) -> Broker:
        """The running broker object. Raises UsageError when it is stopped."""
        broker = self._brokers[index].broker
        if broker is None:
            raise UsageError(f"broker {index} is stopped")
        return broker

    def nameserver(self, index: int = 0) -> NameServer:
        """The running nameserver object. Raises UsageError when it is stopped."""
        server = self._nameservers[index].server
        if server is None:
            raise UsageError(f"nameserver {index} is stopped")
        return server

    # Faults.

    async def stop_broker(self, index: int = 0) -> None:
        """Stop a broker as an operator would: parked pulls are answered, it unregisters, everything is flushed."""
        broker = self.broker(index)
        self._brokers[index].broker = None
        await broker.stop()

    async def kill_broker(self, index: int = 0) -> None:
        """End a broker as kill -9 would: connections break, it does not unregister, and writes nothing more."""
        broker = self.broker(index)
        node = self._brokers[index]
        node.broker = None
        await broker.kill()
        await self._until(
            lambda: not any(self._knows(server, node) for server in self._running_nameservers()),
            f"{node.name} was killed, but a nameserver still has it",
        )

    async def start_broker(self, index: int = 0) -> None:
        """Start a broker that was stopped or killed, on its old port and directory; returns when it is routed to."""
        node = self._brokers[index]
        if node.broker is not None:
            raise UsageError(f"broker {index} runs already")
        if self._is_on_sockets and not node.port:
            node.port = free_broker_port(self._host)
        broker_config = BrokerConfig(**{**self._default_broker_fields(node), **self._broker_fields})
        store_config = StoreConfig(
            **{"store_path_root_dir": str(self.directory / node.name), **self._store_fields}
        )
        broker = Broker(broker_config, store_config, clock=self.clock, network=self.network)
        await broker.start()
        node.broker = broker
        node.port = split_address(broker.address)[1]
        await self._until(
            lambda: all(self._knows(server, node) for server in self._running_nameservers()),
            f"{node.name} started, but is not registered at every nameserver",
        )

    async def stop_nameserver(self, index: int = 0) -> None:
        """Stop one nameserver; it forgets everything, as a real one does."""
        server = self.nameserver(index)
        self._nameservers[index].server = None
        await server.stop()

    async def start_nameserver(self, index: int = 0) -> None:
        """Start a nameserver, on its old port if it had one. Brokers register with it at their next period."""
        node = self._nameservers[index]
        if node.server is not None:
            raise UsageError(f"nameserver {index} runs already")
        if self._is_on_sockets and not node.port:
            node.port = free_block(1, self._host)
        fields = {"listen_port": node.port, "bind_address": self._host, "shutdown_wait_time_seconds": 0}
        config = NameServerConfig(**{**fields, **self._nameserver_fields})
        server = NameServer(config, clock=self.clock, network=self.network)
        await server.start()
        node.server = server
        node.port = split_address(server.address)[1]

    async def advance_clock(self, seconds: float, *, step_s: float = ADVANCE_STEP_S) -> None:
        """Move the clock of the whole cluster, and of the clients it made, and let what is then due happen.

        The jump is made in steps, so that periodic work (registration, heartbeats) is done as often as it would be.
        """
        clock = self.clock
        if not isinstance(clock, AdvancingClock | ManualClock):
            raise UsageError(f"a {type(clock).__name__} cannot be moved: give the cluster an AdvancingClock")
        left = seconds
        while left > 0:
            clock.advance(min(left, step_s))
            left -= step_s
            for _ in range(SETTLE_PASSES):
                await asyncio.sleep(0)

    # Conveniences.

    async def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        perm: int = 6,
        attributes: str = "",
        brokers: Sequence[int] | None = None,
    ) -> None:
        """Create a topic with `queues` queues on each running broker, or on `brokers`; it is routed on return.

        `attributes` as mqadmin takes them: "+message.type=FIFO". Raises RemoteError when a broker refuses.
        """
        chosen = [
            node
            for index, node in enumerate(self._brokers)
            if (index in brokers if brokers is not None else node.broker is not None)
        ]
        for node in chosen:
            await self._create_topic_at(node, name, queues, perm, attributes)
        await self._until(
            lambda: all(
                node.name in server.table.topics.get(name, {})
                for server in self._running_nameservers()
                for node in chosen
            ),
            f"topic {name} was created, but a nameserver does not know it",
        )

    def producer(
        self,
        group: str = "DEFAULT_PRODUCER",
        *,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
        serializer: Serializer | None = None,
    ) -> Producer:
        """A producer on this cluster and its clock: `async with cluster.producer() as producer`."""
        return Producer(
            self.nameserver_address,
            group,
            config=config,
            client=client,
            clock=self.clock,
            network=self.network,
            trace=trace,
            serializer=serializer,
        )

    def transaction_producer(
        self,
        group: str,
        *,
        checker: Checker,
        executor: Executor | None = None,
        transactions: TransactionConfig | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
        serializer: Serializer | None = None,
    ) -> TransactionProducer:
        """A transaction producer on this cluster and its clock."""
        return TransactionProducer(
            self.nameserver_address,
            group,
            checker=checker,
            executor=executor,
            transactions=transactions,
            config=config,
            client=client,
            clock=self.clock,
            network=self.network,
            trace=trace,
            serializer=serializer,
        )

    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str],
        handler: Callable[..., Any] | None = None,
        *,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
        deserializer: Deserializer | None = None,
    ) -> PushConsumer:
        """A push consumer on this cluster and its clock; without a handler, `async for message in consumer`."""
        return PushConsumer(
            self.nameserver_address,
            group,
            subscriptions=subscriptions,
            handler=handler,
            config=config,
            client=client,
            clock=self.clock,
            network=self.network,
            trace=trace,
            deserializer=deserializer,
        )

    def pull_consumer(
        self,
        group: str,
        *,
        config: PullConsumerConfig | None = None,
        client: ClientConfig | None = None,
        trace: bool = False,
    ) -> PullConsumer:
        """A pull consumer on this cluster and its clock."""
        return PullConsumer(
            self.nameserver_address,
            group,
            config=config,
            client=client,
            clock=self.clock,
            network=self.network,
            trace=trace,
        )

    def simple_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, str] | Iterable[str],
        *,
        config: SimpleConsumerConfig | None = None,
        client: ClientConfig | None = None,
    ) -> SimpleConsumer:
        """A simple consumer (POP) on this cluster and its clock."""
        return SimpleConsumer(
            self.nameserver_address,
            group,
            subscriptions=subscriptions,
            config=config,
            client=client,
            clock=self.clock,
            network=self.network,
        )

    def admin(self, *, config: AdminConfig | None = None, client: ClientConfig | None = None) -> Admin:
        """An admin client on this cluster and its clock."""
        return Admin(
            self.nameserver_address, config=config, client=client, clock=self.clock, network=self.network
        )

    # Helpers.

    def _default_broker_fields(self, node: _BrokerNode) -> dict[str, Any]:
        return {
            "broker_name": node.name,
            "broker_cluster_name": self.cluster_name,
            "broker_ip1": self._host,
            "bind_address": self._host,
            "listen_port": node.port,
            "enable_vip_listener": False,
            "namesrv_addr": self.nameserver_address,
            "wait_time_mills_in_send_queue": 30_000,
        }

    async def _create_topic_at(
        self, node: _BrokerNode, name: str, queues: int, perm: int, attributes: str
    ) -> None:
        assert self._remoting is not None
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": boolean_text(False),
        }
        if attributes:
            fields["attributes"] = attributes
        address = join_address(self._host, node.port)
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        checked(await self._remoting.invoke(address, request), address=address, request="create topic")

    def _running_nameservers(self) -> list[NameServer]:
        return [node.server for node in self._nameservers if node.server is not None]

    def _knows(self, server: NameServer, node: _BrokerNode) -> bool:
        return join_address(self._host, node.port) in server.table.member_addresses(node.name).values()

    async def _until(self, condition: Callable[[], bool], failure: str) -> None:
        """Wait for a condition of parts in this process. Raises UsageError with `failure` after READY_TIMEOUT_S."""
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT_S
        pause = 0.0
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                raise UsageError(f"{failure} ({READY_TIMEOUT_S:.0f} s waited)")
            await asyncio.sleep(pause)
            pause = min(0.01, pause + 0.0005)


class _NameServerNode:
    """One NameServer of the cluster: its port stays the same across restarts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.server: NameServer | None = None


class _BrokerNode:
    """One broker of the cluster: name and port stay the same across restarts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self.broker: Broker | None = None


def _broker_name(index: int) -> str:
    return f"broker-{chr(ord('a') + index)}" if index < 26 else f"broker-{index}"


async def _all(work: Any) -> None:
    """Run coroutines side by side; all have ended when the first failure is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def fields_of(given: Mapping[str, Any], name: str, *kinds: type[Any]) -> list[dict[str, Any]]:
    """Split settings into the fields of each dataclass of `kinds`.

    `autoCreateTopicEnable` and `auto_create_topic_enable` mean the same; text for a key is read as in a file, "false" is
    False. Raises UsageError for a key that is a field of no `kinds`, and names the nearest key.
    """
    found: list[dict[str, Any]] = [{} for _ in kinds]
    for key, value in given.items():
        for kind, fields in zip(kinds, found, strict=True):
            by_key = fields_by_key(kind)
            if key in {field.name for field in dataclasses.fields(kind)}:
                fields[key] = value
            elif key in by_key:
                field = by_key[key].name
                fields[field] = (
                    getattr(build(kind, {key: Setting(value, name)}), field)
                    if isinstance(value, str)
                    else value
                )
            else:
                continue
            break
        else:
            known = [each for kind in kinds for each in fields_by_key(kind)]
            near = difflib.get_close_matches(key, known, n=1)
            raise UsageError(f"{name} has no key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return found
