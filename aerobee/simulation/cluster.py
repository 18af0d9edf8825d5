"""A cluster of one broker group: two NameServers, three controllers, three replicas, producers and a consumer, from a seed.

All of it is the real code, on machines (host.py) whose faults the nemesis (nemesis.py) chooses. `Cluster` starts and ends
processes and notes what the clients were told; checks.py says whether that was true.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.broker import Broker
from aerobee.broker.config import BrokerConfig
from aerobee.client import (
    ClientConfig,
    ConsumeFrom,
    ConsumerConfig,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
)
from aerobee.errors import AerobeeError
from aerobee.ha.quorum.config import ControllerConfig
from aerobee.ha.quorum.controller import Controller
from aerobee.message import Message
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.simulation.host import Host
from aerobee.store.config import FlushDiskType, StoreConfig
from aerobee.testing.simulated_loop import InlineExecutor, SimulatedClock
from aerobee.testing.simulated_network import SimulatedNetwork

LOCAL = "127.0.0.1"
TOPIC, GROUP, NAME = "orders", "readers", "broker-a"
QUEUES = 2
NAMESERVERS, CONTROLLERS, BROKERS = 2, 3, 3
NAMESERVER_PORT, CONTROLLER_PORT, BROKER_PORT, HA_PORT = 9_876, 9_890, 10_911, 10_912
STEP_MS_MAX = 150  # between two sends of one producer

NAMESERVER_ADDRESSES = ";".join(f"{LOCAL}:{NAMESERVER_PORT + n}" for n in range(NAMESERVERS))
PEERS = ";".join(f"n{n}-{LOCAL}:{CONTROLLER_PORT + n}" for n in range(CONTROLLERS))
CONTROLLER_ADDRESSES = ";".join(f"{LOCAL}:{CONTROLLER_PORT + n}" for n in range(CONTROLLERS))


class Broken(AssertionError):
    """The cluster broke a promise."""


@dataclass(slots=True)
class Sent:
    """What a producer asked for, and what it was told."""

    body: bytes
    at: float
    queue_id: int = -1
    offset: int = -1  # where it lies; -1: not acknowledged
    error: str = ""


@dataclass(slots=True)
class Node:
    """A machine and the process on it, which is None while it is down."""

    host: Host
    index: int
    process: Any = None
    is_paused: bool = False
    starts: int = 0


@dataclass(slots=True)
class Story:
    """What happened, in order, for people. `digest` is the same for the same run."""

    now: Callable[[], float]
    lines: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        self.lines.append(f"{self.now():10.3f}  {text}")


class Cluster:
    """Every process of one seed. Belongs to a SimulatedLoop."""

    def __init__(self, seed: int, clock: SimulatedClock, *, sync_disk: bool) -> None:
        """`sync_disk`: brokers answer when their disk has it (SYNC_FLUSH); then a power loss may hit all of them."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = clock
        self.sync_disk = sync_disk
        self.network = SimulatedNetwork(
            random.Random(self.rng.getrandbits(64)), clock, delay_max_s=0.005, resends=True
        )
        self.story = Story(clock.monotonic)
        self.nameservers = [self._node("nameserver", n) for n in range(NAMESERVERS)]
        self.controllers = [self._node("controller", n) for n in range(CONTROLLERS)]
        self.brokers = [self._node("broker", n) for n in range(BROKERS)]
        self.sent: list[Sent] = []
        self.received: dict[bytes, int] = {}
        self._client_host = Host("clients", rng=self.rng, clock=clock, network=self.network)
        self._tasks: list[asyncio.Task[None]] = []
        self.is_sending = True

    @property
    def nodes(self) -> list[Node]:
        return [*self.nameservers, *self.controllers, *self.brokers]

    def _node(self, kind: str, index: int) -> Node:
        host = Host(f"{kind}-{index}", rng=self.rng, clock=self.clock, network=self.network)
        return Node(host, index)

    # --- processes

    async def start(self) -> None:
        """Start everything and wait for a master."""
        for node in self.nodes:
            await self.start_node(node)
        await self.until(lambda: self.master() is not None, 60, "no master was ever elected")

    async def start_node(self, node: Node) -> None:
        """Start the process of a machine; a start that fails leaves it down, and the story says why."""
        if node.process is not None:
            return
        kind = node.host.name.partition("-")[0]
        make: Callable[[Node], Any] = {
            "nameserver": self._nameserver,
            "controller": self._controller,
            "broker": self._broker,
        }[kind]
        process = make(node)
        try:
            await process.start()
        except (AerobeeError, OSError) as error:
            self.story.tell(f"{node.host.name} does not start: {error}")
            raise
        node.process = process
        node.starts += 1
        self.story.tell(f"{node.host.name} is up")

    def _nameserver(self, node: Node) -> NameServer:
        return NameServer(
            NameServerConfig(listen_port=NAMESERVER_PORT + node.index, bind_address=LOCAL),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
        )

    def _controller(self, node: Node) -> Controller:
        async def at_once(work: Callable[[], Any]) -> Any:
            return work()

        return Controller(
            ControllerConfig(
                controller_d_leger_group="quorum",
                controller_d_leger_peers=PEERS,
                controller_d_leger_self_id=f"n{node.index}",
                controller_store_path="/controller",
                bind_address=LOCAL,
            ),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
            random_numbers=random.Random(self.rng.getrandbits(64)).random,
            runner=at_once,
        )

    def _broker(self, node: Node) -> Broker:
        return Broker(
            BrokerConfig(
                broker_name=NAME,
                broker_ip1=LOCAL,
                bind_address=LOCAL,
                listen_port=BROKER_PORT + 10 * node.index,
                enable_vip_listener=False,
                namesrv_addr=NAMESERVER_ADDRESSES,
                default_topic_queue_nums=QUEUES,
                enable_controller_mode=True,
                controller_addr=CONTROLLER_ADDRESSES,
            ),
            StoreConfig(
                store_path_root_dir="/store",
                mapped_file_size_commit_log=65_536,
                mapped_file_size_consume_queue=2_000,
                max_hash_slot_num=64,
                max_index_num=256,
                commit_log_reserve_bytes=16_384,
                timer_wheel_enable=False,
                ha_listen_port=HA_PORT + 10 * node.index,
                all_ack_in_sync_state_set=True,
                in_sync_replicas=2,
                min_in_sync_replicas=2,
                total_replicas=BROKERS,
                flush_disk_type=FlushDiskType.SYNC_FLUSH if self.sync_disk else FlushDiskType.ASYNC_FLUSH,
            ),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
            executor=InlineExecutor(),
            config_writer=InlineExecutor(),
        )

    async def kill(self, node: Node, *, power: bool) -> None:
        """kill -9, or with `power` a power loss: then nobody is told that the connections are gone."""
        process, node.process = node.process, None
        if process is None:
            return
        self.resume(node)
        self.story.tell(f"{node.host.name} {'loses power' if power else 'is killed'}{self._as_what(process)}")
        node.host.unplug()
        if isinstance(process, Broker):
            await process.kill()
        else:
            await process.stop()
        if power:
            node.host.disk.power_loss()
        else:
            node.host.disk.crash()
            node.host.lose_connections()
        node.host.plug()

    def _as_what(self, process: Any) -> str:
        if isinstance(process, Broker):
            return f" ({process.role.role.value} of epoch {process.role.epoch})"
        return ""

    def pause(self, node: Node) -> None:
        if node.process is not None and not node.is_paused:
            node.is_paused = True
            self.story.tell(f"{node.host.name} is paused{self._as_what(node.process)}")
            node.host.pause()

    def resume(self, node: Node) -> None:
        if node.is_paused:
            node.is_paused = False
            self.story.tell(f"{node.host.name} goes on")
            node.host.resume()

    def master(self) -> Node | None:
        """The node that takes messages now, as it sees itself; None unless there is exactly one."""
        found = [node for node in self.brokers if node.process is not None and node.process.role.takes_writes]
        return found[0] if len(found) == 1 else None

    # --- clients

    def _client(self, name: str) -> dict[str, Any]:
        return {
            "client": ClientConfig(instance=name, client_ip=LOCAL, route_refresh_s=2.0, heartbeat_s=5.0),
            "clock": self._client_host.clock,
            "network": self.network.endpoint(name),
            "random": random.Random(self.rng.getrandbits(32)),
        }

    async def create_topic(self) -> None:
        """Make the topic at the master, and wait until it is known."""
        node = self.master()
        assert node is not None
        await node.process.topics.put_beside([TopicConfig(TOPIC, QUEUES, QUEUES)])

    def begin_clients(self, producers: int = 2) -> None:
        for number in range(producers):
            self._tasks.append(asyncio.create_task(self._produce(number)))
        self._tasks.append(asyncio.create_task(self._consume()))

    async def _produce(self, number: int) -> None:
        rng = random.Random(self.rng.getrandbits(64))
        config = ProducerConfig(send_timeout_s=5.0)
        async with Producer(
            NAMESERVER_ADDRESSES, f"P{number}", config=config, **self._client(f"producer-{number}")
        ) as producer:
            count = 0
            while self.is_sending:
                await self.clock.sleep(rng.uniform(0, STEP_MS_MAX) / 1000)
                count += 1
                sent = Sent(b"%d-%d" % (number, count) + b"x" * rng.randrange(200), self.clock.monotonic())
                self.sent.append(sent)
                try:
                    result = await producer.send(Message(TOPIC, sent.body))
                except AerobeeError as error:
                    sent.error = str(error)
                    continue
                if result.status.value == "SEND_OK":
                    sent.queue_id, sent.offset = result.queue.queue_id, result.queue_offset

    async def _consume(self) -> None:
        def take(message: ReceivedMessage) -> None:
            self.received[message.body] = self.received.get(message.body, 0) + 1

        async def handle(message: ReceivedMessage) -> None:
            take(message)

        async with PushConsumer(
            NAMESERVER_ADDRESSES,
            GROUP,
            subscriptions={TOPIC: "*"},
            handler=handle,
            config=ConsumerConfig(consume_from=ConsumeFrom.FIRST),
            **self._client("consumer"),
        ):
            await asyncio.Event().wait()

    async def end_producers(self) -> None:
        self.is_sending = False
        await asyncio.gather(*self._tasks[:-1])

    async def stop(self) -> None:
        """End what still runs, in any order: nothing is checked any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in self.nodes:
            if node.process is not None:
                await self.kill(node, power=False)

    async def until(self, condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
        """Let simulated time pass until the condition holds. Raises Broken with `otherwise` when it does not."""
        end = self.clock.monotonic() + seconds
        while not condition():
            if self.clock.monotonic() >= end:
                raise Broken(otherwise)
            await self.clock.sleep(0.1)
