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
from aerobee.errors import AerobeeError
from aerobee.ha.quorum.config import ControllerConfig
from aerobee.ha.quorum.controller import Controller
from aerobee.host_port import join_address
from aerobee.nameserver.config import NameServerConfig
from aerobee.nameserver.server import NameServer
from aerobee.remoting.body.topic_config import TopicConfig
from aerobee.remoting.client import RemotingClient, checked
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.clients import Clients
from aerobee.simulation.host import Host
from aerobee.simulation.names import (
    BROKER_PORT,
    BROKERS,
    CONTROLLER_ADDRESSES,
    CONTROLLER_PORT,
    CONTROLLERS,
    HA_PORT,
    LOCAL,
    NAME,
    NAMESERVER_ADDRESSES,
    NAMESERVER_PORT,
    NAMESERVERS,
    PEERS,
    PORT_STEP,
    QUEUES,
    TOPIC,
)
from aerobee.simulation.node import Node, Settings
from aerobee.simulation.watch import WATCH_S, Watch
from aerobee.store.config import BrokerRole, FlushDiskType, StoreConfig
from aerobee.testing.simulated_loop import InlineExecutor, SimulatedClock
from aerobee.testing.simulated_network import SimulatedNetwork

ELECT_TIMEOUT_S = 30.0
CHECK_INTERVAL_MS = 5_000  # between two questions about an open transaction
BEGIN_S = 60.0  # longest until clients of a cluster that has just started send and receive


@dataclass(slots=True)
class Story:
    """What happened, in order, for people. `digest` is the same for the same run."""

    now: Callable[[], float]
    lines: list[str] = field(default_factory=list)

    def tell(self, text: str) -> None:
        self.lines.append(f"{self.now():10.3f}  {text}")


class Cluster:
    """Every process of one seed. Belongs to a SimulatedLoop."""

    def __init__(self, seed: int, clock: SimulatedClock, settings: Settings) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = clock
        self.settings = settings
        self.network = SimulatedNetwork(
            random.Random(self.rng.getrandbits(64)), clock, delay_max_s=0.005, resends=True
        )
        self.story = Story(clock.monotonic)
        self.nameservers = [self._node("nameserver", n) for n in range(NAMESERVERS)]
        self.controllers = [
            self._node("controller", n) for n in range(CONTROLLERS if settings.controllers else 0)
        ]
        self.brokers = [self._node("broker", n) for n in range(BROKERS)]
        self.watch = Watch(self.brokers, settings, clock)
        self.clients = Clients(self.rng, clock, self.network, self.watch.acknowledged)
        self._watching: asyncio.Task[None] | None = None

    @property
    def nodes(self) -> list[Node]:
        return [*self.nameservers, *self.controllers, *self.brokers]

    def reseed(self, seed: int) -> None:
        """Everything that happens from now on comes from this seed."""
        self.seed = seed
        self.rng = random.Random(seed)
        self.network.rng = random.Random(self.rng.getrandbits(64))
        for node in self.nodes:
            node.host.reseed(self.rng)
        self.clients.reseed(self.rng)

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
        has_controllers = self.settings.controllers
        role = (
            BrokerRole.ASYNC_MASTER
            if has_controllers
            else BrokerRole.SLAVE
            if node.index
            else BrokerRole.SYNC_MASTER
        )
        return Broker(
            BrokerConfig(
                broker_name=NAME,
                broker_id=0 if has_controllers else node.index,
                transaction_check_interval=CHECK_INTERVAL_MS,
                broker_ip1=LOCAL,
                bind_address=LOCAL,
                listen_port=BROKER_PORT + PORT_STEP * node.index,
                enable_vip_listener=False,
                namesrv_addr=NAMESERVER_ADDRESSES,
                default_topic_queue_nums=QUEUES,
                enable_controller_mode=has_controllers,
                controller_addr=CONTROLLER_ADDRESSES if has_controllers else "",
            ),
            StoreConfig(
                store_path_root_dir="/store",
                mapped_file_size_commit_log=65_536,
                mapped_file_size_consume_queue=2_000,
                max_hash_slot_num=64,
                max_index_num=256,
                commit_log_reserve_bytes=16_384,
                timer_wheel_enable=self.settings.features,
                mapped_file_size_timer_log=16_384,
                broker_role=role,
                ha_listen_port=HA_PORT + PORT_STEP * node.index,
                all_ack_in_sync_state_set=self.settings.waits_for_replicas and has_controllers,
                in_sync_replicas=2 if self.settings.waits_for_replicas else 1,
                min_in_sync_replicas=2 if self.settings.waits_for_replicas and has_controllers else 1,
                total_replicas=BROKERS,
                flush_disk_type=FlushDiskType.SYNC_FLUSH
                if self.settings.sync_disk
                else FlushDiskType.ASYNC_FLUSH,
            ),
            clock=node.host.clock,
            network=node.host.network,
            disk=node.host.disk,
            executor=node.host.executor,
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
        if power:
            # Before the process ends: a sync that is under way is waited for, and reaches the disk no more.
            node.host.disk.lose_power()
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

    async def end(self, node: Node) -> None:
        """SIGTERM: it ends in order."""
        process, node.process = node.process, None
        if process is not None:
            self.resume(node)
            self.story.tell(f"{node.host.name} is stopped{self._as_what(process)}")
            await process.stop()
            node.host.disk.crash()
            node.host.lose_connections()

    def cut(self, one: Node, other: Node) -> None:
        """Nothing gets from one machine to the other."""
        self.network.cut(one.host.name, other.host.name)

    def open_all(self) -> None:
        """Every way is open again."""
        self.network.mend()
        self.story.tell("every way is open")

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

    async def elect(self, controller: Node, chosen: Node) -> None:
        """Ask a controller for another master, as an operator does. Raises AerobeeError for a refusal."""
        client = RemotingClient(clock=self.clock, network=self.network.endpoint("operator"))
        address = join_address(LOCAL, CONTROLLER_PORT + controller.index)
        port = BROKER_PORT + PORT_STEP * chosen.index
        replicas = controller.process.state.groups[NAME].replicas
        broker_id = next(
            each for each, known in replicas.items() if known.address == join_address(LOCAL, port)
        )
        request = RemotingCommand(
            RequestCode.CONTROLLER_ELECT_MASTER,
            {
                "clusterName": "",
                "brokerName": NAME,
                "brokerId": str(broker_id),
                "designateElect": "true",
            },
        )
        try:
            answer = await client.invoke(address, request, timeout_s=ELECT_TIMEOUT_S)
            checked(answer, address=address, request=RequestCode.CONTROLLER_ELECT_MASTER.name)
        finally:
            await client.close()

    async def create_topic(self, name: str = TOPIC, queues: int = QUEUES) -> None:
        """Make a topic at the master, and wait until it is known."""
        node = self.master()
        assert node is not None
        await node.process.topics.put_beside([TopicConfig(name, queues, queues)])

    def begin(self) -> None:
        """Clients work from now on, and what must hold all the time is watched."""
        self.clients.begin()
        self._watching = asyncio.create_task(self._watch())

    async def get_going(self) -> None:
        """Wait until every client has got something."""
        await self.until(
            lambda: self.clients.have_begun, BEGIN_S, "the clients of a new cluster never got going"
        )

    async def _watch(self) -> None:
        while True:
            await self.clock.sleep(WATCH_S)
            self.watch.look()

    def raise_broken(self) -> None:
        """Raise what was noticed meanwhile."""
        if self.clients.broken is not None:
            raise self.clients.broken
        if self._watching is not None and self._watching.done():
            self._watching.result()

    async def stop(self) -> None:
        """End what still runs, in any order: nothing is checked any more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.clients.stop()
        for node in self.nodes:
            if node.process is not None:
                await self.kill(node, power=False)

    async def until(
        self,
        condition: Callable[[], bool],
        seconds: float,
        otherwise: str,
        *,
        step_s: float = 0.1,
        checker: Checker = Checker.PROGRESS,
    ) -> None:
        """Let simulated time pass until the condition holds. Raises Broken with `otherwise` when it does not, and what was noticed."""
        end = self.clock.monotonic() + seconds
        while not condition():
            self.raise_broken()
            if self.clock.monotonic() >= end:
                raise Broken(checker, otherwise)
            await self.clock.sleep(step_s)
